//! The kernel, played over a pair of sockets, which keep messages apart as /dev/fuse does: for
//! tests, and for the fuzzer, which decides what requests hold.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    dead_code,
    reason = "a failure is what is looked for; it is in no program"
)]

use std::cell::Cell;
use std::io::IoSliceMut;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use device::Simple;
use device::model::Model;
use runtime::{WorkPool, to_usize};
use rustix::io::{readv, retry_on_intr, write};
use rustix::net::{AddressFamily, Shutdown, SocketFlags, SocketType, shutdown, socketpair};

use super::abi::{HEADER, MOST, falloc, op};
use super::session::FuseSession;
use crate::client::AttachedClient;
use crate::fields::{FieldBytes, Fields};

pub(super) const SIZE: u64 = 100_000;
/// Bytes that the data of a long write begins again after, and how many of them there are.
const LONG: usize = 70_000;

/// A disk at one end, the kernel at the other.
pub(super) struct Kernel {
    socket: OwnedFd,
    pub(super) model: Arc<Model>,
    served: Option<std::thread::JoinHandle<()>>,
    /// The number of the last request.
    unique: Cell<u64>,
}

impl Kernel {
    pub(super) fn new(is_read_only: bool) -> Self {
        let pair =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
        let (socket, theirs) = pair.unwrap();
        let model = Arc::new(Model::new(to_usize(SIZE)));
        let edge = Simple::shared_edge(model.clone(), &WorkPool::new(2));
        let theirs = Arc::new(theirs);
        let first = Arc::downgrade(&theirs);
        let client = AttachedClient::of(&edge, is_read_only);
        let session = FuseSession::new(client, false, first, || {});
        let served = Some(std::thread::spawn(move || Arc::new(session).serve(&theirs)));
        Self { socket, model, served, unique: Cell::new(0) }
    }

    /// Sends a request, whatever its length is said to be; `cut` bytes of it.
    fn send_part(&self, opcode: u32, node: u64, args: &[u8], said: usize, cut: usize) {
        let len = u32::try_from(said).unwrap();
        self.unique.set(self.unique.get() + 1);
        let header = FieldBytes::default().u32(len).u32(opcode).u64(self.unique.get());
        let header = header.u64(node).zeroes(16).0;
        let message = [&header, args].concat();
        retry_on_intr(|| write(&self.socket, &message[..cut.min(message.len())])).unwrap();
    }

    /// Sends a request, whatever its length is said to be.
    pub(super) fn send(&self, opcode: u32, node: u64, args: &[u8], said: usize) {
        self.send_part(opcode, node, args, said, usize::MAX);
    }

    /// The error and the data of the reply to a well-formed one.
    pub(super) fn ask(&self, opcode: u32, args: FieldBytes) -> (i32, Vec<u8>) {
        self.send(opcode, 1, &args.0, HEADER + args.0.len());
        self.reply()
    }

    /// The reply to the last request, which is the only one.
    pub(super) fn reply(&self) -> (i32, Vec<u8>) {
        let mut data = vec![0; MOST + 16];
        // The fuzzer has a timer.
        let read = || readv(&self.socket, &mut [IoSliceMut::new(&mut data)]);
        let n = retry_on_intr(read).unwrap();
        let number = |at: usize| i32::from_ne_bytes(data[at..at + 4].try_into().unwrap());
        assert_eq!(usize::try_from(number(0)).unwrap(), n);
        assert_eq!(data[8..16], self.unique.get().to_ne_bytes());
        (-number(4), data[16..n].to_vec())
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        shutdown(&self.socket, Shutdown::Both).unwrap();
        if let Some(thread) = self.served.take() {
            thread.join().unwrap();
        }
    }
}

/// Whether a request has no reply, if its length is what it says.
pub(super) fn has_none(opcode: u32) -> bool {
    [op::FORGET, op::BATCH_FORGET, op::INTERRUPT].contains(&opcode)
}

/// The bytes choose what the kernel asks: requests that are cut short, lie about their length or
/// name ranges beyond the end. Each has one reply, which says what the same does to memory, and
/// the next one is answered.
pub fn run(bytes: &[u8]) {
    let Some((first, mut left)) = bytes.split_first() else { return };
    let kernel = Kernel::new(first & 1 != 0);
    let mut copy = vec![0; to_usize(SIZE)];
    while let Some(([opcode, how, len], rest)) = left.split_first_chunk() {
        let args;
        (args, left) = rest.split_at(usize::from(*len).min(rest.len()));
        ask_one(&kernel, u32::from(*opcode), *how, args.to_vec(), &mut copy);
    }
    assert_eq!(kernel.ask(op::GETATTR, FieldBytes::default()).0, 0);
    assert!(kernel.model.bytes() == copy);
}

fn ask_one(kernel: &Kernel, opcode: u32, how: u8, mut args: Vec<u8>, copy: &mut [u8]) {
    let is_set = |bit: u8| how & 1 << bit != 0;
    if is_set(0) && args.len() >= 40 {
        let data = args.split_off(40);
        args.extend(data.iter().chain([&how]).cycle().take(LONG));
    }
    // What arguments mostly hold: an offset near the disk, and the length of the data behind them.
    if let Some(offset) = args.get_mut(8..16).filter(|_| !is_set(1)) {
        let near = u64::from_ne_bytes((&*offset).try_into().unwrap()) % (SIZE + 100);
        offset.copy_from_slice(&near.to_ne_bytes());
    }
    let behind = u32::try_from(args.len().saturating_sub(40)).unwrap();
    if let Some(said) = args.get_mut(16..20).filter(|_| opcode == op::WRITE && !is_set(2)) {
        said.copy_from_slice(&behind.to_ne_bytes());
    }
    let len = HEADER + args.len();
    let said = if is_set(3) { len + 1 } else { len };
    let cut = if is_set(4) { 1 + usize::from(how >> 5) * 8 } else { len };
    kernel.send_part(opcode, if is_set(5) { 2 } else { 1 }, &args, said, cut);
    if cut < HEADER || has_none(opcode) && said == cut.min(len) {
        return;
    }
    let (error, data) = kernel.reply();
    assert!(error == 0 || error > 0 && data.is_empty(), "{opcode}: {error}");
    if error == 0 {
        follow(opcode, &args, &data, copy).unwrap();
    }
}

/// What was done is what the same does to memory.
fn follow(opcode: u32, args: &[u8], data: &[u8], copy: &mut [u8]) -> Option<()> {
    let mut fields = Fields(args);
    let mut place = || Some((fields.u64()?, fields.u64()?).1);
    let range = |offset: u64, len: u64| {
        let from = offset.min(SIZE);
        to_usize(from)..to_usize(from + len.min(SIZE - from))
    };
    match opcode {
        op::READ => {
            let offset = place()?;
            assert!(data == &copy[range(offset, fields.u32()?.into())]);
        }
        op::WRITE => {
            let offset = place()?;
            let len = fields.u32()?;
            assert_eq!(data[..4], len.to_ne_bytes());
            copy[range(offset, len.into())].copy_from_slice(args.get(40..).unwrap_or_default());
        }
        op::FALLOCATE => {
            let offset = place()?;
            let (len, mode) = (fields.u64()?, fields.u32()?);
            assert_ne!(mode & (falloc::PUNCH_HOLE | falloc::ZERO_RANGE), 0);
            copy[range(offset, len)].fill(0);
        }
        op::LSEEK => {
            let found = Fields(data).u64()?;
            assert!((place()?..=SIZE).contains(&found), "{found}");
        }
        _ => {}
    }
    Some(())
}
