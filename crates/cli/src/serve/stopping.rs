//! How a server stops: gracefully when it is asked to, at once when it is asked again, and in any
//! case before long.
//!
//! Whatever other threads wait for (a disk that does not answer, a full pipe on standard error),
//! the stop has a thread of its own that ends the program then, with an exit status that says that
//! it was not graceful. Files that the server made are removed either way.

use std::process::exit;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread::sleep;
use std::time::{Duration, Instant};

use runtime::{Control, Mutex};
use serving::{ServerLog, Severity};

use super::notify::Notify;

/// How long a stop may take in which nothing moves.
const LIMIT: Duration = Duration::from_secs(30);
/// A signal this soon after the first is the same one, sent to the process and to its group.
const SAME: Duration = Duration::from_millis(500);
/// How often a stop is looked at.
const LOOK: Duration = Duration::from_secs(1);
/// How long the last log line and the cleanup may take, each, when the end is not graceful.
const LAST: Duration = Duration::from_secs(1);

/// Something to be removed at the end.
pub(super) type Leaving = Arc<dyn Fn() + Send + Sync>;

/// The state of the stop. Shared by all threads that may ask for it.
pub(super) struct Stopping {
    state: Mutex<State>,
    log: ServerLog,
    notify: Notify,
    /// Before it serves, no client has been promised anything.
    serves: AtomicBool,
}

#[derive(Default)]
struct State {
    /// A command runs beside the server, and gets the first signal.
    captive: bool,
    /// When the first signal came.
    asked: Option<Instant>,
    /// Since when the stop has made no progress.
    since: Option<Instant>,
    leavings: Vec<Leaving>,
    /// The filters, which may have much to write back.
    control: Option<Control>,
}

impl Stopping {
    /// `captive`: a command runs beside the server.
    pub(super) fn new(log: ServerLog, notify: Notify, captive: bool) -> Arc<Self> {
        let state = Mutex::new(State { captive, ..State::default() });
        Arc::new(Self { state, log, notify, serves: AtomicBool::new(false) })
    }

    /// From now on the end is graceful.
    pub(super) fn serves(&self) {
        self.serves.store(true, Ordering::SeqCst);
    }

    /// `leaving` is called when the program ends: by `tidy`, or when it cannot end gracefully. It
    /// may be called more than once.
    pub(super) fn leaves(&self, leaving: Leaving) {
        self.state.lock().leavings.push(leaving);
    }

    /// While these filters write back, the stop makes progress.
    pub(super) fn waits_for(&self, control: Control) {
        self.state.lock().control = Some(control);
    }

    /// Removes what is to be removed.
    pub(super) fn tidy(&self) {
        // Not under the lock: the file system may take long.
        let leavings = self.state.lock().leavings.clone();
        leavings.iter().for_each(|leaving| leaving());
    }

    /// A signal asks for the end. The answer is whether that is news for the thread that waits for
    /// events.
    pub(super) fn signal(self: &Arc<Self>) -> bool {
        if !self.serves.load(Ordering::SeqCst) {
            let captive = self.state.lock().captive;
            // The command of --run has not been started, and will not be.
            self.end_now("stopped before serving", i32::from(captive));
        }
        let mut state = self.state.lock();
        let Some(first) = state.asked else {
            state.asked = Some(Instant::now());
            let captive = state.captive;
            drop(state);
            if !captive {
                self.begin();
            }
            return true;
        };
        if first.elapsed() < SAME {
            return false;
        }
        if state.since.is_some() {
            drop(state);
            self.end_now("ended at once, by a second signal: requests in flight are lost", 1);
        }
        drop(state);
        self.begin();
        true
    }

    /// The terminal has gone. The signal may come several times, and counts once.
    pub(super) fn hang_up(self: &Arc<Self>) -> bool {
        self.state.lock().asked.is_none() && self.signal()
    }

    /// The stop begins, and its time limit.
    pub(super) fn begin(self: &Arc<Self>) {
        let mut state = self.state.lock();
        if state.since.is_some() {
            return;
        }
        state.since = Some(Instant::now());
        let control = state.control.clone();
        drop(state);
        self.notify.stopping();
        control.iter().for_each(Control::stopping);
        let me = self.clone();
        // Without a thread there is no limit, but still a second signal.
        let _ = std::thread::Builder::new().name("stopping".into()).spawn(move || me.watch());
    }

    /// The stop made progress: the limit counts from now.
    pub(super) fn moved(&self) {
        let mut state = self.state.lock();
        let Some(since) = &mut state.since else { return };
        *since = Instant::now();
        drop(state);
        self.notify.goes_on();
    }

    /// The time limit is off: the command of --run goes on without the server.
    pub(super) fn rest(&self) {
        self.state.lock().since = None;
    }

    fn watch(&self) {
        let mut owed = 0;
        loop {
            let control = self.state.lock().control.clone();
            let now = control.map_or(0, |control| control.owed());
            if now != std::mem::replace(&mut owed, now) {
                self.moved();
            }
            let Some(since) = self.state.lock().since else { return };
            match LIMIT.saturating_sub(since.elapsed()) {
                Duration::ZERO => break,
                left => sleep(left.min(LOOK)),
            }
        }
        self.end_now("the stop took too long: ended with requests or write-backs unfinished", 1);
    }

    /// Ends the program, whatever its other threads do.
    fn end_now(&self, why: &str, status: i32) -> ! {
        let level = if status == 0 { Severity::Info } else { Severity::Error };
        self.log.event(level, None, None, format_args!("{why}"));
        let leavings = self.state.lock().leavings.clone();
        let (done, wait) = channel();
        let tidied = std::thread::Builder::new().spawn(move || {
            disk::abandon();
            leavings.iter().for_each(|leaving| leaving());
            // The receiver has gone if it took too long.
            let _ = done.send(());
        });
        if tidied.is_ok() {
            let _ = wait.recv_timeout(LAST);
        }
        let _ = self.log.flush(LAST);
        exit(status)
    }
}
