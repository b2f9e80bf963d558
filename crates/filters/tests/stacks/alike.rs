//! The edge sends a device the same requests however it waits.

use runtime::WorkPool;
use std::sync::Arc;

use device::model::Model;
use device::{Abilities, BlockSizes, Blocking, Edge, ZeroFlags};
use trial::SIZE;

use crate::stacks::bottoms::{WAITS, Wait, waiting};

/// What a device with blocks of 512 bytes is asked for while `work` is done, and how often it is
/// made durable.
fn asked(wait: Wait, change: impl Fn(&mut Abilities), work: impl Fn(&Edge)) -> (Vec<String>, u64) {
    let mut abilities = Model::new(SIZE).info().abilities;
    change(&mut abilities);
    let blocks = BlockSizes { minimum: 512, preferred: 4096, maximum: 8192 };
    let model = Arc::new(Model::with(SIZE, abilities, blocks));
    let pool = WorkPool::new(1);
    work(&Edge::new(waiting(model.clone(), wait, &pool), pool));
    (model.log(), model.flushes())
}

#[test]
fn what_is_of_whole_blocks_is_asked_for_once_and_flushed_once() {
    for wait in WAITS {
        for fua in [true, false] {
            let (log, flushes) = asked(
                wait,
                |a| a.fua = fua,
                |edge| {
                    edge.write(&[7; 4096], 512, true).unwrap();
                    let flags =
                        ZeroFlags { written: false, may_unmap: true, fua: true, fast_only: false };
                    edge.zero(512, 1024, flags).unwrap();
                    edge.trim(1024, 512, true).unwrap();
                },
            );
            assert_eq!((log.len(), flushes), (3, 3), "{wait:?}: {log:?}");
        }
    }
}

#[test]
fn a_durable_zero_of_parts_of_blocks_is_one_flush() {
    for wait in WAITS {
        let (log, flushes) = asked(
            wait,
            |a| a.fua = false,
            |edge| {
                let flags =
                    ZeroFlags { written: false, may_unmap: true, fua: true, fast_only: false };
                edge.zero(5, 4096, flags).unwrap();
            },
        );
        assert_eq!(flushes, 1, "{wait:?}: {log:?}");
    }
}

#[test]
fn a_device_that_cannot_trim_is_not_asked_to() {
    for wait in WAITS {
        let (log, flushes) =
            asked(wait, |a| a.trim = false, |edge| edge.trim(0, 4096, true).unwrap());
        assert_eq!((log, flushes), (Vec::new(), 1), "{wait:?}");
    }
}

#[test]
fn a_durable_write_of_nothing_asks_the_same_of_every_device_and_writes_nothing() {
    for offset in [0, 5] {
        let [never, disk, outside] =
            WAITS.map(|wait| asked(wait, |_| (), |edge| edge.write(&[], offset, true).unwrap()));
        assert!(never == disk && never == outside, "at {offset}: {never:?} {disk:?} {outside:?}");
        assert!(never.0.is_empty(), "at {offset}: {:?}", never.0);
    }
}
