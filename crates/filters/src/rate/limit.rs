//! Two rates, one for each direction, which a file or the time of the day may change while they are
//! used.
//!
//! Waiting requests are kept in the meter, and hold no thread. The file is checked when a request
//! comes and while one waits, once a second at most, and never by the requesting thread.

use runtime::{Behalf, Mutex, MutexGuard, OperatorLog, Timers, WorkPool};
use std::fs::OpenOptions;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use device::{Error, Result, parse_size};

use super::clock::LocalTime;
use super::meter::Meter;
use super::timetable::{Timetable, bits};
use crate::kit::outlet::left;
use crate::kit::params::absolute;

/// How often to check the file at most.
const LOOK: Duration = Duration::from_secs(1);
/// The shortest timer: what is earned in that time is paid together.
const TICK: Duration = Duration::from_millis(1);
/// The most bytes of the file that are read.
const LONGEST: u64 = 4096;

/// The job to run when it is paid for, or, with the reason, when it never will be.
type Job = Box<dyn FnOnce(Result<()>) + Send>;

/// To the client, or from it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Direction {
    Read,
    Write,
}

/// Where a rate comes from. Cheap to clone; all clones are one.
#[derive(Clone)]
pub(super) struct Source(Arc<Known>);

/// What may change a rate while it is used.
enum Changing {
    Nothing,
    /// A file with bits a second.
    Bits(PathBuf),
    /// A file with bytes a second, or `off`.
    Bytes(PathBuf),
    ByTime(Timetable),
}

impl Changing {
    fn rate(&self) -> Result<Option<u64>> {
        match self {
            Self::Nothing => Ok(None),
            Self::Bits(path) => read(path, |text| parse_size(text.trim()).map(Some)),
            Self::Bytes(path) => read(path, bits),
            Self::ByTime(table) => Ok(Some(table.at(LocalTime::now()))),
        }
    }
}

struct Known {
    changing: Changing,
    /// Bits a second, as last read; 0: no limit.
    rate: AtomicU64,
    /// Whether the log has said that the file is malformed.
    complained: Mutex<bool>,
    log: OperatorLog,
}

impl Source {
    /// `rate` until the file says otherwise.
    ///
    /// # Errors
    /// The file exists and is malformed.
    pub(super) fn new(rate: Option<u64>, file: Option<&str>, log: OperatorLog) -> Result<Self> {
        let file = file.map(absolute).transpose()?;
        Self::of(rate, file.map_or(Changing::Nothing, Changing::Bits), log)
    }

    /// The same of a file that says bytes.
    ///
    /// # Errors
    /// The file exists and is malformed.
    pub(super) fn of_bytes(rate: Option<u64>, file: &str, log: OperatorLog) -> Result<Self> {
        Self::of(rate, Changing::Bytes(absolute(file)?), log)
    }

    /// The rate by the time of the day.
    ///
    /// # Errors
    /// It is no timetable.
    pub(super) fn by_time(table: &str, log: OperatorLog) -> Result<Self> {
        Self::of(None, Changing::ByTime(Timetable::parse(table)?), log)
    }

    fn of(rate: Option<u64>, changing: Changing, log: OperatorLog) -> Result<Self> {
        let rate = AtomicU64::new(changing.rate()?.or(rate).unwrap_or(0));
        Ok(Self(Arc::new(Known { changing, rate, complained: Mutex::default(), log })))
    }

    fn may_change(&self) -> bool {
        !matches!(self.0.changing, Changing::Nothing)
    }

    /// Whether there may ever be a limit.
    pub(super) fn may_limit(&self) -> bool {
        self.may_change() || self.rate() > 0
    }

    fn rate(&self) -> u64 {
        self.0.rate.load(Ordering::Relaxed)
    }

    /// Finds out what it is now; with a malformed file all stays as it is.
    fn look(&self) {
        // A file that does not answer (on a lost network, say) holds one thread and no more.
        let Some(mut complained) = self.0.complained.try_lock() else { return };
        match self.0.changing.rate() {
            Ok(said) => {
                *complained = false;
                self.0.rate.store(said.unwrap_or_else(|| self.rate()), Ordering::Relaxed);
            }
            Err(e) if !std::mem::replace(&mut *complained, true) => {
                self.0.log.say(format_args!("rate: {e}"));
            }
            Err(_) => {}
        }
    }
}

/// The rate in a file, if it exists.
fn read<E: std::fmt::Display>(
    path: &Path,
    parse: impl Fn(&str) -> std::result::Result<Option<u64>, E>,
) -> Result<Option<u64>> {
    let opened = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path);
    let mut text = String::new();
    match opened.and_then(|file| file.take(LONGEST).read_to_string(&mut text)) {
        Ok(_) => {}
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(Error::os("read the rate", e).on(path.display())),
    };
    let wrong = |e: E| Error::unfit(format!("read the rate: {e}")).on(path.display());
    parse(&text).map_err(wrong)
}

/// A limit for both directions.
pub(super) struct Limit {
    source: Source,
    timers: Timers,
    pool: WorkPool,
    looked: Mutex<Instant>,
    reads: Mutex<State>,
    writes: Mutex<State>,
}

struct State {
    meter: Meter<Job>,
    rate: u64,
    /// A thread is running paid jobs.
    letting: bool,
    /// Another job came meanwhile.
    again: bool,
    /// When a timer will be due.
    due: Option<Instant>,
}

