//! Paths that break, and targets that forget what was not durable: where the device below
//! reconnects the copy goes on, and what it calls done is there and durable.

use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex};

use copy::{Cancel, Options, Progress, Report};
use device::Blocking as _;
use device::model::Model;
use device::{
    Device, Error, ErrorKind, Extent, ExtentKind, Fault, Info, Lane, Operation, Result, ZeroFlags,
};

use crate::support::*;

pub(crate) const BLOCK: usize = 16 << 10;

/// How a server behaves.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Temper {
    /// Lanes that it gives; 0: none.
    pub(crate) lanes: usize,
    /// Operations after which a connection breaks; 0: it never does.
    pub(crate) lives: u64,
    /// With its connection it may forget what was not flushed.
    pub(crate) forgets: bool,
    /// It reconnects: that the connection broke shows in the epoch, and in a flush that fails once.
    pub(crate) mends_itself: bool,
    /// The connection breaks with the first fast zero, which is done after so many operations over
    /// the next.
    pub(crate) late: u64,
    /// It repeats that.
    pub(crate) repeats: bool,
}

/// A disk behind a connection that breaks. No `TestDevice`: what such a server forgets, and when,
/// is what is tested.
#[derive(Clone)]
pub(crate) struct Server(Arc<Inner>);

struct Inner {
    info: Info,
    temper: Temper,
    state: Mutex<State>,
}

pub(crate) struct State {
    pub(crate) now: Vec<u8>,
    /// What is durable.
    pub(crate) kept: Vec<u8>,
    pub(crate) connection: u64,
    alive: bool,
    /// Operations that this connection still does.
    left: u64,
    /// A zero that is not done yet, and after how many operations it will be.
    late: Option<(u64, usize, usize)>,
    /// Something was changed and not flushed; a flush will not vouch for it.
    unflushed: bool,
    lost: bool,
    /// Fast zeroes, all and those that came after one was lost.
    fast_zeroes: usize,
    again: usize,
    zero_was_lost: bool,
    random: Random,
}

fn gone() -> Error {
    Error::new(ErrorKind::Disconnected, Fault::Peer, "the server closed the connection")
}

impl State {
    /// The connection is another; what was not durable may be gone.
    pub(crate) fn connect(&mut self, temper: Temper) {
        self.connection += 1;
        (self.alive, self.left) = (true, temper.lives);
        (self.lost, self.unflushed) = (self.lost || self.unflushed, false);
        if temper.forgets {
            let blocks = self.now.chunks_mut(4096).zip(self.kept.chunks_mut(4096));
            for (now, kept) in blocks {
                if self.random.below(4) > 0 {
                    now.copy_from_slice(kept);
                }
                kept.copy_from_slice(now);
            }
        }
    }

    /// An operation arrives over a connection; whether it is done, and whether that is said.
    fn arrives(&mut self, temper: Temper) -> (bool, bool) {
        if let Some((after, start, end)) = self.late {
            self.late = (after > 0).then(|| (after - 1, start, end));
            if after == 0 {
                self.now[start..end].fill(0);
            }
        }
        if temper.lives == 0 && self.left == 0 {
            return (true, true);
        }
        self.left = self.left.saturating_sub(1);
        if self.left > 0 {
            return (true, true);
        }
        if temper.mends_itself {
            self.connect(temper);
            return (true, true);
        }
        self.alive = false;
        (self.random.below(2) == 0, false)
    }
}

impl Server {
    pub(crate) fn new(bytes: Vec<u8>, temper: Temper, seed: u64) -> Self {
        let model = Model::new(bytes.len());
        let info = Info {
            name: "server".into(),
            lanes: NonZeroUsize::new(temper.lanes),
            ..model.info().clone()
        };
        let state = State {
            kept: bytes.clone(),
            now: bytes,
            connection: 0,
            alive: true,
            left: temper.lives,
            late: None,
            unflushed: false,
            lost: false,
            fast_zeroes: 0,
            again: 0,
            zero_was_lost: false,
            random: Random(seed),
        };
        Self(Arc::new(Inner { info, temper, state: Mutex::new(state) }))
    }

    pub(crate) fn temper(&self) -> Temper {
        self.0.temper
    }

