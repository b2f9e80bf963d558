//! Filters: devices over a device.
//!
//! A filter says in what it differs from the device below. It sees every operation in one place,
//! [`Filter::run`], as a value. One that treats operations differently matches on it without a
//! wildcard, so an operation that is added to the contract does not compile until the filter
//! handles it. [`Filtered`] makes a [`Device`] of a filter, and owns what each has: [`Over`].
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

/// A client's admission, until all clones are dropped. The client's device holds it; if the device
/// below refuses the client, it is dropped.
#[derive(Clone, Default)]
pub struct Admission {
    held: Option<Arc<dyn Any + Send + Sync>>,
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
        Self { held: Some(Arc::new(held)) }
    }

    /// One that calls `leave` when it is given back.
    #[must_use]
    pub fn until(leave: impl FnOnce() + Send + Sync + 'static) -> Self {
        Self::of(Leaving(Some(leave)))
    }

    fn is_free(&self) -> bool {
        self.held.is_none()
    }
}

struct Leaving<F: FnOnce()>(Option<F>);

impl<F: FnOnce()> Drop for Leaving<F> {
    fn drop(&mut self) {
        if let Some(leave) = self.0.take() {
            leave();
        }
    }
}

runtime::debug_as!(Admission);

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

/// What every filter has: the device below, and what is known of the filter over it.
#[derive(Debug)]
pub struct Over {
    /// The filter's facts, with the place that is visible through it. Constant.
    pub info: Info,
    /// The device below. Its edge takes any range inside it.
    pub below: Edge,
    /// Which operations need not come to [`Filter::run`]. Constant.
    pub passes: Passes,
    /// The admission of the client; free for a filter of all clients. It is given back when the
    /// device below is free.
    pub admission: Admission,
}

impl Over {
    /// What `filter` has over `below`.
    pub fn new(filter: &dyn Filter, below: Edge) -> Self {
        let (info, passes, admission) = (Info::over(&below), Passes::Nothing, Admission::free());
        let mut over = Self { info, below, passes, admission };
        filter.describe(&mut over);
        let (at, below) = (over.passes.reads(0), over.below.info());
        over.info.flat = at.and_then(|at| Some(below.flat.as_ref()?.advanced(at)));
        over
    }

    /// Where `offset` lies below, if reads pass.
    fn reads(&self, offset: u64) -> Option<u64> {
        self.passes.reads(offset).filter(|_| offset <= self.info.size)
    }

    /// Where `offset` lies below, if writes pass.
    fn writes(&self, offset: u64) -> Option<u64> {
        self.passes.writes(offset).filter(|_| offset <= self.info.size)
    }

    /// Removes places from a map where reads do not pass: a read from a place would bypass the
    /// filter.
    fn hide_places(&self, extents: &mut [Extent]) {
        if self.passes == Passes::Nothing {
            extents.iter_mut().for_each(|extent| extent.place = None);
        }
    }
}

/// A client that the device below has let in.
#[derive(Debug)]
pub struct Arrival<'a> {
    /// Who it is.
    pub client: &'a Client,
    /// What the client gets from [`Filter::admit`].
    pub admission: Admission,
    /// The client's path to the device below. A filter that sends all clients over one path puts
    /// that here.
    pub below: Edge,
    /// Whether that is a path of its own, and not the one that all clients share.
    pub has_own_path: bool,
}

