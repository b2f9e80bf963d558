//! Filters: devices over a device.
//!
//! A filter sees every operation in one place, [`Filter::run`], as a value. It matches on it
//! without a wildcard, so an operation that is added to the contract does not compile until every
//! filter has said what it does with it. [`Filtered`] makes a [`Device`] of it, both faces.
//!
//! Nothing of the device below shows through unless the filter says what passes it ([`Passes`]): no
//! place, no window, no lane. A filter never blocks; what it waits for (a timer, the device below)
//! completes it later.

use std::any::Any;
use std::sync::Arc;

use crate::{
    BlockSizes, Buffer, Client, Connected, Device, Done, Edge, Error, ErrorKind, Extent, Fault,
    Info, Operation, Outcome, Place, Result, StatusRun, Wait, Window, ZeroFlags,
};

/// A client's right to be here, until all of it is dropped. The filter that gave it gets it back for
/// the client's own filter; if the device below refuses the client, nobody has it any more.
#[derive(Clone, Default)]
pub struct Seat {
    _held: Option<Arc<dyn Any + Send + Sync>>,
}

impl Seat {
    /// One of any number.
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

impl std::fmt::Debug for Seat {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Seat")
    }
}

/// Called once with a client's seat, or with why it is not let in.
pub type Admitted = Box<dyn FnOnce(Result<Seat>) + Send>;

/// What may pass a filter unseen. What does lies below at offsets that are larger by `shift` bytes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Passes {
    /// Nothing: each operation is the filter's.
    Nothing,
    /// Reads: the bytes are those below, and nobody needs to see who reads them.
    Reads {
        /// Bytes.
        shift: u64,
    },
    /// Reads, and writes that need not be durable before they are answered.
    All {
        /// Bytes.
        shift: u64,
    },
}

impl Passes {
    /// All, at the offsets where it lies.
    pub const ALL: Self = Self::All { shift: 0 };
    /// Reads, at the offsets where it lies.
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

    /// The same filter, with the same state where it has state, over `below`, for one client, who
    /// has this `seat`.
    #[must_use]
    fn for_client(&self, below: Edge, client: &Client, seat: Seat) -> Self;

    /// Whether each client needs a filter of its own even when the device below serves all alike.
    fn is_personal(&self) -> bool {
        false
    }

    /// Lets a client in, or not, now or later. Asked before the device below is.
    fn admit(&self, client: &Client, then: Admitted) {
        let _ = client;
        then(Ok(Seat::free()));
    }

    /// What need not come to [`Filter::run`]. Constant.
    fn passes(&self) -> Passes {
        Passes::Nothing
    }

    /// See [`Device::resolve_now`]. A filter that lets reads pass and changes maps says what it
    /// does here too.
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

    /// See [`Device::longest_effect`].
    fn longest_effect(&self) -> u64 {
        self.below().device().longest_effect()
    }
}

impl Info {
    /// What a filter over a device says of itself when it changes nothing. A filter over a device
    /// that may wait is one that waits for something outside: it holds no thread.
    #[must_use]
    pub fn over(below: &Edge) -> Self {
        let wait = match below.info().wait {
            Wait::Never => Wait::Never,
            Wait::Disk | Wait::Outside => Wait::Outside,
        };
        Self { wait, ..below.info().clone() }
    }

    /// What a filter says of itself that is to see operations as they are asked for: of any range,
    /// and durable ones as one operation. The edge below does what the device below needs. A
    /// server looks up no extents on its own account before it reads from it.
    #[must_use]
    pub fn observing(below: &Edge) -> Self {
        let mut info = Self { wait: Wait::Outside, ..below.info().clone() };
        info.blocks.minimum = 1;
        info.blocks.maximum = info.blocks.maximum.max(BlockSizes::ANY.maximum);
        info.abilities.fua |= info.abilities.flush;
        info.abilities.observed = true;
        info
    }
}

/// A filter as a device.
#[derive(Clone)]
pub struct Filtered<F>(Arc<F>);

impl<F> std::fmt::Debug for Filtered<F>
where
    F: Filter,
{
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Filtered({})", self.0.info().name)
    }
}

impl<F: Filter> Filtered<F> {
    /// Makes a device of a filter.
    pub fn device(filter: F) -> Arc<dyn Device> {
        Arc::new(Self(Arc::new(filter)))
    }
}

/// The blocking face, from the other one.
fn wait_for<F: Filter>(filter: &F, operation: Operation) -> Result<Outcome> {
    crate::edge::wait_for(|done| filter.run(operation, done))
}

