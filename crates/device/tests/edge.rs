//! The edge over model devices of every ability: whatever is missing below, the bytes above are
//! right, and what the device was not made for never reaches it (the model panics).

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use runtime::{Behalf, WorkPool};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use device::model::Model;
use device::{
    Abilities, BlockSizes, Blocking as _, Edge, Error, ErrorKind, Info, Operation, OperationKind,
    Outcome, Place, Result, Simple, StatusRun, ZeroFlags,
};
use proptest::prelude::*;
use trial::{Fate, TestDevice};

const SIZE: usize = 64 << 10;

#[derive(Clone, Debug)]
enum Op {
    Write(usize, usize, u8, bool),
    Zero(usize, usize, bool, bool, bool),
    Trim(usize, usize, bool),
}

fn op() -> impl Strategy<Value = Op> {
    let range = (0..SIZE, 0..20_000usize);
    prop_oneof![
        (range.clone(), 1u8.., any::<bool>()).prop_map(|((o, l), b, f)| Op::Write(o, l, b, f)),
        (range.clone(), any::<[bool; 3]>())
            .prop_map(|((o, l), [m, fast, fua])| Op::Zero(o, l, m, fast, fua)),
        (range, any::<bool>()).prop_map(|((o, l), f)| Op::Trim(o, l, f)),
    ]
}

fn edge(abilities: [bool; 5], minimum: u32) -> (Arc<Model>, Edge) {
    let [fua, trim, zero, fast, _] = abilities;
    let abilities = Abilities { fua, trim, zero, fast_zero: zero && fast, ..Abilities::all(true) };
    let blocks = BlockSizes { minimum, preferred: 4096, maximum: 8192 };
    let model = Arc::new(Model::with(SIZE, abilities, blocks));
    let edge = Simple::shared_edge(model.clone(), &WorkPool::new(2));
    (model, edge)
}

proptest! {
    #[test]
    fn bytes_are_right_whatever_the_device_lacks(
        abilities: [bool; 5],
        minimum in prop_oneof![Just(1u32), Just(512), Just(4096)],
        ops in prop::collection::vec(op(), 1..12),
    ) {
        let (model, edge) = edge(abilities, minimum);
        let mut want = vec![0u8; SIZE];
        for op in ops {
            let durable = model.flushes();
            match op {
                Op::Write(o, l, b, fua) => {
                    let l = l.min(SIZE - o);
                    edge.write(&vec![b; l], o as u64, fua).unwrap();
                    want[o..o + l].fill(b);
                    prop_assert!(!fua || l == 0 || model.flushes() > durable);
                }
                Op::Zero(o, l, may_unmap, fast_only, fua) => {
                    let l = l.min(SIZE - o);
                    let flags = ZeroFlags { may_unmap, fast_only, fua, ..ZeroFlags::default() };
                    match edge.zero(o as u64, l as u64, flags) {
                        Ok(()) => {
                            want[o..o + l].fill(0);
                            prop_assert!(!fua || model.flushes() > durable);
                        }
                        Err(e) => {
                            prop_assert_eq!(e.kind(), ErrorKind::NotFast);
                            prop_assert!(fast_only);
                        }
                    }
                }
                Op::Trim(o, l, fua) => {
                    let l = l.min(SIZE - o);
                    edge.trim(o as u64, l as u64, fua).unwrap();
                    // What is trimmed is undefined; take what is there, inside the range only.
                    want[o..o + l].copy_from_slice(&model.bytes()[o..o + l]);
                    prop_assert!(!fua || model.flushes() > durable);
                }
            }
            prop_assert!(model.bytes() == want);
            let mut got = vec![0xaa; SIZE - 1001];
            edge.read(&mut got, 1001).unwrap();
            prop_assert!(got == want[1001..]);
        }
    }
}

