//! The device for tests: a model below, a record of what it was asked, and a hook that the test
//! sets. The hook passes an operation on, changes it, answers it in the model's place, or holds it
//! until the test lets it go.

mod faces;
mod late;
mod seen;

use std::collections::VecDeque;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use device::model::Model;
use device::{
    Abilities, BlockSizes, Blocking as _, Client, Connected, Done, Edge, Error, ErrorKind, Info,
    Lane, Operation, OperationKind, Outcome, Result, Session, run_blocking,
};
use runtime::{Condvar, Mutex, MutexGuard, WorkPool};

use faces::Connecting;
use late::Queue;
pub use seen::{Fate, SeenOperation};
use seen::{error, outcome};

type Hook = Arc<dyn Fn(Operation) -> Fate + Send + Sync>;
type OpenLane = Arc<dyn Fn(&TestDevice) -> Result<Box<dyn Lane>> + Send + Sync>;

/// The device. It is a [`device::Blocking`] disk for [`device::Simple`], and a [`device::Device`]
/// by itself, which answers in `submit` or from [threads of its own](Self::late). A clone is the
/// same device.
#[derive(Clone)]
pub struct TestDevice {
    core: Arc<Core>,
    waits: bool,
    late: Option<Arc<Queue>>,
    session: Option<Arc<dyn Session>>,
    open_lane: Option<OpenLane>,
}

struct Core {
    info: Info,
    model: Arc<Model>,
    /// There is no disk.
    is_blank: bool,
    hook: Mutex<Hook>,
    state: Mutex<State>,
    came: Condvar,
    late: Arc<Queue>,
}

#[derive(Default)]
struct State {
    seen: Vec<SeenOperation>,
    /// What becomes of the next operations.
    failures: VecDeque<Option<ErrorKind>>,
    holds: bool,
    held: Vec<Held>,
}

struct Held {
    operation: Operation,
    done: Done,
    /// The hook holds it; otherwise the hook has not seen it.
    by_hook: bool,
}

/// A wait that takes longer is a failed test.
const GUARD: Duration = Duration::from_secs(60);

impl TestDevice {
    /// A disk of `size` bytes, one hole, that can do everything.
    #[must_use]
    pub fn new(size: usize) -> Arc<Self> {
        let all = Model::new(0).info().abilities;
        let abilities = Abilities { prefetch: true, ..all };
        Self::over(Model::with(size, abilities, BlockSizes::ANY)).shared()
    }

    /// A disk over a model of the test's own.
    #[must_use]
    pub fn over(model: impl Into<Arc<Model>>) -> Self {
        let model = model.into();
        Self::with(model.info().clone(), model, false)
    }

    /// A disk of any size that keeps nothing: what the hook passes on succeeds, reads as zeroes and
    /// is all data.
    #[must_use]
    pub fn blank(info: Info) -> Self {
        Self::with(info, Arc::new(Model::new(0)), true)
    }

    fn with(info: Info, model: Arc<Model>, is_blank: bool) -> Self {
        let core = Core {
            info,
            model,
            is_blank,
            hook: Mutex::new(Arc::new(Fate::Pass)),
            state: Mutex::default(),
            came: Condvar::new(),
            late: Arc::default(),
        };
        Self { core: Arc::new(core), waits: false, late: None, session: None, open_lane: None }
    }

    /// With other properties than the model's. Before all else.
    ///
    /// # Panics
    /// It has threads or a clone already.
    #[must_use]
    pub fn info_with(mut self, change: impl FnOnce(&mut Info)) -> Self {
        change(&mut Arc::get_mut(&mut self.core).expect("a device that is not in use").info);
        self
    }

    /// As a [`device::Blocking`] disk it waits.
    #[must_use]
    pub fn waiting(self) -> Self {
        Self { waits: true, ..self }
    }

    /// Answers `submit` from so many threads called `late`, in any order.
    #[must_use]
    pub fn late(self, threads: u64) -> Self {
        let queue = self.core.late.clone();
        (0..threads).for_each(|seed| queue.serve(Arc::downgrade(&self.core), seed));
        Self { late: Some(queue), ..self }
    }

