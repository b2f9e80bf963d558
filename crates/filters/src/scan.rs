//! `scan`: has the device below prefetch the whole disk, from start to end, while clients are
//! connected.
//!
//! Each client has one prefetch in flight at a time; no request and no thread waits for it. Clients
//! share the scan's position, and so the work.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use device::{
    Arrival, Done, Edge, Filter, Filtered, Operation, Over, Params, Passes, Result, param, values,
};
use runtime::{Timers, promise, spawn};

use crate::FilterKind;
use crate::kit::below;
use crate::readahead::warn_where_nothing_is_prefetched;

pub(crate) const KIND: FilterKind = FilterKind {
    word: "scan",
    summary: "prefetches the whole disk while clients are connected",
    keeps_disk: false,
    params: &[
        param("scan-ahead", "true|false", "go on behind what a client reads (default true)"),
        param("scan-clock", "true|false", "go on where the last client left off (default true)"),
        param("scan-forever", "true|false", "start again at the end (default false)"),
        param("scan-size", "SIZE", "bytes of a prefetch, a power of two, 512 to 32M (default 2M)"),
    ],
    example: "serve --filter=scan --filter=cache random 10M --run 'nbdcopy \"$uri\" null:'",
    open: |params, below, context| {
        let settings = Settings::read(params)?;
        warn_where_nothing_is_prefetched("scan", &below, context);
        let (at, clients) = (AtomicU64::new(0), AtomicUsize::new(0));
        let timers = context.timers.clone();
        let shared = Arc::new(Shared { settings, at, clients, timers });
        Ok(Filtered::device(Scan { shared, visit: None }, below))
    },
    ..FilterKind::PLAIN
};

/// Between the end of a scan and the beginning of the next.
const REST: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug)]
struct Settings {
    ahead: bool,
    clock: bool,
    forever: bool,
    size: u64,
}

impl Settings {
    fn read(params: &Params) -> Result<Self> {
        let size = values::size(params, "scan-size")?.unwrap_or(2 << 20);
        if !size.is_power_of_two() || !(512..=32 << 20).contains(&size) {
            let why = format!("{size} is not a power of two from 512 to 32M");
            return Err(values::wrong("scan-size", why));
        }
        let flag = |key, usual| Ok::<_, device::Error>(values::flag(params, key)?.unwrap_or(usual));
        Ok(Self {
            ahead: flag("scan-ahead", true)?,
            clock: flag("scan-clock", true)?,
            forever: flag("scan-forever", false)?,
            size,
        })
    }
}

/// What the filters of all clients share.
struct Shared {
    settings: Settings,
    /// The scan's position: everything before it was prefetched or need not be.
    at: AtomicU64,
    clients: AtomicUsize,
    timers: Timers,
}

impl Shared {
    /// The next piece of a disk of `size` bytes: offset and length.
    fn next(&self, size: u64) -> Option<(u64, u64)> {
        let step = |at: u64| (at < size).then(|| at.saturating_add(self.settings.size));
        let at = self.at.fetch_update(Ordering::AcqRel, Ordering::Acquire, step).ok()?;
        Some((at, self.settings.size.min(size - at)))
    }
}

/// A client, until it has left.
struct Visit {
    shared: Arc<Shared>,
    gone: Arc<AtomicBool>,
}