#[test]
fn zeroes_that_are_to_be_written_go_as_a_request_to_devices_that_support_it_and_as_data_to_others()
{
    let all = Model::new(1).info().abilities;
    let flags = ZeroFlags { written: true, ..ZeroFlags::default() };
    for (written_zero, minimum) in [(false, 1), (false, 512), (true, 1), (true, 512)] {
        let blocks = BlockSizes { minimum, ..BlockSizes::ANY };
        let model = Arc::new(Model::with(1 << 16, Abilities { written_zero, ..all }, blocks));
        let pool = WorkPool::new(1);
        let edge = Edge::new(Simple::shared(model.clone(), &pool), pool);
        edge.write(&[7; 1 << 16], 0, false).unwrap();
        let before = model.log().len();
        edge.zero(512, 4096, flags).unwrap();
        edge.zero(8192, 1024, ZeroFlags { fua: true, ..flags }).unwrap();
        let asked = model.log()[before..].iter().filter(|call| call.starts_with("zero")).count();
        assert_eq!(asked, if written_zero { 2 } else { 0 }, "{minimum}");
        let bytes = model.bytes();
        assert!(bytes[512..4608].iter().all(|b| *b == 0) && bytes[..512] == [7; 512]);
        let fast = ZeroFlags { fast_only: true, ..flags };
        if !written_zero {
            assert_eq!(edge.zero(0, 512, fast).unwrap_err().kind(), ErrorKind::NotFast);
            assert_eq!(model.bytes()[0], 7);
        }
    }
}

#[test]
fn a_range_past_the_end_is_refused_however_it_overflows() {
    let (_, edge) = edge([true; 5], 1);
    let mut buf = [0; 2];
    for offset in [SIZE as u64 - 1, SIZE as u64, u64::MAX, u64::MAX - 1] {
        let e = edge.read(&mut buf, offset).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::OutOfBounds, "{offset}");
        assert_eq!(edge.write(&buf, offset, false).unwrap_err().kind(), ErrorKind::OutOfBounds);
        let e = edge.zero(offset, u64::MAX, ZeroFlags::default()).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::OutOfBounds);
    }
}

#[test]
fn a_read_only_device_refuses_every_change() {
    let model = Arc::new(Model::with(SIZE, Abilities::READ, BlockSizes::ANY));
    let edge = Simple::shared_edge(model, &WorkPool::new(1));
    assert_eq!(edge.write(&[1], 0, false).unwrap_err().kind(), ErrorKind::ReadOnly);
    assert_eq!(edge.zero(0, 1, ZeroFlags::default()).unwrap_err().kind(), ErrorKind::ReadOnly);
    assert_eq!(edge.trim(0, 1, false).unwrap_err().kind(), ErrorKind::ReadOnly);
}

/// Where 4096 bytes of 7 lie.
fn sevens() -> Place {
    let file = rustix::fs::memfd_create("sevens", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::io::pwrite(&file, &[7; 4096], 0).unwrap();
    Place::new(Arc::new(file), 0)
}

#[test]
fn only_whole_blocks_are_taken_and_none_that_a_range_only_touches() {
    let blocks = BlockSizes { minimum: 512, preferred: 4096, maximum: 8192 };
    let model = Arc::new(Model::with(SIZE, Model::new(1).info().abilities, blocks));
    let edge = Simple::shared_edge(model.clone(), &WorkPool::new(1));
    for (offset, len) in [(100, 2000), (512, 511), (512, 0), (SIZE as u64, 0)] {
        assert_eq!(edge.take(offset, len, sevens(), false).unwrap(), 0, "{offset}+{len}");
    }
    assert!(model.log().is_empty());
    assert_eq!(edge.take(512, 1023, sevens(), false).unwrap(), 512);
    assert!(model.bytes()[512..1024] == [7; 512] && model.bytes()[1024] == 0);
    assert!(edge.take(SIZE as u64 - 512, 1024, sevens(), false).is_err());
    let read_only = Simple::edge(Model::with(SIZE, Abilities::READ, blocks), &WorkPool::new(1));
    let e = read_only.take(0, 512, sevens(), false).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::ReadOnly);
}

/// Reports more of a range than there is.
fn boastful(operation: Operation) -> Fate {
    let one = |len, value| StatusRun { len, value };
    Fate::Answer(Ok(match operation {
        Operation::Take { len, .. } => Outcome::Taken(len + 1),
        Operation::Status { offset, len, .. } => Outcome::Status(match offset {
            0 => vec![one(len, 0), one(1, 1)],
            1 => vec![one(u64::MAX, 1), one(len, 0)],
            2 => vec![one(0, 1), one(len, 0)],
            _ => Vec::new(),
        }),
        other => return Fate::Pass(other),
    }))
}

