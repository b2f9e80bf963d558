//! `retry`: when an operation fails, waits, opens the device below anew and tries again.
//!
//! A write that is tried again writes the same bytes in the same place. What is an answer and not
//! a failure is passed on; so is a flush that the device itself refused, because what it then lost
//! would not be there for a second one. Nothing waits in a thread but the opening itself.

mod reopening;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use device::{
    Buffer, Client, Done, Edge, Error, ErrorKind, Fault, Filter, Filtered, Info, Operation,
    Outcome, Params, Result, Slice, Timers, WorkPool, ZeroFlags, param, values,
};

use crate::Kind;
use reopening::Reopening;

/// No wait is longer.
const LONGEST: Duration = Duration::from_secs(366 * 86_400);

pub(crate) const KIND: Kind = Kind {
    word: "retry",
    summary: "opens the device anew and tries again when an operation fails",
    reads_only: false,
    params: &[
        param("retries", "N", "how often to try again (default 5)"),
        param("retry-delay", "TIME", "how long to wait before it (default 2 seconds)"),
        param("retry-exponential", "true|false", "wait twice as long each time (default true)"),
        param("retry-readonly", "true|false", "write no more after a failure (default false)"),
    ],
    example: "serve --filter=retry --filter=error memory 1M error-rate=10% retry-delay=10ms \
              --run 'nbdcopy \"$uri\" null:'",
    open: |params, below, context| {
        let settings = Settings::read(params)?;
        let around = Around { timers: context.timers.clone(), pool: context.pool.clone() };
        let reopening = Reopening::new(below.device().clone(), around.pool.clone());
        Ok(Filtered::device(Retry::new(settings, around, below, reopening)))
    },
};

#[derive(Clone, Copy, Debug)]
struct Settings {
    retries: u64,
    delay: Duration,
    exponential: bool,
    readonly: bool,
}

impl Settings {
    fn read(params: &Params) -> Result<Self> {
        Ok(Self {
            retries: values::number(params, "retries")?.unwrap_or(5),
            delay: values::duration(params, "retry-delay")?.unwrap_or(Duration::from_secs(2)),
            exponential: values::flag(params, "retry-exponential")?.unwrap_or(true),
            readonly: values::flag(params, "retry-readonly")?.unwrap_or(false),
        })
    }

    /// How long to wait when `tried` tries have failed (at least 1).
    fn wait(&self, tried: u64) -> Duration {
        let doublings = if self.exponential { tried.saturating_sub(1) } else { 0 };
        let factor = u32::try_from(doublings).ok().and_then(|n| 1u32.checked_shl(n));
        let wait = factor.and_then(|factor| self.delay.checked_mul(factor));
        if self.delay.is_zero() { self.delay } else { wait.unwrap_or(LONGEST).min(LONGEST) }
    }
}

#[derive(Clone)]
struct Around {
    timers: Timers,
    pool: WorkPool,
}

/// What is needed to do an operation, now and again.
enum Task {
    Flush,
    Prefetch { offset: u64, len: u64 },
    Read { offset: u64, len: usize, buffer: Option<Buffer> },
    Resolve { offset: u64, len: u64, max: usize },
    Trim { offset: u64, len: u64, fua: bool },
    Write { offset: u64, data: Slice, fua: bool },
    Zero { offset: u64, len: u64, flags: ZeroFlags },
}

impl Task {
    fn of(operation: Operation) -> Self {
        match operation {
            Operation::Flush => Self::Flush,
            Operation::Prefetch { offset, len } => Self::Prefetch { offset, len },
            Operation::Read { offset, buffer } => {
                Self::Read { offset, len: buffer.len(), buffer: Some(buffer) }
            }
            Operation::Resolve { offset, len, max } => Self::Resolve { offset, len, max },
            Operation::Trim { offset, len, fua } => Self::Trim { offset, len, fua },
            Operation::Write { offset, data, fua } => Self::Write { offset, data, fua },
            Operation::Zero { offset, len, flags } => Self::Zero { offset, len, flags },
        }
    }

    /// The operation to be done now, and what is needed to do it again.
    fn split(self) -> (Operation, Self) {
        match self {
            Self::Flush => (Operation::Flush, Self::Flush),
            Self::Prefetch { offset, len } => (Operation::Prefetch { offset, len }, self),
            Self::Read { offset, len, buffer } => {
                // The first buffer went with the operation that failed.
                let buffer = buffer.unwrap_or_else(|| Buffer::zeroed(len));
                (Operation::Read { offset, buffer }, Self::Read { offset, len, buffer: None })
            }
            Self::Resolve { offset, len, max } => (Operation::Resolve { offset, len, max }, self),
            Self::Trim { offset, len, fua } => (Operation::Trim { offset, len, fua }, self),
            Self::Write { offset, data, fua } => {
                let (now, data) = data.shared();
                (Operation::Write { offset, data: now, fua }, Self::Write { offset, data, fua })
            }
            Self::Zero { offset, len, flags } => (Operation::Zero { offset, len, flags }, self),
        }
    }

