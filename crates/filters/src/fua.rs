//! `fua`: sets whether clients may send FUA, and what happens to such writes.
//!
//! `discard` breaks the promises of FUA and flush on purpose; all other modes keep them. With
//! `force` every change is durable before its reply, so a flush has nothing left to do; only reads
//! pass unchanged.

use std::sync::Arc;

use device::{
    Arrival, Done, Edge, Error, Filter, Filtered, Info, Operation, Outcome, Over, Params, Passes,
    Result, ZeroFlags, param, values,
};

use runtime::{Behalf, Context, OperatorLog};

use crate::FilterKind;

const MODES: &str = "none|emulate|native|force|pass|discard";

pub(crate) const KIND: FilterKind = FilterKind {
    word: "fua",
    summary: "controls FUA (durable writes): hidden, emulated by flush, or forced",
    keeps_disk: false,
    params: &[
        param("fuamode", MODES, "what to do (default none: FUA is not offered)"),
        param("fua-mode", MODES, "the same"),
        param("flush-on-close", "true|false", "flush when a client leaves (default false)"),
    ],
    example: "serve --filter=fua memory 1M --run 'nbdinfo --can fua \"$uri\" || echo hidden'",
    open: |params, below, context| {
        let settings = Settings::read(params, below.info(), context)?;
        flush_at_the_end(&settings, &below, context);
        Ok(Filtered::device(Fua { settings, path: None }, below))
    },
    ..FilterKind::PLAIN
};

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Mode {
    None,
    Emulate,
    Native,
    Force,
    Pass,
    Discard,
}

#[derive(Clone, Debug)]
struct Settings {
    mode: Mode,
    flush_on_close: bool,
    log: OperatorLog,
}

impl Settings {
    fn read(params: &Params, below: &Info, context: &Context) -> Result<Self> {
        use Mode::{Discard, Emulate, Force, Native, Pass};
        let modes = [Mode::None, Emulate, Native, Force, Pass, Discard];
        let short = values::meaning(params, "fuamode", MODES, modes)?;
        let mode =
            values::meaning(params, "fua-mode", MODES, modes)?.or(short).unwrap_or(Mode::None);
        let a = below.abilities;
        let can = match mode {
            Mode::None | Pass | Discard => true,
            Emulate => a.flush,
            Native | Force => a.flush || a.fua,
        };
        if a.write && !can {
            return Err(Error::unfit("fuamode: the device below can neither flush nor FUA"));
        }
        let flush_on_close = values::flag(params, "flush-on-close")?.unwrap_or(false);
        Ok(Self { mode, flush_on_close, log: context.log.clone() })
    }
}

/// A writer that is not a client (a copy) flushes at the end.
fn flush_at_the_end(settings: &Settings, below: &Edge, context: &Context) {
    if settings.flush_on_close {
        let (below, log) = (below.clone(), settings.log.clone());
        context.control.on_end(move || complain_about(&log, &below, below.flush().err()));
    }
}

/// No client asked for this flush, so its failure goes to the log.
fn complain_about(log: &OperatorLog, below: &Edge, error: Option<Error>) {
    if let Some(e) = error {
        log.say(format_args!("{}: flush-on-close: {e}", below.info().name));
    }
}

struct Fua {
    settings: Settings,
    /// The path of the client that it belongs to, and goes with.
    path: Option<Edge>,
}

impl Fua {
    /// Whether a change with `fua` is passed on with FUA.
    fn forces(&self, fua: bool) -> bool {
        match self.settings.mode {
            Mode::None | Mode::Emulate | Mode::Native | Mode::Pass => fua,
            Mode::Force => true,
            Mode::Discard => false,
        }
    }
}

impl Filter for Fua {
    fn describe(&self, over: &mut Over) {
        let a = &mut over.info.abilities;
        over.passes = Passes::ALL;
        match self.settings.mode {
            Mode::None => (a.fua, a.hides_fua) = (false, true),
            // The edge above flushes.
            Mode::Emulate => (a.fua, a.hides_fua) = (false, false),
            Mode::Native => (a.fua, a.hides_fua) = (a.write, false),
            Mode::Force | Mode::Discard => {
                (a.fua, a.flush, a.hides_fua) = (a.write, true, false);
            }
            Mode::Pass => {}
        }
        if self.settings.mode == Mode::Force {
            over.passes = Passes::READS;
        }
    }

    fn run(&self, over: &Over, operation: Operation, done: Done) {
        let operation = match operation {
            Operation::Flush => match self.settings.mode {
                Mode::Force | Mode::Discard => return done(Ok(Outcome::Done)),
                Mode::None | Mode::Emulate | Mode::Native | Mode::Pass => Operation::Flush,
            },
            Operation::Trim { offset, len, fua } => {
                Operation::Trim { offset, len, fua: self.forces(fua) }
            }
            Operation::Write { offset, data, fua } => {
                Operation::Write { offset, data, fua: self.forces(fua) }
            }
            Operation::Zero { offset, len, flags } => {
                let fua = self.forces(flags.fua);
                Operation::Zero { offset, len, flags: ZeroFlags { fua, ..flags } }
            }
            // It would not be durable before its reply; the writes that replace it are.
            Operation::Take { .. } if self.settings.mode == Mode::Force => {
                return done(Ok(Outcome::Taken(0)));
            }
            other @ (Operation::Prefetch { .. }
            | Operation::Read { .. }
            | Operation::Resolve { .. }
            | Operation::Status { .. }
            | Operation::Take { .. }) => other,
        };
        over.below.submit(operation, done);
    }