#[test]
fn more_than_was_asked_about_is_never_believed() {
    let info = Model::new(SIZE).info().clone();
    let context = info.contexts[0].clone();
    for edge in edges(&TestDevice::blank(info).hooked(boastful)) {
        let take = Operation::Take { offset: 0, len: 512, from: sevens(), share_only: true };
        assert!(run(&edge, take).is_err());
        for offset in 0..4 {
            let context = context.clone();
            let status = Operation::Status { context, offset, len: 10, max: 9 };
            assert!(run(&edge, status).is_err(), "{offset}");
        }
        let unknown = Operation::Status { context: "other".into(), offset: 0, len: 10, max: 9 };
        assert!(run(&edge, unknown).unwrap_err().is_unsupported());
    }
}

fn run(edge: &Edge, operation: Operation) -> Result<Outcome> {
    let (tx, rx) = std::sync::mpsc::channel();
    edge.submit(operation, Box::new(move |result| tx.send(result).unwrap()));
    rx.recv().unwrap()
}

#[test]
fn an_operation_that_is_done_again_is_the_same() {
    let data = device::Buffer::copy_of(&[3; 10]).into();
    for mut operation in [
        Operation::Read { offset: 5, buffer: device::Buffer::zeroed(100) },
        Operation::Write { offset: 6, data, fua: true },
        Operation::Status { context: "a".into(), offset: 1, len: 2, max: 3 },
        Operation::Take { offset: 1, len: 2, from: sevens(), share_only: true },
        Operation::Flush,
    ] {
        let said = format!("{operation:?}");
        let (kind, range) = (operation.kind(), operation.range());
        let mut again = operation.again();
        for _ in 0..2 {
            let next = again.operation();
            assert_eq!((next.kind(), next.range(), next.fua()), (kind, range, operation.fua()));
            match next {
                Operation::Write { data, .. } => assert_eq!(*data, [3; 10]),
                Operation::Read { .. } => {}
                other => assert_eq!(format!("{other:?}"), said),
            }
        }
    }
}

#[test]
fn a_fast_zero_is_never_written_as_data() {
    let (model, edge) = edge([true, true, false, false, true], 1);
    edge.write(&[7; 4096], 0, false).unwrap();
    let fast = ZeroFlags { fast_only: true, ..ZeroFlags::default() };
    assert_eq!(edge.zero(0, 4096, fast).unwrap_err().kind(), ErrorKind::NotFast);
    assert_eq!(model.bytes()[..4096], [7; 4096]);
}

/// Edges over a disk that is asked here as a simple one, and that answers in `submit`, and from
/// another thread.
fn edges(disk: &TestDevice) -> [Edge; 3] {
    let pool = WorkPool::new(2);
    let [here, late] = [disk.clone(), disk.clone().late(1)].map(|disk| disk.shared().edge(&pool));
    [Simple::edge(disk.clone(), &pool), here, late]
}

#[test]
fn a_durable_write_in_pieces_is_one_flush_or_each_piece_is_durable() {
    let blocks = BlockSizes { minimum: 1, preferred: 4096, maximum: 4096 };
    for (flush, flushes, each) in [(true, 1, false), (false, 5, true)] {
        let all = Abilities { flush, ..Model::new(1).info().abilities };
        for way in 0..3 {
            let model = Arc::new(Model::with(SIZE, all, blocks));
            let edge = &edges(&TestDevice::over(model.clone()))[way];
            edge.write(&[1; 20_000], 0, true).unwrap();
            assert_eq!(model.flushes(), flushes, "{way}");
            let log = model.log();
            assert_eq!(log.len(), 5);
            assert!(log.iter().all(|line| line.ends_with(&format!("fua={each}"))), "{log:?}");
            // One that is not in pieces is durable by itself.
            edge.write(&[1; 4096], 0, true).unwrap();
            assert!(model.log().last().unwrap().ends_with("fua=true"));
        }
    }
}

/// A disk that never waits, and how many writes and maps were asked for by this thread.
fn counting() -> (TestDevice, Arc<AtomicUsize>) {
    let abilities = Abilities { zero: false, fast_zero: false, ..Model::new(0).info().abilities };
    let info = Info { abilities, ..Info::new("counting", 1 << 40) };
    let (here, caller) = (Arc::new(AtomicUsize::new(0)), std::thread::current().id());
    let count = here.clone();
    let device = TestDevice::blank(info).hooked(move |operation| {
        let counts = matches!(operation, Operation::Write { .. } | Operation::Resolve { .. });
        let is_caller = std::thread::current().id() == caller;
        count.fetch_add(usize::from(counts && is_caller), Ordering::SeqCst);
        Fate::Pass(operation)
    });
    (device, here)
}

