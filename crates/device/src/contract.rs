//! The contract itself: what a device is to the rest of the program.
//!
//! Whether something can be done without waiting depends on the operation and the moment, not on
//! the device. So every device is asked in the same two ways: [`Device::now`], which does it here
//! and at once or not at all, and [`Device::submit`], which never blocks and completes later if it
//! must. What never changes is in [`Info`].
//!
//! All methods take `&self` and are called from many threads at once. Ranges that reach a device
//! through the [`Edge`] are inside it, on its blocks and no longer than its limits. Overlapping
//! operations that are in flight together have no order; otherwise an operation sees all that
//! completed before it.
//!
//! [`Edge`]: crate::Edge

use std::num::NonZeroUsize;
use std::sync::Arc;

use crate::{
    BlockSizes, Client, Done, Error, ErrorKind, Extent, Fault, Granules, Lane, Operation, Place,
    Result, Window,
};

/// What a device can do, fixed when it is opened. A device without an ability may still be asked:
/// it returns `Unsupported`, and the edge falls back where that is safe.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts, each named in NBD")]
pub struct Abilities {
    /// Writes, zeroes and trims are accepted.
    pub write: bool,
    /// `flush` makes completed writes durable (or nothing could be lost).
    pub flush: bool,
    /// A write may be made durable by itself more cheaply than by a flush of everything.
    pub fua: bool,
    /// `trim` may free room. A device without it is not asked to.
    pub trim: bool,
    /// `zero` may be done without sending or writing zeroes as data.
    pub zero: bool,
    /// `zero` with `fast_only` keeps its promise: done fast, or `NotFast` at once with nothing
    /// written.
    pub fast_zero: bool,
    /// `zero` with `written` is done, by the best means. On a device without it the edge writes the
    /// zeroes.
    pub written_zero: bool,
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
    /// Bytes written are thrown away: they need not be looked at on the way (`null`).
    pub discards: bool,
    /// Zero requests are not offered to clients, not even those that would be written as data.
    pub hides_zero: bool,
    /// FUA is not offered to clients, not even made from flush.
    pub hides_fua: bool,
    /// Only whole blocks are written, of the [minimum](BlockSizes::minimum) size: what is there
    /// cannot be read back to change a part of it. For an image that is being made, and packs its
    /// blocks.
    pub whole_blocks: bool,
    /// This device is to see operations as clients ask for them, because a filter in it looks at
    /// them, or because it is a plugin, whose map may cost more than the read: callers must not
    /// look up the map on their own before they read.
    pub observed: bool,
    /// Some KiB more in a read cost less than another read: nothing lies between but a socket of
    /// this machine.
    pub near: bool,
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
        written_zero: false,
        prefetch: false,
        take: false,
        multi_conn: true,
        extents: false,
        rotational: false,
        discards: false,
        hides_zero: false,
        hides_fua: false,
        whole_blocks: false,
        observed: false,
        near: false,
    };

    /// Reading and flushing, and, if `write`, all that changes a disk: each at once and by the
    /// device's own means.
    #[must_use]
    pub const fn all(write: bool) -> Self {
        Self {
            write,
            flush: true,
            fua: write,
            trim: write,
            zero: write,
            fast_zero: write,
            ..Self::READ
        }
    }
}

/// In which order a device is filled.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Order {
    /// In any order.
    #[default]
    Any,
    /// Upwards, since it is written as a stream. Its writer gives it every byte once, by a write or
    /// a zero, and skips nothing; operations may be in flight together and overtake one another.
    /// Those that are far ahead of the first missing byte may be held back until it comes, so that
    /// byte must not have to wait for them.
    Upwards,
    /// The same, one operation at a time: a filter in between would hold the first missing byte
    /// back behind those that are ahead.
    OneByOne,
}

