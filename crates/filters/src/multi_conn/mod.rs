//! `multi-conn`: several connections that see each other's flushed writes.
//!
//! Over a device that gives each client a path with its own cache, `emulate` turns a flush of one
//! client into a flush of all: first the clients that wrote, then those whose caches may be stale.
//! The edge above emulates FUA with it. When a client leaves with unflushed writes, the filter
//! flushes them; if that fails, every later flush fails.
//!
//! A flush is skipped only if nothing that it promises to cover has been written (or, by default,
//! read) since the last one that *ended* successfully. `unsafe` advertises multi-conn on purpose
//! even if the device does not have it.

mod paths;

use std::sync::Arc;

use device::{
    Arrival, Done, Edge, Error, Filter, Filtered, Info, Operation, Outcome, Over, Params, Passes,
    Result, param, values,
};
use runtime::{Behalf, Mutex, spawn};

use crate::FilterKind;
use paths::{FlushCause, Member, Path, Paths};

const MODES: &str = "auto|emulate|disable|plugin|unsafe";
const TRACKS: &str = "connection|conn|fast|off";

pub(crate) const KIND: FilterKind = FilterKind {
    word: "multi-conn",
    summary: "makes several connections safe: a flush on one covers all",
    keeps_disk: false,
    params: &[
        param("multi-conn-mode", MODES, "what is advertised, and how it is kept (default auto)"),
        param(
            "multi-conn-track-dirty",
            TRACKS,
            "which flushes may be left out (default connection)",
        ),
        param(
            "multi-conn-exportname",
            "true|false",
            "accepted: all connections to a disk belong together, whatever export name they use",
        ),
    ],
    example: "serve --filter=multi-conn memory 1M multi-conn-mode=disable \
              --run 'nbdinfo --can multi-conn \"$uri\" || echo one connection each'",
    open: |params, below, _| {
        let shared = Shared::new(params, below.info())?;
        Ok(Filtered::device(MultiConn::new(shared, below.clone(), false), below))
    },
    ..FilterKind::PLAIN
};

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Mode {
    /// A flush covers all clients.
    Emulate,
    /// Never offered.
    Disable,
    /// As the device advertises it.
    Plugin,
    /// Always offered.
    Unsafe,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Track {
    /// Skip the flush of a path that was not written or read.
    Connection,
    /// Skip the flush of a path that was not written.
    Fast,
    /// Skip no flush.
    Off,
}

/// What the filters of all clients share.
struct Shared {
    mode: Mode,
    track: Track,
    /// The device below promises that one client's flush covers all.
    one_cache: bool,
    members: Mutex<Vec<Arc<Member>>>,
    /// Unflushed writes of clients that left, if the device's flush covers them.
    left: FlushCause,
    /// Why writes of a client that has left may not be durable.
    lost: Mutex<Option<Error>>,
}

impl Shared {
    fn new(params: &Params, below: &Info) -> Result<Arc<Self>> {
        let a = below.abilities;
        use Mode::{Disable, Emulate, Plugin, Unsafe};
        let modes = [None, Some(Emulate), Some(Disable), Some(Plugin), Some(Unsafe)];
        let mode = match values::meaning(params, "multi-conn-mode", MODES, modes)?.flatten() {
            Some(Mode::Emulate) if a.write && !a.flush => {
                let action = "multi-conn-mode=emulate: the device below cannot flush";
                return Err(Error::unfit(action));
            }
            Some(mode) => mode,
            None if a.multi_conn || (a.write && !a.flush) => Mode::Plugin,
            None => Mode::Emulate,
        };
        let tracks = [Track::Connection, Track::Connection, Track::Fast, Track::Off];
        let track = values::meaning(params, "multi-conn-track-dirty", TRACKS, tracks)?;
        // Two names here still mean one disk, and the promise is for the disk.
        values::flag(params, "multi-conn-exportname")?;
        Ok(Arc::new(Self {
            mode,
            track: track.unwrap_or(Track::Connection),
            one_cache: a.multi_conn,
            members: Mutex::default(),
            left: FlushCause::default(),
            lost: Mutex::default(),
        }))
    }

    fn leave(&self, member: &Arc<Member>) {
        let mut all = self.members.lock();
        let at = all.iter().position(|m| Arc::ptr_eq(m, member));
        let gone = at.map(|at| all.swap_remove(at));
        // Its device (a connection, say) is dropped outside the lock.
        drop(all);
        drop(gone);
    }

    /// Whether, as far as is known, all writes of clients that have left are durable.
    fn nothing_lost(&self) -> Result<()> {
        let lost = self.lost.lock();
        lost.as_ref().map_or(Ok(()), |e| Err(e.duplicate()))
    }

    /// A client's flush as a flush for all.
    async fn flush_all(&self, own: &Arc<Member>) -> Result<()> {
        self.nothing_lost()?;
        let family = self.members.lock().clone();
        let is_asked = |m: &Arc<Member>| self.track == Track::Off && Arc::ptr_eq(m, own);
        let writers = family.iter().filter(|m| m.wrote.is_open() || is_asked(m));
        let first = Paths::of(writers.cloned());
        if self.track == Track::Fast && first.0.is_empty() {
            return Ok(());
        }
        let alone = first.only();
        first.flush(alone.is_some()).await?;
        // Everything is written: now drop the caches that are older.
        let stale = family.into_iter().filter(|m| match self.track {
            Track::Connection => m.read.is_open(),
            Track::Fast | Track::Off => m.is_used(),
        });
        let mut second = Paths::of(stale);
        second.skip(alone.as_ref());
        second.flush(true).await?;
        // The device may report a loss only once: to the flush for a client that left, which was in
        // flight when this one began.
        self.nothing_lost()
    }

    /// A client's flush, passed to the device below as it is.
    async fn flush_one(&self, own: &Arc<Member>) -> Result<()> {
        // What a flush on this connection promises to cover.
        let promised = self.one_cache || self.mode == Mode::Unsafe;
        let covered = if promised { self.members.lock().clone() } else { vec![own.clone()] };
        let is_open = |m: &Arc<Member>| match self.track {
            Track::Off => true,
            Track::Fast => m.wrote.is_open(),
            Track::Connection => m.wrote.is_open() || m.read.is_open(),
        };
        let left = self.left.now();
        let gone_are_open = self.one_cache && self.left.is_open();
        if !gone_are_open && !covered.iter().any(is_open) {
            return Ok(());
        }
        let members = if self.one_cache { covered } else { vec![own.clone()] };
        Paths(vec![Path { below: own.below.clone(), members }]).flush(true).await?;
        self.left.cover(left);
        Ok(())
    }
}

struct MultiConn {
    shared: Arc<Shared>,
    own: Arc<Member>,
    /// It belongs to one client, and goes with it.
    personal: bool,
}

impl MultiConn {
    fn new(shared: Arc<Shared>, below: Edge, personal: bool) -> Self {
        let (wrote, read) = Default::default();
        let own = Arc::new(Member { below, wrote, read });
        shared.members.lock().push(own.clone());
        Self { shared, own, personal }
    }

    fn noted(&self, operation: Operation, writes: bool, done: Done) {
        let own = self.own.clone();
        own.note(writes);
        let then: Done = Box::new(move |result| {
            // Also after a failure: a part may have been written.
            own.note(writes);
            done(result);
        });
        self.own.below.submit(operation, then);
    }

    fn flush(&self, done: Done) {
        let (shared, own) = (self.shared.clone(), self.own.clone());
        spawn(async move {
            let flushed = match shared.mode {
                Mode::Emulate => shared.flush_all(&own).await,
                Mode::Disable | Mode::Plugin | Mode::Unsafe => shared.flush_one(&own).await,
            };
            done(flushed.map(|()| Outcome::Done));
        });
    }
}

impl Filter for MultiConn {
    fn describe(&self, over: &mut Over) {
        let a = &mut over.info.abilities;
        match self.shared.mode {
            // Other clients must see FUA writes too, so the edge above uses a flush.
            Mode::Emulate => (a.multi_conn, a.fua) = (true, false),
            Mode::Disable => a.multi_conn = false,
            Mode::Plugin => {}
            Mode::Unsafe => a.multi_conn = true,
        }
        if over.below.info().flat.is_some() {
            // Bytes in a file are in no connection's cache.
            over.passes = Passes::READS;
        }
    }

    fn run(&self, _: &Over, operation: Operation, done: Done) {
        match operation {
            Operation::Flush => self.flush(done),
            read @ (Operation::Prefetch { .. }
            | Operation::Read { .. }
            | Operation::Resolve { .. }
            | Operation::Status { .. }) => self.noted(read, false, done),
            write @ (Operation::Take { .. }
            | Operation::Trim { .. }
            | Operation::Write { .. }
            | Operation::Zero { .. }) => self.noted(write, true, done),
        }
    }

    fn for_client(&self, _: &Over, arrival: &mut Arrival<'_>) -> Option<Arc<dyn Filter>> {
        let each = self.shared.mode == Mode::Emulate || self.shared.track != Track::Off;
        if !(each || arrival.has_own_path) {
            return None;
        }
        Some(Arc::new(Self::new(self.shared.clone(), arrival.below.clone(), true)))
    }
}

impl Drop for MultiConn {
    fn drop(&mut self) {
        let (shared, own) = (self.shared.clone(), self.own.clone());
        if !self.personal || !own.wrote.is_open() {
            return shared.leave(&own);
        }
        if shared.mode != Mode::Emulate {
            shared.left.note();
            return shared.leave(&own);
        }
        // The client counts as present until this has ended.
        let below = own.below.clone();
        let then: Done = Box::new(move |result| {
            if let Err(e) = result {
                *shared.lost.lock() = Some(e);
            }
            shared.leave(&own);
        });
        // It may be dropped in a step of the client that has just gone.
        Behalf::current().lasting().run(|| below.submit(Operation::Flush, then));
    }
}

#[cfg(test)]
mod tests;
