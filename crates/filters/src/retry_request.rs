//! `retry-request`: tries a failed request again; it reopens nothing.
//!
//! Errors that are answers and not failures are passed on, and so is every failed flush: a second one would not write
//! the data that the device forgot. Connecting a client is tried again too. No thread waits.

use std::sync::Arc;
use std::time::Duration;

use device::{
    Admission, Again, Client, Connected, Done, Edge, Error, ErrorClass, ErrorKind, Filter,
    Filtered, Info, Operation, OperationKind, Outcome, Params, Result, param, values,
};
use runtime::Timers;

use crate::FilterKind;

pub(crate) const KIND: FilterKind = FilterKind {
    word: "retry-request",
    summary: "tries single requests again when they fail",
    reads_only: false,
    keeps_disk: false,
    params: &[
        param("retry-request-retries", "N", "how often to try again, up to 1000 (default 2)"),
        param("retry-request-delay", "TIME", "how long to wait before it (default 2 seconds)"),
        param(
            "retry-request-open",
            "true|false",
            "the same for clients that are refused (default true)",
        ),
    ],
    reaches: device::Reach::nothing,
    example: "serve --filter=retry-request --filter=error memory 1M error-rate=10% \
              retry-request-retries=9 retry-request-delay=10ms --run 'nbdcopy \"$uri\" null:'",
    open: |params, below, context| {
        let settings = Settings::read(params, &context.timers)?;
        Ok(Filtered::device(RetryRequest::new(Arc::new(settings), below)))
    },
};

struct Settings {
    retries: u64,
    delay: Duration,
    open: bool,
    timers: Timers,
}

impl Settings {
    fn read(params: &Params, timers: &Timers) -> Result<Self> {
        let retries = values::number(params, "retry-request-retries")?.unwrap_or(2);
        if retries > 1000 {
            return Err(values::wrong("retry-request-retries", "at most 1000 are allowed"));
        }
        let delay = values::duration(params, "retry-request-delay")?;
        if delay.is_some_and(|delay| delay.is_zero()) {
            return Err(values::wrong("retry-request-delay", "it cannot be 0"));
        }
        Ok(Self {
            retries,
            delay: delay.unwrap_or(Duration::from_secs(2)),
            open: values::flag(params, "retry-request-open")?.unwrap_or(true),
            timers: timers.clone(),
        })
    }
}

/// Whether another try may succeed, and the success would be true.
fn is_worth_another(error: &Error) -> bool {
    match error.class() {
        ErrorClass::Permanent => false,
        ErrorClass::Misbehaved | ErrorClass::Ours | ErrorClass::Transient => true,
    }
}

struct RetryRequest {
    info: Info,
    below: Edge,
    settings: Arc<Settings>,
}

impl RetryRequest {
    fn new(settings: Arc<Settings>, below: Edge) -> Self {
        let mut info = Info::observing(&below);
        // Where durable means a flush below, the flush is an operation by itself: as part of a write it would be tried again.
        info.abilities.fua = below.info().abilities.fua;
        Self { info, below, settings }
    }
}

impl Filter for RetryRequest {
    fn info(&self) -> &Info {
        &self.info
    }

    fn below(&self) -> &Edge {
        &self.below
    }

    fn run(&self, mut operation: Operation, done: Done) {
        if operation.kind() == OperationKind::Flush {
            return self.below.submit(operation, done);
        }
        let (below, settings) = (self.below.clone(), self.settings.clone());
        let again = operation.again();
        Trial { below, settings, again, tried: 0, done }.go(operation);
    }

    fn for_client(&self, below: Edge, _client: &Client, _admission: Admission) -> Self {
        Self::new(self.settings.clone(), below)
    }

    fn connect(&self, client: &Client, done: Connected) {
        let retries = if self.settings.open { self.settings.retries } else { 0 };
        connect(self.below.clone(), self.settings.clone(), client.clone(), retries, done);
    }
}