fn read_through<F: Filter>(filter: &F, buf: &mut [u8], offset: u64) -> Result<()> {
    let buffer = Buffer::zeroed(buf.len());
    match wait_for(filter, Operation::Read { offset, buffer })? {
        Outcome::Read(read) if read.len() == buf.len() => {
            buf.copy_from_slice(&read);
            Ok(())
        }
        _ => Err(confused()),
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

/// Takes the places out of a map where reads do not pass: what is read from a place is read past
/// the filter.
fn hide_places<F: Filter>(filter: &F, extents: &mut [Extent]) {
    if filter.passes() == Passes::Nothing {
        extents.iter_mut().for_each(|extent| extent.place = None);
    }
}

fn confused() -> Error {
    let action = "the filter gave an answer that makes no sense; this is a defect";
    Error::new(ErrorKind::Io, Fault::Us, action)
}

impl<F: Filter> Device for Filtered<F> {
    fn info(&self) -> &Info {
        self.0.info()
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        match reads(&*self.0, offset) {
            Some(offset) => self.0.below().read(buf, offset),
            None => read_through(&*self.0, buf, offset),
        }
    }

    fn read_now(&self, buf: &mut [u8], offset: u64) -> Result<bool> {
        match reads(&*self.0, offset) {
            Some(offset) => self.0.below().read_now(buf, offset),
            None => Ok(false),
        }
    }

    fn write_now(&self, data: &[u8], offset: u64) -> Result<bool> {
        match writes(&*self.0, offset) {
            Some(offset) => self.0.below().write_now(data, offset),
            None => Ok(false),
        }
    }

    fn write_at(&self, data: &[u8], offset: u64, fua: bool) -> Result<()> {
        let data = Buffer::copy_of(data).into();
        wait_for(&*self.0, Operation::Write { offset, data, fua }).map(drop)
    }

    fn zero(&self, offset: u64, len: u64, flags: ZeroFlags) -> Result<()> {
        wait_for(&*self.0, Operation::Zero { offset, len, flags }).map(drop)
    }

    fn trim(&self, offset: u64, len: u64, fua: bool) -> Result<()> {
        wait_for(&*self.0, Operation::Trim { offset, len, fua }).map(drop)
    }

    fn flush(&self) -> Result<()> {
        wait_for(&*self.0, Operation::Flush).map(drop)
    }

    fn finish(&self) -> Result<()> {
        self.0.below().device().finish()
    }

    fn prefetch(&self, offset: u64, len: u64) -> Result<()> {
        wait_for(&*self.0, Operation::Prefetch { offset, len }).map(drop)
    }

    fn resolve(&self, offset: u64, len: u64, max: usize, out: &mut Vec<Extent>) -> Result<()> {
        match wait_for(&*self.0, Operation::Resolve { offset, len, max })? {
            Outcome::Extents(mut extents) => {
                hide_places(&*self.0, &mut extents);
                out.append(&mut extents);
                Ok(())
            }
            _ => Err(confused()),
        }
    }

    fn resolve_now(
        &self,
        offset: u64,
        len: u64,
        max: usize,
        out: &mut Vec<Extent>,
    ) -> Result<bool> {
        self.0.resolve_now(offset, len, max, out)
    }

    fn status(
        &self,
        context: &str,
        offset: u64,
        len: u64,
        max: usize,
        out: &mut Vec<StatusRun>,
    ) -> Result<()> {
        let operation = Operation::Status { context: context.into(), offset, len, max };
        match wait_for(&*self.0, operation)? {
            Outcome::Status(mut runs) => {
                out.append(&mut runs);
                Ok(())
            }
            _ => Err(confused()),
        }
    }

    fn take(&self, offset: u64, len: u64, from: &Place, share_only: bool) -> Result<u64> {
        match wait_for(&*self.0, Operation::Take { offset, len, from: from.clone(), share_only })? {
            Outcome::Taken(taken) => Ok(taken),
            _ => Err(confused()),
        }
    }

    fn place(&self, offset: u64) -> Option<Place> {
        self.0.below().device().place(reads(&*self.0, offset)?)
    }

    fn write_place(&self, offset: u64) -> Option<Place> {
        self.0.below().device().write_place(writes(&*self.0, offset)?)
    }

    fn window(&self, offset: u64, len: usize) -> Option<Window> {
        self.0.below().window(writes(&*self.0, offset)?, len)
    }

    fn is_hot(&self, offset: u64, len: u64) -> bool {
        match reads(&*self.0, offset) {
            Some(offset) => self.0.below().device().is_hot(offset, len),
            None => self.0.info().wait == Wait::Never,
        }
    }

    fn longest_effect(&self) -> u64 {
        self.0.longest_effect()
    }

    fn submit(&self, operation: Operation, done: Done) {
        let Operation::Resolve { .. } = &operation else { return self.0.run(operation, done) };
        let filter = self.0.clone();
        let then: Done = Box::new(move |mut result| {
            if let Ok(Outcome::Extents(extents)) = &mut result {
                hide_places(&*filter, extents);
            }
            done(result);
        });
        self.0.run(operation, then);
    }

    fn connect(&self, client: &Client, done: Connected) {
        let (filter, who) = (self.0.clone(), client.clone());
        self.0.admit(
            client,
            Box::new(move |admitted| match admitted {
                Err(e) => done(Err(e)),
                Ok(seat) => connect_below(filter, who, seat, done),
            }),
        );
    }

    fn reopen(&self) -> Result<()> {
        self.0.below().device().reopen()
    }

    fn epoch(&self) -> u64 {
        self.0.below().device().epoch()
    }
}

fn connect_below<F: Filter>(filter: Arc<F>, client: Client, seat: Seat, done: Connected) {
    let below = filter.below().clone();
    let device = below.device().clone();
    let who = client.clone();
    let then: Connected = Box::new(move |answer| {
        done(answer.map(|own| match own {
            None if !filter.is_personal() => None,
            own => {
                let below = own.map_or_else(|| below.clone(), |device| below.beside(device));
                Some(Filtered::device(filter.for_client(below, &client, seat)))
            }
        }));
    });
    device.connect(&who, then);
}
