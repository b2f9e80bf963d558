//! Filters: devices over a device.
//!
//! A filter sees every operation in one place, [`Filter::run`], as a value. It matches on it
//! without a wildcard, so an operation that is added to the contract does not compile until every
//! filter handles it. [`Filtered`] makes a [`Device`] of it.
//!
//! Nothing of the device below (place, window, lane) is visible unless the filter says what passes
//! it ([`Passes`]). A filter never blocks; what it waits for (a timer, the device below) completes
//! it later.

use std::any::Any;
use std::sync::Arc;

use crate::{
    Abilities, BlockSizes, Client, Connected, Device, Done, Edge, Extent, Info, Listed, Now,
    Operation, Order, Outcome, Result, Session, Window,
};

/// A client's admission, until all clones are dropped. It is handed to the client's own filter; if
/// the device below refuses the client, it is dropped.
#[derive(Clone, Default)]
pub struct Admission {
    _held: Option<Arc<dyn Any + Send + Sync>>,
}

impl Admission {
    /// One without a limit.
    #[must_use]
    pub fn free() -> Self {
        Self::default()
    }

    /// One that is given back when `held` is dropped.
    #[must_use]
    pub fn of(held: impl Any + Send + Sync) -> Self {
        Self { _held: Some(Arc::new(held)) }
    }
}

impl std::fmt::Debug for Admission {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Admission")
    }
}

/// Called once with a client's admission, or with the reason why it is refused.
pub type Admitted = Box<dyn FnOnce(Result<Admission>) + Send>;

/// What may pass a filter unseen. In the device below, offsets are larger by `shift` bytes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Passes {
    /// Nothing: each operation is the filter's.
    Nothing,
    /// Reads: the bytes are those below, and the filter need not see reads.
    Reads {
        /// Bytes.
        shift: u64,
    },
    /// Reads, and writes without FUA.
    All {
        /// Bytes.
        shift: u64,
    },
}

impl Passes {
    /// All, at the offsets below.
    pub const ALL: Self = Self::All { shift: 0 };
    /// Reads, at the offsets below.
    pub const READS: Self = Self::Reads { shift: 0 };

    fn reads(self, offset: u64) -> Option<u64> {
        match self {
            Self::Nothing => None,
            Self::Reads { shift } | Self::All { shift } => offset.checked_add(shift),
        }
    }

    fn writes(self, offset: u64) -> Option<u64> {
        match self {
            Self::Nothing | Self::Reads { .. } => None,
            Self::All { shift } => offset.checked_add(shift),
        }
    }
}

/// A device over a device.
pub trait Filter: Send + Sync + Sized + 'static {
    /// What is known of it, usually [`Info::over`] with some changes. Constant.
    fn info(&self) -> &Info;

    /// The device below. Its edge takes any range inside it.
    fn below(&self) -> &Edge;

    /// Runs an operation; `done` is called exactly once, now or later, from any thread. Ranges
    /// are inside the device, on its blocks and no longer than its limits. Must not block, and
    /// must not call a blocking method of the edge below.
    fn run(&self, operation: Operation, done: Done);

    /// The same filter, with the same state where it has state, over `below`, for one client, which
    /// has this `admission`.
    #[must_use]
    fn for_client(&self, below: Edge, client: &Client, admission: Admission) -> Self;

    /// Whether each client needs a filter of its own even when the device below serves all alike.
    fn is_personal(&self) -> bool {
        false
    }

    /// Admits a client or refuses it, now or later. Called before the device below is asked.
    fn admit(&self, client: &Client, then: Admitted) {
        let _ = client;
        then(Ok(Admission::free()));
    }

    /// Asks the device below for an admitted client; now or later, as [`Session::connect`]. A filter that connects
    /// clients to another name, or once for all of them, does so here.
    fn connect(&self, client: &Client, done: Connected) {
        self.below().device().connect(client, done);
    }

    /// Whether names choose the disk: see [`Session::is_chosen_by_name`]. Constant.
    fn is_chosen_by_name(&self) -> bool {
        self.below().device().is_chosen_by_name()
    }

    /// Whether the filter itself reopens what is below: see [`Session::may_return`]. Constant.
    fn reopens(&self) -> bool {
        false
    }

    /// Whether the filter itself keeps bytes of what is below: see [`Session::keeps_bytes`]. Constant.
    fn keeps_bytes(&self) -> bool {
        false
    }

    /// The names that may be asked for: see [`Session::list`].
    fn list(&self, client: &Client, done: Listed) {
        self.below().device().list(client, done);
    }

    /// Which operations need not come to [`Filter::run`]. Constant.
    fn passes(&self) -> Passes {
        Passes::Nothing
    }

    /// The map of a range, if reads pass and it is known without waiting. A filter that lets reads
    /// pass and changes maps changes them here, too.
    ///
    /// # Errors
    /// As for any map.
    fn resolve_now(
        &self,
        offset: u64,
        len: u64,
        max: usize,
        out: &mut Vec<Extent>,
    ) -> Result<bool> {
        let Some(at) = reads(self, offset) else { return Ok(false) };
        let before = out.len();
        let known = self.below().resolve_now(at, len, max, out)?;
        out.iter_mut().skip(before).for_each(|extent| extent.start -= at - offset);
        Ok(known)
    }
}

impl Info {
    /// The facts of a filter over a device that changes nothing.
    #[must_use]
    pub fn over(below: &Edge) -> Self {
        let info = below.info().clone();
        // It may hold operations back, or let one pass at a time.
        let order = if info.order == Order::Any { Order::Any } else { Order::OneByOne };
        // It may store or change what passes: zeroes that are to be written go through it as data.
        let abilities = Abilities { written_zero: false, ..info.abilities };
        // It has no lanes of its own, so their number is not limited.
        Self { lanes: None, order, abilities, ..info }
    }

