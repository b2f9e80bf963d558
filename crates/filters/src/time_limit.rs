//! `time-limit`: serves a client for a limited time.
//!
//! Each request checks the time. The first one that comes too late is neither started nor answered:
//! the connection is closed. Requests that started in time run to their end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use device::{
    Arrival, Done, Error, ErrorKind, Fault, Filter, Filtered, Operation, Over, Params, Result,
    param, values,
};

use crate::FilterKind;

pub(crate) const KIND: FilterKind = FilterKind {
    word: "time-limit",
    summary: "limits how long each client is served",
    keeps_disk: false,
    params: &[param(
        "time-limit",
        "TIME",
        "how long a client is served (default 60 seconds; 0: for ever)",
    )],
    example: "serve --filter=time-limit memory 1M time-limit=10 --run 'nbdcopy \"$uri\" null:'",
    open: |params, below, _| Ok(Filtered::device(TimeLimit::new(limit(params)?, None), below)),
    ..FilterKind::PLAIN
};

fn limit(params: &Params) -> Result<Duration> {
    Ok(values::duration(params, "time-limit")?.unwrap_or(Duration::from_secs(60)))
}

struct TimeLimit {
    limit: Duration,
    /// When its client's time is over; `None`: there is no limit, or no client.
    until: Option<Instant>,
    /// Its client has left; later requests are not the client's: a filter above writes data back.
    left: Arc<AtomicBool>,
}

impl TimeLimit {
    fn new(limit: Duration, until: Option<Instant>) -> Self {
        Self { limit, until, left: Arc::default() }
    }

    fn is_over(&self) -> bool {
        self.until.is_some_and(|until| Instant::now() > until) && !self.left.load(Ordering::Acquire)
    }
}

impl Filter for TimeLimit {
    fn describe(&self, over: &mut Over) {
        over.info.observe();
    }

    fn run(&self, over: &Over, operation: Operation, done: Done) {
        if self.is_over() {
            let action = format!("serve longer than {:?}: the time limit is over", self.limit);
            let error = Error::new(ErrorKind::Dropped, Fault::User, action);
            return done(Err(error.on(&over.info.name)));
        }
        over.below.submit(operation, done);
    }

    fn for_client(&self, _: &Over, arrival: &mut Arrival<'_>) -> Option<Arc<dyn Filter>> {
        let until = Some(self.limit).filter(|limit| !limit.is_zero());
        let until = until.and_then(|limit| Instant::now().checked_add(limit));
        let own = Self::new(self.limit, until);
        let left = own.left.clone();
        arrival.client.presence.on_leaving(move || left.store(true, Ordering::Release));
        Some(Arc::new(own))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kit::tested::{client, personal, put, read, start};
    use trial::TestDevice;

    #[test]
    fn what_comes_too_late_is_not_begun_and_what_was_begun_in_time_ends() {
        let probe = TestDevice::new(1 << 20);
        let disk = put("time-limit", probe.clone(), &["time-limit=200ms"]).unwrap();
        let this_client = client(1);
        let own = personal(&disk, &this_client);
        probe.hold();
        let begun = start(&own, read(0, 4096));
        if probe.held().is_empty() {
            // The machine was busy for longer than that.
            return;
        }
        std::thread::sleep(Duration::from_millis(250));
        let late = start(&own, read(0, 4096)).recv().unwrap();
        assert_eq!(late.unwrap_err().kind(), ErrorKind::Dropped);
        assert_eq!(probe.held().len(), 1);
        probe.release();
        begun.recv().unwrap().unwrap();
        // There is no limit without a client, nor for data written back after it has left.
        disk.read(&mut [0; 1], 0).unwrap();
        this_client.presence.leave();
        own.write(&[1], 0, false).unwrap();
    }

    #[test]
    fn without_a_limit_there_is_none() {
        let disk = put("time-limit", TestDevice::new(512), &["time-limit=0"]).unwrap();
        let own = personal(&disk, &client(1));
        own.read(&mut [0; 1], 0).unwrap();
    }
}
