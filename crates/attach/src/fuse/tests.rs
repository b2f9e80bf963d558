//! The kernel's side of the protocol, played over a pair of sockets, which keep messages apart as
//! /dev/fuse does.

use std::io::IoSliceMut;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use device::Simple;
use device::model::Model;
use runtime::WorkPool;
use rustix::io::{readv, write};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use super::abi::{HEADER, op};
use super::session::FuseSession;
use crate::client::AttachedClient;
use crate::fields::FieldBytes;

const SIZE: u64 = 100_000;

/// A disk at one end, the kernel at the other.
struct Kernel {
    socket: OwnedFd,
    model: Arc<Model>,
    served: Option<std::thread::JoinHandle<()>>,
}

impl Kernel {
    fn new(is_read_only: bool) -> Self {
        let pair =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
        let (socket, theirs) = pair.unwrap();
        let model = Arc::new(Model::new(usize::try_from(SIZE).unwrap()));
        let edge = Simple::shared_edge(model.clone(), &WorkPool::new(2));
        let theirs = Arc::new(theirs);
        let first = Arc::downgrade(&theirs);
        let client = AttachedClient::of(&edge, is_read_only);
        let session = FuseSession::new(client, false, first, || {});
        let served = Some(std::thread::spawn(move || Arc::new(session).serve(&theirs)));
        Self { socket, model, served }
    }

    /// Sends a request, whatever its length is said to be.
    fn send(&self, opcode: u32, node: u64, args: &[u8], said: usize) {
        let len = u32::try_from(said).unwrap();
        let header = FieldBytes::default().u32(len).u32(opcode).u64(7).u64(node).zeroes(16).0;
        write(&self.socket, &[&header, args].concat()).unwrap();
    }

    /// The error and the data of the reply to a well-formed one.
    fn ask(&self, opcode: u32, args: FieldBytes) -> (i32, Vec<u8>) {
        self.send(opcode, 1, &args.0, HEADER + args.0.len());
        self.reply()
    }

    fn reply(&self) -> (i32, Vec<u8>) {
        let mut data = vec![0; (1 << 20) + 16];
        let n = readv(&self.socket, &mut [IoSliceMut::new(&mut data)]).unwrap();
        let number = |at: usize| i32::from_ne_bytes(data[at..at + 4].try_into().unwrap());
        assert_eq!(usize::try_from(number(0)).unwrap(), n);
        assert_eq!(data[8..16], 7u64.to_ne_bytes());
        (-number(4), data[16..n].to_vec())
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both).unwrap();
        if let Some(thread) = self.served.take() {
            thread.join().unwrap();
        }
    }
}

fn read(offset: u64, len: u32) -> FieldBytes {
    FieldBytes::default().u64(0).u64(offset).u32(len).zeroes(20)
}

fn write_of(offset: u64, said: u32, data: &[u8]) -> FieldBytes {
    let mut args = FieldBytes::default().u64(0).u64(offset).u32(said).zeroes(20);
    args.0.extend_from_slice(data);
    args
}

fn fallocate(offset: u64, len: u64, mode: u32) -> FieldBytes {
    FieldBytes::default().u64(0).u64(offset).u64(len).u32(mode).u32(0)
}

#[test]
fn ranges_beyond_the_end_are_cut_for_reads_and_refused_for_writes() {
    let kernel = Kernel::new(false);
    assert_eq!(kernel.ask(op::WRITE, write_of(SIZE - 2, 2, b"ab")).0, 0);
    assert_eq!(kernel.ask(op::READ, read(SIZE - 2, 4096)), (0, b"ab".to_vec()));
    for (offset, len) in [(SIZE, 1), (u64::MAX, 4096), (u64::MAX - 1, u32::MAX)] {
        assert_eq!(kernel.ask(op::READ, read(offset, len)), (0, Vec::new()));
    }
    for offset in [SIZE - 1, SIZE, u64::MAX] {
        assert_eq!(kernel.ask(op::WRITE, write_of(offset, 2, b"ab")).0, libc::ENOSPC);
        assert_eq!(kernel.ask(op::FALLOCATE, fallocate(offset, 2, 16)).0, libc::ENOSPC);
    }
    assert_eq!(kernel.ask(op::FALLOCATE, fallocate(SIZE - 1, u64::MAX, 3)).0, 0);
    assert_eq!(&kernel.model.bytes()[usize::try_from(SIZE).unwrap() - 2..], b"a\0");
    assert_eq!(kernel.ask(op::WRITE, write_of(0, 3, b"ab")).0, libc::EINVAL, "it said three");
    assert_eq!(
        kernel.ask(op::LSEEK, FieldBytes::default().u64(0).u64(SIZE).u32(3).u32(0)).0,
        libc::ENXIO
    );
    assert_eq!(
        kernel.ask(op::LSEEK, FieldBytes::default().u64(0).u64(0).u32(9).u32(0)).0,
        libc::EINVAL
    );
}