    /// The facts of a filter that is to see operations as clients sent them: of any range, and
    /// durable ones as one operation. The edge below adapts them to the device, unless that takes
    /// only whole blocks.
    #[must_use]
    pub fn observing(below: &Edge) -> Self {
        let mut info = Self::over(below);
        if !info.abilities.whole_blocks {
            info.blocks.minimum = 1;
        }
        info.blocks.maximum = info.blocks.maximum.max(BlockSizes::ANY.maximum);
        info.abilities.fua |= info.abilities.flush;
        info.abilities.observed = true;
        // It is to see the writes.
        info.abilities.take = false;
        info
    }
}

struct Inner<F> {
    filter: F,
    /// The filter's facts, with the place that is visible through it.
    info: Info,
}

/// A filter as a device.
pub struct Filtered<F>(Arc<Inner<F>>);

impl<F: Filter> std::fmt::Debug for Filtered<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Filtered({})", self.0.info.name)
    }
}

impl<F: Filter> Filtered<F> {
    /// Makes a device of a filter.
    pub fn device(filter: F) -> Arc<dyn Device> {
        let below = filter.below().info();
        let flat = reads(&filter, 0).and_then(|at| Some(below.flat.as_ref()?.advanced(at)));
        let info = Info { flat, ..filter.info().clone() };
        Arc::new(Self(Arc::new(Inner { filter, info })))
    }
}

/// Where `offset` lies below, if reads pass.
fn reads<F: Filter>(filter: &F, offset: u64) -> Option<u64> {
    filter.passes().reads(offset).filter(|_| offset <= filter.info().size)
}

/// Where `offset` lies below, if writes pass.
fn writes<F: Filter>(filter: &F, offset: u64) -> Option<u64> {
    filter.passes().writes(offset).filter(|_| offset <= filter.info().size)
}

/// Removes places from a map where reads do not pass: a read from a place would bypass the filter.
fn hide_places<F: Filter>(filter: &F, extents: &mut [Extent]) {
    if filter.passes() == Passes::Nothing {
        extents.iter_mut().for_each(|extent| extent.place = None);
    }
}

impl<F: Filter> Device for Filtered<F> {
    fn info(&self) -> &Info {
        &self.0.info
    }

    fn submit(&self, operation: Operation, done: Done) {
        let Operation::Resolve { .. } = &operation else {
            return self.0.filter.run(operation, done);
        };
        let inner = self.0.clone();
        let then: Done = Box::new(move |mut result| {
            if let Ok(Outcome::Extents(extents)) = &mut result {
                hide_places(&inner.filter, extents);
            }
            done(result);
        });
        self.0.filter.run(operation, then);
    }

    fn now(&self, now: Now<'_>) -> Result<bool> {
        let filter = &self.0.filter;
        match now {
            Now::Read { offset, buffer } => match reads(filter, offset) {
                Some(offset) => filter.below().read_now(buffer, offset),
                None => Ok(false),
            },
            Now::Resolve { offset, len, max, out } => {
                let before = out.len();
                let known = filter.resolve_now(offset, len, max, out)?;
                hide_places(filter, &mut out[before..]);
                Ok(known)
            }
            Now::Write { offset, data, fua } => match writes(filter, offset) {
                // For the filter, a durable write may be more than a write.
                Some(offset) if !fua => filter.below().write_now(data, offset, false),
                _ => Ok(false),
            },
        }
    }

    fn window(&self, offset: u64, len: usize) -> Option<Window> {
        self.0.filter.below().window(writes(&self.0.filter, offset)?, len)
    }

    fn session(&self) -> Option<&dyn Session> {
        Some(self)
    }

    fn finish(&self) -> Result<()> {
        self.0.filter.below().device().finish()
    }
}

impl<F: Filter> Session for Filtered<F> {
    fn connect(&self, client: &Client, done: Connected) {
        let (inner, arriving) = (self.0.clone(), client.clone());
        self.0.filter.admit(
            client,
            Box::new(move |admitted| match admitted {
                Err(e) => done(Err(e)),
                Ok(admission) => connect_below(inner, arriving, admission, done),
            }),
        );
    }

    fn is_chosen_by_name(&self) -> bool {
        self.0.filter.is_chosen_by_name()
    }

    fn list(&self, client: &Client, done: Listed) {
        self.0.filter.list(client, done);
    }

    fn reopen(&self) -> Result<()> {
        self.0.filter.below().device().reopen()
    }

    fn reconnects(&self) -> bool {
        self.0.filter.below().device().reconnects()
    }

    fn may_return(&self) -> bool {
        self.0.filter.reopens() || self.0.filter.below().device().may_return()
    }

    fn keeps_bytes(&self) -> bool {
        self.0.filter.keeps_bytes() || self.0.filter.below().device().keeps_bytes()
    }

    fn epoch(&self) -> u64 {
        self.0.filter.below().device().epoch()
    }
}

fn connect_below<F: Filter>(
    inner: Arc<Inner<F>>,
    client: Client,
    admission: Admission,
    done: Connected,
) {
    let (asked, arriving) = (inner.clone(), client.clone());
    let then: Connected = Box::new(move |answer| {
        let filter = &inner.filter;
        done(answer.map(|own| match own {
            None if !filter.is_personal() => None,
            own => {
                let below = filter.below();
                let below = own.map_or_else(|| below.clone(), |device| below.beside(device));
                Some(Filtered::device(filter.for_client(below, &client, admission)))
            }
        }));
    });
    asked.filter.connect(&arriving, then);
}
