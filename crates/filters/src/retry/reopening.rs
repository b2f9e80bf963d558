//! Reopens a device, once for all operations that failed meanwhile.

use runtime::{Mutex, WorkPool};
use std::sync::Arc;

use device::losses::SeenEpoch;
use device::{Device, Result};

type Then = Box<dyn FnOnce(Result<()>) + Send>;

/// Reopens one device, once at a time.
pub(super) struct Reopening {
    device: Arc<dyn Device>,
    pool: WorkPool,
    path: SeenEpoch,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// How often it was reopened.
    times: u64,
    running: bool,
    waiting: Vec<Then>,
}

impl Reopening {
    pub(super) fn new(device: Arc<dyn Device>, pool: WorkPool) -> Arc<Self> {
        let path = SeenEpoch::new(device.epoch());
        Arc::new(Self { device, pool, path, state: Mutex::default() })
    }

    /// The path to the device, as last seen.
    pub(super) fn path(&self) -> SeenEpoch {
        self.path.clone()
    }

    /// Whether this reopens `device`.
    pub(super) fn is_of(&self, device: &Arc<dyn Device>) -> bool {
        Arc::ptr_eq(&self.device, device)
    }

    /// How often the device has been reopened.
    pub(super) fn times(&self) -> u64 {
        self.state.lock().times
    }

    /// Reopens the device, unless it was reopened after the first `seen` times; then calls back
    /// with the result. Does not block.
    pub(super) fn since(self: &Arc<Self>, seen: u64, then: Then) {
        let mut state = self.state.lock();
        if state.times > seen {
            drop(state);
            return then(Ok(()));
        }
        state.waiting.push(then);
        if !std::mem::replace(&mut state.running, true) {
            drop(state);
            let me = self.clone();
            self.pool.run(move || me.reopen());
        }
    }

    fn reopen(&self) {
        let result = self.device.reopen();
        let mut state = self.state.lock();
        state.running = false;
        state.times += u64::from(result.is_ok());
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        for then in waiting {
            then(result.as_ref().map_or_else(|e| Err(e.duplicate()), |()| Ok(())));
        }
    }
}
