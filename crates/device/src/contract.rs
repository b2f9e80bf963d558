//! The contract itself: what a device must answer, and what it may leave to the [`Edge`].
//!
//! All methods take `&self` and are called from many threads at once. Ranges that reach a device
//! through the edge are inside it and no longer than its limits. Overlapping operations that are
//! in flight together have no order; otherwise an operation sees all that completed before it.
//!
//! [`Edge`]: crate::Edge

use std::sync::Arc;

use crate::{
    BlockSizes, Client, Connected, Done, Error, Extent, ExtentKind, Lane, Operation, Outcome,
    Place, Result, StatusRun, Window,
};

/// Whether, and for what, an operation may keep its caller waiting.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Wait {
    /// Never: memory and arithmetic only. Any thread may call.
    Never,
    /// For a disk, at times: see [`Device::read_now`]. Call from a thread that may block.
    Disk,
    /// For something outside (a peer, a timer): use [`Device::submit`], which does not block.
    Outside,
}

/// What a device can do, fixed when it is opened. A device that does not have an ability may
/// still be asked: it answers `Unsupported`, and the edge falls back where it safely can.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts, each named in NBD")]
pub struct Abilities {
    /// Writes, zeroes and trims are accepted.
    pub write: bool,
    /// `flush` makes completed writes durable (or there is nothing that could be lost).
    pub flush: bool,
    /// A write may be made durable by itself more cheaply than by a flush of everything.
    pub fua: bool,
    /// `trim` may free room.
    pub trim: bool,
    /// `zero` may be done without sending or writing zeroes as data.
    pub zero: bool,
    /// `zero` with `fast_only` is answered truthfully: done fast, or `NotFast` at once with
    /// nothing written.
    pub fast_zero: bool,
    /// `prefetch` does something.
    pub prefetch: bool,
    /// `take` may do something.
    pub take: bool,
    /// Several connections see each other's writes, and a flush on one covers all (NBD
    /// CAN_MULTI_CONN).
    pub multi_conn: bool,
    /// `resolve` says more than "all of it is data".
    pub extents: bool,
    /// Seeking costs time (a spinning disk).
    pub rotational: bool,
    /// Bytes written are thrown away: nobody needs to look at them on the way (`null`).
    pub discards: bool,
    /// Zero requests are not offered to clients, not even those that would be written as data.
    pub hides_zero: bool,
    /// FUA is not offered to clients, not even made from flush.
    pub hides_fua: bool,
    /// Somebody here is to see operations as clients ask for them: nobody looks up a map on his own
    /// account before he reads.
    pub observed: bool,
}

impl Abilities {
    /// Nothing but reading.
    pub const READ: Self = Self {
        write: false,
        flush: false,
        fua: false,
        trim: false,
        zero: false,
        fast_zero: false,
        prefetch: false,
        take: false,
        multi_conn: true,
        extents: false,
        rotational: false,
        discards: false,
        hides_zero: false,
        hides_fua: false,
        observed: false,
    };
}

/// What is known of a device from the moment it is open.
#[derive(Clone, Debug)]
pub struct Info {
    /// What people call it: a path, a URI, `memory:1G`. Used in messages.
    pub name: String,
    /// A sentence for NBD_INFO_DESCRIPTION; may be empty.
    pub description: String,
    /// Size in bytes, at most 2^63-1.
    pub size: u64,
    /// How it likes to be used.
    pub blocks: BlockSizes,
    /// What it can do.
    pub abilities: Abilities,
    /// Whether operations keep their caller waiting.
    pub wait: Wait,
    /// Block sizes to tell clients instead of those that follow from `blocks`. Nobody enforces
    /// them but the device that says so.
    pub advertised: Option<BlockSizes>,
    /// Status contexts besides `base:allocation`, which is what `resolve` tells: dirty bitmaps,
    /// say. Names as NBD has them.
    pub contexts: Vec<Arc<str>>,
}

/// How a range is to be zeroed (NBD_CMD_WRITE_ZEROES).
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct ZeroFlags {
    /// The range may become a hole. Otherwise it stays, or becomes, allocated.
    pub may_unmap: bool,
    /// Do it only if it is known beforehand to be faster than writing zeroes; otherwise
    /// `NotFast`, at once, with nothing changed.
    pub fast_only: bool,
    /// Be durable before answering.
    pub fua: bool,
}

/// A disk.
pub trait Device: Send + Sync {
    /// What is known of it. Constant.
    fn info(&self) -> &Info;

    /// Fills `buf` from `offset`.
    ///
    /// # Errors
    /// Whatever prevents *all* of `buf` from being filled; its contents are then undefined.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()>;