/// What is known of a device from the moment it is open, and never changes.
#[derive(Clone, Debug)]
pub struct Info {
    /// Its name for people: a path, a URI, `memory:1G`. Used in messages.
    pub name: String,
    /// A sentence for NBD_INFO_DESCRIPTION; may be empty.
    pub description: String,
    /// The name by which a client may ask for just this disk, where names
    /// [choose](Session::is_chosen_by_name) it and it has one.
    pub export: Option<Arc<str>>,
    /// What its server says of this state of its bytes: an ETag, or the date of the last change.
    /// Another one is another disk.
    pub version: Option<Arc<str>>,
    /// Size in bytes, at most 2^63-1, when it was opened: see [`Device::size_now`].
    pub size: u64,
    /// How it likes to be used.
    pub blocks: BlockSizes,
    /// What it works in below.
    pub granules: Granules,
    /// Its serial number, by which machines know it wherever it is.
    pub serial: Option<Arc<str>>,
    /// What it can do.
    pub abilities: Abilities,
    /// Block sizes to advertise instead of those that follow from `blocks`. Only the device itself
    /// enforces them.
    pub advertised: Option<BlockSizes>,
    /// Status contexts besides `base:allocation`, which is what `resolve` tells: dirty bitmaps,
    /// say. Names as NBD has them.
    pub contexts: Vec<Arc<str>>,
    /// The longest zero or trim, in bytes, that is a single request at the lowest device. Longer
    /// ones are done in pieces, one after the other.
    pub longest_effect: u64,
    /// The best length of requests, in bytes, where all of the disk is read or written; 0: no
    /// preference.
    pub bulk: u64,
    /// Bytes that are allocated together, at multiples of this from the start, on a disk where
    /// unwritten bytes read as zeroes only until other bytes of the same unit are written, and may
    /// be anything from then on; 0: the disk is not like that.
    pub room: u64,
    /// How many lanes are useful at the same time; `None`: any number.
    pub lanes: Option<NonZeroUsize>,
    /// Where the device begins, if all of it lies as it is in one open file (holes included).
    /// Lets bytes be served without resolving.
    pub flat: Option<Place>,
    /// The order in which it has to be filled.
    pub order: Order,
}

impl Info {
    /// A device of `size` bytes that can be read, in blocks of any size.
    #[must_use]
    pub fn new(name: impl Into<String>, size: u64) -> Self {
        Self {
            name: name.into(),
            description: String::new(),
            export: None,
            version: None,
            size,
            blocks: BlockSizes::ANY,
            granules: Granules::default(),
            serial: None,
            abilities: Abilities::READ,
            advertised: None,
            contexts: Vec::new(),
            longest_effect: u64::MAX,
            bulk: 0,
            room: 0,
            lanes: None,
            flat: None,
            order: Order::Any,
        }
    }

    /// The result of [`Device::resize`] for a disk of a fixed size.
    ///
    /// # Errors
    /// `NoSpace`: it is too small.
    pub fn keep_size(&self, size: u64) -> Result<()> {
        if size <= self.size {
            return Ok(());
        }
        let action = format!("has {} bytes, {size} are needed", self.size);
        Err(Error::new(ErrorKind::NoSpace, Fault::File, action).on(&self.name))
    }
}

/// Called once with the device for a client: see [`Session::connect`].
pub type Connected = Box<dyn FnOnce(Result<Option<Arc<dyn Device>>>) + Send>;

/// Called once with the names of disks, and a description of each: see [`Session::list`].
pub type Listed = Box<dyn FnOnce(Result<Vec<(String, String)>>) + Send>;

/// An operation to be done at once, on the caller's bytes.
#[derive(Debug)]
pub enum Now<'a> {
    /// Fill all of `buffer`.
    Read {
        /// First byte.
        offset: u64,
        /// Undefined after an error, and after "not now".
        buffer: &'a mut [u8],
    },
    /// Append what a range holds to `out`: see [`Operation::Resolve`].
    Resolve {
        /// First byte.
        offset: u64,
        /// Length in bytes.
        len: u64,
        /// At most so many extents.
        max: usize,
        /// Unchanged after an error, and after "not now".
        out: &'a mut Vec<Extent>,
    },
    /// Write all of `data`.
    Write {
        /// First byte.
        offset: u64,
        /// After "not now" part of it may have been written: the caller writes all of it again.
        data: &'a [u8],
        /// Be durable before answering.
        fua: bool,
    },
}