    pub(crate) fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.state.lock().unwrap()
    }

    /// Does something over the connection there is.
    fn over<T>(&self, work: impl FnOnce(&mut State) -> T) -> Result<T> {
        let mut state = self.state();
        if !state.alive {
            return Err(gone());
        }
        let (done, said) = state.arrives(self.0.temper);
        if !done {
            return Err(gone());
        }
        let answer = work(&mut state);
        if said { Ok(answer) } else { Err(gone()) }
    }

    fn run(&self, operation: Operation) -> Result<device::Outcome> {
        let range = |offset: u64, len: u64| offset as usize..(offset + len) as usize;
        match operation {
            Operation::Read { offset, mut buffer } => {
                let range = range(offset, buffer.len() as u64);
                self.over(|s| buffer.copy_from_slice(&s.now[range]))?;
                Ok(device::Outcome::Read(buffer))
            }
            Operation::Write { offset, data, .. } => self.over(|s| {
                s.now[range(offset, data.len() as u64)].copy_from_slice(&data);
                s.unflushed = true;
                device::Outcome::Done
            }),
            Operation::Zero { offset, len, flags } => self.zeroed(range(offset, len), flags),
            Operation::Flush => {
                let lost = self.over(|s| {
                    s.unflushed = false;
                    s.kept = s.now.clone();
                    std::mem::take(&mut s.lost)
                })?;
                if lost && self.0.temper.mends_itself {
                    return Err(Error::new(ErrorKind::Io, Fault::Peer, "flush: may be lost"));
                }
                Ok(device::Outcome::Done)
            }
            Operation::Resolve { offset, len, max } => self.over(|s| {
                let mut extents: Vec<Extent> = Vec::new();
                while extents.len() < max.min(40)
                    && extents.last().map_or(offset, Extent::end) < offset + len
                {
                    let start = extents.last().map_or(offset, Extent::end);
                    let len = (BLOCK as u64 - start % BLOCK as u64).min(offset + len - start);
                    let zero = s.now[range(start, len)].iter().all(|b| *b == 0);
                    let kind = if zero { ExtentKind::Hole } else { ExtentKind::Data };
                    extents.push(Extent::new(start, len, kind));
                }
                device::Outcome::Extents(extents)
            }),
            other => panic!("an operation that no copy asks for: {other:?}"),
        }
    }

    fn zeroed(&self, range: std::ops::Range<usize>, flags: ZeroFlags) -> Result<device::Outcome> {
        let Temper { late, repeats, .. } = self.0.temper;
        let mut state = self.state();
        state.fast_zeroes += usize::from(flags.fast_only);
        state.again += usize::from(flags.fast_only && state.zero_was_lost);
        if flags.fast_only && late > 0 && !state.zero_was_lost {
            state.zero_was_lost = true;
            state.late = Some((late, range.start, range.end));
            state.connect(self.0.temper);
            // One that is repeated is done now, and late too.
            if !repeats {
                return Err(gone());
            }
        }
        drop(state);
        self.over(|s| {
            s.now[range].fill(0);
            s.unflushed = true;
            device::Outcome::Done
        })
    }
}

impl Device for Server {
    fn info(&self) -> &Info {
        &self.0.info
    }
    fn submit(&self, operation: Operation, done: device::Done) {
        done(self.run(operation));
    }
    fn lane(&self) -> Result<Option<Box<dyn Lane>>> {
        if self.0.temper.lanes == 0 {
            return Ok(None);
        }
        let (server, seed) = (self.clone(), self.state().random.below(1 << 30));
        Ok(Some(Shuffled::lane(seed, move |operation| server.run(operation))))
    }
    fn session(&self) -> Option<&dyn device::Session> {
        Some(self)
    }
}

impl device::Session for Server {
    fn reconnects(&self) -> bool {
        self.0.temper.mends_itself
    }
    fn epoch(&self) -> u64 {
        self.state().connection
    }
}

/// Blocks of data, of holes and of zeroes.
pub(crate) fn disk(seed: u64, blocks: usize) -> Vec<u8> {
    let mut random = Random(seed);
    let mut bytes = vec![0; blocks * BLOCK];
    for (i, block) in bytes.chunks_mut(BLOCK).enumerate() {
        if random.below(3) > 0 {
            block.fill((i % 250) as u8 + 1);
            let zeroes = random.below(3) as usize * 4096;
            block[..zeroes].fill(0);
        }
    }
    bytes
}

fn options(random: &mut Random) -> Options {
    Options {
        threads: Some(1 + random.below(3) as usize),
        requests: Some(random.pick(&[1, 4, 16])),
        request_size: 16 << 10,
        apart: true,
        test_fast_zero: random.below(2) == 0,
        skip_zeroes: random.below(2) == 0,
        ..Options::default()
    }
}

fn go(
    source: &Server,
    target: &Server,
    options: &Options,
) -> std::result::Result<Report, Box<copy::FailedCopy>> {
    let (progress, cancel) = (Progress::default(), Cancel::default());
    let (from, to) = (outside(Arc::new(source.clone())), outside(Arc::new(target.clone())));
    let result = run_until(&from, &to, options, &progress, &cancel);
    if let Ok(report) = &result {
        let state = target.state();
        assert!(source.state().now == state.now, "{options:?}: it is not there");
        assert!(options.flush == copy::Flush::Never || state.kept == state.now, "not durable");
        assert!(report.left.is_empty());
        assert_eq!(report.done(), state.now.len() as u64, "{report:?}");
    }
    result
}