    fn changes(&self) -> bool {
        match self {
            Self::Trim { .. } | Self::Write { .. } | Self::Zero { .. } => true,
            Self::Flush | Self::Prefetch { .. } | Self::Read { .. } | Self::Resolve { .. } => false,
        }
    }

    /// Whether it may succeed another time, and the success would be true.
    fn is_worth_another(&self, failed: ErrorKind) -> bool {
        match failed {
            // Answers: a second try would get the same one.
            ErrorKind::Cancelled
            | ErrorKind::InvalidInput
            | ErrorKind::Limit
            | ErrorKind::Mismatch
            | ErrorKind::NoSpace
            | ErrorKind::NotFast
            | ErrorKind::OutOfBounds
            | ErrorKind::PermissionDenied
            | ErrorKind::ReadOnly
            | ErrorKind::Unsupported => false,
            // The way there failed, and not what was to be done.
            ErrorKind::Disconnected | ErrorKind::Shutdown | ErrorKind::TimedOut => true,
            // A system that failed to write back forgets what it was; the next flush succeeds.
            _ => !matches!(self, Self::Flush),
        }
    }

    /// A fast zero that may have begun is finished slowly: "not fast" would say that nothing has
    /// been changed. Whether this is one.
    fn finish_slowly(&mut self) -> bool {
        match self {
            Self::Zero { flags, .. } => std::mem::replace(&mut flags.fast_only, false),
            _ => false,
        }
    }
}

struct Retry {
    info: Info,
    below: Edge,
    shared: Arc<Shared>,
}

/// What is common to all operations of a filter.
struct Shared {
    settings: Settings,
    around: Around,
    reopening: Arc<Reopening>,
    /// Nothing is written any more.
    readonly: AtomicBool,
}

impl Retry {
    fn new(settings: Settings, around: Around, below: Edge, reopening: Arc<Reopening>) -> Self {
        let readonly = AtomicBool::new(false);
        let shared = Arc::new(Shared { settings, around, reopening, readonly });
        Self { info: Info::observing(&below), below, shared }
    }
}

impl Filter for Retry {
    fn info(&self) -> &Info {
        &self.info
    }

    fn below(&self) -> &Edge {
        &self.below
    }

    fn run(&self, operation: Operation, done: Done) {
        let (below, shared) = (self.below.clone(), self.shared.clone());
        Trial { below, shared, task: Task::of(operation), tried: 0, done }.go();
    }

    fn for_client(&self, below: Edge, _client: &Client) -> Self {
        let Shared { settings, around, reopening, .. } = &*self.shared;
        let reopening = if reopening.is_of(below.device()) {
            reopening.clone()
        } else {
            Reopening::new(below.device().clone(), around.pool.clone())
        };
        Self::new(*settings, around.clone(), below, reopening)
    }

    fn is_personal(&self) -> bool {
        // The failure of one does not take writing from others.
        self.shared.settings.readonly
    }
}

/// An operation on its way, until it succeeds or is given up.
struct Trial {
    below: Edge,
    shared: Arc<Shared>,
    task: Task,
    /// How many tries have failed.
    tried: u64,
    done: Done,
}

impl Trial {
    fn go(mut self) {
        if self.task.changes() && self.shared.readonly.load(Ordering::Acquire) {
            let action = "write: nothing is written any more since an operation failed";
            let error = Error::new(ErrorKind::ReadOnly, Fault::User, action);
            return (self.done)(Err(error.on(&self.below.info().name)));
        }
        let seen = self.shared.reopening.times();
        let (operation, task) = self.task.split();
        self.task = task;
        let below = self.below.clone();
        below.submit(operation, Box::new(move |result| self.ended(seen, result)));
    }

    fn ended(mut self, seen: u64, result: Result<Outcome>) {
        let error = match result {
            Ok(outcome) => return (self.done)(Ok(outcome.without_places())),
            Err(error) => error,
        };
        if error.kind() == ErrorKind::NotFast && self.tried > 0 && self.task.finish_slowly() {
            return self.go();
        }
        if !self.task.is_worth_another(error.kind()) {
            return (self.done)(Err(error));
        }
        if self.shared.settings.readonly {
            self.shared.readonly.store(true, Ordering::Release);
        }
        self.failed(seen, error);
    }