    /// With a session.
    #[must_use]
    pub fn session_of(self, session: Arc<dyn Session>) -> Self {
        Self { session: Some(session), ..self }
    }

    /// With a session that only lets clients in, or does not.
    #[must_use]
    pub fn connecting(self, connect: impl Fn(&Client, Connected) + Send + Sync + 'static) -> Self {
        self.session_of(Arc::new(Connecting(connect)))
    }

    /// With lanes.
    #[must_use]
    pub fn lanes(
        self,
        open: impl Fn(&Self) -> Result<Box<dyn Lane>> + Send + Sync + 'static,
    ) -> Self {
        Self { open_lane: Some(Arc::new(open)), ..self }
    }

    /// With this hook from the beginning: see [`on`](Self::on).
    #[must_use]
    pub fn hooked(self, hook: impl Fn(Operation) -> Fate + Send + Sync + 'static) -> Self {
        self.on(hook);
        self
    }

    /// For several users.
    #[must_use]
    pub fn shared(self) -> Arc<Self> {
        Arc::new(self)
    }

    /// What becomes of each operation from now on. The hook is called by the thread that answers,
    /// by several at once.
    pub fn on(&self, hook: impl Fn(Operation) -> Fate + Send + Sync + 'static) {
        *self.core.hook.lock() = Arc::new(hook);
    }

    /// A hook by which operations whose text begins with this fail; `None`: none does.
    pub fn fail(&self, what: Option<&'static str>) {
        self.on(move |operation| match what {
            Some(what) if SeenOperation::of(&operation).to_string().starts_with(what) => {
                Fate::fail(ErrorKind::Io)
            }
            _ => Fate::Pass(operation),
        });
    }

    /// The next operations, and lanes to be opened, fail with these errors, in this order; where
    /// there is none, the hook is asked.
    pub fn fail_next(&self, failures: impl IntoIterator<Item = impl Into<Option<ErrorKind>>>) {
        self.core.state().failures.extend(failures.into_iter().map(Into::into));
    }

    /// The operation of this number, from 1, of those that come from now on fails with an I/O
    /// error.
    pub fn fail_nth(&self, number: usize) {
        let before = std::iter::repeat_n(None, number - 1);
        self.fail_next(before.chain([Some(ErrorKind::Io)]));
    }

    /// How many of the next operations [`fail_next`](Self::fail_next) still decides about.
    #[must_use]
    pub fn undecided(&self) -> usize {
        self.core.state().failures.len()
    }

    /// What is known of it.
    #[must_use]
    pub fn info(&self) -> &Info {
        &self.core.info
    }

    /// The model below.
    #[must_use]
    pub fn model(&self) -> &Model {
        &self.core.model
    }

    /// With an edge in front.
    #[must_use]
    pub fn edge(self: &Arc<Self>, pool: &WorkPool) -> Edge {
        Edge::new(self.clone(), pool.clone())
    }

    /// What it was asked, in order: `read 0+4096`. It leaves the record.
    pub fn asked(&self) -> Vec<String> {
        std::mem::take(&mut self.core.state().seen).iter().map(SeenOperation::to_string).collect()
    }

    /// What it was asked, in order.
    #[must_use]
    pub fn seen(&self) -> Vec<SeenOperation> {
        self.core.state().seen.clone()
    }

    /// What it was asked of a kind, in order.
    #[must_use]
    pub fn seen_of(&self, kind: OperationKind) -> Vec<SeenOperation> {
        self.core.state().seen.iter().filter(|seen| seen.kind == kind).copied().collect()
    }

    /// How often it was asked for a kind.
    #[must_use]
    pub fn count(&self, kind: OperationKind) -> usize {
        self.seen_of(kind).len()
    }

    /// Holds every operation from now on, before the hook sees it.
    pub fn hold(&self) {
        self.core.state().holds = true;
    }