#[test]
fn a_map_that_may_be_long_is_not_made_by_a_thread_with_other_things_to_do() {
    let (device, count) = counting();
    let disk = Simple::edge(device, &WorkPool::new(2));
    for (max, here) in [(64, 1), (2048, 1)] {
        let (tx, rx) = std::sync::mpsc::channel();
        let operation = Operation::Resolve { offset: 0, len: 1 << 30, max };
        disk.submit(operation, Box::new(move |result| tx.send(result).unwrap()));
        rx.recv().unwrap().unwrap();
        assert_eq!(count.load(Ordering::SeqCst), here, "{max}");
    }
}

/// A zero of 1 GiB that is written piece by piece: the submitting thread is not kept until its
/// end, not even by a device that never waits.
#[test]
fn a_thread_that_submits_something_long_has_other_things_to_do() {
    for way in 0..2 {
        let (device, count) = counting();
        let disk = &edges(&device)[way];
        let (tx, rx) = std::sync::mpsc::channel();
        let flags = ZeroFlags::default();
        let operation = Operation::Zero { offset: 0, len: 1 << 30, flags };
        disk.submit(operation, Box::new(move |result| tx.send(result).unwrap()));
        rx.recv().unwrap().unwrap();
        let here = count.load(Ordering::SeqCst);
        assert!(here <= 64, "{way}: {here} pieces");
        // A thread that waits for the end may as well do it, even if the pool is busy.
        let pool = WorkPool::new(1);
        let (hold, held) = std::sync::mpsc::channel::<()>();
        pool.run(move || held.recv().unwrap_or(()));
        Simple::edge(device, &pool).zero(0, 1 << 30, ZeroFlags::default()).unwrap();
        assert!(count.load(Ordering::SeqCst) - here >= 1024, "{way}");
        drop(hold);
    }
}

#[test]
fn a_fast_zero_to_the_end_of_a_disk_that_ends_within_a_block_is_fast() {
    let all = Model::new(1).info().abilities;
    let blocks = BlockSizes { minimum: 512, preferred: 4096, maximum: 8192 };
    let model = Arc::new(Model::with(5000, all, blocks));
    let disk = Simple::shared_edge(model.clone(), &WorkPool::new(1));
    disk.write(&[1; 5000], 0, false).unwrap();
    let fast = ZeroFlags { fast_only: true, ..ZeroFlags::default() };
    assert_eq!(disk.zero(1024, 3975, fast).unwrap_err().kind(), ErrorKind::NotFast);
    disk.zero(1024, 3976, fast).unwrap();
    assert!(model.bytes()[..1024].iter().all(|b| *b == 1));
    assert!(model.bytes()[1024..].iter().all(|b| *b == 0));
}

/// A device that answers one operation after the other, when the test says so.
fn stepwise(minimum: u32) -> (Arc<TestDevice>, Edge) {
    let blocks = BlockSizes { minimum, preferred: 4096, maximum: 1 << 20 };
    let abilities = Abilities { write: true, flush: true, ..Abilities::READ };
    let info = Info { blocks, abilities, ..Info::new("stepwise", 1 << 30) };
    let device = TestDevice::blank(info).shared();
    device.hold();
    (device.clone(), device.edge(&WorkPool::new(1)))
}

/// Answers the first that waits, as it should be; says what it was.
fn step(device: &TestDevice) -> OperationKind {
    let kind = device.held()[0].kind;
    device.release_one(0);
    kind
}

/// Answers the first that waits: it is unsupported.
fn refuse(device: &TestDevice) -> OperationKind {
    let (operation, done) = device.take_held(0);
    done(Err(Error::unsupported(operation.kind().name())));
    operation.kind()
}

