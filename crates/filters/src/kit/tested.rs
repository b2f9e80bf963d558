//! For the tests of filters: a filter over a device, and a device that records its requests.

use runtime::{Context, WorkPool};
use std::sync::{Arc, Mutex};

use device::model::Model;
use device::{
    Blocking, Client, Device, Edge, Extent, Info, Params, Peer, Presence, Result, Simple, ZeroFlags,
};

use crate::table;

/// A blocking disk, as a device.
pub(crate) fn simple(disk: impl Blocking) -> Arc<dyn Device> {
    Simple::device(disk, &WorkPool::new(2))
}

/// The filter `word` over a device, with a context of its own.
pub(crate) fn put(word: &str, device: Arc<dyn Device>, words: &[&str]) -> Result<Edge> {
    put_in(&Context::new(WorkPool::new(2)), word, device, words)
}

/// The filter `word` over a device.
pub(crate) fn put_in(
    context: &Context,
    word: &str,
    device: Arc<dyn Device>,
    words: &[&str],
) -> Result<Edge> {
    let below = Edge::new(device, context.pool.clone());
    let params = Params::parse(words.iter().copied()).unwrap();
    table::open(word, &params, below, context)
}

/// A request: what, offset and length.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Seen {
    Flush,
    Prefetch,
    Read(u64, u64),
    Trim(u64, u64),
    Write(u64, u64),
    Zero(u64, u64),
}

/// A model that records its requests.
pub(crate) struct Watched {
    pub(crate) model: Model,
    seen: Mutex<Vec<Seen>>,
}

impl Watched {
    pub(crate) fn new(model: Model) -> Self {
        Self { model, seen: Mutex::default() }
    }

    /// The requests since the last call.
    pub(crate) fn seen(&self) -> Vec<Seen> {
        std::mem::take(&mut self.seen.lock().unwrap())
    }

    fn note(&self, seen: Seen) {
        self.seen.lock().unwrap().push(seen);
    }
}

impl Blocking for Watched {
    fn info(&self) -> &Info {
        self.model.info()
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.note(Seen::Read(offset, buf.len() as u64));
        self.model.read_at(buf, offset)
    }

    fn write_at(&self, data: &[u8], offset: u64, fua: bool) -> Result<()> {
        self.note(Seen::Write(offset, data.len() as u64));
        self.model.write_at(data, offset, fua)
    }

    fn zero(&self, offset: u64, len: u64, flags: ZeroFlags) -> Result<()> {
        self.note(Seen::Zero(offset, len));
        self.model.zero(offset, len, flags)
    }

    fn trim(&self, offset: u64, len: u64, fua: bool) -> Result<()> {
        self.note(Seen::Trim(offset, len));
        self.model.trim(offset, len, fua)
    }

    fn flush(&self) -> Result<()> {
        self.note(Seen::Flush);
        self.model.flush()
    }

    fn prefetch(&self, offset: u64, len: u64) -> Result<()> {
        self.note(Seen::Prefetch);
        self.model.prefetch(offset, len)
    }

    fn resolve(&self, offset: u64, len: u64, max: usize, out: &mut Vec<Extent>) -> Result<()> {
        self.model.resolve(offset, len, max, out)
    }
}

/// A client of that number.
pub(crate) fn client(number: u64) -> Client {
    Client {
        number,
        peer: Peer::Other,
        export: String::new(),
        tls: None,
        presence: Presence::default(),
    }
}

/// The device that a client gets, at once.
pub(crate) fn connect(disk: &Edge, client: &Client) -> Result<Option<Arc<dyn Device>>> {
    let (tx, rx) = std::sync::mpsc::channel();
    disk.device().connect(client, Box::new(move |answer| tx.send(answer).unwrap()));
    rx.try_recv().expect("an answer at once")
}
