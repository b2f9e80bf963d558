//! For tests: a device that records its requests, and holds them back or fails them on demand.

use runtime::WorkPool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use device::model::Model;
use device::{
    Abilities, BlockSizes, Blocking, Buffer, Device, Done, Edge, Error, ErrorKind, Fault, Info,
    Operation, Outcome, Result, run_blocking,
};

/// The model, as a device that waits for an event outside.
pub(crate) struct Probe {
    pub(crate) model: Model,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    asked: Vec<String>,
    holds: bool,
    held: Vec<(Operation, Done)>,
    fails: Option<&'static str>,
}

impl Probe {
    /// A disk of `size` bytes, one hole.
    pub(crate) fn new(size: usize) -> Arc<Self> {
        Self::with(size, |_| {})
    }

    /// The same, that can do a little less.
    pub(crate) fn with(size: usize, change: impl FnOnce(&mut Abilities)) -> Arc<Self> {
        let mut all = Abilities { prefetch: true, ..Model::new(1).info().abilities };
        change(&mut all);
        let model = Model::with(size, all, BlockSizes::ANY);
        Arc::new(Self { model, state: Mutex::default() })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn edge(self: &Arc<Self>, pool: &WorkPool) -> Edge {
        Edge::new(self.clone(), pool.clone())
    }

    /// The requests since the last call, in order: `read 0+4096`.
    pub(crate) fn asked(&self) -> Vec<String> {
        std::mem::take(&mut self.lock().asked)
    }

    /// Answers nothing from now on.
    pub(crate) fn hold(&self) {
        self.lock().holds = true;
    }

    /// How many requests are not answered.
    pub(crate) fn held(&self) -> usize {
        self.lock().held.len()
    }

    /// Answers all waiting requests, and from now on every request at once.
    pub(crate) fn release(&self) {
        self.lock().holds = false;
        let held = std::mem::take(&mut self.lock().held);
        for (operation, done) in held {
            self.answer(operation, done);
        }
    }

    /// From now on operations whose name begins with this fail; `None`: none fails.
    pub(crate) fn fail(&self, what: Option<&'static str>) {
        self.lock().fails = what;
    }

    fn answer(&self, operation: Operation, done: Done) {
        let fails = self.lock().fails;
        if fails.is_some_and(|what| name(&operation).starts_with(what)) {
            return done(Err(Error::new(ErrorKind::Io, Fault::File, name(&operation))));
        }
        done(run_blocking(&self.model, operation));
    }
}

fn name(operation: &Operation) -> String {
    let range = operation.range().map(|(offset, len)| format!(" {offset}+{len}"));
    format!("{}{}", operation.kind().name(), range.unwrap_or_default())
}

impl Device for Probe {
    fn info(&self) -> &Info {
        self.model.info()
    }

    fn submit(&self, operation: Operation, done: Done) {
        let mut state = self.lock();
        state.asked.push(name(&operation));
        if state.holds {
            state.held.push((operation, done));
            return;
        }
        drop(state);
        self.answer(operation, done);
    }
}

/// Starts an operation; returns its result as something to wait for.
pub(crate) fn start(
    disk: &Edge,
    operation: Operation,
) -> std::sync::mpsc::Receiver<Result<Outcome>> {
    let (tx, rx) = std::sync::mpsc::channel();
    disk.submit(operation, Box::new(move |outcome| tx.send(outcome).unwrap()));
    rx
}

/// A read of `len` bytes.
pub(crate) fn read(offset: u64, len: usize) -> Operation {
    Operation::Read { offset, buffer: Buffer::zeroed(len) }
}

/// A write of `len` bytes.
pub(crate) fn write(offset: u64, len: usize, byte: u8) -> Operation {
    let mut data = Buffer::zeroed(len);
    data.fill(byte);
    Operation::Write { offset, data: data.into(), fua: false }
}

/// The bytes of a disk.
pub(crate) fn bytes(disk: &Edge, offset: u64, len: usize) -> Vec<u8> {
    let mut data = vec![0xee; len];
    disk.read(&mut data, offset).unwrap();
    data
}
