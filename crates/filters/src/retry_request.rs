//! `retry-request`: tries a failed request again; it reopens nothing.
//!
//! Errors that are answers and not failures are passed on, and so is every failed flush: a second
//! one would not write the data that the device forgot. Connecting a client is tried again too. No
//! thread waits.

use std::sync::Arc;
use std::time::Duration;

use device::{
    Again, Client, Connected, Done, Edge, Error, ErrorClass, ErrorKind, Filter, Filtered,
    Operation, OperationKind, Outcome, Over, Params, Result, param, values,
};
use runtime::Timers;

use crate::FilterKind;

pub(crate) const KIND: FilterKind = FilterKind {
    word: "retry-request",
    summary: "retries failed requests",
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
    example: "serve --filter=retry-request --filter=error memory 1M error-rate=10% \
              retry-request-retries=9 retry-request-delay=10ms --run 'nbdcopy \"$uri\" null:'",
    open: |params, below, context| {
        let settings = Settings::read(params, &context.timers)?;
        Ok(Filtered::device(RetryRequest(Arc::new(settings)), below))
    },
    ..FilterKind::PLAIN
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

struct RetryRequest(Arc<Settings>);

impl Filter for RetryRequest {
    fn describe(&self, over: &mut Over) {
        // Where durable means a flush below, the flush is an operation by itself: as part of a
        // write it would be tried again.
        let fua = over.info.abilities.fua;
        over.info.observe();
        over.info.abilities.fua = fua;
    }

    fn run(&self, over: &Over, mut operation: Operation, done: Done) {
        if operation.kind() == OperationKind::Flush {
            return over.below.submit(operation, done);
        }
        let (below, settings) = (over.below.clone(), self.0.clone());
        let again = operation.again();
        Trial { below, settings, again, tried: 0, done }.go(operation);
    }

    fn connect(&self, over: &Over, client: &Client, done: Connected) {
        let retries = if self.0.open { self.0.retries } else { 0 };
        connect(over.below.clone(), self.0.clone(), client.clone(), retries, done);
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
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::sync::mpsc::channel;

    use device::model::Model;
    use device::{Abilities, BlockSizes, Blocking as _, Fault, ZeroFlags};
    use trial::TestDevice;

    use super::*;
    use crate::kit::tested::{client, put};

    /// A device that fails the next operations.
    fn shaky(failures: &[ErrorKind]) -> Arc<TestDevice> {
        let device = TestDevice::new(1 << 20);
        device.fail_next(failures.to_vec());
        device
    }

    const QUICK: &str = "retry-request-delay=1ms";

    #[test]
    fn a_request_that_fails_is_tried_again_as_often_as_set_and_no_more() {
        for failures in 0..=3 {
            let below = shaky(&vec![ErrorKind::Io; failures]);
            let disk = put("retry-request", below.clone(), &[QUICK]).unwrap();
            assert_eq!(disk.write(&[7; 100], 5, true).is_ok(), failures < 3);
            assert_eq!(below.asked().len(), failures.min(2) + 1);
            if failures < 3 {
                assert_eq!(below.model().bytes()[5..105], [7; 100]);
            }
        }
        let below = shaky(&[ErrorKind::Disconnected]);
        let disk = put("retry-request", below.clone(), &[QUICK]).unwrap();
        let mut zeroes = [1; 10];
        disk.read(&mut zeroes, 0).unwrap();
        assert_eq!(zeroes, [0; 10]);
    }

    #[test]
    fn a_permanent_error_is_not_tried_again_and_neither_is_a_failed_flush() {
        for kind in [ErrorKind::NoSpace, ErrorKind::ReadOnly, ErrorKind::InvalidInput] {
            let below = shaky(&[kind]);
            let disk = put("retry-request", below.clone(), &[QUICK]).unwrap();
            assert_eq!(disk.write(&[7; 100], 0, false).unwrap_err().kind(), kind);
            assert_eq!(below.asked().len(), 1);
        }
        let below = shaky(&[ErrorKind::Io]);
        let disk = put("retry-request", below.clone(), &[QUICK]).unwrap();
        assert_eq!(disk.flush().unwrap_err().kind(), ErrorKind::Io);
        assert_eq!(below.asked().len(), 1);
    }

    #[test]
    fn a_flush_that_makes_a_write_durable_is_not_tried_again_either() {
        let all = Model::new(1).info().abilities;
        let model = Model::with(4096, Abilities { fua: false, ..all }, BlockSizes::ANY);
        let below = TestDevice::over(model).shared();
        below.fail_next([Some(ErrorKind::Io), None, Some(ErrorKind::Io)]);
        let disk = put("retry-request", below.clone(), &[QUICK]).unwrap();
        assert_eq!(disk.write(&[7; 100], 0, true).unwrap_err().kind(), ErrorKind::Io);
        assert_eq!(below.asked(), ["write 0+100", "write 0+100", "flush"]);
        disk.write(&[7; 100], 0, true).unwrap();
    }

    #[test]
    fn a_fast_zero_that_was_begun_is_finished_however_slow() {
        let below = shaky(&[ErrorKind::Io, ErrorKind::NotFast]);
        let disk = put("retry-request", below.clone(), &[QUICK]).unwrap();
        below.model().write_at(&[7; 4096], 0, false).unwrap();
        disk.zero(0, 4096, ZeroFlags { fast_only: true, ..ZeroFlags::default() }).unwrap();
        assert!(below.model().bytes().iter().all(|b| *b == 0));
        assert_eq!(below.asked().len(), 3);
    }

    #[test]
    fn a_client_that_is_refused_is_tried_again_too() {
        for (word, taken) in [("retry-request-open=yes", true), ("retry-request-open=no", false)] {
            let tries = Arc::new(AtomicU32::new(0));
            let tried = tries.clone();
            let below = TestDevice::over(Model::new(512)).connecting(move |_, done| {
                let refused = tried.fetch_add(1, Ordering::Relaxed) < 2;
                done(if refused {
                    Err(Error::new(ErrorKind::Io, Fault::Peer, "shake"))
                } else {
                    Ok(None)
                });
            });
            let disk = put("retry-request", below.shared(), &[QUICK, word]).unwrap();
            let (tx, rx) = channel();
            disk.device().connect(&client(1), Box::new(move |own| tx.send(own.is_ok()).unwrap()));
            assert_eq!(rx.recv().unwrap(), taken);
            assert_eq!(tries.load(Ordering::Relaxed), if taken { 3 } else { 1 });
        }
    }
}