/// A device over a device. What is not said here is as below: a filter that says nothing changes
/// nothing, but sees all.
pub trait Filter: Send + Sync + 'static {
    /// Says in what its disk differs from the one below, and what need not come to
    /// [`run`](Self::run): changes `over`, where the facts are those of [`Info::over`], and nothing
    /// passes. The same each time.
    fn describe(&self, over: &mut Over) {
        let _ = over;
    }

    /// Runs an operation; `done` is called exactly once, now or later, from any thread. Ranges
    /// are inside the device, on its blocks and no longer than its limits. Must not block, and
    /// must not call a blocking method of the edge below.
    fn run(&self, over: &Over, operation: Operation, done: Done) {
        over.below.submit(operation, done);
    }

    /// The filter of one client; `None`: this one, with its state, serves this client too.
    fn for_client(&self, over: &Over, arrival: &mut Arrival<'_>) -> Option<Arc<dyn Filter>> {
        let _ = (over, arrival);
        None
    }

    /// Admits a client or refuses it, now or later. Called before the device below is asked.
    fn admit(&self, client: &Client, then: Admitted) {
        let _ = client;
        then(Ok(Admission::free()));
    }

    /// Asks the device below for an admitted client; now or later, as [`Session::connect`]. A
    /// filter that connects clients to another name, or once for all of them, does so here.
    fn connect(&self, over: &Over, client: &Client, done: Connected) {
        over.below.device().connect(client, done);
    }

    /// Whether names choose the disk: see [`Session::is_chosen_by_name`]. Constant.
    fn is_chosen_by_name(&self, over: &Over) -> bool {
        over.below.device().is_chosen_by_name()
    }

    /// The names that may be asked for: see [`Session::list`].
    fn list(&self, over: &Over, client: &Client, done: Listed) {
        over.below.device().list(client, done);
    }

    /// The status contexts of clients that come now: see [`Session::further_contexts`].
    fn further_contexts(&self, over: &Over) -> Vec<Arc<str>> {
        over.below.device().further_contexts()
    }

    /// Whether the filter itself reopens what is below: see [`Session::may_return`]. Constant.
    fn reopens(&self) -> bool {
        false
    }

    /// Whether the filter itself keeps bytes of what is below: see [`Session::keeps_bytes`].
    /// Constant.
    fn keeps_bytes(&self) -> bool {
        false
    }

    /// The map of a range, if reads pass and it is known without waiting. A filter that lets reads
    /// pass and changes maps changes them here, too.
    ///
    /// # Errors
    /// As for any map.
    fn resolve_now(
        &self,
        over: &Over,
        (offset, len): (u64, u64),
        max: usize,
        out: &mut Vec<Extent>,
    ) -> Result<bool> {
        let Some(at) = over.reads(offset) else { return Ok(false) };
        let before = out.len();
        let known = over.below.resolve_now(at, len, max, out)?;
        out.iter_mut().skip(before).for_each(|extent| extent.start -= at - offset);
        Ok(known)
    }

    /// Writes at once, if writes pass and that needs no waiting. A filter that only has to know of
    /// a write before it begins lets it pass here.
    ///
    /// # Errors
    /// As for any write.
    fn write_now(&self, over: &Over, offset: u64, data: &[u8], fua: bool) -> Result<bool> {
        match over.writes(offset) {
            // For the filter, a durable write may be more than a write.
            Some(offset) if !fua => over.below.write_now(data, offset, false),
            _ => Ok(false),
        }
    }
}

impl Info {
    /// The facts of a filter over a device that changes nothing.
    #[must_use]
    pub fn over(below: &Edge) -> Self {
        let info = below.info().clone();
        // It may hold operations back, or let one pass at a time.
        let order = if info.order == Order::Any { Order::Any } else { Order::OneByOne };
        // It may store or change what passes, or let it pass slowly: zeroes that are to be written
        // go through it as data, and bytes may have a cost.
        let abilities = Abilities { written_zero: false, near: false, ..info.abilities };
        // It has no lanes of its own, so their number is not limited.
        Self { lanes: None, order, abilities, ..info }
    }

    /// Makes them those of a filter that is to see operations as clients sent them: of any range,
    /// and durable ones as one operation. The edge below adapts them to the device, unless that
    /// takes only whole blocks.
    pub fn observe(&mut self) {
        if !self.abilities.whole_blocks {
            self.blocks.minimum = 1;
        }
        self.blocks.maximum = self.blocks.maximum.max(BlockSizes::ANY.maximum);
        self.abilities.fua |= self.abilities.flush;
        self.abilities.observed = true;
        // It is to see the writes.
        self.abilities.take = false;
    }
}

struct Inner {
    /// Dropped before what it is over.
    filter: Arc<dyn Filter>,
    over: Over,
}

/// A filter as a device.
pub struct Filtered(Arc<Inner>);

impl std::fmt::Debug for Filtered {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Filtered({})", self.0.over.info.name)
    }
}

impl Filtered {
    /// Makes a device of a filter over `below`.
    pub fn device(filter: impl Filter, below: Edge) -> Arc<dyn Device> {
        Self::shared(Arc::new(filter), below)
    }