    /// Waits, and makes the device anew.
    fn failed(mut self, seen: u64, error: Error) {
        if self.tried >= self.shared.settings.retries {
            return (self.done)(Err(error));
        }
        self.tried += 1;
        let wait = self.shared.settings.wait(self.tried);
        let timers = self.shared.around.timers.clone();
        timers.after(wait, move || {
            let reopening = self.shared.reopening.clone();
            let then = move |reopened: Result<()>| match reopened {
                Ok(()) => self.go(),
                Err(error) => self.failed(seen, error),
            };
            reopening.since(seen, Box::new(then));
        });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::atomic::AtomicU64;

    use device::model::Model;
    use device::{Device, Extent, Peer, Wait};

    use super::*;
    use crate::tested::put;

    /// A model that fails as it is told.
    struct Shaky {
        model: Model,
        info: Info,
        /// What the next operations fail with, the last first.
        failures: Mutex<Vec<ErrorKind>>,
        /// What the next reopenings fail with.
        closed: Mutex<Vec<ErrorKind>>,
        tries: AtomicU64,
        reopened: AtomicU64,
    }

    impl Shaky {
        fn new(failures: &[ErrorKind]) -> Arc<Self> {
            let model = Model::new(1 << 20);
            let info = Info { wait: Wait::Disk, ..model.info().clone() };
            let failures = Mutex::new(failures.iter().rev().copied().collect());
            let (tries, reopened) = (AtomicU64::new(0), AtomicU64::new(0));
            Arc::new(Self { model, info, failures, closed: Mutex::default(), tries, reopened })
        }

        fn next(&self) -> Result<()> {
            self.tries.fetch_add(1, Ordering::Relaxed);
            let failure = self.failures.lock().unwrap().pop();
            failure.map_or(Ok(()), |kind| Err(Error::new(kind, Fault::Peer, "shake")))
        }

        fn counts(&self) -> (u64, u64) {
            (self.tries.load(Ordering::Relaxed), self.reopened.load(Ordering::Relaxed))
        }
    }

    impl Device for Shaky {
        fn info(&self) -> &Info {
            &self.info
        }
        fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
            buf.fill(0xee);
            self.next()?;
            self.model.read_at(buf, offset)
        }
        fn write_at(&self, data: &[u8], offset: u64, fua: bool) -> Result<()> {
            self.next()?;
            self.model.write_at(data, offset, fua)
        }
        fn zero(&self, offset: u64, len: u64, flags: ZeroFlags) -> Result<()> {
            self.next()?;
            self.model.zero(offset, len, flags)
        }
        fn flush(&self) -> Result<()> {
            self.next()?;
            self.model.flush()
        }
        fn resolve(&self, at: u64, len: u64, max: usize, out: &mut Vec<Extent>) -> Result<()> {
            self.next()?;
            self.model.resolve(at, len, max, out)
        }
        fn reopen(&self) -> Result<()> {
            self.reopened.fetch_add(1, Ordering::Relaxed);
            let failure = self.closed.lock().unwrap().pop();
            failure.map_or(Ok(()), |kind| Err(Error::new(kind, Fault::Peer, "reopen")))
        }
    }

    const IO: ErrorKind = ErrorKind::Io;

    fn over(shaky: &Arc<Shaky>, words: &[&str]) -> Edge {
        let soon: &[&str] =
            if words.concat().contains("delay") { &[] } else { &["retry-delay=1ms"] };
        put("retry", shaky.clone(), &[soon, words].concat()).unwrap()
    }

    #[test]
    fn what_fails_is_tried_again_after_the_device_was_opened_anew() {
        let shaky = Shaky::new(&[IO, ErrorKind::Disconnected, IO, IO]);
        let disk = over(&shaky, &[]);
        disk.write(&[7; 5000], 100, false).unwrap();
        assert_eq!(shaky.counts(), (5, 4));
        shaky.failures.lock().unwrap().push(IO);
        let mut read = [0; 5000];
        disk.read(&mut read, 100).unwrap();
        assert_eq!(read, [7; 5000]);
    }

    #[test]
    fn an_operation_that_always_fails_is_given_up_with_its_own_error() {
        let shaky = Shaky::new(&[IO; 20]);
        let disk = over(&shaky, &["retries=3"]);
        assert_eq!(disk.read(&mut [0; 1], 0).unwrap_err().kind(), IO);
        assert_eq!(shaky.counts(), (4, 3));
        let none = over(&shaky, &["retries=0"]);
        assert!(none.read(&mut [0; 1], 0).is_err());
        assert_eq!(shaky.counts(), (5, 3));
    }

