//! The edge over model devices of every ability: whatever is missing below, the bytes above are
//! right, and what the device was not made for never reaches it (the model panics).

use std::sync::Arc;

use device::model::Model;
use device::{Abilities, BlockSizes, Edge, ErrorKind, WorkPool, ZeroFlags};
use proptest::prelude::*;

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
    let abilities = Abilities {
        write: true,
        flush: true,
        fua,
        trim,
        zero,
        fast_zero: zero && fast,
        ..Abilities::READ
    };
    let blocks = BlockSizes { minimum, preferred: 4096, maximum: 8192 };
    let model = Arc::new(Model::with(SIZE, abilities, blocks));
    let edge = Edge::new(model.clone(), WorkPool::new(2));
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
                    let flags = ZeroFlags { may_unmap, fast_only, fua };
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
    let edge = Edge::new(model, WorkPool::new(1));
    assert_eq!(edge.write(&[1], 0, false).unwrap_err().kind(), ErrorKind::ReadOnly);
    assert_eq!(edge.zero(0, 1, ZeroFlags::default()).unwrap_err().kind(), ErrorKind::ReadOnly);
    assert_eq!(edge.trim(0, 1, false).unwrap_err().kind(), ErrorKind::ReadOnly);
}

#[test]
fn a_fast_zero_is_never_written_as_data() {
    let (model, edge) = edge([true, true, false, false, true], 1);
    edge.write(&[7; 4096], 0, false).unwrap();
    let fast = ZeroFlags { fast_only: true, ..ZeroFlags::default() };
    assert_eq!(edge.zero(0, 4096, fast).unwrap_err().kind(), ErrorKind::NotFast);
    assert_eq!(model.bytes()[..4096], [7; 4096]);
}