#[test]
fn a_target_that_breaks_again_and_again_and_forgets_ends_equal() {
    let mut random = Random(9);
    for round in 0..60 {
        let temper = Temper {
            lanes: random.pick(&[0, 2, 3]),
            lives: random.pick(&[40, 100, 250]),
            forgets: random.below(3) > 0,
            mends_itself: true,
            ..Temper::default()
        };
        let source = Server::new(disk(round, 100), Temper::default(), round);
        let target = Server::new(vec![0xee; 100 * BLOCK], temper, round);
        let options = options(&mut random);
        let result = go(&source, &target, &options);
        result.unwrap_or_else(|e| panic!("round {round}: {temper:?} {options:?}: {e}"));
        assert!(temper.lives > 40 || target.state().connection > 0, "it never broke");
    }
}

#[test]
fn a_fast_zero_that_is_lost_is_never_repeated_and_loses_no_byte_when_it_comes_late() {
    let mut random = Random(11);
    let mut swept = 0;
    for round in 0..60 {
        let temper = Temper {
            lanes: random.pick(&[0, 2]),
            late: 1 + random.below(40),
            forgets: random.below(2) == 0,
            mends_itself: true,
            repeats: random.below(3) == 0,
            ..Temper::default()
        };
        let source = Server::new(disk(round, 100), Temper::default(), round);
        let target = Server::new(vec![0xee; 100 * BLOCK], temper, round);
        // Its map is not asked first.
        let options = Options { skip_zeroes: false, ..options(&mut random) };
        go(&source, &target, &options).unwrap_or_else(|e| panic!("{temper:?} {options:?}: {e}"));
        let state = target.state();
        assert!(state.late.is_none(), "{temper:?}: it never came");
        let again = if temper.repeats { 0 } else { state.again };
        assert_eq!(again, 0, "of {} fast zeroes", state.fast_zeroes);
        swept += usize::from(state.zero_was_lost);
    }
    assert!(swept > 30, "{swept}");
}

#[test]
fn a_long_hole_whose_fast_zero_is_lost_is_zeroed_by_another_request() {
    let hole = vec![0; 20 << 20];
    let bytes = [disk(1, 50), hole, disk(2, 50)].concat();
    for seed in 0..4 {
        let source = Server::new(bytes.clone(), Temper::default(), seed);
        // The zero that replaces it and a flush follow, whatever else has come before.
        let temper = Temper { late: 1, mends_itself: true, forgets: true, ..Temper::default() };
        let target = Server::new(vec![0xee; bytes.len()], temper, seed);
        // Nothing is swept, so a worker tries out whether zeroing is fast.
        let options = Options { apart: false, skip_zeroes: false, ..options(&mut Random(seed)) };
        go(&source, &target, &options).unwrap();
        let state = target.state();
        assert!(state.zero_was_lost && state.late.is_none());
    }
}

#[test]
fn the_first_broken_path_is_the_end_where_the_device_does_not_reconnect() {
    for on_target in [true, false] {
        for lanes in [0, 2] {
            let breaks = Temper { lanes, lives: 20, ..Temper::default() };
            let (from, to) =
                if on_target { (Temper::default(), breaks) } else { (breaks, Temper::default()) };
            let source = Server::new(disk(1, 100), from, 1);
            let target = Server::new(vec![0xee; 100 * BLOCK], to, 1);
            let failure = go(&source, &target, &options(&mut Random(1))).unwrap_err();
            assert_eq!(failure.error.kind(), ErrorKind::Disconnected);
            assert!(!failure.report.left.is_empty());
        }
    }
}

#[test]
fn a_target_that_is_not_flushed_and_may_forget_fails_the_copy() {
    let disk = || disk(1, 100);
    for temper in
        [Temper { lives: 20, ..Temper::default() }, Temper { late: 5, ..Temper::default() }]
    {
        let temper = Temper { forgets: true, mends_itself: true, ..temper };
        let source = Server::new(disk(), Temper::default(), 1);
        let target = Server::new(vec![0xee; 100 * BLOCK], temper, 1);
        let options =
            Options { flush: copy::Flush::Never, skip_zeroes: false, ..options(&mut Random(1)) };
        let failure = go(&source, &target, &options).unwrap_err();
        assert_eq!(failure.error.kind(), ErrorKind::Disconnected);
        assert!(target.state().connection > 0);
    }
}

#[test]
fn a_target_that_never_lasts_until_a_flush_is_given_up() {
    let breaks = Temper { lives: 3, forgets: true, mends_itself: true, ..Temper::default() };
    let source = Server::new(vec![1; 100 * BLOCK], Temper::default(), 1);
    let target = Server::new(vec![0xee; 100 * BLOCK], breaks, 1);
    let options = Options { requests: Some(16), threads: Some(2), ..options(&mut Random(1)) };
    // It may come through, by luck; it must end, and not lie.
    if let Err(failure) = go(&source, &target, &options) {
        assert_eq!(failure.error.kind(), ErrorKind::Disconnected);
        assert!(!failure.report.left.is_empty());
    }
}