    fn for_client(&self, _: &Over, arrival: &mut Arrival<'_>) -> Option<Arc<dyn Filter>> {
        if !self.settings.flush_on_close {
            return None;
        }
        Some(Arc::new(Self { settings: self.settings.clone(), path: Some(arrival.below.clone()) }))
    }
}

impl Drop for Fua {
    fn drop(&mut self) {
        if let Some(path) = self.path.take() {
            let (below, log) = (path.clone(), self.settings.log.clone());
            let then: Done = Box::new(move |result| complain_about(&log, &below, result.err()));
            // It may be dropped in a step of the client that has just gone.
            Behalf::current().lasting().run(|| path.submit(Operation::Flush, then));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

    use device::model::Model;
    use device::{Abilities, BlockSizes};

    use super::*;
    use crate::kit::tested::{client, connect, put, put_in, simple};
    use device::Blocking as _;
    use trial::{BlockingCalls as _, Fate, TestDevice};

    fn model(fua: bool) -> Arc<Model> {
        let all = Model::new(1).info().abilities;
        Arc::new(Model::with(1 << 16, Abilities { fua, ..all }, BlockSizes::ANY))
    }

    /// How often a disk has been made durable after a write, a write with FUA, a zero, a trim and
    /// a flush.
    fn durable(mode: &str, fua: bool) -> Vec<u64> {
        let below = model(fua);
        let disk = put("fua", simple(below.clone()), &[mode]).unwrap();
        let mut counts = Vec::new();
        disk.write(&[1; 100], 0, false).unwrap();
        counts.push(below.flushes());
        disk.write(&[1; 100], 0, true).unwrap();
        counts.push(below.flushes());
        disk.zero(0, 10, ZeroFlags::default()).unwrap();
        counts.push(below.flushes());
        disk.trim(0, 10, false).unwrap();
        counts.push(below.flushes());
        disk.flush().unwrap();
        counts.push(below.flushes());
        counts
    }

    #[test]
    fn every_mode_makes_durable_what_it_promises() {
        for fua in [false, true] {
            assert_eq!(durable("fuamode=none", fua), [0, 1, 1, 1, 2]);
            assert_eq!(durable("fuamode=emulate", fua), [0, 1, 1, 1, 2]);
            assert_eq!(durable("fua-mode=native", fua), [0, 1, 1, 1, 2]);
            assert_eq!(durable("fuamode=pass", fua), [0, 1, 1, 1, 2]);
            // Each change is durable at once; the flush has nothing left to do.
            assert_eq!(durable("fuamode=force", fua), [1, 2, 3, 4, 4]);
            assert_eq!(durable("fuamode=discard", fua), [0; 5]);
        }
    }

    #[test]
    fn what_is_offered_follows_the_mode() {
        let offers = |mode: &str, fua| {
            let a = put("fua", simple(model(fua)), &[mode]).unwrap().info().abilities;
            (a.fua, a.hides_fua)
        };
        assert_eq!(offers("fuamode=none", true), (false, true));
        assert_eq!(offers("fuamode=emulate", true), (false, false));
        assert_eq!(offers("fuamode=native", false), (true, false));
        assert_eq!(offers("fuamode=pass", false), (false, false));
    }

    #[test]
    fn durability_that_the_device_cannot_give_is_refused() {
        let all = Model::new(1).info().abilities;
        let neither = Abilities { fua: false, flush: false, ..all };
        for mode in ["emulate", "native", "force"] {
            let below = Arc::new(Model::with(512, neither, BlockSizes::ANY));
            assert!(put("fua", simple(below), &[&format!("fuamode={mode}")]).is_err(), "{mode}");
        }
    }

    /// A requester that has gone.
    struct Gone;

    impl runtime::Wanted for Gone {
        fn is_wanted(&self) -> bool {
            false
        }
    }

    #[test]
    fn the_flush_for_a_client_that_leaves_is_not_given_up_with_it() {
        let wanted = Arc::new(AtomicBool::new(false));
        let seen = wanted.clone();
        let below = TestDevice::over(model(true)).hooked(move |operation| {
            if matches!(operation, Operation::Flush) {
                seen.store(Behalf::current().is_wanted(), SeqCst);
            }
            Fate::Pass(operation)
        });
        let words = ["fuamode=pass", "flush-on-close=true"];
        let disk = put("fua", below.shared(), &words).unwrap();
        let own = connect(&disk, &client(1)).unwrap().unwrap();
        own.write_at(&[1], 0, false).unwrap();
        Behalf::of_client(1).wanted_by(Arc::new(Gone)).run(|| drop(own));
        assert!(wanted.load(SeqCst));
    }

    #[test]
    fn writes_of_a_client_that_leaves_are_flushed() {
        let below = model(true);
        let words = ["fuamode=pass", "flush-on-close=true"];
        let disk = put("fua", simple(below.clone()), &words).unwrap();
        let own = connect(&disk, &client(1)).unwrap().unwrap();
        own.write_at(&[1], 0, false).unwrap();
        assert_eq!(below.flushes(), 0);
        drop(own);
        assert_eq!(below.flushes(), 1);

        let context = Context::new(runtime::WorkPool::new(2));
        let disk = put_in(&context, "fua", simple(below.clone()), &words).unwrap();
        disk.write(&[1], 0, false).unwrap();
        context.control.end();
        assert_eq!(below.flushes(), 2);
    }
}
