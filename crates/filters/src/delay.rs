//! `delay`: delays operations, connecting and disconnecting.
//!
//! A delayed request is an entry in a list of timers and holds no thread, so a thousand of them
//! cost a thousand small structs. When its client leaves, a waiting request is dropped.

use runtime::Timers;
use std::sync::Arc;
use std::time::Duration;

use device::{
    Admission, Admitted, Arrival, Client, Done, Edge, Error, Filter, Filtered, Operation, Outcome,
    Over, Params, Result, param, values,
};

use crate::FilterKind;
use crate::kit::kind::{ByKind, Kind};
use crate::kit::waiting::Waiting;

const TIME: &str = "TIME";

pub(crate) const KIND: FilterKind = FilterKind {
    word: "delay",
    summary: "delays operations, with a separate delay for each kind",
    keeps_disk: false,
    params: &[
        param("rdelay", TIME, "delay of reads: 1.5 (seconds), 100ms, 20us"),
        param("delay-read", TIME, "the same"),
        param("wdelay", TIME, "delay of writes, zeroes and trims"),
        param("delay-write", TIME, "delay of writes"),
        param("delay-zero", TIME, "delay of zeroes"),
        param("delay-trim", TIME, "delay of trims"),
        param("delay-extents", TIME, "delay of block status"),
        param("delay-cache", TIME, "delay of prefetching"),
        param("delay-open", TIME, "delay before a client is admitted"),
        param("delay-close", TIME, "delay before the device below learns that a client has gone"),
        param(
            "delay-fast-zero",
            "true|false",
            "delay fast zeroes as others; false: refuse them at once (default true)",
        ),
    ],
    example: "serve --filter=delay memory 1M rdelay=100ms --run 'nbdcopy \"$uri\" null:'",
    open: |params, below, context| {
        let settings = Arc::new(Settings::read(params)?);
        Ok(Filtered::device(Delay::new(settings, context.timers.clone(), None), below))
    },
    ..FilterKind::PLAIN
};

#[derive(Debug)]
struct Settings {
    times: ByKind<Duration>,
    open: Duration,
    close: Duration,
    fast_zero: bool,
}

impl Settings {
    fn read(params: &Params) -> Result<Self> {
        let time = |keys: &[&str]| -> Result<Duration> {
            let mut found = Duration::ZERO;
            for key in keys {
                if let Some(time) = values::duration(params, key)? {
                    found = time;
                }
            }
            Ok(found)
        };
        Ok(Self {
            times: ByKind::new(|kind| match kind {
                Kind::Read => time(&["rdelay", "delay-read"]),
                Kind::Write => time(&["wdelay", "delay-write"]),
                Kind::Zero => time(&["wdelay", "delay-zero"]),
                Kind::Trim => time(&["wdelay", "delay-trim"]),
                Kind::Extents => time(&["delay-extents"]),
                Kind::Cache => time(&["delay-cache"]),
                Kind::Flush => Ok(Duration::ZERO),
            })?,
            open: time(&["delay-open"])?,
            close: time(&["delay-close"])?,
            fast_zero: values::flag(params, "delay-fast-zero")?.unwrap_or(true),
        })
    }

    /// As in nbdkit, operations that are not delayed are not refused either.
    fn refuses_fast_zeroes(&self) -> bool {
        !self.fast_zero && !self.times[Kind::Zero].is_zero()
    }
}

struct Delay {
    settings: Arc<Settings>,
    timers: Timers,
    waiting: Arc<Waiting>,
    /// The path of the client that it belongs to, and goes with.
    path: Option<Edge>,
}

impl Delay {
    fn new(settings: Arc<Settings>, timers: Timers, path: Option<Edge>) -> Self {
        Self { settings, timers, waiting: Arc::default(), path }
    }
}

impl Filter for Delay {
    fn describe(&self, over: &mut Over) {
        let a = &mut over.info.abilities;
        // Always refused, at once: a device may always say so.
        a.fast_zero |= a.write && self.settings.refuses_fast_zeroes();
    }

    fn run(&self, over: &Over, operation: Operation, done: Done) {
        if let Operation::Zero { flags, .. } = &operation
            && flags.fast_only
            && self.settings.refuses_fast_zeroes()
        {
            return done(Err(Error::not_fast()));
        }
        let wait = self.settings.times[Kind::of(&operation)];
        if wait.is_zero() {
            return over.below.submit(operation, done);
        }
        if let Operation::Take { .. } = operation {
            // Each write that replaces it is delayed.
            return done(Ok(Outcome::Taken(0)));
        }
        self.waiting.submit_after(&self.timers, wait, &over.below, operation, done);
    }

    fn for_client(&self, _: &Over, arrival: &mut Arrival<'_>) -> Option<Arc<dyn Filter>> {
        let path = Some(arrival.below.clone());
        let own = Self::new(self.settings.clone(), self.timers.clone(), path);
        let waiting = own.waiting.clone();
        arrival.client.presence.on_leaving(move || waiting.leave());
        Some(Arc::new(own))
    }

    fn admit(&self, _client: &Client, then: Admitted) {
        self.timers.after(self.settings.open, move || then(Ok(Admission::free())));
    }
}

impl Drop for Delay {
    fn drop(&mut self) {
        if let Some(below) = self.path.take().filter(|_| !self.settings.close.is_zero()) {
            self.timers.after(self.settings.close, move || drop(below));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::kit::tested::{blank, put};

    fn delayed(words: &[&str]) -> Edge {
        put("delay", blank(1 << 20), words).unwrap()
    }

    #[test]
    fn each_operation_waits_for_its_own_time() {
        let disk = delayed(&["rdelay=50ms", "wdelay=3600"]);
        let begun = Instant::now();
        disk.read(&mut [0; 10], 5).unwrap();
        assert!(begun.elapsed() >= Duration::from_millis(50));
    }

    #[test]
    fn fast_zeroes_are_refused_at_once_if_zeroes_are_delayed_and_that_is_wanted() {
        let fast = device::ZeroFlags { fast_only: true, ..Default::default() };
        for (words, refused) in [
            (&["delay-fast-zero=false", "delay-zero=3600"][..], true),
            (&["delay-fast-zero=false", "wdelay=3600"], true),
            (&["delay-fast-zero=false", "delay-write=3600"], false),
            (&["delay-zero=1ms"], false),
        ] {
            let disk = delayed(words);
            assert!(disk.info().abilities.fast_zero);
            let kind = disk.zero(0, 4096, fast).map_err(|e| e.kind());
            assert_eq!(kind, if refused { Err(device::ErrorKind::NotFast) } else { Ok(()) });
        }
    }
}
