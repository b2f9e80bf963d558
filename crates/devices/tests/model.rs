//! Random operations on every writable device and on the model: see `trial`.

use crate::scratch;

use runtime::WorkPool;
use std::sync::Arc;

use device::{Device, Edge, ErrorKind, ExtentKind, Operation, Simple, ZeroFlags};
use devices::OpenOptions;
use proptest::prelude::*;
use scratch::Scratch;
use trial::{Fate, Op, SIZE, TestDevice, Trims, op};

fn run(device: Arc<dyn Device>, ops: &[Op]) -> Result<(), TestCaseError> {
    trial::run(device, ops, Trims::ToZeroes)
}

fn open(name: &str) -> Arc<dyn Device> {
    devices::Named::parse(name)
        .and_then(|disk| disk.open(&OpenOptions::read_write(), &runtime::Context::default()))
        .unwrap()
}

fn file_in(dir: &str, size: u64) -> (Scratch, Arc<dyn Device>) {
    file_with(dir, size, "")
}

/// The same without FUA and flush, which are slow on a disk and the same code on tmpfs.
fn without_flushes(ops: Vec<Op>) -> Vec<Op> {
    ops.into_iter()
        .filter_map(|op| match op {
            Op::Write(o, l, b, _) => Some(Op::Write(o, l, b, false)),
            Op::Zero(o, l, flags) => Some(Op::Zero(o, l, ZeroFlags { fua: false, ..flags })),
            Op::Trim(o, l, _) => Some(Op::Trim(o, l, false)),
            Op::Flush => None,
            other @ (Op::Resolve(..) | Op::Status(..) | Op::Take(..)) => Some(other),
        })
        .collect()
}

fn file_with(dir: &str, size: u64, params: &str) -> (Scratch, Arc<dyn Device>) {
    let scratch = Scratch::new(dir);
    let path = scratch.path("disk");
    std::fs::File::create(&path).and_then(|file| file.set_len(size)).unwrap();
    let device = open(&format!("file:{}{params}", path.display()));
    (scratch, device)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn memory_is_like_the_model(ops in prop::collection::vec(op(), 1..40)) {
        run(open(&format!("memory:{SIZE}")), &ops)?;
    }

    #[test]
    fn data_is_like_the_model(ops in prop::collection::vec(op(), 1..20)) {
        // Content that is all written over with zeroes, so that it begins like the model.
        run(open(&format!("data:1*9000 @0 0*{SIZE}")), &ops)?;
    }

    #[test]
    fn a_file_on_tmpfs_is_like_the_model(ops in prop::collection::vec(op(), 1..40)) {
        let (_scratch, device) = file_in("/dev/shm", SIZE as u64);
        run(device, &ops)?;
    }

    #[test]
    fn a_file_of_which_few_pages_stay_is_like_the_model(
        mode in prop::sample::select(&["none", "auto", "direct"][..]),
        ops in prop::collection::vec(op(), 1..40),
    ) {
        let (_scratch, device) = file_with("/tmp", SIZE as u64, &format!("?cache={mode}"));
        run(device, &without_flushes(ops))?;
    }

    #[test]
    fn a_file_on_a_disk_is_like_the_model(ops in prop::collection::vec(op(), 1..40)) {
        let (_scratch, device) = file_in("/tmp", SIZE as u64);
        run(device, &without_flushes(ops))?;
    }
}

#[test]
fn durable_writes_on_a_disk_are_like_the_model() {
    let (_scratch, device) = file_in("/tmp", SIZE as u64);
    let flags = ZeroFlags { written: false, may_unmap: true, fast_only: false, fua: true };
    let ops = [
        Op::Write(100, 20_000, 7, true),
        Op::Flush,
        Op::Zero(5_000, 9_000, flags),
        Op::Zero(9_000, 9_000, ZeroFlags { may_unmap: false, ..flags }),
        Op::Trim(0, 4096, true),
        Op::Resolve(0, SIZE, 9),
    ];
    run(device, &ops).unwrap();
}

#[test]
fn a_zero_of_more_than_4_gib_leaves_no_stale_byte() {
    let size = (9u64 << 30) + 12_345;
    for dir in ["/tmp", "/dev/shm"] {
        for may_unmap in [true, false] {
            let (_scratch, device) = file_in(dir, size);
            let edge = Edge::new(device, WorkPool::new(1));
            // Without leave to unmap all of it is allocated: a little more than 64 MiB must do.
            let (from, len) = if may_unmap { (1, size - 2) } else { (1, (66 << 20) + 1) };
            let marks =
                [0, from, 63 << 20, 64 << 20, (64 << 20) + 1, len - 1, len, len + 1, size - 1];
            for at in marks {
                edge.write(&[0xee], at, false).unwrap();
            }
            edge.zero(from, len, ZeroFlags { may_unmap, ..ZeroFlags::default() }).unwrap();
            for at in marks {
                let mut byte = [1];
                edge.read(&mut byte, at).unwrap();
                let inside = at >= from && at - from < len;
                assert_eq!(byte[0] == 0, inside, "{dir} {may_unmap} {at}");
            }
            let mut out = Vec::new();
            edge.resolve(0, size, 100, &mut out).unwrap();
            let data: u64 = out.iter().filter(|e| e.kind == ExtentKind::Data).map(|e| e.len).sum();
            assert!(data <= (68 << 20), "{dir} {may_unmap}: {data} bytes of data");
        }
    }
}

#[test]
fn zeroes_written_as_data_reach_every_byte_of_more_than_64_mib() {
    // A device below that cannot zero: what NFS once left stale in others.
    let (_scratch, device) = file_in("/dev/shm", 70 << 20);
    let below = TestDevice::blank(device.info().clone()).hooked(move |operation| match operation {
        Operation::Zero { .. } => Fate::fail(ErrorKind::Unsupported),
        other => Fate::Answer(device.run(other)),
    });
    let edge = Simple::edge(below, &WorkPool::new(1));
    edge.write(&vec![0xee; 70 << 20], 0, false).unwrap();
    edge.zero(3, (70 << 20) - 5, ZeroFlags::default()).unwrap();
    let mut bytes = vec![1; 70 << 20];
    edge.read(&mut bytes, 0).unwrap();
    let left: Vec<_> = (0..bytes.len()).filter(|i| bytes[*i] != 0).collect();
    assert_eq!(left, [0, 1, 2, (70 << 20) - 2, (70 << 20) - 1]);
}
