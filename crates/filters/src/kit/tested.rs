//! For the tests of filters: a filter over a device, and operations on it.

use runtime::{Context, WorkPool};
use std::sync::Arc;

use device::model::Model;
use device::{
    Blocking, Buffer, Client, Device, Edge, Operation, Outcome, Params, Peer, Presence, Result,
    Simple,
};

use crate::table;

/// A blocking disk, as a device.
pub(crate) fn simple(disk: Arc<impl Blocking>) -> Arc<dyn Device> {
    Simple::shared(disk, &WorkPool::new(2))
}

/// A disk of zeroes that can do everything.
pub(crate) fn blank(size: usize) -> Arc<dyn Device> {
    simple(Arc::new(Model::new(size)))
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

/// The disk as that client sees it, which has a device of its own.
pub(crate) fn personal(disk: &Edge, client: &Client) -> Edge {
    disk.beside(connect(disk, client).unwrap().unwrap())
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