/// Asks below for a client, and `retries` times more.
fn connect(below: Edge, settings: Arc<Settings>, client: Client, retries: u64, done: Connected) {
    let (device, arriving) = (below.device().clone(), client.clone());
    let then: Connected = Box::new(move |answer| match answer {
        Err(error) if retries > 0 && is_worth_another(&error) => {
            let (delay, timers) = (settings.delay, settings.timers.clone());
            timers.after(delay, move || connect(below, settings, client, retries - 1, done));
        }
        answer => done(answer),
    });
    device.connect(&arriving, then);
}

/// An operation in flight, until it succeeds or is given up.
struct Trial {
    below: Edge,
    settings: Arc<Settings>,
    again: Again,
    /// How many tries have failed.
    tried: u64,
    done: Done,
}

impl Trial {
    fn go(self, operation: Operation) {
        let below = self.below.clone();
        below.submit(operation, Box::new(move |result| self.ended(result)));
    }

    fn go_again(mut self) {
        let operation = self.again.operation();
        self.go(operation);
    }

    fn ended(mut self, result: Result<Outcome>) {
        let Err(error) = &result else { return (self.done)(result) };
        // The first try may have been carried out in part.
        if error.kind() == ErrorKind::NotFast && self.tried > 0 && self.again.slow_down() {
            return self.go_again();
        }
        if self.tried >= self.settings.retries || !is_worth_another(error) {
            return (self.done)(result);
        }
        self.tried += 1;
        let (delay, timers) = (self.settings.delay, self.settings.timers.clone());
        timers.after(delay, move || self.go_again());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc::channel;

    use device::model::Model;
    use device::{
        Abilities, BlockSizes, Blocking as _, Device, Fault, Session, Simple, ZeroFlags,
        run_blocking,
    };
    use runtime::WorkPool;

    use super::*;
    use crate::kit::tested::{client, put, simple};

    /// A model that fails the next operations and clients on demand, the last first.
    struct Shaky {
        model: Model,
        failures: Mutex<Vec<ErrorKind>>,
        tries: Mutex<u64>,
        /// The next flush fails.
        forgets: AtomicBool,
    }

    impl Shaky {
        fn new(failures: &[ErrorKind]) -> Arc<Self> {
            Self::over(Model::new(1 << 20), failures, false)
        }

        fn over(model: Model, failures: &[ErrorKind], forgets: bool) -> Arc<Self> {
            let failures = Mutex::new(failures.iter().rev().copied().collect());
            Arc::new(Self { model, failures, tries: Mutex::new(0), forgets: forgets.into() })
        }

        fn next(&self) -> Result<()> {
            *self.tries.lock().unwrap() += 1;
            let failure = self.failures.lock().unwrap().pop();
            failure.map_or(Ok(()), |kind| Err(Error::new(kind, Fault::Peer, "shake")))
        }

        fn tries(&self) -> u64 {
            std::mem::take(&mut self.tries.lock().unwrap())
        }
    }

    impl Device for Shaky {
        fn info(&self) -> &Info {
            self.model.info()
        }
        fn submit(&self, operation: Operation, done: Done) {
            let is_flush = operation.kind() == OperationKind::Flush;
            if is_flush && self.forgets.swap(false, Ordering::Relaxed) {
                return done(Err(Error::new(ErrorKind::Io, Fault::File, "flush")));
            }
            done(self.next().and_then(|()| run_blocking(&self.model, operation)));
        }
        fn session(&self) -> Option<&dyn Session> {
            Some(self)
        }
    }

    impl Session for Shaky {
        fn connect(&self, _: &Client, done: Connected) {
            done(self.next().map(|()| None));
        }
    }

    const QUICK: &str = "retry-request-delay=1ms";

    #[test]
    fn a_request_that_fails_is_tried_again_as_often_as_told_and_no_more() {
        for failures in 0..=3 {
            let below = Shaky::new(&vec![ErrorKind::Io; failures]);
            let disk = put("retry-request", below.clone(), &[QUICK]).unwrap();
            assert_eq!(disk.write(&[7; 100], 5, true).is_ok(), failures < 3);
            assert_eq!(below.tries(), failures.min(2) as u64 + 1);
            if failures < 3 {
                assert_eq!(below.model.bytes()[5..105], [7; 100]);
            }
        }
        let below = Shaky::new(&[ErrorKind::Disconnected]);
        let disk = put("retry-request", below.clone(), &[QUICK]).unwrap();
        let mut zeroes = [1; 10];
        disk.read(&mut zeroes, 0).unwrap();
        assert_eq!(zeroes, [0; 10]);
    }

    #[test]
    fn an_answer_is_no_failure_and_a_flush_that_failed_is_not_made_good_by_another() {
        for kind in [ErrorKind::NoSpace, ErrorKind::ReadOnly, ErrorKind::InvalidInput] {
            let below = Shaky::new(&[kind]);
            let disk = put("retry-request", below.clone(), &[QUICK]).unwrap();
            assert_eq!(disk.write(&[7; 100], 0, false).unwrap_err().kind(), kind);
            assert_eq!(below.tries(), 1);
        }
        let below = Shaky::new(&[ErrorKind::Io]);
        let disk = put("retry-request", below.clone(), &[QUICK]).unwrap();
        assert_eq!(disk.flush().unwrap_err().kind(), ErrorKind::Io);
        assert_eq!(below.tries(), 1);
    }

    #[test]
    fn a_flush_that_makes_a_write_durable_is_not_tried_again_either() {
        let all = Model::new(1).info().abilities;
        let model = Model::with(4096, Abilities { fua: false, ..all }, BlockSizes::ANY);
        let below = Shaky::over(model, &[ErrorKind::Io], true);
        let disk = put("retry-request", below.clone(), &[QUICK]).unwrap();
        assert_eq!(disk.write(&[7; 100], 0, true).unwrap_err().kind(), ErrorKind::Io);
        assert_eq!(below.tries(), 2, "the write was");
        disk.write(&[7; 100], 0, true).unwrap();
    }

    #[test]
    fn a_fast_zero_that_was_begun_is_finished_however_slow_that_is() {
        let below = Shaky::new(&[ErrorKind::Io, ErrorKind::NotFast]);
        let disk = put("retry-request", below.clone(), &[QUICK]).unwrap();
        below.model.write_at(&[7; 4096], 0, false).unwrap();
        disk.zero(0, 4096, ZeroFlags { fast_only: true, ..ZeroFlags::default() }).unwrap();
        assert!(below.model.bytes().iter().all(|b| *b == 0));
        assert_eq!(below.tries(), 3);
    }

    #[test]
    fn a_client_that_is_refused_is_tried_again_too() {
        for (word, taken) in [("retry-request-open=yes", true), ("retry-request-open=no", false)] {
            let below = Shaky::new(&[ErrorKind::Io, ErrorKind::Io]);
            let disk = put("retry-request", below.clone(), &[QUICK, word]).unwrap();
            let (tx, rx) = channel();
            disk.device().connect(&client(1), Box::new(move |own| tx.send(own.is_ok()).unwrap()));
            assert_eq!(rx.recv().unwrap(), taken);
            assert_eq!(below.tries(), if taken { 3 } else { 1 });
        }
    }

    #[test]
    fn numbers_that_make_no_sense_are_refused() {
        for word in ["retry-request-retries=1001", "retry-request-delay=0", "retry-request-open=2"]
        {
            let disk = Simple::device(Arc::new(Model::new(512)), &WorkPool::new(1));
            assert!(put("retry-request", disk, &[word]).unwrap_err().is_usage(), "{word}");
        }
        put("retry-request", simple(Arc::new(Model::new(512))), &["retry-request-retries=0"])
            .unwrap();
    }
}
