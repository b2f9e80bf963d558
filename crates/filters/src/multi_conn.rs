//! `multi-conn`: several connections that see what the others have flushed.
//!
//! Over a device that gives each client something of its own, with a cache of its own, `emulate`
//! makes a flush of one client a flush for all of them: first those that wrote, then those whose
//! caches may be out of date. FUA is made of it by the edge above. A client that leaves with
//! writes not flushed is flushed behind; should that fail, every later flush fails.
//!
//! A flush is left out only when nothing that it promises to cover has been written (or, in the
//! default, read) since the last one that has *ended* well. `unsafe` promises what
//! the device may not keep, on purpose.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use device::{
    Client, Done, Edge, Error, Filter, Filtered, Info, Operation, Outcome, Params, Place, Result,
    param, values,
};

use crate::Kind;

const MODES: &str = "auto|emulate|disable|plugin|unsafe";
const TRACKS: &str = "connection|conn|fast|off";

pub(crate) const KIND: Kind = Kind {
    word: "multi-conn",
    summary: "lets clients use several connections: a flush on one is one for all",
    reads_only: false,
    params: &[
        param("multi-conn-mode", MODES, "what is promised, and how it is kept (default auto)"),
        param(
            "multi-conn-track-dirty",
            TRACKS,
            "which flushes may be left out (default connection)",
        ),
        param(
            "multi-conn-exportname",
            "true|false",
            "accepted: all connections to a disk belong together, by whatever name they came",
        ),
    ],
    example: "serve --filter=multi-conn memory 1M multi-conn-mode=disable \
              --run 'nbdinfo --can multi-conn \"$uri\" || echo one connection each'",
    open: |params, below, _| {
        let shared = Shared::new(params, below.info())?;
        Ok(Filtered::device(MultiConn::new(shared, below, false)))
    },
};

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Mode {
    /// A flush is one for all.
    Emulate,
    /// Never offered.
    Disable,
    /// As the device has it.
    Plugin,
    /// Always offered.
    Unsafe,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Track {
    /// A flush is left out where nothing was written or read.
    Connection,
    /// A flush is left out where nothing was written.
    Fast,
    /// No flush is left out.
    Off,
}

/// Something that makes a flush necessary: how often it happened, and up to which time a flush
/// has covered it. One that is under way covers nothing yet.
#[derive(Default)]
struct Mark {
    happened: AtomicU64,
    covered: AtomicU64,
}

impl Mark {
    fn note(&self) {
        self.happened.fetch_add(1, Ordering::AcqRel);
    }

    fn now(&self) -> u64 {
        self.happened.load(Ordering::Acquire)
    }

    fn cover(&self, until: u64) {
        self.covered.fetch_max(until, Ordering::AcqRel);
    }

    fn is_open(&self) -> bool {
        self.now() > self.covered.load(Ordering::Acquire)
    }
}

/// One path to the device below, and what went over it.
struct Member {
    below: Edge,
    wrote: Mark,
    read: Mark,
}

/// What the filters of all clients share.
struct Shared {
    mode: Mode,
    track: Track,
    /// A flush of one is one for all because the device below says so.
    one_cache: bool,
    members: Mutex<Vec<Arc<Member>>>,
    /// Clients that left with writes not flushed, where the device answers for them.
    left: Mark,
    /// Why writes of a client that has gone are not known to be durable.
    lost: Mutex<Option<Error>>,
}

type Then = Box<dyn FnOnce(Result<()>) + Send>;

impl Shared {
    fn new(params: &Params, below: &Info) -> Result<Arc<Self>> {
        let a = below.abilities;
        let modes: Vec<_> = MODES.split('|').collect();
        let mode = match values::choice(params, "multi-conn-mode", &modes)? {
            Some(1) if a.write && !a.flush => {
                let action = "multi-conn-mode=emulate: the device below cannot flush";
                return Err(Error::unfit(action));
            }
            Some(1) => Mode::Emulate,
            Some(2) => Mode::Disable,
            Some(3) => Mode::Plugin,
            Some(4) => Mode::Unsafe,
            _ if a.multi_conn || (a.write && !a.flush) => Mode::Plugin,
            _ => Mode::Emulate,
        };
        let tracks: Vec<_> = TRACKS.split('|').collect();
        let track = match values::choice(params, "multi-conn-track-dirty", &tracks)? {
            Some(2) => Track::Fast,
            Some(3) => Track::Off,
            _ => Track::Connection,
        };
        // What has two names here is one disk all the same, and what is promised is promised for it.
        values::flag(params, "multi-conn-exportname")?;
        Ok(Arc::new(Self {
            mode,
            track,
            one_cache: a.multi_conn,
            members: Mutex::default(),
            left: Mark::default(),
            lost: Mutex::default(),
        }))
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<Member>>> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Those that belong together: all.
    fn family(&self) -> Vec<Arc<Member>> {
        self.lock().clone()
    }

    fn leave(&self, member: &Arc<Member>) {
        let mut all = self.lock();
        let at = all.iter().position(|m| Arc::ptr_eq(m, member));
        let gone = at.map(|at| all.swap_remove(at));
        // What goes with it (a connection, say) does not go under the lock.
        drop(all);
        drop(gone);
    }

    /// Whether all writes of clients that have gone are durable, as far as is known.
    fn nothing_lost(&self) -> Result<()> {
        let lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner);
        lost.as_ref().map_or(Ok(()), |e| Err(e.duplicate()))
    }

    /// A flush of one as a flush for all.
    fn flush_all(self: &Arc<Self>, own: &Arc<Member>, then: Then) {
        if let Err(e) = self.nothing_lost() {
            return then(Err(e));
        }
        // The device may say once what it has lost: to a flush behind a client that left, which
        // was under way when this one began.
        let shared = self.clone();
        let then: Then = Box::new(move |result| then(result.and_then(|()| shared.nothing_lost())));
        let family = self.family();
        let is_asked = |m: &Arc<Member>| self.track == Track::Off && Arc::ptr_eq(m, own);
        let writers = family.iter().filter(|m| m.wrote.is_open() || is_asked(m));
        let first = Paths::of(writers.cloned());
        if self.track == Track::Fast && first.0.is_empty() {
            return then(Ok(()));
        }
        let (track, alone) = (self.track, first.only());
        let reads = alone.is_some();
        first.flush(
            reads,
            Box::new(move |result| match result {
                Err(e) => then(Err(e)),
                // Now that everything is written, caches must go that are older.
                Ok(()) => {
                    let stale = family.into_iter().filter(|m| match track {
                        Track::Connection => m.read.is_open(),
                        Track::Fast | Track::Off => m.is_used(),
                    });
                    let mut second = Paths::of(stale);
                    second.skip(alone.as_ref());
                    second.flush(true, then);
                }
            }),
        );
    }

    /// A flush of one as the device below has it.
    fn flush_one(self: &Arc<Self>, own: &Arc<Member>, then: Then) {
        // What a flush on this connection is said to cover.
        let promised = self.one_cache || self.mode == Mode::Unsafe;
        let covered = if promised { self.family() } else { vec![own.clone()] };
        let is_open = |m: &Arc<Member>| match self.track {
            Track::Off => true,
            Track::Fast => m.wrote.is_open(),
            Track::Connection => m.wrote.is_open() || m.read.is_open(),
        };
        let left = self.left.now();
        let gone_are_open = self.one_cache && self.left.is_open();
        if !gone_are_open && !covered.iter().any(is_open) {
            return then(Ok(()));
        }
        let members = if self.one_cache { covered } else { vec![own.clone()] };
        let (path, shared) = (Path { below: own.below.clone(), members }, self.clone());
        path.flush(
            true,
            Box::new(move |result| {
                if result.is_ok() {
                    shared.left.cover(left);
                }
                then(result);
            }),
        );
    }
}

impl Member {
    fn is_used(&self) -> bool {
        self.wrote.now() > 0 || self.read.now() > 0
    }

    /// Notes that something was read or written. It is said before an operation and again after
    /// it: a flush in between may have covered the first, and covers only what had ended.
    fn note(&self, writes: bool) {
        if writes { &self.wrote } else { &self.read }.note();
    }
}

/// A device to be flushed, and the members that reach it.
struct Path {
    below: Edge,
    members: Vec<Arc<Member>>,
}

impl Path {
    /// Flushes it; that covers all writes that had ended, and what was read if `reads`.
    fn flush(self, reads: bool, then: Then) {
        let times = self.members.into_iter().map(|m| (m.wrote.now(), m.read.now(), m));
        let times: Vec<_> = times.collect();
        let ended: Done = Box::new(move |result| {
            for (wrote, read, member) in times.iter().filter(|_| result.is_ok()) {
                member.wrote.cover(*wrote);
                member.read.cover(if reads { *read } else { 0 });
            }
            then(result.map(drop));
        });
        self.below.submit(Operation::Flush, ended);
    }

    fn is(&self, other: &Edge) -> bool {
        Arc::ptr_eq(self.below.device(), other.device())
    }
}

/// Different devices to be flushed.
struct Paths(Vec<Path>);

impl Paths {
    fn of(members: impl Iterator<Item = Arc<Member>>) -> Self {
        let mut paths: Vec<Path> = Vec::new();
        for member in members {
            match paths.iter_mut().find(|p| p.is(&member.below)) {
                Some(path) => path.members.push(member),
                None => paths.push(Path { below: member.below.clone(), members: vec![member] }),
            }
        }
        Self(paths)
    }

    /// The only device, if there is just one.
    fn only(&self) -> Option<Edge> {
        if let [only] = &*self.0 { Some(only.below.clone()) } else { None }
    }

    fn skip(&mut self, device: Option<&Edge>) {
        self.0.retain(|path| device.is_none_or(|d| !path.is(d)));
    }

    /// Flushes them all at the same time; then `then`, with one of the failures.
    fn flush(self, reads: bool, then: Then) {
        if self.0.is_empty() {
            return then(Ok(()));
        }
        let left = AtomicUsize::new(self.0.len());
        let join = Arc::new((left, Mutex::new((None, Some(then)))));
        for path in self.0 {
            let join = join.clone();
            let ended: Then = Box::new(move |result| {
                let mut ending = join.1.lock().unwrap_or_else(PoisonError::into_inner);
                if let Err(e) = result {
                    ending.0.get_or_insert(e);
                }
                if join.0.fetch_sub(1, Ordering::AcqRel) != 1 {
                    return;
                }
                let (failed, then) = (ending.0.take(), ending.1.take());
                drop(ending);
                if let Some(then) = then {
                    then(failed.map_or(Ok(()), Err));
                }
            });
            path.flush(reads, ended);
        }
    }
}

struct MultiConn {
    info: Info,
    shared: Arc<Shared>,
    own: Arc<Member>,
    /// It is a client's own, and goes with the client.
    personal: bool,
}

impl MultiConn {
    fn new(shared: Arc<Shared>, below: Edge, personal: bool) -> Self {
        let mut info = Info::over(&below);
        let a = &mut info.abilities;
        match shared.mode {
            // FUA must be seen by the others as well, so the edge above makes it of flush.
            Mode::Emulate => (a.multi_conn, a.fua) = (true, false),
            Mode::Disable => a.multi_conn = false,
            Mode::Plugin => {}
            Mode::Unsafe => a.multi_conn = true,
        }
        let (wrote, read) = Default::default();
        let own = Arc::new(Member { below, wrote, read });
        shared.lock().push(own.clone());
        Self { info, shared, own, personal }
    }

    fn noted(&self, operation: Operation, writes: bool, done: Done) {
        let own = self.own.clone();
        own.note(writes);
        let then: Done = Box::new(move |result| {
            // Also after a failure: part of it may have been written.
            own.note(writes);
            done(result);
        });
        self.own.below.submit(operation, then);
    }

    fn flush(&self, done: Done) {
        let then: Then = Box::new(move |result| done(result.map(|()| Outcome::Done)));
        match self.shared.mode {
            Mode::Emulate => self.shared.flush_all(&self.own, then),
            Mode::Disable | Mode::Plugin | Mode::Unsafe => self.shared.flush_one(&self.own, then),
        }
    }
}

impl Filter for MultiConn {
    fn info(&self) -> &Info {
        &self.info
    }

    fn below(&self) -> &Edge {
        &self.own.below
    }

    fn run(&self, operation: Operation, done: Done) {
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

    fn for_client(&self, below: Edge, _client: &Client) -> Self {
        Self::new(self.shared.clone(), below, true)
    }

    fn is_personal(&self) -> bool {
        self.shared.mode == Mode::Emulate || self.shared.track != Track::Off
    }

    /// Bytes that lie in a file are in nobody's cache.
    fn place(&self, offset: u64) -> Option<Place> {
        self.own.below.device().place(offset)
    }

    fn is_hot(&self, offset: u64, len: u64) -> bool {
        self.own.below.device().is_hot(offset, len)
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.own.note(false);
        let result = self.own.below.read(buf, offset);
        self.own.note(false);
        result
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
        // Until this has ended it counts as being there.
        let below = own.below.clone();
        let then: Done = Box::new(move |result| {
            if let Err(e) = result {
                *shared.lost.lock().unwrap_or_else(PoisonError::into_inner) = Some(e);
            }
            shared.leave(&own);
        });
        below.submit(Operation::Flush, then);
    }
}

#[cfg(test)]
mod tests {
    use device::model::Model;
    use device::{Abilities, BlockSizes, Connected, Device, ErrorKind, Fault, ZeroFlags};

    use super::*;
    use crate::tested::{client, connect, put};

    /// A disk that gives each client a path with a cache of its own: what is written is seen by
    /// others only after a flush here, and what was read is read again only after a flush there.
    struct Caching {
        disk: Arc<Mutex<Vec<u8>>>,
        cache: Mutex<Option<Vec<u8>>>,
        dirty: Mutex<bool>,
        info: Info,
        flushes: Arc<AtomicUsize>,
        broken: Arc<AtomicUsize>,
    }

    const SIZE: usize = 4096;

    impl Caching {
        fn new(multi_conn: bool) -> Self {
            let all = Model::new(1).info().abilities;
            let abilities = Abilities { zero: false, fast_zero: false, multi_conn, ..all };
            let model = Model::with(SIZE, abilities, BlockSizes::ANY);
            Self {
                disk: Arc::new(Mutex::new(vec![0; SIZE])),
                cache: Mutex::default(),
                dirty: Mutex::default(),
                info: model.info().clone(),
                flushes: Arc::default(),
                broken: Arc::default(),
            }
        }

        fn another(&self) -> Self {
            Self {
                disk: self.disk.clone(),
                info: self.info.clone(),
                flushes: self.flushes.clone(),
                broken: self.broken.clone(),
                cache: Mutex::default(),
                dirty: Mutex::default(),
            }
        }

        fn cached(&self) -> Vec<u8> {
            let mut cache = self.cache.lock().unwrap();
            cache.get_or_insert_with(|| self.disk.lock().unwrap().clone()).clone()
        }
    }

    impl Device for Caching {
        fn info(&self) -> &Info {
            &self.info
        }
        fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
            let at = usize::try_from(offset).unwrap();
            buf.copy_from_slice(&self.cached()[at..at + buf.len()]);
            Ok(())
        }
        fn write_at(&self, data: &[u8], offset: u64, fua: bool) -> Result<()> {
            assert!(!fua, "FUA must be made of flush");
            let mut bytes = self.cached();
            let at = usize::try_from(offset).unwrap();
            bytes[at..at + data.len()].copy_from_slice(data);
            *self.cache.lock().unwrap() = Some(bytes);
            *self.dirty.lock().unwrap() = true;
            Ok(())
        }
        fn flush(&self) -> Result<()> {
            self.flushes.fetch_add(1, Ordering::SeqCst);
            if self.broken.load(Ordering::SeqCst) > 0 {
                return Err(Error::new(ErrorKind::Io, Fault::File, "flush"));
            }
            let cache = self.cache.lock().unwrap().take();
            if std::mem::take(&mut *self.dirty.lock().unwrap())
                && let Some(bytes) = cache
            {
                *self.disk.lock().unwrap() = bytes;
            }
            Ok(())
        }
        fn connect(&self, _client: &Client, done: Connected) {
            done(Ok(Some(Arc::new(self.another()))));
        }
    }

    fn three(disk: &Edge) -> Vec<Edge> {
        let own = |n| disk.beside(connect(disk, &client(n)).unwrap().unwrap());
        (1..4).map(own).collect()
    }

    fn first_byte(edge: &Edge) -> u8 {
        let mut byte = [0];
        edge.read(&mut byte, 0).unwrap();
        byte[0]
    }

    #[test]
    fn what_one_wrote_and_another_flushed_is_read_by_a_third_also_out_of_a_stale_cache() {
        for track in ["connection", "fast", "off"] {
            let below = Arc::new(Caching::new(false));
            let word = format!("multi-conn-track-dirty={track}");
            let disk = put("multi-conn", below.clone(), &[&word]).unwrap();
            assert!(disk.info().abilities.multi_conn && !disk.info().abilities.fua);
            let c = three(&disk);
            for byte in 1..4 {
                assert_eq!(first_byte(&c[2]), byte - 1);
                c[0].write(&[byte], 0, false).unwrap();
                assert_eq!(first_byte(&c[2]), byte - 1);
                c[1].flush().unwrap();
                assert_eq!(first_byte(&c[2]), byte, "{track}");
                // FUA is seen by all, too.
                c[0].write(&[byte + 100], 0, true).unwrap();
                assert_eq!(first_byte(&c[1]), byte + 100);
                c[0].write(&[byte], 0, true).unwrap();
                c[2].zero(10, 10, ZeroFlags { fua: true, ..ZeroFlags::default() }).unwrap();
            }
        }
    }

    #[test]
    fn a_flush_with_nothing_to_cover_is_left_out_unless_tracking_is_off() {
        for (track, more) in [("connection", 0), ("fast", 0), ("off", 1)] {
            let below = Arc::new(Caching::new(false));
            let word = format!("multi-conn-track-dirty={track}");
            let disk = put("multi-conn", below.clone(), &[&word]).unwrap();
            let c = three(&disk);
            c[0].write(&[1], 0, false).unwrap();
            c[0].flush().unwrap();
            let before = below.flushes.load(Ordering::SeqCst);
            assert_eq!(before, 1);
            c[0].flush().unwrap();
            assert_eq!(below.flushes.load(Ordering::SeqCst), before + more, "{track}");
        }
    }

    #[test]
    fn a_failed_flush_is_not_forgotten() {
        let below = Arc::new(Caching::new(false));
        let disk = put("multi-conn", below.clone(), &[]).unwrap();
        let c = three(&disk);
        c[0].write(&[1], 0, false).unwrap();
        below.broken.store(1, Ordering::SeqCst);
        assert!(c[1].flush().is_err());
        assert!(c[1].flush().is_err(), "still not durable");
        below.broken.store(0, Ordering::SeqCst);
        c[1].flush().unwrap();
        assert_eq!(first_byte(&c[2]), 1);
    }

    #[test]
    fn who_leaves_with_writes_not_flushed_is_flushed_behind() {
        let below = Arc::new(Caching::new(false));
        let disk = put("multi-conn", below.clone(), &[]).unwrap();
        let mut c = three(&disk);
        c[0].write(&[7], 0, false).unwrap();
        drop(c.remove(0));
        assert_eq!(first_byte(&c[0]), 7);
        // And what is lost that way is not kept from the others.
        c[0].write(&[8], 0, false).unwrap();
        below.broken.store(1, Ordering::SeqCst);
        drop(c.remove(0));
        below.broken.store(0, Ordering::SeqCst);
        assert!(c[0].flush().is_err());
    }

    #[test]
    fn a_flush_that_is_under_way_covers_nothing_yet() {
        let mark = Mark::default();
        mark.note();
        let until = mark.now();
        assert!(mark.is_open());
        // Another write ends while the flush is under way.
        mark.note();
        mark.cover(until);
        assert!(mark.is_open());
        mark.cover(mark.now());
        assert!(!mark.is_open());
    }

    #[test]
    fn clients_belong_together_by_whatever_name_they_came() {
        for exportname in ["true", "false"] {
            let below = Arc::new(Caching::new(false));
            let word = format!("multi-conn-exportname={exportname}");
            let disk = put("multi-conn", below.clone(), &[&word]).unwrap();
            let named = |number, export: &str| {
                let who = Client { export: export.to_owned(), ..client(number) };
                disk.beside(connect(&disk, &who).unwrap().unwrap())
            };
            let (a, b) = (named(1, ""), named(2, "disk"));
            a.write(&[5], 0, false).unwrap();
            b.flush().unwrap();
            assert_eq!(first_byte(&b), 5);
        }
    }

    #[test]
    fn modes_offer_what_they_say() {
        let offers = |has: bool, mode: &str| {
            let word = format!("multi-conn-mode={mode}");
            let disk = put("multi-conn", Arc::new(Caching::new(has)), &[&word]).unwrap();
            disk.info().abilities.multi_conn
        };
        for has in [false, true] {
            assert!(offers(has, "auto") && offers(has, "emulate") && offers(has, "unsafe"));
            assert!(!offers(has, "disable"));
            assert_eq!(offers(has, "plugin"), has);
        }
        let all = Model::new(1).info().abilities;
        let no_flush = Abilities { flush: false, fua: false, multi_conn: false, ..all };
        let model = || Arc::new(Model::with(SIZE, no_flush, BlockSizes::ANY));
        assert!(put("multi-conn", model(), &["multi-conn-mode=emulate"]).is_err());
        assert!(!put("multi-conn", model(), &[]).unwrap().info().abilities.multi_conn);
    }

    #[test]
    fn where_the_device_answers_for_all_one_flush_is_enough_and_none_too_few() {
        let model = Arc::new(Model::new(SIZE));
        assert!(model.info().abilities.multi_conn);
        let disk = put("multi-conn", model.clone(), &[]).unwrap();
        let mut c = three(&disk);
        c[0].write(&[1], 0, false).unwrap();
        // This client has done nothing, but its flush covers the other's write.
        c[1].flush().unwrap();
        assert_eq!(model.flushes(), 1);
        c[0].flush().unwrap();
        c[2].flush().unwrap();
        assert_eq!(model.flushes(), 1);
        // Also when the other has gone.
        c[0].write(&[1], 0, false).unwrap();
        drop(c.remove(0));
        c[0].flush().unwrap();
        assert_eq!(model.flushes(), 2);
        c[0].flush().unwrap();
        assert_eq!(model.flushes(), 2);
    }

    /// A disk whose flushes end when the test says so.
    struct Holding {
        model: Model,
        info: Info,
        held: Mutex<Vec<Done>>,
    }

    impl Device for Holding {
        fn info(&self) -> &Info {
            &self.info
        }
        fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
            self.model.read_at(buf, offset)
        }
        fn write_at(&self, data: &[u8], offset: u64, fua: bool) -> Result<()> {
            self.model.write_at(data, offset, fua)
        }
        fn flush(&self) -> Result<()> {
            self.model.flush()
        }
        fn submit(&self, operation: Operation, done: Done) {
            match operation {
                Operation::Flush => self.held.lock().unwrap().push(done),
                other => done(<dyn Device>::run_blocking(&self.model, other)),
            }
        }
    }

    #[test]
    fn what_a_client_that_left_has_lost_is_told_also_to_a_flush_that_had_begun() {
        let model = Model::new(SIZE);
        let info = Info { wait: device::Wait::Outside, ..model.info().clone() };
        let below = Arc::new(Holding { model, info, held: Mutex::default() });
        let disk = put("multi-conn", below.clone(), &["multi-conn-mode=emulate"]).unwrap();
        let mut c = three(&disk);
        c[0].write(&[1], 0, false).unwrap();
        drop(c.remove(0));
        let (tx, rx) = std::sync::mpsc::channel();
        c[0].submit(Operation::Flush, Box::new(move |result| tx.send(result).unwrap()));
        // The disk says once what it has lost: here to the flush behind the client that left.
        let held = std::mem::take(&mut *below.held.lock().unwrap());
        assert_eq!(held.len(), 2);
        let lost = Error::new(ErrorKind::Io, Fault::File, "flush");
        for (done, answer) in held.into_iter().zip([Err(lost), Ok(Outcome::Done)]) {
            done(answer);
        }
        assert!(rx.recv().unwrap().is_err());
    }

    #[test]
    fn no_flush_is_answered_before_one_that_covers_it_has_ended() {
        for mode in ["emulate", "plugin"] {
            let model = Model::new(SIZE);
            let info = Info { wait: device::Wait::Outside, ..model.info().clone() };
            let below = Arc::new(Holding { model, info, held: Mutex::default() });
            let word = format!("multi-conn-mode={mode}");
            let disk = put("multi-conn", below.clone(), &[&word]).unwrap();
            let c = three(&disk);
            c[0].write(&[1], 0, false).unwrap();
            let ended = Arc::new(AtomicUsize::new(0));
            let flush = |edge: &Edge| {
                let ended = ended.clone();
                let then = move |_| {
                    ended.fetch_add(1, Ordering::SeqCst);
                };
                edge.submit(Operation::Flush, Box::new(then));
            };
            flush(&c[1]);
            flush(&c[2]);
            assert_eq!(ended.load(Ordering::SeqCst), 0, "{mode}");
            let release = || {
                let done = below.held.lock().unwrap().pop().unwrap();
                done(Ok(Outcome::Done));
            };
            release();
            release();
            assert_eq!(ended.load(Ordering::SeqCst), 2, "{mode}");
            // Now all is clean.
            flush(&c[1]);
            assert_eq!(ended.load(Ordering::SeqCst), 3, "{mode}");
            // A write that ended while a flush was under way is not covered by it.
            c[0].write(&[1], 0, false).unwrap();
            flush(&c[1]);
            c[0].write(&[2], 0, false).unwrap();
            release();
            flush(&c[1]);
            assert_eq!(ended.load(Ordering::SeqCst), 4, "{mode}");
            release();
            assert_eq!(ended.load(Ordering::SeqCst), 5, "{mode}");
        }
    }
}