    /// Like `read_at`, but answers `Ok(false)`, having done nothing that matters, when it would
    /// have to wait for a disk. Only asked of devices that say [`Wait::Disk`].
    ///
    /// False may also mean that somebody holds the file's lock (a long zero or trim, a write that
    /// is throttled), whatever the cache holds. Sending from the place would wait for the same
    /// lock, and hand out pages that are being changed: after a false the read belongs on a
    /// thread that may block, and is never sent from its place, even where [`Device::is_hot`].
    ///
    /// # Errors
    /// As for `read_at`.
    fn read_now(&self, _buf: &mut [u8], _offset: u64) -> Result<bool> {
        Ok(false)
    }

    /// Writes `data` at `offset`; durable on return if `fua`.
    ///
    /// # Errors
    /// Whatever prevents all of it from being written; the range is then undefined.
    fn write_at(&self, data: &[u8], offset: u64, fua: bool) -> Result<()>;

    /// Like `write_at` without `fua`, but answers `Ok(false)` when it would have to wait. Part of
    /// `data` may have been written then: the caller writes all of it again.
    ///
    /// # Errors
    /// As for `write_at`.
    fn write_now(&self, data: &[u8], offset: u64) -> Result<bool> {
        let _ = (data, offset);
        Ok(false)
    }

    /// Makes a range read as zeroes without being sent zeroes.
    ///
    /// # Errors
    /// `Unsupported`: nothing was changed and the edge writes zeroes instead. `NotFast`: as in
    /// [`ZeroFlags::fast_only`].
    fn zero(&self, offset: u64, len: u64, flags: ZeroFlags) -> Result<()> {
        let _ = (offset, len);
        Err(if flags.fast_only { Error::not_fast() } else { Error::unsupported("zero") })
    }

    /// The longest zero or trim, in bytes, that is one request to whoever does it in the end.
    /// Longer ones are done in pieces, one after the other; who wants them done side by side, or
    /// counts requests, cuts them itself.
    fn longest_effect(&self) -> u64 {
        u64::MAX
    }

    /// Says that a range is no longer needed; what it reads as afterwards is undefined. A hint:
    /// a device without the means succeeds without doing anything.
    ///
    /// # Errors
    /// Only real failures.
    fn trim(&self, offset: u64, len: u64, fua: bool) -> Result<()> {
        let _ = (offset, len);
        if fua { self.flush() } else { Ok(()) }
    }

    /// Makes everything durable whose completion was reported before the call.
    ///
    /// # Errors
    /// What the system says; after an error nothing can be assumed durable.
    fn flush(&self) -> Result<()>;

    /// Whoever fills the disk from end to end has written the last byte, and a flush follows, if
    /// one is wanted. What was put off until now is done (a length, say), and what the system
    /// says only at the end is asked for. Called once, and not after a failure.
    ///
    /// # Errors
    /// What was written may be lost, or is not all that was to be done.
    fn finish(&self) -> Result<()> {
        Ok(())
    }

    /// Brings a range closer, if that means anything here. A hint.
    ///
    /// # Errors
    /// Only real failures.
    fn prefetch(&self, offset: u64, len: u64) -> Result<()> {
        let _ = (offset, len);
        Ok(())
    }

    /// Says what `len` bytes from `offset` hold: appends to `out` adjoining extents that begin
    /// at `offset`, end at or before `offset + len`, cover at least one byte, and are at most
    /// `max` (≥ 1) in number. The cost must not grow with `len`, only with what is appended.
    ///
    /// # Errors
    /// What the system says. A device in doubt says `Data`, never a hole.
    fn resolve(&self, offset: u64, len: u64, max: usize, out: &mut Vec<Extent>) -> Result<()> {
        let _ = max;
        out.push(Extent::new(offset, len, ExtentKind::Data).at(self.place(offset)));
        Ok(())
    }

    /// Like `resolve`, but only from what is known without waiting for anything; otherwise answers
    /// `Ok(false)` and appends nothing.
    ///
    /// # Errors
    /// As for `resolve`.
    fn resolve_now(
        &self,
        offset: u64,
        len: u64,
        max: usize,
        out: &mut Vec<Extent>,
    ) -> Result<bool> {
        let _ = (offset, len, max, out);
        Ok(false)
    }

    /// Says what `len` bytes from `offset` are in the status context `context`, one of
    /// [`Info::contexts`]: appends to `out` at least one run and at most `max` (≥ 1), of which the
    /// first begins at `offset`, each other where the one before it ends, and none ends after
    /// `offset + len`.
    ///
    /// # Errors
    /// There is no such context; what the system says.
    fn status(
        &self,
        context: &str,
        offset: u64,
        len: u64,
        max: usize,
        out: &mut Vec<StatusRun>,
    ) -> Result<()> {
        let _ = (offset, len, max, out);
        Err(Error::unsupported(format!("status: there is no context `{context}`")))
    }