    /// The same for a filter that others hold, too.
    pub fn shared(filter: Arc<dyn Filter>, below: Edge) -> Arc<dyn Device> {
        Self::over(filter, below, Admission::free())
    }

    fn over(filter: Arc<dyn Filter>, below: Edge, admission: Admission) -> Arc<dyn Device> {
        let over = Over { admission, ..Over::new(&*filter, below) };
        Arc::new(Self(Arc::new(Inner { filter, over })))
    }

    fn below(&self) -> &dyn Device {
        &**self.0.over.below.device()
    }
}

impl Device for Filtered {
    fn info(&self) -> &Info {
        &self.0.over.info
    }

    fn submit(&self, operation: Operation, done: Done) {
        let Inner { filter, over } = &*self.0;
        match operation {
            Operation::Resolve { .. } => {}
            // The writes that replace it come to the filter.
            Operation::Take { .. } if !over.info.abilities.take => {
                return done(Ok(Outcome::Taken(0)));
            }
            other => return filter.run(over, other, done),
        }
        let inner = self.0.clone();
        let then: Done = Box::new(move |mut result| {
            if let Ok(Outcome::Extents(extents)) = &mut result {
                inner.over.hide_places(extents);
            }
            drop(inner);
            done(result);
        });
        filter.run(over, operation, then);
    }

    fn now(&self, now: Now<'_>) -> Result<bool> {
        let Inner { filter, over } = &*self.0;
        match now {
            Now::Read { offset, buffer } => match over.reads(offset) {
                Some(offset) => over.below.read_now(buffer, offset),
                None => Ok(false),
            },
            Now::Resolve { offset, len, max, out } => {
                let before = out.len();
                let known = filter.resolve_now(over, (offset, len), max, out)?;
                over.hide_places(&mut out[before..]);
                Ok(known)
            }
            Now::Write { offset, data, fua } => filter.write_now(over, offset, data, fua),
        }
    }

    fn window(&self, offset: u64, len: usize) -> Option<Window> {
        let over = &self.0.over;
        over.below.window(over.writes(offset)?, len)
    }

    fn session(&self) -> Option<&dyn Session> {
        Some(self)
    }

    fn finish(&self) -> Result<()> {
        self.below().finish()
    }
}

impl Session for Filtered {
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
        self.0.filter.is_chosen_by_name(&self.0.over)
    }

    fn list(&self, client: &Client, done: Listed) {
        self.0.filter.list(&self.0.over, client, done);
    }

    fn further_contexts(&self) -> Vec<Arc<str>> {
        self.0.filter.further_contexts(&self.0.over)
    }

    fn reopen(&self) -> Result<()> {
        self.below().reopen()
    }

    fn reconnects(&self) -> bool {
        self.below().reconnects()
    }

    fn may_return(&self) -> bool {
        self.0.filter.reopens() || self.below().may_return()
    }

    fn keeps_bytes(&self) -> bool {
        self.0.filter.keeps_bytes() || self.below().keeps_bytes()
    }

    fn epoch(&self) -> u64 {
        self.below().epoch()
    }
}

fn connect_below(inner: Arc<Inner>, client: Client, admission: Admission, done: Connected) {
    let (asked, arriving) = (inner.clone(), client.clone());
    let then: Connected = Box::new(move |answer| {
        done(answer.map(|own| device_for(&inner, &client, admission, own)));
    });
    asked.filter.connect(&asked.over, &arriving, then);
}

/// The device of a client that has the path `own` below; `None`: the one for all.
fn device_for(
    Inner { filter, over }: &Inner,
    client: &Client,
    admission: Admission,
    own: Option<Arc<dyn Device>>,
) -> Option<Arc<dyn Device>> {
    let has_own_path = own.is_some();
    let below = own.map_or_else(|| over.below.clone(), |device| over.below.beside(device));
    let mut arrival = Arrival { client, admission, below, has_own_path };
    let personal = filter.for_client(over, &mut arrival);
    let Arrival { admission, below, .. } = arrival;
    let is_alike = personal.is_none() && !has_own_path && admission.is_free();
    let filter = personal.unwrap_or_else(|| filter.clone());
    (!is_alike).then(|| Filtered::over(filter, below, admission))
}
