//! What the kernel asks, played.

use super::abi::{HEADER, op};
use super::played::{Kernel, SIZE, has_none};
use crate::fields::FieldBytes;

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
        let len = usize::try_from(state >> 33).unwrap() % 70;
        let args: Vec<u8> = (0..len).map(|i| (state >> (i % 8 * 8)).to_le_bytes()[0]).collect();
        let said = HEADER + if n % 7 == 0 { len + 1 } else { len };
        let node = if n % 11 == 0 { 2 } else { 1 };
        kernel.send(opcode, node, &args, said);
        if !has_none(opcode) || said != HEADER + len {
            let (error, data) = kernel.reply();
            assert!(error == 0 || data.is_empty(), "{opcode}");
        }
    }
    assert_eq!(kernel.ask(op::GETATTR, FieldBytes::default()).0, 0);
}