/// A disk.
pub trait Device: Send + Sync {
    /// What is known of it. Constant.
    fn info(&self) -> &Info;

    /// Starts an operation. Never blocks; `done` is called exactly once, from any thread, possibly
    /// before this returns. If `done` is dropped instead, the waiting caller gets an error, as for
    /// a defect.
    ///
    /// What an operation holds (this device, one below) it lets go before it calls `done`: with the
    /// last answer the disk may be closed and opened again, and a thread that holds it a moment
    /// longer would hold its lock, too.
    fn submit(&self, operation: Operation, done: Done);

    /// Does it at once, or returns `Ok(false)`, having changed nothing that matters, where it would
    /// have to wait for a disk, a lock or a peer, or is not supported.
    ///
    /// After a read that answered false, its bytes are not sent from their place either, even
    /// where [`Place::is_resident`]: the file's lock may be taken (by a long zero or trim), and
    /// sending would wait for it and hand out pages that are being changed.
    fn now(&self, now: Now<'_>) -> Result<bool> {
        let _ = now;
        Ok(false)
    }

    /// The device's own memory for `len` bytes at `offset`, if bytes can be received there without
    /// waiting and are then written, with nothing more to do: bytes that have arrived are on the
    /// disk, even if the rest never comes. `None` also when a copy would cost less.
    fn window(&self, offset: u64, len: usize) -> Option<Window> {
        let _ = (offset, len);
        None
    }

    /// A thread's private path for bulk work, if the device has something better to offer than
    /// `submit` (a connection of its own, say). Up to [`Info::lanes`] at a time.
    ///
    /// # Errors
    /// What prevents it from being opened.
    fn lane(&self) -> Result<Option<Box<dyn Lane>>> {
        Ok(None)
    }

    /// Its session, if it has to know of clients, or of a path that may break.
    fn session(&self) -> Option<&dyn Session> {
        None
    }

    /// Gives the disk `size` bytes: what lies beyond is cut off, and new bytes read as zeroes. A
    /// disk of a fixed size is left alone if it is large enough. For containers, which grow as they
    /// are written (their [`Info::size`] is then only a bound) and get their length at the end,
    /// before [`finish`](Self::finish). May block.
    ///
    /// # Errors
    /// It cannot have that size.
    fn resize(&self, size: u64) -> Result<()> {
        self.info().keep_size(size)
    }

    /// Whether it is as long as what was written to it, as a regular file is: writes beyond its
    /// [`Info::size`] are taken, up to 2^63-1, and what lies between is zero. For an image that is
    /// written where it lies, which alone may ask the device itself for that: the edge refuses what
    /// is beyond the size. Constant.
    fn grows(&self) -> bool {
        false
    }

    /// Its size in bytes by now, where others may give it another one while it is open, as they may
    /// a volume: it takes ranges up to there, whatever [`Info::size`] says. `None`: that is its
    /// size. A system call or two.
    fn size_now(&self) -> Option<u64> {
        None
    }

    /// Finishes a disk that was filled from end to end, after the last byte and before a flush, if
    /// one is wanted. It does what was put off until now (a length, say), and asks the system for
    /// errors that it reports only at the end. Called once, and not after a failure. May block.
    ///
    /// # Errors
    /// Writes may be lost, or the disk is incomplete.
    fn finish(&self) -> Result<()> {
        Ok(())
    }
}

/// Clients that come and go, and the path to the outside, for devices that have to know of them.
pub trait Session: Send + Sync {
    /// A client of a server has chosen this device. Returns, now or later and from any thread, a
    /// device for this client alone, or `None` if one serves all alike. When that device is
    /// dropped, the client has gone. Must not block: the caller is a reactor.
    ///
    /// The error, if there is one, is the refusal that the client gets.
    fn connect(&self, client: &Client, done: Connected) {
        let _ = client;
        done(Ok(None));
    }

