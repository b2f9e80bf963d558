//! How much of a copy is data: the source's map is walked beside the copy, so that the percentage
//! and the time to go are those of data. Holes cost nothing, and there may be any number of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use copy::CopyCounts;
use device::Edge;

/// Extents asked for at a time.
const MANY: usize = 1024;

/// How long the end of a copy waits for an answer that the walk waits for.
const PATIENCE: Duration = Duration::from_secs(1);

/// The longest pause between two questions.
const PAUSE: Duration = Duration::from_millis(200);

/// What is known of a map, in bytes: all of it where the sum of both is the size of the disk.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct Mapped {
    /// Bytes of data.
    pub(super) data: u64,
    /// Bytes that read as zeroes.
    pub(super) holes: u64,
}

impl Mapped {
    /// Whether the map is known to its end.
    pub(super) fn is_whole(self, now: &CopyCounts) -> bool {
        now.total > 0 && self.data.saturating_add(self.holes) >= now.total
    }

    /// Bytes of data that are done, at least: what was written as data, and zeroes in data, as far
    /// as they cannot be holes.
    pub(super) fn done(self, now: &CopyCounts) -> u64 {
        if !self.is_whole(now) {
            return now.copied;
        }
        now.copied.max(now.done().saturating_sub(self.holes)).min(self.data)
    }

    /// Bytes of data, at most.
    pub(super) fn at_most(self, now: &CopyCounts) -> u64 {
        now.total.saturating_sub(self.holes).max(now.copied)
    }
}

/// The walk along a map. It ends with this, or at the end of the map, or when the map cannot be
/// read: then the copy says why.
#[derive(Debug)]
pub(crate) struct MapWalk(Arc<State>, Option<JoinHandle<()>>);

#[derive(Debug, Default)]
struct State {
    data: AtomicU64,
    holes: AtomicU64,
    is_over: AtomicBool,
}

impl MapWalk {
    /// Walks along the map of `source` in a thread of its own. It asks half of the time at most, so
    /// that the copy, which asks for the same map, has its turns.
    pub(crate) fn begin(source: &Edge) -> Self {
        let state = Arc::new(State::default());
        let mut thread = None;
        let (known, source) = (Arc::clone(&state), source.clone());
        if source.info().abilities.extents {
            let walk = move || known.walk(&source);
            // Without a thread there is no more than there was before.
            thread = std::thread::Builder::new().name("map".into()).spawn(walk).ok();
        } else {
            // It is read as a whole.
            state.data.store(source.info().size, Relaxed);
        }
        Self(state, thread)
    }

    /// What is known now.
    pub(super) fn known(&self) -> Mapped {
        Mapped { data: self.0.data.load(Relaxed), holes: self.0.holes.load(Relaxed) }
    }
}

impl Drop for MapWalk {
    fn drop(&mut self) {
        self.0.is_over.store(true, Relaxed);
        let Some(thread) = self.1.take() else { return };
        thread.thread().unpark();
        // The device may be one whose callbacks must not be cut off by the end of the process.
        let since = Instant::now();
        while !thread.is_finished() && since.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl State {
    fn walk(&self, source: &Edge) {
        let (size, mut at, mut extents) = (source.info().size, 0, Vec::new());
        while at < size && !self.is_over.load(Relaxed) {
            let asked = Instant::now();
            if source.resolve(at, size - at, MANY, &mut extents).is_err() {
                return;
            }
            let took = asked.elapsed();
            let before = at;
            for extent in extents.drain(..) {
                let bytes = extent.end().saturating_sub(at);
                let kind = if extent.kind.reads_zero() { &self.holes } else { &self.data };
                kind.fetch_add(bytes, Relaxed);
                at = at.max(extent.end());
            }
            if at == before {
                return;
            }
            if at < size {
                std::thread::park_timeout(took.min(PAUSE));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use runtime::Context;

    use super::*;

    #[test]
    fn a_walk_finds_all_data_and_all_holes() {
        let disk = disk::Named::parse("memory:64M").unwrap();
        let options = disk::OpenOptions::read_write();
        let opened =
            disk::open(&disk, &disk::Stack::default(), &options, &Context::default()).unwrap();
        opened.edge.write(&[7; 4096], 32 << 20, false).unwrap();
        let state = State::default();
        state.walk(&opened.edge);
        let known = MapWalk(Arc::new(state), None).known();
        assert_eq!(known.data + known.holes, 64 << 20);
        assert!(known.data >= 4096 && known.data < 1 << 20, "{known:?}");
    }
}
