//! `readahead`: has the device below prefetch what a client that reads forward will ask for next.
//!
//! Reads go below unchanged. The filter sends prefetch requests for the range ahead of them and
//! does not wait for these. The window doubles with each forward read and starts over with a read
//! elsewhere. Each client has a window of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use device::{Arrival, Done, Edge, Filter, Filtered, Info, Operation, Over, Passes};
use runtime::{Context, Mutex};

use crate::FilterKind;

pub(crate) const KIND: FilterKind = FilterKind {
    word: "readahead",
    summary: "prefetches for sequential readers",
    keeps_disk: false,
    example: "serve --filter=readahead --filter=cache random 10M \
              --run 'nbdcopy \"$uri\" null:'",
    open: |_, below, context| {
        warn_where_nothing_is_prefetched("readahead", &below, context);
        Ok(Filtered::device(ReadAhead::new(), below))
    },
    ..FilterKind::PLAIN
};

/// Says so in the log if the filter `word` has nothing to do over `below`.
pub(crate) fn warn_where_nothing_is_prefetched(word: &str, below: &Edge, context: &Context) {
    let Info { name, abilities, .. } = below.info();
    if !abilities.prefetch {
        context.log.say(format_args!(
            "{word}: {name} cannot prefetch, so this does nothing; put `cache` under it"
        ));
    }
}

/// The shortest and the longest way to look ahead, in bytes.
const SHORTEST: u64 = 32 << 10;
const LONGEST: u64 = 4 << 20;

/// Prefetches of one client in flight at a time.
const IN_FLIGHT: usize = 2;

/// How a client reads.
#[derive(Debug)]
struct ReadPattern {
    /// Its last read.
    last: (u64, u64),
    /// How far to look ahead, in bytes.
    len: u64,
    /// Everything before this was prefetched.
    ahead: u64,
}

impl ReadPattern {
    const NEW: Self = Self { last: (0, 0), len: SHORTEST, ahead: 0 };

    /// Notes a read of `start..end`. Says what to prefetch now, as offset and length.
    fn note(&mut self, start: u64, end: u64, size: u64) -> Option<(u64, u64)> {
        let (before, expected) = self.last;
        // Several requests of a client may arrive in another order than it sent them.
        let forward = start >= before && start <= expected.saturating_add(self.len);
        self.last = (start, end);
        if !forward {
            self.len = SHORTEST;
            self.ahead = 0;
            return None;
        }
        let from = self.ahead.max(end);
        let to = end.saturating_add(self.len).min(size);
        self.len = (self.len * 2).min(LONGEST);
        (to > from).then(|| (from, to - from))
    }
}

struct ReadAhead {
    window: Mutex<ReadPattern>,
    in_flight: Arc<AtomicUsize>,
}

impl ReadAhead {
    fn new() -> Self {
        Self { window: Mutex::new(ReadPattern::NEW), in_flight: Arc::default() }
    }

    /// What to prefetch after a read, unless too much is in flight.
    fn next(&self, info: &Info, offset: u64, len: u64) -> Option<Operation> {
        if !info.abilities.prefetch || len == 0 {
            return None;
        }
        let mut window = self.window.lock();
        let (offset, len) = window.note(offset, offset + len, info.size)?;
        if self.in_flight.load(Ordering::Relaxed) >= IN_FLIGHT {
            return None;
        }
        window.ahead = offset + len;
        Some(Operation::Prefetch { offset, len })
    }
}

impl Filter for ReadAhead {
    fn describe(&self, over: &mut Over) {
        if !over.info.abilities.prefetch {
            over.passes = Passes::ALL;
        }
    }

    fn run(&self, over: &Over, operation: Operation, done: Done) {
        let next = match &operation {
            Operation::Read { offset, buffer } => {
                self.next(&over.info, *offset, buffer.len() as u64)
            }
            _ => None,
        };
        over.below.submit(operation, done);
        if let Some(next) = next {
            let in_flight = self.in_flight.clone();
            in_flight.fetch_add(1, Ordering::Relaxed);
            // A hint: a real read will report what is wrong with it.
            let ended = move |_| {
                in_flight.fetch_sub(1, Ordering::Relaxed);
            };
            over.below.submit(next, Box::new(ended));
        }
    }

