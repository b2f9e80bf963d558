//! The contract itself: what a device is to the rest of the program.
//!
//! Whether something can be done now is a property of that operation now, not of a device at the
//! time it is opened. So every device is asked in the same two ways: [`Device::now`], which does
//! it here and at once or not at all, and [`Device::submit`], which never blocks and completes
//! later if it must. What never changes is said in [`Info`].
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
    BlockSizes, Client, Connected, Done, Error, ErrorKind, Extent, Fault, Lane, Listed, Operation,
    Place, Result, Window,
};

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
    /// `trim` may free room. A device without it is not asked to.
    pub trim: bool,
    /// `zero` may be done without sending or writing zeroes as data.
    pub zero: bool,
    /// `zero` with `fast_only` is answered truthfully: done fast, or `NotFast` at once with
    /// nothing written.
    pub fast_zero: bool,
    /// `zero` with `written` is done, by whatever means is best. Of a device without it the edge asks for no such zero: it
    /// writes the zeroes.
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
    /// A filter here is to see operations as clients ask for them: no map is looked up besides
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
        written_zero: false,
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

/// In which order a device is filled.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Order {
    /// In any.
    #[default]
    Any,
    /// Upwards, since it is written as a stream. Its writer tells it of every byte once, by a write or
    /// a zero, and skips nothing below what it tells of; operations may be in flight together and
    /// overtake one another. Those that are far ahead of the first byte it was not told of may not end
    /// before that comes, which must not have to wait for them.
    Upwards,
    /// The same, one operation at a time: something between would not let the first byte pass by those
    /// that are ahead.
    OneByOne,
}

/// What is known of a device from the moment it is open, and never changes.
#[derive(Clone, Debug)]
pub struct Info {
    /// What people call it: a path, a URI, `memory:1G`. Used in messages.
    pub name: String,
    /// A sentence for NBD_INFO_DESCRIPTION; may be empty.
    pub description: String,
    /// The name by which a client may ask for just this disk, where names [choose](Session::is_chosen_by_name) it and it has
    /// one.
    pub export: Option<Arc<str>>,
    /// Size in bytes, at most 2^63-1.
    pub size: u64,
    /// How it likes to be used.
    pub blocks: BlockSizes,
    /// What it can do.
    pub abilities: Abilities,
    /// Block sizes to advertise instead of those that follow from `blocks`. Only the device enforces
    /// them but the device that says so.
    pub advertised: Option<BlockSizes>,
    /// Status contexts besides `base:allocation`, which is what `resolve` tells: dirty bitmaps,
    /// say. Names as NBD has them.
    pub contexts: Vec<Arc<str>>,
    /// The longest zero or trim, in bytes, that is one request where it is done in the end.
    /// Longer ones are done in pieces, one after the other.
    pub longest_effect: u64,
    /// Reads and writes of so many bytes are best where all of it is read or written; 0: of no matter.
    pub bulk: u64,
    /// Bytes that get their room together, in multiples of this from the start, where what was never written reads as zeroes
    /// only until other bytes of the same room are written, and may be anything from then on; 0: there is no such thing.
    pub room: u64,
    /// How many lanes are useful at the same time; `None`: as many as one likes.
    pub lanes: Option<NonZeroUsize>,
    /// Where the device begins, if all of it lies as it is in one open file (holes included).
    /// Lets bytes be served without resolving.
    pub flat: Option<Place>,
    /// In which order it wants to be filled.
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
            size,
            blocks: BlockSizes::ANY,
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

    /// What a disk of a fixed size says to [`Device::resize`].
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

/// How a range is to be zeroed (NBD_CMD_WRITE_ZEROES).
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct ZeroFlags {
    /// The range may become a hole. Otherwise it stays, or becomes, allocated.
    pub may_unmap: bool,
    /// The range ends up written, not only allocated: a later write to it changes no map, so it is
    /// as fast and as durable as one over data. Stronger than what `may_unmap` allows.
    pub written: bool,
    /// Do it only if it is known beforehand to be faster than writing zeroes; otherwise
    /// `NotFast`, at once, with nothing changed.
    pub fast_only: bool,
    /// Be durable before answering.
    pub fua: bool,
}

/// Something to be done here and now, on bytes of the caller's.
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
    /// before this returns. One that is dropped instead is an answer too, to the waiting caller: a
    /// defect of ours.
    fn submit(&self, operation: Operation, done: Done);