    #[test]
    fn opening_that_fails_is_a_try_that_failed() {
        let shaky = Shaky::new(&[ErrorKind::Disconnected]);
        shaky.closed.lock().unwrap().extend([ErrorKind::NotFound; 3]);
        let disk = over(&shaky, &[]);
        disk.read(&mut [0; 1], 0).unwrap();
        assert_eq!(shaky.counts(), (2, 4));
        shaky.failures.lock().unwrap().push(ErrorKind::Disconnected);
        shaky.closed.lock().unwrap().extend([ErrorKind::NotFound; 6]);
        assert_eq!(disk.read(&mut [0; 1], 0).unwrap_err().kind(), ErrorKind::NotFound);
    }

    #[test]
    fn an_answer_is_not_tried_again() {
        use ErrorKind as K;
        for kind in [
            K::Cancelled,
            K::InvalidInput,
            K::Limit,
            K::Mismatch,
            K::NoSpace,
            K::NotFast,
            K::OutOfBounds,
            K::PermissionDenied,
            K::ReadOnly,
        ] {
            let shaky = Shaky::new(&[kind]);
            let disk = over(&shaky, &[]);
            assert_eq!(disk.write(&[1; 10], 0, false).unwrap_err().kind(), kind);
            assert_eq!(shaky.counts(), (1, 0), "{kind:?}");
        }
    }

    #[test]
    fn a_flush_that_the_disk_failed_is_not_tried_again_but_one_that_did_not_arrive_is() {
        let shaky = Shaky::new(&[IO]);
        assert!(over(&shaky, &[]).flush().is_err());
        assert_eq!(shaky.counts(), (1, 0));
        let shaky = Shaky::new(&[ErrorKind::Disconnected]);
        over(&shaky, &[]).flush().unwrap();
        assert_eq!(shaky.counts(), (2, 1));
    }

    #[test]
    fn a_fast_zero_that_may_have_begun_is_never_called_not_fast() {
        let shaky = Shaky::new(&[IO, ErrorKind::NotFast]);
        shaky.model.write_at(&[1; 4096], 0, false).unwrap();
        let disk = over(&shaky, &[]);
        disk.zero(0, 4096, ZeroFlags { fast_only: true, ..ZeroFlags::default() }).unwrap();
        assert_eq!(shaky.model.bytes()[..4096], [0; 4096]);
        assert_eq!(shaky.counts(), (3, 1));
    }

    #[test]
    fn after_a_failure_nothing_is_written_if_so_wished() {
        let shaky = Shaky::new(&[IO]);
        let all = over(&shaky, &["retry-readonly=yes"]);
        let for_client = |number| {
            let (tx, rx) = std::sync::mpsc::channel();
            let client = Client { number, peer: Peer::Other, export: String::new(), tls: false };
            all.device().connect(&client, Box::new(move |own| tx.send(own).unwrap()));
            all.beside(rx.recv().unwrap().unwrap().unwrap())
        };
        let (one, other) = (for_client(1), for_client(2));
        let e = one.write(&[1; 10], 0, false).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::ReadOnly);
        one.read(&mut [0; 10], 0).unwrap();
        assert_eq!(one.zero(0, 10, ZeroFlags::default()).unwrap_err().kind(), ErrorKind::ReadOnly);
        other.write(&[1; 10], 0, false).unwrap();
    }

    #[test]
    fn many_operations_that_fail_together_share_one_reopening() {
        let shaky = Shaky::new(&[ErrorKind::Disconnected; 64]);
        let disk = over(&shaky, &["retry-delay=50ms"]);
        let (tx, rx) = std::sync::mpsc::channel();
        for _ in 0..64 {
            let tx = tx.clone();
            let operation = Operation::Read { offset: 0, buffer: Buffer::zeroed(16) };
            disk.submit(operation, Box::new(move |r| tx.send(r.is_ok()).unwrap()));
        }
        drop(tx);
        assert_eq!(rx.into_iter().filter(|ok| *ok).count(), 64);
        assert!(shaky.counts().1 < 8, "{:?}", shaky.counts());
    }

    #[test]
    fn waits_double_and_never_overflow() {
        let settings = |words: &[&str]| {
            Settings::read(&Params::parse(words.iter().copied()).unwrap()).unwrap()
        };
        let usual = settings(&[]);
        let waits: Vec<_> = (1..=5).map(|tried| usual.wait(tried).as_secs()).collect();
        assert_eq!(waits, [2, 4, 8, 16, 32]);
        assert_eq!(settings(&["retry-exponential=no"]).wait(9).as_secs(), 2);
        assert_eq!(usual.wait(u64::MAX), LONGEST);
        assert_eq!(settings(&["retry-delay=0"]).wait(u64::MAX), Duration::ZERO);
    }
}
