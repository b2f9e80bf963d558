//! Messages between a program and what it opened. To the opened: report now, the program ends. To
//! the program: stop serving, how many bytes are still owed, complaints.

use std::sync::Arc;

use crate::sync::Mutex;

/// The program around what it opened. Cheap to clone; all clones are one.
#[derive(Clone, Default)]
pub struct Control {
    hooks: Arc<Mutex<Hooks>>,
    complaints: Complaints,
}

/// Something that went wrong, with its causes.
pub type Complaint = Box<dyn std::error::Error + Send + Sync>;

/// For failures that no client can be told any more: dirty data that could not be written back,
/// say. Cheap to clone; all clones are one.
#[derive(Clone, Debug, Default)]
pub struct Complaints(Arc<Mutex<Vec<Complaint>>>);

impl Complaints {
    /// Most that are kept.
    const LIMIT: usize = 16;

    /// Reports a failure.
    pub fn add(&self, error: impl Into<Complaint>) {
        let mut all = self.0.lock();
        if all.len() < Self::LIMIT {
            all.push(error.into());
        }
    }
}

/// A number that an opened thing can report at any time.
#[derive(Clone, Copy, Debug)]
pub struct Gauge {
    /// For programs: letters, digits and `_`, the unit last.
    pub name: &'static str,
    /// For people.
    pub help: &'static str,
    /// Its value now.
    pub value: u64,
}

type GaugeValue = (&'static str, &'static str, Arc<dyn Fn() -> u64 + Send + Sync>);

#[derive(Default)]
struct Hooks {
    measured: Vec<GaugeValue>,
    reports: Vec<Box<dyn FnMut() + Send>>,
    stopping: Vec<Arc<dyn Fn() + Send + Sync>>,
    ends: Vec<Box<dyn FnOnce() + Send>>,
    owed: Vec<Arc<dyn Fn() -> u64 + Send + Sync>>,
    stop: Option<Box<dyn Fn() + Send>>,
    stopped: bool,
}

crate::debug_as!(Control);

impl Control {
    /// For what was opened: `report` is called when the user asks for a report (SIGUSR1).
    pub fn on_report(&self, report: impl FnMut() + Send + 'static) {
        self.hooks.lock().reports.push(Box::new(report));
    }

    /// For what was opened: `stopping` is called when a server begins to stop, before it waits for
    /// what it has taken: what holds requests back lets them go then. It must be quick and must not
    /// block, and may be called more than once.
    pub fn on_stopping(&self, stopping: impl Fn() + Send + Sync + 'static) {
        self.hooks.lock().stopping.push(Arc::new(stopping));
    }

    /// For the program: it begins to stop.
    pub fn stopping(&self) {
        // Not under the lock: what is let go may call back.
        let all = self.hooks.lock().stopping.clone();
        all.iter().for_each(|stopping| stopping());
    }

    /// For what was opened: `end` is called once, when everything has been served or copied.
    pub fn on_end(&self, end: impl FnOnce() + Send + 'static) {
        self.hooks.lock().ends.push(Box::new(end));
    }

    /// For what was opened: `owed` says how many bytes are still to be written back. It may be
    /// called at any time, and must be quick.
    pub fn on_owed(&self, owed: impl Fn() -> u64 + Send + Sync + 'static) {
        self.hooks.lock().owed.push(Arc::new(owed));
    }

    /// For the program: how many bytes are still to be written back. While this changes, `end`
    /// makes progress.
    #[must_use]
    pub fn owed(&self) -> u64 {
        let all = self.hooks.lock().owed.clone();
        all.iter().fold(0, |sum, owed| sum.saturating_add(owed()))
    }

    /// For what was opened: adds a metric (see [`Gauge`]). `value` may be called at any time, and
    /// must be quick. Values of one name are added up.
    pub fn on_measured(
        &self,
        name: &'static str,
        help: &'static str,
        value: impl Fn() -> u64 + Send + Sync + 'static,
    ) {
        self.hooks.lock().measured.push((name, help, Arc::new(value)));
    }

    /// For the program: reads all metrics, as they are at the time. It keeps nothing of what was
    /// opened alive.
    pub fn measures(&self) -> impl Fn() -> Vec<Gauge> + Send + Sync + 'static {
        let hooks = Arc::downgrade(&self.hooks);
        move || hooks.upgrade().map(|hooks| Self::measure(&hooks)).unwrap_or_default()
    }

    fn measure(hooks: &Mutex<Hooks>) -> Vec<Gauge> {
        // Not under the lock: a callback may add one.
        let measured = hooks.lock().measured.clone();
        let mut all: Vec<Gauge> = Vec::new();
        for (name, help, value) in measured {
            match all.iter_mut().find(|known| known.name == name) {
                Some(known) => known.value = known.value.saturating_add(value()),
                None => all.push(Gauge { name, help, value: value() }),
            }
        }
        all
    }

    /// For what was opened: reports what no client can be told any more. Callbacks of `on_end` may
    /// keep it.
    #[must_use]
    pub fn complaints(&self) -> Complaints {
        self.complaints.clone()
    }

    /// For the program, after `end`: the failures that no client could be told. If there are any,
    /// the program ends with a failure.
    #[must_use]
    pub fn take_complaints(&self) -> Vec<Complaint> {
        std::mem::take(&mut self.complaints.0.lock())
    }

    /// For what was opened: asks the program to stop, gracefully, as SIGTERM does.
    pub fn stop(&self) {
        let mut hooks = self.hooks.lock();
        hooks.stopped = true;
        if let Some(stop) = &hooks.stop {
            stop();
        }
    }

    /// For the program: the user asks for a report.
    pub fn report(&self) {
        // Not under the lock: a report may take its time.
        let mut reports = std::mem::take(&mut self.hooks.lock().reports);
        reports.iter_mut().for_each(|report| report());
        self.hooks.lock().reports.append(&mut reports);
    }

    /// For the program: everything has been served or copied. Call it before the devices go. What
    /// was opened last comes first: it passes on what it still holds to what is below.
    pub fn end(&self) {
        let ends = std::mem::take(&mut self.hooks.lock().ends);
        ends.into_iter().rev().for_each(|end| end());
    }

    /// For the program: what to do when something that was opened asks to stop. Called at once if
    /// it has asked already. It must be short and must not call back.
    pub fn when_stopped(&self, stop: impl Fn() + Send + 'static) {
        let mut hooks = self.hooks.lock();
        if hooks.stopped {
            stop();
        }
        hooks.stop = Some(Box::new(stop));
    }
}