#[test]
fn a_read_only_disk_is_not_opened_for_writing_and_a_write_that_comes_all_the_same_is_refused() {
    let kernel = Kernel::new(true);
    for flags in [1, 2, 3] {
        assert_eq!(kernel.ask(op::OPEN, FieldBytes::default().u32(flags).u32(0)).0, libc::EROFS);
    }
    assert_eq!(kernel.ask(op::OPEN, FieldBytes::default().u32(0).u32(0)).0, 0);
    assert_eq!(kernel.ask(op::WRITE, write_of(0, 2, b"ab")).0, libc::EROFS);
    assert_eq!(kernel.ask(op::FALLOCATE, fallocate(0, 2, 3)).0, libc::EROFS);
    assert!(kernel.model.bytes().iter().all(|byte| *byte == 0));
}

#[test]
fn programs_are_told_the_larger_of_physical_and_preferred_blocks() {
    let kernel = Kernel::new(false);
    let (_, data) = kernel.ask(op::GETATTR, FieldBytes::default());
    // The last but one field of `fuse_attr`, for `st_blksize`: no less than a page.
    assert_eq!(data[96..100], 4096_u32.to_ne_bytes());
}

#[test]
fn a_disk_that_gets_another_size_has_it_when_the_kernel_asks_again() {
    let kernel = Kernel::new(false);
    let told = || {
        let (error, data) = kernel.ask(op::GETATTR, FieldBytes::default());
        let number = |at: usize| u64::from_ne_bytes(data[at..at + 8].try_into().unwrap());
        assert_eq!((error, number(0)), (0, 1), "it is believed for a second");
        // Behind its validity and the number of the file.
        number(24)
    };
    assert_eq!(told(), SIZE);
    let longer = SIZE + 5000;
    kernel.model.give(usize::try_from(longer).unwrap());
    assert_eq!(kernel.ask(op::WRITE, write_of(longer - 2, 2, b"ab")).0, 0);
    assert_eq!(kernel.ask(op::READ, read(longer - 2, 4096)), (0, b"ab".to_vec()));
    assert_eq!(kernel.ask(op::WRITE, write_of(longer - 1, 2, b"ab")).0, libc::ENOSPC);
    assert_eq!(told(), longer);
    kernel.model.give(5000);
    assert_eq!(told(), 5000);
    assert_eq!(kernel.ask(op::READ, read(4999, 4096)), (0, vec![0]));
    assert_eq!(kernel.ask(op::WRITE, write_of(5000, 2, b"ab")).0, libc::ENOSPC);
}

#[test]
fn every_request_that_is_cut_short_or_odd_has_one_error_and_the_next_is_answered() {
    let kernel = Kernel::new(false);
    let mut state = 1u64;
    for n in 0..20_000_u32 {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let opcode = n % 60;
        let has_none = [op::FORGET, op::BATCH_FORGET, op::INTERRUPT].contains(&opcode);
        let len = usize::try_from(state >> 33).unwrap() % 70;
        let args: Vec<u8> = (0..len).map(|i| (state >> (i % 8 * 8)).to_le_bytes()[0]).collect();
        let said = HEADER + if n % 7 == 0 { len + 1 } else { len };
        let node = if n % 11 == 0 { 2 } else { 1 };
        kernel.send(opcode, node, &args, said);
        if !has_none || said != HEADER + len {
            let (error, data) = kernel.reply();
            assert!(error == 0 || data.is_empty(), "{opcode}");
        }
    }
    assert_eq!(kernel.ask(op::GETATTR, FieldBytes::default()).0, 0);
}
