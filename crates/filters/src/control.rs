//! What filters have in common with the program they run in: timers, threads, and a way to be
//! told (report now, the end has come) and to tell (stop serving).

use runtime::{Timers, WorkPool};
use std::any::Any;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use device::{Error, Params, Result};

/// What a filter is opened with. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Context {
    /// For what is to be done later.
    pub timers: Timers,
    /// For what may block (a file that is read or written on the side).
    pub pool: WorkPool,
    /// The program around it.
    pub control: Control,
    shared: Arc<Mutex<Vec<Common>>>,
}

/// What filters have in common.
#[derive(Debug)]
struct Common {
    params: Params,
    state: Arc<dyn Any + Send + Sync>,
}

impl Context {
    /// A context of its own, whose work runs in `pool`.
    #[must_use]
    pub fn new(pool: WorkPool) -> Self {
        let (timers, control) = (Timers::default(), Control::default());
        Self { timers, pool, control, shared: Arc::default() }
    }

    /// What all filters have in common that were given the same parameters: each export has
    /// filters of its own, but one file to write to, one limit, one count of clients. It is made by
    /// the first of them.
    ///
    /// # Errors
    /// What `make` says.
    pub(crate) fn common<T: Any + Send + Sync>(
        &self,
        params: &Params,
        make: impl FnOnce() -> Result<T>,
    ) -> Result<Arc<T>> {
        let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        let same = shared.iter().filter(|common| common.params == *params);
        if let Some(found) = same.filter_map(|c| c.state.clone().downcast().ok()).next() {
            return Ok(found);
        }
        let made = Arc::new(make()?);
        shared.push(Common { params: params.clone(), state: made.clone() });
        Ok(made)
    }
}

/// The program around the filters. Cheap to clone; all clones are one.
#[derive(Clone, Default)]
pub struct Control {
    hooks: Arc<Mutex<Hooks>>,
    complaints: Complaints,
}

/// Where filters say what no client can be told any more: that dirty data could not be written
/// back, say. Cheap to clone; all clones are one.
#[derive(Clone, Debug, Default)]
pub struct Complaints(Arc<Mutex<Vec<Error>>>);

impl Complaints {
    /// More than these are not kept.
    const LIMIT: usize = 16;

    fn lock(&self) -> MutexGuard<'_, Vec<Error>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says what went wrong.
    pub fn add(&self, error: Error) {
        let mut all = self.lock();
        if all.len() < Self::LIMIT {
            all.push(error);
        }
    }
}

#[derive(Default)]
struct Hooks {
    reports: Vec<Box<dyn FnMut() + Send>>,
    ends: Vec<Box<dyn FnOnce() + Send>>,
    owed: Vec<Arc<dyn Fn() -> u64 + Send + Sync>>,
    stop: Option<Box<dyn Fn() + Send>>,
    stopped: bool,
}

impl std::fmt::Debug for Control {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Control")
    }
}

impl Control {
    fn lock(&self) -> MutexGuard<'_, Hooks> {
        self.hooks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// For filters: `report` is called when the user asks what is going on (SIGUSR1).
    pub fn on_report(&self, report: impl FnMut() + Send + 'static) {
        self.lock().reports.push(Box::new(report));
    }

    /// For filters: `end` is called once, when everything has been served or copied.
    pub fn on_end(&self, end: impl FnOnce() + Send + 'static) {
        self.lock().ends.push(Box::new(end));
    }

    /// For filters: `owed` says how many bytes are still to be written back. It may be called at
    /// any time, and must be quick.
    pub fn on_owed(&self, owed: impl Fn() -> u64 + Send + Sync + 'static) {
        self.lock().owed.push(Arc::new(owed));
    }

    /// For the program: how many bytes are still to be written back. While this changes, `end` comes
    /// further.
    #[must_use]
    pub fn owed(&self) -> u64 {
        let all = self.lock().owed.clone();
        all.iter().fold(0, |sum, owed| sum.saturating_add(owed()))
    }

    /// For filters: where to say what no client can be told any more. What `on_end` calls may
    /// keep it.
    #[must_use]
    pub fn complaints(&self) -> Complaints {
        self.complaints.clone()
    }

    /// For the program, after `end`: what no client could be told. If there is any, not all is
    /// well, and the program ends with a failure.
    #[must_use]
    pub fn take_complaints(&self) -> Vec<Error> {
        std::mem::take(&mut self.complaints.lock())
    }

    /// For filters: asks the program to stop, gracefully, as SIGTERM does.
    pub fn stop(&self) {
        let mut hooks = self.lock();
        hooks.stopped = true;
        if let Some(stop) = &hooks.stop {
            stop();
        }
    }

    /// For the program: the user asks what is going on.
    pub fn report(&self) {
        // Not under the lock: a report may take its time.
        let mut reports = std::mem::take(&mut self.lock().reports);
        reports.iter_mut().for_each(|report| report());
        self.lock().reports.append(&mut reports);
    }

    /// For the program: everything has been served or copied. Call it before the devices go. The
    /// filters that were opened last come first: what they still have goes to those below.
    pub fn end(&self) {
        let ends = std::mem::take(&mut self.lock().ends);
        ends.into_iter().rev().for_each(|end| end());
    }

    /// For the program: what to do when a filter asks to stop. Called at once if one has already.
    /// It must be short and must not call back.
    pub fn when_stopped(&self, stop: impl Fn() + Send + 'static) {
        let mut hooks = self.lock();
        if hooks.stopped {
            stop();
        }
        hooks.stop = Some(Box::new(stop));
    }
}