    fn for_client(&self, _: &Over, arrival: &mut Arrival<'_>) -> Option<Arc<dyn Filter>> {
        let prefetches = arrival.below.info().abilities.prefetch;
        prefetches.then(|| Arc::new(Self::new()) as Arc<dyn Filter>)
    }
}

#[cfg(test)]
mod tests {
    use device::{Abilities, BlockSizes};

    use super::*;
    use crate::kit::tested::{bytes, client, personal, put, read, simple, start};
    use device::Blocking as _;
    use trial::TestDevice;

    const SIZE: usize = 16 << 20;

    fn prefetches(probe: &TestDevice) -> Vec<String> {
        probe.asked().into_iter().filter(|a| a.starts_with("prefetch")).collect()
    }

    #[test]
    fn the_window_doubles_with_reads_forward_and_starts_again_with_one_elsewhere() {
        let probe = TestDevice::new(SIZE);
        let disk = put("readahead", probe.clone(), &[]).unwrap();
        for i in 0..3 {
            bytes(&disk, i * 4096, 4096);
        }
        // 32 K from 4 K, then as much as is missing to 64 K from 8 K, and to 128 K from 12 K.
        let k = 1024;
        assert_eq!(
            prefetches(&probe),
            [
                format!("prefetch {}+{}", 4 * k, 32 * k),
                format!("prefetch {}+{}", 36 * k, 36 * k),
                format!("prefetch {}+{}", 72 * k, 68 * k),
            ]
        );
        bytes(&disk, 8 << 20, 4096);
        assert_eq!(prefetches(&probe), [""; 0]);
        bytes(&disk, (8 << 20) + 4096, 4096);
        assert_eq!(prefetches(&probe), [format!("prefetch {}+{}", (8 << 20) + 8 * k, 32 * k)]);
        bytes(&disk, 0, 1);
        assert_eq!(prefetches(&probe), [""; 0]);
    }

    #[test]
    fn the_window_has_a_limit_and_ends_with_the_disk() {
        let mut window = ReadPattern::NEW;
        let (mut at, mut longest, mut covered) = (0, 0, 0);
        while at < SIZE as u64 {
            if let Some((offset, len)) = window.note(at, at + 65536, SIZE as u64) {
                assert!(offset >= at + 65536 && offset + len <= SIZE as u64);
                longest = longest.max(offset + len - at);
                covered += len;
                window.ahead = offset + len;
            }
            at += 65536;
        }
        // All but the first read, and the range that the second one skipped.
        assert_eq!((longest, covered), (LONGEST + 65536, SIZE as u64 - 65536 - SHORTEST));
    }

    #[test]
    fn no_read_waits_for_a_prefetch_and_few_are_in_flight() {
        let probe = TestDevice::new(SIZE);
        let disk = put("readahead", probe.clone(), &[]).unwrap();
        probe.hold();
        let reads: Vec<_> = (0..10).map(|i| start(&disk, read(i * 4096, 4096))).collect();
        assert_eq!(prefetches(&probe).len(), IN_FLIGHT);
        // A prefetch that fails is no failure of a request.
        probe.fail(Some("prefetch"));
        probe.release();
        reads.into_iter().for_each(|read| drop(read.recv().unwrap().unwrap()));
        bytes(&disk, 10 * 4096, 4096);
        assert_eq!(prefetches(&probe).len(), 1);
    }

    #[test]
    fn each_client_has_a_window_of_its_own() {
        let probe = TestDevice::new(SIZE);
        let disk = put("readahead", probe.clone(), &[]).unwrap();
        let own = |number| personal(&disk, &client(number));
        let (a, b) = (own(1), own(2));
        for i in 0..4 {
            bytes(&a, i * 4096, 4096);
            bytes(&b, (8 << 20) + i * 4096, 4096);
        }
        // The first read of `b` is not at the start of the disk: its direction is not known yet.
        assert_eq!(prefetches(&probe).len(), 4 + 3);
    }

    #[test]
    fn over_a_device_that_cannot_prefetch_it_does_nothing() {
        let all = device::model::Model::new(1).info().abilities;
        let model =
            device::model::Model::with(SIZE, Abilities { prefetch: false, ..all }, BlockSizes::ANY);
        let disk = put("readahead", simple(Arc::new(model)), &[]).unwrap();
        bytes(&disk, 0, 4096);
        assert!(!disk.info().abilities.prefetch);
    }
}
