//! A disk that gets another size while it is attached: a volume that is extended, a file that
//! another program makes longer. No event of the system says so of both, so a thread looks now and
//! then, where the disk is one that may change.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use device::{Edge, Result};
use runtime::{Condvar, Mutex};

use crate::start_thread;

/// How long nobody may notice.
const PAUSE: Duration = Duration::from_secs(1);

/// The thread that looks, until this is dropped.
pub(crate) struct SizeWatch {
    is_over: Arc<(Mutex<bool>, Condvar)>,
    thread: Option<JoinHandle<()>>,
}

runtime::debug_as!(SizeWatch);

impl SizeWatch {
    /// Calls `tell` with each other size that the disk gets, in whole units of `unit` bytes; until
    /// it succeeds. `None`: the disk keeps its size, or the system gives no thread, and nobody
    /// hears of another one.
    pub(crate) fn begin(
        edge: &Edge,
        unit: u64,
        mut tell: impl FnMut(u64) -> Result<()> + Send + 'static,
    ) -> Option<Self> {
        let whole = move |size: u64| size - size % unit.max(1);
        let mut told = whole(edge.info().size);
        edge.device().size_now()?;
        let is_over = Arc::new((Mutex::new(false), Condvar::new()));
        let (edge, ended) = (edge.clone(), is_over.clone());
        let work = move || {
            let (is_over, changed) = &*ended;
            let mut guard = is_over.lock();
            while !*guard {
                guard = changed.wait_timeout(guard, PAUSE).0;
                if *guard {
                    return;
                }
                drop(guard);
                let now = whole(edge.look());
                // What is not taken now may be later.
                if now != told && tell(now).is_ok() {
                    told = now;
                }
                guard = is_over.lock();
            }
        };
        let thread = Some(start_thread("attached-size", work).ok()?);
        Some(Self { is_over, thread })
    }
}

impl Drop for SizeWatch {
    fn drop(&mut self) {
        let (is_over, changed) = &*self.is_over;
        *is_over.lock() = true;
        changed.notify_all();
        if let Some(thread) = self.thread.take() {
            // A panic of it is counted.
            let _ = thread.join();
        }
    }
}