    /// Whether the name that a client asks for ([`Client::export`]) chooses its disk, whatever name
    /// it is: there may be several with different contents, and [`connect`](Self::connect) decides
    /// whether there is one of that name. Constant.
    fn is_chosen_by_name(&self) -> bool {
        false
    }

    /// The names that may be asked for, with descriptions, as far as this client may see them; now
    /// or later and from any thread. Only of a device that [is chosen by
    /// name](Self::is_chosen_by_name). Must not block.
    fn list(&self, client: &Client, done: Listed) {
        let _ = client;
        done(Ok(Vec::new()));
    }

    /// The status contexts that the device of a client that comes now has beside those of
    /// [`Device::info`]. Must not block.
    fn further_contexts(&self) -> Vec<Arc<str>> {
        Vec::new()
    }

    /// Reopens a broken path to the outside (reconnects, say). Operations that were in flight have
    /// failed already. May block.
    ///
    /// # Errors
    /// It is still broken, or what is there now is not the same disk.
    fn reopen(&self) -> Result<()> {
        Ok(())
    }

    /// Whether the device reopens a broken path by itself: operations that come meanwhile wait, and
    /// those that were in flight are repeated where that is safe (docs/architecture/client.md,
    /// "Reconnecting").
    fn reconnects(&self) -> bool {
        false
    }

    /// Whether its path may break and be reopened while it is used, by itself or by what is below
    /// it: then [`epoch`](Self::epoch) grows, and what is there now may be another disk, of which a
    /// sample did not show it. Constant.
    fn may_return(&self) -> bool {
        self.reconnects()
    }

    /// Whether it keeps bytes of what is below, so that a read after a loss may show what was there
    /// before: what is there now cannot be told from that then. Constant.
    fn keeps_bytes(&self) -> bool {
        false
    }

    /// Grows whenever a broken path to the outside was reopened, before anything goes over the new
    /// one: the server there may have forgotten what was acknowledged before and was not durable. A
    /// flush covers only what was acknowledged in its own epoch.
    fn epoch(&self) -> u64 {
        0
    }
}

impl dyn Device + '_ {
    /// A device for one client: see [`Session::connect`].
    pub fn connect(&self, client: &Client, done: Connected) {
        match self.session() {
            Some(session) => session.connect(client, done),
            None => done(Ok(None)),
        }
    }

    /// See [`Session::is_chosen_by_name`].
    #[must_use]
    pub fn is_chosen_by_name(&self) -> bool {
        self.session().is_some_and(Session::is_chosen_by_name)
    }

    /// See [`Session::list`].
    pub fn list(&self, client: &Client, done: Listed) {
        match self.session() {
            Some(session) => session.list(client, done),
            None => done(Ok(Vec::new())),
        }
    }

    /// See [`Session::further_contexts`].
    #[must_use]
    pub fn further_contexts(&self) -> Vec<Arc<str>> {
        self.session().map_or_else(Vec::new, Session::further_contexts)
    }

    /// See [`Session::reopen`].
    pub fn reopen(&self) -> Result<()> {
        self.session().map_or(Ok(()), Session::reopen)
    }

    /// See [`Session::reconnects`]; not where no path can break.
    #[must_use]
    pub fn reconnects(&self) -> bool {
        self.session().is_some_and(Session::reconnects)
    }

    /// See [`Session::may_return`]; not where no path can break.
    #[must_use]
    pub fn may_return(&self) -> bool {
        self.session().is_some_and(Session::may_return)
    }

    /// See [`Session::keeps_bytes`]; not where no path can break.
    #[must_use]
    pub fn keeps_bytes(&self) -> bool {
        self.session().is_some_and(Session::keeps_bytes)
    }

    /// See [`Session::epoch`]; 0 where no path can break.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.session().map_or(0, Session::epoch)
    }

    /// Runs an operation and waits for its end.
    pub fn run(&self, operation: Operation) -> Result<crate::Outcome> {
        let answer = runtime::wait_for(|promise| {
            self.submit(operation, Box::new(move |result| promise.keep(result)));
        });
        answer.unwrap_or_else(|| Err(Error::unanswered().on(&self.info().name)))
    }
}
