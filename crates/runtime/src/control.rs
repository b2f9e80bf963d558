//! Messages between a program and what it opened. To the opened: report now, the program ends. To
//! the program: stop serving, how many bytes are still owed, complaints.

use std::sync::Arc;

use crate::sync::Mutex;

/// The program around what it opened. Cheap to clone; all clones are one.
#[derive(Clone, Default)]
pub struct Control {
    hooks: Arc<Mutex<Hooks>>,
    /// Held while what was opened ends: a second end waits for the first.
    ending: Arc<Mutex<()>>,
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
    /// Those of parts that may end before the program does.
    parts: Vec<Control>,
}

crate::debug_as!(Control);

impl Control {
    /// A control for a part of the program that may end before the rest: what is opened with it is
    /// told of everything that this is told of, and ends with it or with this, whichever comes
    /// first.
    #[must_use]
    pub fn part(&self) -> Self {
        let part = Self { complaints: self.complaints.clone(), ..Self::default() };
        let whole = Arc::downgrade(&self.hooks);
        part.when_stopped(move || {
            if let Some(hooks) = whole.upgrade() {
                Self::stop_all(&hooks);
            }
        });
        self.hooks.lock().parts.push(part.clone());
        part
    }

    /// A part that has ended, which this forgets.
    pub fn forget(&self, part: &Self) {
        self.hooks.lock().parts.retain(|other| !Arc::ptr_eq(&other.hooks, &part.hooks));
    }

    fn parts(&self) -> Vec<Self> {
        self.hooks.lock().parts.clone()
    }

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
        self.parts().iter().for_each(Self::stopping);
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
        let own = all.iter().fold(0, |sum: u64, owed| sum.saturating_add(owed()));
        self.parts().iter().fold(own, |sum, part| sum.saturating_add(part.owed()))
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
        move || {
            let mut all = Vec::new();
            if let Some(hooks) = hooks.upgrade() {
                Self::measure(&hooks, &mut all);
            }
            all
        }
    }

    fn measure(hooks: &Mutex<Hooks>, all: &mut Vec<Gauge>) {
        // Not under the lock: a callback may add one.
        let (measured, parts) = {
            let hooks = hooks.lock();
            (hooks.measured.clone(), hooks.parts.clone())
        };
        for (name, help, value) in measured {
            match all.iter_mut().find(|known| known.name == name) {
                Some(known) => known.value = known.value.saturating_add(value()),
                None => all.push(Gauge { name, help, value: value() }),
            }
        }
        parts.iter().for_each(|part| Self::measure(&part.hooks, all));
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
        Self::stop_all(&self.hooks);
    }

    fn stop_all(hooks: &Mutex<Hooks>) {
        let mut hooks = hooks.lock();
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
        self.parts().iter().for_each(Self::report);
    }

    /// For the program: everything has been served or copied. Call it before the devices go. What
    /// was opened last comes first: it passes on what it still holds to what is below.
    pub fn end(&self) {
        self.parts().iter().rev().for_each(Self::end);
        let _alone = self.ending.lock();
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    use super::*;

    #[test]
    fn a_part_ends_by_itself_or_with_the_whole_and_never_twice() {
        let (whole, ended) = (Control::default(), Arc::new(AtomicUsize::new(0)));
        let parts = [whole.part(), whole.part()];
        for part in &parts {
            let ended = ended.clone();
            part.on_end(move || _ = ended.fetch_add(1, SeqCst));
            part.on_owed(|| 5);
        }
        assert_eq!(whole.owed(), 10);
        let [first, _] = &parts;
        first.end();
        whole.forget(first);
        assert_eq!((ended.load(SeqCst), whole.owed()), (1, 5));
        whole.end();
        whole.end();
        assert_eq!(ended.load(SeqCst), 2);
        let stopped = Arc::new(AtomicUsize::new(0));
        let told = stopped.clone();
        whole.when_stopped(move || _ = told.fetch_add(1, SeqCst));
        first.stop();
        assert_eq!(stopped.load(SeqCst), 1);
    }
}