impl Visit {
    fn new(shared: &Arc<Shared>) -> Self {
        let others = shared.clients.fetch_add(1, Ordering::AcqRel);
        if others == 0 && !shared.settings.clock {
            shared.at.store(0, Ordering::Release);
        }
        Self { shared: shared.clone(), gone: Arc::default() }
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        self.gone.store(true, Ordering::Release);
        self.shared.clients.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Prefetches piece by piece until the end of the disk, or until the client has left.
async fn scan(below: Edge, shared: Arc<Shared>, gone: Arc<AtomicBool>) {
    loop {
        // Other tasks get a turn between two pieces, even if nothing has to wait.
        below.pool().enter().await;
        if gone.load(Ordering::Acquire) {
            return;
        }
        let size = below.info().size;
        if let Some((offset, len)) = shared.next(size) {
            // A hint: a read of the same range tells what is wrong with it.
            let _ = below::submit(&below, Operation::Prefetch { offset, len }).await;
        } else if shared.settings.forever && size > 0 {
            let (owed, rested) = promise();
            shared.timers.after(REST, move || owed.keep(()));
            let _ = rested.await;
            let end = shared.at.load(Ordering::Acquire);
            if end >= size {
                // Another client may have begun already.
                let _ = shared.at.compare_exchange(end, 0, Ordering::AcqRel, Ordering::Acquire);
            }
        } else {
            return;
        }
    }
}

struct Scan {
    shared: Arc<Shared>,
    visit: Option<Visit>,
}

impl Filter for Scan {
    fn describe(&self, over: &mut Over) {
        if !over.info.abilities.prefetch || !self.shared.settings.ahead {
            over.passes = Passes::ALL;
        }
    }

    fn run(&self, over: &Over, operation: Operation, done: Done) {
        if let Operation::Read { offset, buffer } = &operation
            && self.visit.is_some()
            && self.shared.settings.ahead
        {
            // The scan continues after a read that has overtaken it.
            let end = offset.saturating_add(buffer.len() as u64);
            self.shared.at.fetch_max(end, Ordering::AcqRel);
        }
        over.below.submit(operation, done);
    }

    fn for_client(&self, over: &Over, arrival: &mut Arrival<'_>) -> Option<Arc<dyn Filter>> {
        let visit = Visit::new(&self.shared);
        let Arrival { client, below, .. } = arrival;
        if !below.info().abilities.prefetch {
            return None;
        }
        // If names choose the disk, the position belongs to the default one.
        if over.below.device().is_chosen_by_name() && !client.export.is_empty() {
            return None;
        }
        let gone = visit.gone.clone();
        let left = gone.clone();
        client.presence.on_leaving(move || left.store(true, Ordering::Release));
        spawn(scan(below.clone(), self.shared.clone(), gone));
        Some(Arc::new(Self { shared: self.shared.clone(), visit: Some(visit) }))
    }
}

#[cfg(test)]
mod tests {

    use super::*;
    use crate::kit::tested::{blank, client, connect, personal, put, read, start};
    use trial::TestDevice;

    const M: u64 = 1 << 20;

    /// The requests, once there are that many.
    fn wait_for(probe: &TestDevice, count: usize) -> Vec<String> {
        let (mut all, begun) = (Vec::new(), std::time::Instant::now());
        while all.len() < count {
            all.extend(probe.asked());
            assert!(begun.elapsed() < Duration::from_secs(60), "{all:?}");
            std::thread::sleep(Duration::from_millis(1));
        }
        all
    }

    fn prefetch(offset: u64, len: u64) -> String {
        format!("prefetch {offset}+{len}")
    }

    #[test]
    fn all_of_the_disk_is_prefetched_once_while_a_client_is_connected() {
        let probe = TestDevice::new(5 << 20);
        let disk = put("scan", probe.clone(), &[]).unwrap();
        disk.flush().unwrap();
        assert_eq!(probe.asked(), ["flush"], "no client is connected");
        let own = connect(&disk, &client(1)).unwrap().unwrap();
        let all = wait_for(&probe, 3);
        assert_eq!(all, [prefetch(0, 2 * M), prefetch(2 * M, 2 * M), prefetch(4 * M, M)]);
        drop(own);
        let own = connect(&disk, &client(2)).unwrap().unwrap();
        disk.beside(own).flush().unwrap();
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(probe.asked(), ["flush"], "it was prefetched");
    }

    #[test]
    fn one_piece_is_in_flight_and_a_read_further_on_is_not_waited_for() {
        let probe = TestDevice::new(8 << 20);
        let disk = put("scan", probe.clone(), &["scan-size=1M"]).unwrap();
        probe.hold();
        let own = personal(&disk, &client(1));
        assert_eq!(wait_for(&probe, 1), [prefetch(0, M)]);
        let reading = start(&own, read(5 * M, 1 << 20));
        assert_eq!(
            (wait_for(&probe, 1), probe.held().len()),
            (vec![format!("read {}+{M}", 5 * M)], 2)
        );
        probe.release();
        reading.recv().unwrap().unwrap();
        assert_eq!(wait_for(&probe, 2), [prefetch(6 * M, M), prefetch(7 * M, M)]);
    }

    #[test]
    fn it_ends_when_the_client_leaves_and_goes_on_or_starts_again_with_the_next() {
        for (word, next) in [("scan-clock=true", 2 * M), ("scan-clock=false", 0)] {
            let probe = TestDevice::new(64 << 20);
            let disk = put("scan", probe.clone(), &[word, "scan-ahead=no"]).unwrap();
            probe.hold();
            let this_client = client(1);
            let own = connect(&disk, &this_client).unwrap().unwrap();
            assert_eq!(wait_for(&probe, 1), [prefetch(0, 2 * M)]);
            this_client.presence.leave();
            drop(own);
            probe.release();
            probe.hold();
            let _own = connect(&disk, &client(2)).unwrap().unwrap();
            assert_eq!(wait_for(&probe, 1), [prefetch(next, 2 * M)], "{word}");
        }
    }

    #[test]
    fn it_may_start_again_at_the_end() {
        let probe = TestDevice::new(1 << 20);
        let disk = put("scan", probe.clone(), &["scan-forever=true"]).unwrap();
        let _own = connect(&disk, &client(1)).unwrap().unwrap();
        assert_eq!(wait_for(&probe, 2), [prefetch(0, M), prefetch(0, M)]);
    }

    #[test]
    fn over_a_device_that_cannot_prefetch_it_does_nothing() {
        let disk = put("scan", blank(512), &[]).unwrap();
        assert!(connect(&disk, &client(1)).unwrap().is_none());
    }
}