impl Limit {
    pub(super) fn new(
        source: Source,
        burst: Duration,
        timers: Timers,
        pool: WorkPool,
    ) -> Arc<Self> {
        let now = Instant::now();
        let rate = source.rate();
        let state = || {
            let meter = Meter::new(rate, burst, now);
            Mutex::new(State { meter, rate, letting: false, again: false, due: None })
        };
        let (reads, writes) = (state(), state());
        Arc::new(Self { source, timers, pool, looked: Mutex::new(now), reads, writes })
    }

    fn state(&self, direction: Direction) -> MutexGuard<'_, State> {
        (match direction {
            Direction::Read => &self.reads,
            Direction::Write => &self.writes,
        })
        .lock()
    }

    /// Whether something waits until it is paid.
    pub(super) fn holds_back(&self) -> bool {
        [Direction::Read, Direction::Write]
            .into_iter()
            .any(|direction| !self.state(direction).meter.is_idle())
    }

    /// Runs `job` of `client` when `bytes` are paid, or the client has left before.
    pub(super) fn enter(
        self: &Arc<Self>,
        direction: Direction,
        client: u64,
        bytes: u64,
        job: impl FnOnce(Result<()>) + Send + 'static,
    ) {
        self.look();
        let mut state = self.state(direction);
        if state.meter.is_open() {
            drop(state);
            return job(Ok(()));
        }
        // Another thread may run it.
        let behalf = Behalf::current();
        let job = Box::new(move |paid| behalf.run(|| job(paid)));
        state.meter.push(client, bytes.saturating_mul(8), job);
        drop(state);
        self.let_go(direction);
    }

    /// `client` has left: its unpaid jobs are dropped.
    pub(super) fn leave(self: &Arc<Self>, client: u64) {
        for direction in [Direction::Read, Direction::Write] {
            let gone: Vec<_> = self.state(direction).meter.forget(client).collect();
            gone.into_iter().for_each(|job| job(Err(left())));
            // The turn may have been this client's.
            self.let_go(direction);
        }
    }

    /// Runs paid jobs. A job that ends at once may bring others meanwhile, so this is a loop and
    /// not a recursion.
    fn let_go(self: &Arc<Self>, direction: Direction) {
        let mut state = self.state(direction);
        if state.letting {
            state.again = true;
            return;
        }
        state.letting = true;
        loop {
            state.again = false;
            let paid = state.meter.paid(Instant::now());
            if paid.is_empty() && !state.again {
                break;
            }
            drop(state);
            paid.into_iter().for_each(|job| job(Ok(())));
            state = self.state(direction);
        }
        state.letting = false;
        let Some(wait) = state.meter.wait() else { return };
        let wait = if self.source.may_change() { wait.min(LOOK) } else { wait };
        let Some(due) = Instant::now().checked_add(wait.max(TICK)) else { return };
        if state.due.is_some_and(|earlier| earlier <= due) {
            return;
        }
        state.due = Some(due);
        drop(state);
        let me = self.clone();
        self.timers.at(due, move || me.wake(direction, due));
    }

    fn wake(self: &Arc<Self>, direction: Direction, due: Instant) {
        let mut state = self.state(direction);
        if state.due == Some(due) {
            state.due = None;
        }
        drop(state);
        self.look();
        self.let_go(direction);
    }

    /// Has another thread check the file, if it is time.
    fn look(self: &Arc<Self>) {
        if !self.source.may_change() {
            return;
        }
        let mut looked = self.looked.lock();
        if looked.elapsed() < LOOK {
            return;
        }
        *looked = Instant::now();
        drop(looked);
        let me = self.clone();
        self.pool.run(move || {
            me.source.look();
            me.follow(Direction::Read);
            me.follow(Direction::Write);
        });
    }

    fn follow(self: &Arc<Self>, direction: Direction) {
        let rate = self.source.rate();
        let mut state = self.state(direction);
        if state.rate != rate {
            state.rate = rate;
            state.meter.set_rate(rate, Instant::now());
            drop(state);
            self.let_go(direction);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use runtime::Wanted;

    use super::*;

    /// A client that is here until the end.
    struct Here(u64);

    impl Wanted for Here {
        fn is_wanted(&self) -> bool {
            self.0 == 1
        }
    }

    #[test]
    fn a_client_that_wakes_others_does_not_take_them_along_when_it_leaves() {
        let (timers, pool) = (Timers::default(), WorkPool::new(1));
        let source = Source::new(Some(8 << 20), None, OperatorLog::default()).unwrap();
        let limit = Limit::new(source, Duration::ZERO, timers.clone(), pool);
        // No timer runs a job meanwhile.
        let (busy, hold) = channel::<()>();
        timers.at(Instant::now() + TICK, move || assert!(hold.recv().is_err()));
        std::thread::sleep(Duration::from_millis(50));
        let (tx, rx) = channel();
        let enter = |client: u64, bytes: u64| {
            let (limit, tx) = (limit.clone(), tx.clone());
            Behalf::of_client(client).wanted_by(Arc::new(Here(client))).run(|| {
                limit.enter(Direction::Read, client, bytes, move |_| {
                    let behalf = Behalf::current();
                    assert_eq!(behalf.client(), client);
                    tx.send((client, behalf.is_wanted())).unwrap();
                });
            });
        };
        enter(1, 90 << 10);
        enter(1, 1 << 10);
        let early = rx.try_iter().count();
        std::thread::sleep(Duration::from_millis(300));
        enter(2, 1);
        drop(busy);
        for _ in early..2 {
            let (client, is_wanted) = rx.recv().unwrap();
            assert!(client == 2 || is_wanted, "in the name of another");
        }
    }
}
