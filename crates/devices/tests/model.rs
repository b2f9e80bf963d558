//! Random operations on every writable device and on the model, both through the edge: the bytes
//! are the same after each, and a map never shows a hole where there is data.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod scratch;

use std::sync::Arc;

use device::model::Model;
use device::{Device, Edge, ErrorKind, Extent, ExtentKind, Name, WorkPool, ZeroFlags};
use devices::OpenOptions;
use proptest::prelude::*;
use scratch::Scratch;

const SIZE: usize = 96 << 10;

#[derive(Clone, Debug)]
enum Op {
    Write(usize, usize, u8, bool),
    Zero(usize, usize, ZeroFlags),
    Trim(usize, usize, bool),
    Flush,
    Resolve(usize, usize, usize),
}

fn range() -> impl Strategy<Value = (usize, usize)> {
    // Whole pages often, since only they become holes.
    let any = (0..SIZE, 0..SIZE / 2);
    let pages = (0..SIZE / 4096, 0..SIZE / 8192).prop_map(|(o, l)| (o * 4096, l * 4096));
    prop_oneof![any, pages].prop_map(|(o, l)| (o, l.min(SIZE - o)))
}

fn op() -> impl Strategy<Value = Op> {
    let zero = (range(), any::<[bool; 3]>()).prop_map(|((o, l), [may_unmap, fast_only, fua])| {
        Op::Zero(o, l, ZeroFlags { may_unmap, fast_only, fua })
    });
    prop_oneof![
        4 => (range(), 1u8.., any::<bool>()).prop_map(|((o, l), b, f)| Op::Write(o, l, b, f)),
        3 => zero,
        2 => (range(), any::<bool>()).prop_map(|((o, l), f)| Op::Trim(o, l, f)),
        1 => Just(Op::Flush),
        4 => (range(), 1..6usize).prop_map(|((o, l), max)| Op::Resolve(o, l, max)),
    ]
}

fn resolve(edge: &Edge, offset: usize, len: usize, max: usize) -> Vec<Extent> {
    let mut out = Vec::new();
    edge.resolve(offset as u64, len as u64, max, &mut out).unwrap();
    out
}

/// The whole map, asked for in pieces.
fn whole_map(edge: &Edge) -> Vec<Extent> {
    let (mut all, mut at) = (Vec::new(), 0);
    while at < SIZE {
        all.extend(resolve(edge, at, SIZE - at, 3));
        at = usize::try_from(all.last().unwrap().end()).unwrap();
    }
    all
}

fn check_map(extents: &[Extent], offset: usize, bytes: &[u8]) -> Result<(), TestCaseError> {
    let mut at = offset as u64;
    for e in extents {
        prop_assert_eq!(e.start, at);
        at = e.end();
        let range = usize::try_from(e.start).unwrap()..usize::try_from(e.end()).unwrap();
        if e.kind.reads_zero() {
            prop_assert!(bytes[range].iter().all(|b| *b == 0), "data in a hole: {:?}", e);
        }
        if let Some(place) = &e.place {
            let mut first = [0];
            rustix::io::pread(place.fd(), &mut first, place.offset()).unwrap();
            prop_assert_eq!(first[0], bytes[usize::try_from(e.start).unwrap()]);
        }
    }
    Ok(())
}

/// Runs `ops` on a device that is all zero, and whose trim gives zeroes, and on the model.
fn run(device: Arc<dyn Device>, ops: &[Op]) -> Result<(), TestCaseError> {
    let pool = WorkPool::new(2);
    let model = Arc::new(Model::new(SIZE));
    let (left, right) = (Edge::new(device, pool.clone()), Edge::new(model.clone(), pool));
    for op in ops {
        match *op {
            Op::Write(o, l, b, fua) => {
                let data = vec![b; l];
                left.write(&data, o as u64, fua).unwrap();
                right.write(&data, o as u64, fua).unwrap();
            }
            Op::Zero(o, l, flags) => match left.zero(o as u64, l as u64, flags) {
                Err(e) if flags.fast_only && e.kind() == ErrorKind::NotFast => {}
                other => {
                    other.unwrap();
                    right.zero(o as u64, l as u64, flags).unwrap();
                }
            },
            Op::Trim(o, l, fua) => {
                left.trim(o as u64, l as u64, fua).unwrap();
                right.trim(o as u64, l as u64, fua).unwrap();
            }
            Op::Flush => left.flush().unwrap(),
            Op::Resolve(o, l, max) => {
                let extents = resolve(&left, o, l, max);
                prop_assert!(extents.len() <= max && (l == 0) == extents.is_empty());
                check_map(&extents, o, &model.bytes())?;
            }
        }
        let mut bytes = vec![0xaa; SIZE];
        left.read(&mut bytes, 0).unwrap();
        prop_assert!(bytes == model.bytes(), "bytes differ after {:?}", op);
        bytes.fill(0xbb);
        if left.device().read_now(&mut bytes, 0).unwrap() {
            prop_assert!(bytes == model.bytes(), "bytes read at once differ after {:?}", op);
        }
    }
    check_map(&whole_map(&left), 0, &model.bytes())
}

fn open(name: &str) -> Arc<dyn Device> {
    devices::open(&Name::parse(name).unwrap(), &OpenOptions::read_write()).unwrap()
}

fn file_in(dir: &str, size: u64) -> (Scratch, Arc<dyn Device>) {
    let scratch = Scratch::new(dir);
    let options = OpenOptions { create: Some(size), ..OpenOptions::read_write() };
    let path = scratch.path("disk").display().to_string();
    let device = devices::open(&Name::Path(path), &options).unwrap();
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
    fn a_file_on_a_disk_is_like_the_model(ops in prop::collection::vec(op(), 1..40)) {
        let (_scratch, device) = file_in("/tmp", SIZE as u64);
        // Without FUA and flush, which are slow on a disk and the same code on tmpfs.
        let quick: Vec<_> = ops
            .into_iter()
            .filter_map(|op| match op {
                Op::Write(o, l, b, _) => Some(Op::Write(o, l, b, false)),
                Op::Zero(o, l, flags) => Some(Op::Zero(o, l, ZeroFlags { fua: false, ..flags })),
                Op::Trim(o, l, _) => Some(Op::Trim(o, l, false)),
                Op::Flush => None,
                other @ Op::Resolve(..) => Some(other),
            })
            .collect();
        run(device, &quick)?;
    }
}

#[test]
fn durable_writes_on_a_disk_are_like_the_model() {
    let (_scratch, device) = file_in("/tmp", SIZE as u64);
    let flags = ZeroFlags { may_unmap: true, fast_only: false, fua: true };
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
    let edge = Edge::new(Arc::new(scratch::NoZero(device)), WorkPool::new(1));
    edge.write(&vec![0xee; 70 << 20], 0, false).unwrap();
    edge.zero(3, (70 << 20) - 5, ZeroFlags::default()).unwrap();
    let mut bytes = vec![1; 70 << 20];
    edge.read(&mut bytes, 0).unwrap();
    let left: Vec<_> = (0..bytes.len()).filter(|i| bytes[*i] != 0).collect();
    assert_eq!(left, [0, 1, 2, (70 << 20) - 2, (70 << 20) - 1]);
}