    /// Makes a range the bytes that lie at `from`, without moving them through this program: by
    /// sharing them, or else, unless `share_only`, copied by the system. Says how many from the
    /// start were, no more than `len`; each of the others is what it was or what it was to become.
    /// 0 also when it is not to be had at all: whoever wants them there reads and writes, which
    /// says what is wrong.
    ///
    /// What is taken are the bytes, whatever map they have: a hole may become data, and data of
    /// zeroes a hole.
    ///
    /// # Errors
    /// Some of the range may have been changed.
    fn take(&self, offset: u64, len: u64, from: &Place, share_only: bool) -> Result<u64> {
        let _ = (offset, len, from, share_only);
        Ok(0)
    }

    /// Where `offset` lies, if all of the device lies as it is in one open file from there on
    /// (holes included). Lets bytes be served without resolving.
    fn place(&self, offset: u64) -> Option<Place> {
        let _ = offset;
        None
    }

    /// Where bytes written to `offset` may be put directly: all of the device from there on lies
    /// as it is in one open, writable file, and the device need not be told (it keeps nothing in
    /// memory that a write would change). Lets bytes be copied from file to file by the kernel.
    /// Unlike [`Device::place`] this is never somebody else's file below an overlay; a filter
    /// that does not say otherwise has none, so nothing passes it by.
    fn write_place(&self, offset: u64) -> Option<Place> {
        let _ = offset;
        None
    }

    /// The device's own memory for `len` bytes at `offset`, if they can be received there without
    /// waiting and are then written, with nothing more to do: bytes that have arrived are on the
    /// disk, also when the rest never comes. `None` also when a copy would cost less.
    fn window(&self, offset: u64, len: usize) -> Option<Window> {
        let _ = (offset, len);
        None
    }

    /// Whether `len` bytes from `offset` can be taken from their place without waiting for a
    /// disk or for a lock. In doubt, no. True only for the moment: who sends later asks again.
    fn is_hot(&self, offset: u64, len: u64) -> bool {
        let _ = (offset, len);
        self.info().wait == Wait::Never
    }

    /// Starts an operation and returns at once; `done` is called exactly once, from any thread,
    /// possibly before this returns. Devices that wait for something outside implement this; for
    /// the others the edge provides it from the blocking face.
    fn submit(&self, operation: Operation, done: Done) {
        done(run(self, operation));
    }

    /// A thread's private path for bulk work, if the device has something better to offer than
    /// its blocking face (a connection of its own, say). Up to [`Device::lanes`] at a time.
    ///
    /// # Errors
    /// What prevents it from being opened.
    fn lane(&self) -> Result<Option<Box<dyn Lane>>> {
        Ok(None)
    }

    /// How many lanes are useful at the same time; 0 means as many as one likes.
    fn lanes(&self) -> usize {
        0
    }

    /// A client of a server has chosen this device. Answers, now or later and from any thread,
    /// with a device for this client alone, or with `None` when one serves all alike. Dropping
    /// what was given says that the client has gone. Must not block: the caller is a reactor.
    ///
    /// The error, if there is one, is the refusal that the client gets to see.
    fn connect(&self, client: &Client, done: Connected) {
        let _ = client;
        done(Ok(None));
    }

    /// Makes anew whatever is broken in the path to the outside (a connection, say). Operations
    /// that were under way have failed already. May block.
    ///
    /// # Errors
    /// It is still broken, or what is there now is not the same disk.
    fn reopen(&self) -> Result<()> {
        Ok(())
    }

    /// Grows whenever a broken path to the outside has been made anew, before anything goes over
    /// the new one: who answers there may have forgotten what was answered before and had not been
    /// made durable. A flush vouches only for what was answered in its own epoch.
    fn epoch(&self) -> u64 {
        0
    }
}

/// Runs an operation through the blocking face.
pub(crate) fn run<D: Device + ?Sized>(device: &D, operation: Operation) -> Result<Outcome> {
    match operation {
        Operation::Read { offset, mut buffer } => {
            device.read_at(&mut buffer, offset)?;
            Ok(Outcome::Read(buffer))
        }
        Operation::Write { offset, data, fua } => {
            device.write_at(&data, offset, fua)?;
            Ok(Outcome::Done)
        }
        Operation::Zero { offset, len, flags } => {
            device.zero(offset, len, flags).map(|()| Outcome::Done)
        }
        Operation::Trim { offset, len, fua } => {
            device.trim(offset, len, fua).map(|()| Outcome::Done)
        }
        Operation::Flush => device.flush().map(|()| Outcome::Done),
        Operation::Prefetch { offset, len } => device.prefetch(offset, len).map(|()| Outcome::Done),
        Operation::Resolve { offset, len, max } => {
            let mut extents = Vec::new();
            device.resolve(offset, len, max, &mut extents)?;
            Ok(Outcome::Extents(extents))
        }
        Operation::Status { context, offset, len, max } => {
            let mut runs = Vec::new();
            device.status(&context, offset, len, max, &mut runs)?;
            Ok(Outcome::Status(runs))
        }
        Operation::Take { offset, len, from, share_only } => {
            device.take(offset, len, &from, share_only).map(Outcome::Taken)
        }
    }
}