/// A long zero that is written as data blocks other requests for no longer than a piece takes.
#[test]
fn a_read_modify_write_waits_for_one_piece_of_a_long_zero_and_not_for_all() {
    let (device, edge) = stepwise(512);
    let (tx, rx) = std::sync::mpsc::channel();
    let zeroed = tx.clone();
    let zero = Operation::Zero { offset: 0, len: 64 << 20, flags: ZeroFlags::default() };
    edge.submit(zero, Box::new(move |result| zeroed.send(("zero", result.is_ok())).unwrap()));
    assert_eq!(refuse(&device), OperationKind::Zero);
    let data = device::Buffer::zeroed(3).into();
    let write = Operation::Write { offset: 512 << 20, data, fua: false };
    edge.submit(write, Box::new(move |result| tx.send(("write", result.is_ok())).unwrap()));
    let kinds: Vec<_> = (0..3).map(|_| step(&device)).collect();
    assert_eq!(kinds, [OperationKind::Write, OperationKind::Read, OperationKind::Write]);
    assert_eq!(rx.try_recv(), Ok(("write", true)));
    for _ in 1..64 {
        assert_eq!(step(&device), OperationKind::Write);
    }
    assert_eq!(rx.try_recv(), Ok(("zero", true)));
}

/// A client that was given up may have come back, and asked for something else since.
#[test]
fn nothing_is_begun_for_a_client_that_has_gone_whatever_the_edge_makes_of_it() {
    let abilities = Model::new(1).info().abilities;
    let blocks = BlockSizes { minimum: 512, ..BlockSizes::ANY };
    let info = Info { abilities, blocks, ..Info::new("left", 1 << 20) };
    let disk = TestDevice::blank(info).waiting().shared();
    disk.hold();
    let client = Arc::new(AtomicBool::new(true));
    let edge = Simple::shared_edge(disk.clone(), &WorkPool::new(1));
    let (tx, rx) = std::sync::mpsc::channel();
    let submit = |operation, name: &'static str| {
        let tx = tx.clone();
        edge.submit(operation, Box::new(move |result| tx.send((name, result.is_ok())).unwrap()));
    };
    let buffer = || device::Buffer::zeroed(512);
    submit(Operation::Read { offset: 0, buffer: buffer() }, "read");
    let flags = ZeroFlags::default();
    Behalf::default().wanted_by(client.clone()).run(|| {
        submit(Operation::Trim { offset: 0, len: 4096, fua: false }, "trim");
        submit(Operation::Zero { offset: 4096, len: 4096, flags }, "zero");
        submit(Operation::Write { offset: 9000, data: buffer().into(), fua: false }, "write");
    });
    client.store(false, Ordering::SeqCst);
    disk.wait_for_held(1);
    disk.release();
    submit(Operation::Flush, "flush");
    drop(tx);
    assert_eq!(rx.recv().unwrap(), ("read", true));
    // What was given up is not reported.
    assert_eq!(rx.recv().unwrap(), ("flush", true));
    assert_eq!(disk.asked(), ["read 0+512", "flush"]);
    // What was given up blocks no other request.
    edge.write(&[1; 3], 9000, false).unwrap();
}

#[test]
fn ranges_are_inside_of_the_size_that_was_looked_at_last_for_all_who_have_the_edge() {
    let (model, edge) = edge([true; 5], 512);
    let other = edge.clone();
    model.give(SIZE + 1000);
    assert!(edge.write(&[1; 512], SIZE as u64, false).is_err(), "nobody has looked");
    assert_eq!(edge.look(), SIZE as u64 + 512, "whole blocks");
    other.write(&[7; 512], SIZE as u64, false).unwrap();
    other.zero(SIZE as u64 - 512, 1024, ZeroFlags::default()).unwrap();
    let mut extents = Vec::new();
    other.resolve(0, SIZE as u64 + 512, 10, &mut extents).unwrap();
    assert!(other.read(&mut [0; 512], SIZE as u64 + 1).is_err());
    model.give(1024);
    assert_eq!((edge.look(), other.size()), (1024, 1024));
    assert!(other.read(&mut [0; 512], 1024).is_err());
    other.read(&mut [0; 512], 512).unwrap();
    assert_eq!(other.info().size, SIZE as u64);
    // A block that ends with the disk stays whole where nothing changed.
    let blocks = BlockSizes { minimum: 512, preferred: 4096, maximum: 8192 };
    let short = Arc::new(Model::with(1000, Abilities::all(true), blocks));
    assert_eq!(Simple::shared_edge(short, &WorkPool::new(2)).look(), 1000);
}