    /// Does it here and now, or answers `Ok(false)`, having done nothing that matters, where that
    /// would have to wait for a disk, a lock or a peer, or is not known how.
    ///
    /// After a read that answered false, its bytes are not sent from their place either, even
    /// where [`Place::is_resident`]: the file's lock may be taken (by a long zero or trim), and
    /// sending would wait for it and hand out pages that are being changed.
    ///
    /// # Errors
    /// As for the operation.
    fn now(&self, now: Now<'_>) -> Result<bool> {
        let _ = now;
        Ok(false)
    }

    /// The device's own memory for `len` bytes at `offset`, if they can be received there without
    /// waiting and are then written, with nothing more to do: bytes that have arrived are on the
    /// disk, also when the rest never comes. `None` also when a copy would cost less.
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

    /// What it has to say of clients that come and go and of a path that breaks, if anything.
    fn session(&self) -> Option<&dyn Session> {
        None
    }

    /// Gives the disk `size` bytes: what lies beyond is cut off, and what is new reads as zeroes. A
    /// disk of a fixed size is left alone if it is large enough. For containers, which grow as they are written
    /// (their [`Info::size`] is then only a bound) and are told their length at the end, before
    /// [`finish`](Self::finish). May block.
    ///
    /// # Errors
    /// It cannot have that size.
    fn resize(&self, size: u64) -> Result<()> {
        self.info().keep_size(size)
    }

    /// The writer that fills the disk from end to end has written the last byte, and a flush follows, if
    /// one is wanted. What was put off until now is done (a length, say), and what the system
    /// says only at the end is asked for. Called once, and not after a failure. May block.
    ///
    /// # Errors
    /// What was written may be lost, or is not all that was to be done.
    fn finish(&self) -> Result<()> {
        Ok(())
    }
}

/// What some devices know of those that come and go, and of the path to the outside.
pub trait Session: Send + Sync {
    /// A client of a server has chosen this device. Answers, now or later and from any thread,
    /// with a device for this client alone, or with `None` when one serves all alike. Dropping
    /// what was given says that the client has gone. Must not block: the caller is a reactor.
    ///
    /// The error, if there is one, is the refusal that the client gets to see.
    fn connect(&self, client: &Client, done: Connected) {
        let _ = client;
        done(Ok(None));
    }

    /// Whether the name that a client asks for ([`Client::export`]) chooses its disk, whatever name it is: there
    /// may be several of different contents, and whether there is one of that name [`connect`](Self::connect) says. Constant.
    fn is_chosen_by_name(&self) -> bool {
        false
    }

    /// The names that may be asked for, with descriptions, as far as they are to be told this client; now or later and from
    /// any thread. Only of a device that [is chosen by name](Self::is_chosen_by_name). Must not block.
    fn list(&self, client: &Client, done: Listed) {
        let _ = client;
        done(Ok(Vec::new()));
    }

    /// Reopens what is broken in the path to the outside (reconnects, say). Operations
    /// that were under way have failed already. May block.
    ///
    /// # Errors
    /// It is still broken, or what is there now is not the same disk.
    fn reopen(&self) -> Result<()> {
        Ok(())
    }

    /// Whether a broken path is reopened without being asked to: what is asked for meanwhile waits,
    /// and what was in flight is done again where that is safe (docs/architecture/client.md, "Reconnecting").
    fn reconnects(&self) -> bool {
        false
    }

    /// Grows whenever a broken path to the outside was reopened, before anything goes over
    /// the new one: the server there may have forgotten what was answered before and had not been
    /// made durable. A flush vouches only for what was answered in its own epoch.
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

    /// See [`Session::reopen`].
    ///
    /// # Errors
    /// As there.
    pub fn reopen(&self) -> Result<()> {
        self.session().map_or(Ok(()), Session::reopen)
    }

    /// See [`Session::reconnects`]; not where no path can break.
    #[must_use]
    pub fn reconnects(&self) -> bool {
        self.session().is_some_and(Session::reconnects)
    }

    /// See [`Session::epoch`]; 0 where no path can break.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.session().map_or(0, Session::epoch)
    }

    /// Runs an operation and waits for its end.
    ///
    /// # Errors
    /// As for the operation.
    pub fn run(&self, operation: Operation) -> Result<crate::Outcome> {
        let answer = runtime::wait_for(|promise| {
            self.submit(operation, Box::new(move |result| promise.keep(result)));
        });
        answer.unwrap_or_else(|| Err(Error::unanswered().on(&self.info().name)))
    }
}