    /// The operations that are held, in the order in which they came.
    #[must_use]
    pub fn held(&self) -> Vec<SeenOperation> {
        self.core.state().held.iter().map(|held| SeenOperation::of(&held.operation)).collect()
    }

    /// Waits until so many are held.
    ///
    /// # Panics
    /// They do not come.
    pub fn wait_for_held(&self, count: usize) {
        self.wait_until(|state| state.held.len() >= count);
    }

    /// Waits until it was asked so often for a kind.
    ///
    /// # Panics
    /// It is not.
    pub fn wait_for(&self, kind: OperationKind, count: usize) {
        self.wait_until(|state| state.seen.iter().filter(|s| s.kind == kind).count() >= count);
    }

    fn wait_until(&self, condition: impl Fn(&State) -> bool) {
        let state = self.core.state();
        let waited = self.core.came.wait_timeout_while(state, GUARD, |state| !condition(state));
        let (state, waited) = waited;
        assert!(!waited, "asked {:?}, {} are held", state.seen, state.held.len());
    }

    /// Lets all go that is held, and holds nothing any more but what the hook holds.
    pub fn release(&self) {
        let mut state = self.core.state();
        state.holds = false;
        let held = std::mem::take(&mut state.held);
        drop(state);
        held.into_iter().for_each(|held| self.core.go_on(held));
    }

    /// Lets one go of those that are held, by its place among them.
    pub fn release_one(&self, which: usize) {
        let held = self.core.state().held.remove(which);
        self.core.go_on(held);
    }

    /// One of those that are held, for the test to answer.
    #[must_use]
    pub fn take_held(&self, which: usize) -> (Operation, Done) {
        let held = self.core.state().held.remove(which);
        (held.operation, held.done)
    }

    /// Does an operation, and returns when it has been answered.
    fn run(&self, operation: Operation) -> Result<Outcome> {
        let (tx, rx) = mpsc::channel();
        if let Some((operation, done)) =
            self.core.arrive(operation, Box::new(move |answer| drop(tx.send(answer))))
        {
            self.core.answer(operation, done);
        }
        rx.recv().unwrap_or_else(|_| Err(Error::unanswered()))
    }
}

impl Core {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Records it, and gives it back unless it is held.
    fn arrive(&self, operation: Operation, done: Done) -> Option<(Operation, Done)> {
        let mut state = self.state();
        state.seen.push(SeenOperation::of(&operation));
        self.came.notify_all();
        if !state.holds {
            return Some((operation, done));
        }
        state.held.push(Held { operation, done, by_hook: false });
        None
    }

    /// Does as the hook says.
    fn answer(&self, operation: Operation, done: Done) {
        let hook = self.hook.lock().clone();
        match self.failure().map_or_else(|| hook(operation), |e| Fate::Answer(Err(e))) {
            Fate::Pass(operation) => done(self.pass(operation)),
            Fate::Answer(answer) => done(answer),
            Fate::Drop => drop(done),
            Fate::Hold(operation) => {
                self.state().held.push(Held { operation, done, by_hook: true });
                self.came.notify_all();
            }
        }
    }

    /// That of the next operation.
    fn failure(&self) -> Option<Error> {
        self.state().failures.pop_front().flatten().map(error)
    }

    fn go_on(&self, Held { operation, done, by_hook }: Held) {
        if by_hook {
            done(self.pass(operation));
        } else {
            self.answer(operation, done);
        }
    }

    fn pass(&self, mut operation: Operation) -> Result<Outcome> {
        if !self.is_blank {
            return run_blocking(&*self.model, operation);
        }
        match &mut operation {
            Operation::Read { buffer, .. } => buffer.fill(0),
            Operation::Zero { flags, .. } if flags.fast_only && !self.info.abilities.fast_zero => {
                return Err(Error::not_fast());
            }
            Operation::Zero { .. } if !self.info.abilities.zero => {
                return Err(Error::unsupported("zero"));
            }
            _ => {}
        }
        Ok(outcome(operation, self.info.flat.as_ref()))
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        self.late.close();
    }
}

runtime::debug_as!(TestDevice, |it| "TestDevice({})", it.info().name);
