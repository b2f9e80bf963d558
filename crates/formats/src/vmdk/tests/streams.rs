//! Streams that many threads fill, each in its own order.

use std::sync::Arc;

use device::{Edge, Params, ZeroFlags};

use super::{Bytes, Named, Random, check, context, edge, open};
use crate::Making;
use crate::vmdk::FORMAT;

const GRAIN: usize = 64 << 10;

fn fresh(container: Edge, size: u64, options: &[&str]) -> Edge {
    let params = Params::parse(options.iter().copied()).unwrap();
    let making = Making {
        size,
        options: &params,
        compress: false,
        zeroed: true,
        durable: true,
        files: &Named::default(),
        context: context(),
    };
    let create = FORMAT.create.unwrap().open;
    let made = create(container, &making, &mut std::iter::empty()).unwrap();
    Edge::new(made, context().pool.clone())
}

/// The work of each of `workers`, in its order: first grain, and how many.
fn shares(grains: usize, workers: usize, random: &mut Random) -> Vec<Vec<(usize, usize)>> {
    let mut shares = vec![Vec::new(); workers];
    let mut at = 0;
    while at < grains {
        let n = (1 + random.below(5) as usize).min(grains - at);
        shares[random.below(workers as u64) as usize].push((at, n));
        at += n;
    }
    // Within a bound, no order is needed.
    for share in &mut shares {
        (1..share.len()).rev().for_each(|i| share.swap(i, random.below(i as u64 + 1) as usize));
    }
    shares
}

fn fill(disk: &Edge, bytes: &[u8], random: &mut Random) {
    let grains = bytes.len().div_ceil(GRAIN);
    let flags = ZeroFlags { may_unmap: true, ..ZeroFlags::default() };
    std::thread::scope(|scope| {
        for share in shares(grains, 4, random) {
            scope.spawn(move || {
                for (grain, n) in share {
                    let (start, end) = (grain * GRAIN, bytes.len().min((grain + n) * GRAIN));
                    let part = &bytes[start..end];
                    if part.iter().all(|b| *b == 0) && grain % 2 == 0 {
                        disk.zero(start as u64, part.len() as u64, flags).unwrap();
                    } else {
                        disk.write(part, start as u64, false).unwrap();
                    }
                }
            });
        }
    });
    disk.device().finish().unwrap();
}

fn bytes(size: usize, random: &mut Random) -> Vec<u8> {
    let mut bytes = vec![0; size];
    for grain in bytes.chunks_mut(GRAIN) {
        if random.below(3) > 0 {
            let some = random.bytes(grain.len() / 8);
            grain[..some.len()].copy_from_slice(&some);
        }
    }
    bytes
}

#[test]
fn what_is_written_in_any_order_is_there_and_a_stream_is_written_once_and_upwards() {
    let mut random = Random(6);
    for round in 0..12u64 {
        let size = match round {
            0 => 512,
            1 => 512 * GRAIN,
            _ => 512 * (1 + random.below(20_000) as usize),
        };
        let bytes = bytes(size, &mut random);
        let stream = round % 3 > 0;
        let option = if stream { "subformat=streamOptimized" } else { "zeroed_grain=on" };
        // In a file the tables are in front, too.
        let container = Bytes::growing(round % 3 == 1);
        fill(&fresh(edge(container.clone()), size as u64, &[option]), &bytes, &mut random);
        let disk = open(Bytes::fixed(container.bytes()), &Named::default()).unwrap();
        check(&disk, &bytes, &mut random);
    }
}

#[test]
fn ranges_that_were_never_written_read_as_zeroes_and_nothing_is_written_twice() {
    let container = Bytes::growing(true);
    let size = 600 * GRAIN as u64;
    let disk = fresh(edge(container.clone()), size, &["subformat=streamOptimized"]);
    let grain = vec![7; GRAIN];
    for at in [590, 3, 520] {
        disk.write(&grain, at * GRAIN as u64, false).unwrap();
    }
    assert!(disk.write(&grain, 3 * GRAIN as u64, false).is_err());
    assert!(disk.write(&grain[..512], 3 * GRAIN as u64, false).is_err());
    let mut read = vec![1; GRAIN];
    disk.read(&mut read, 0).unwrap();
    assert!(read.iter().all(|b| *b == 0));
    disk.device().finish().unwrap();
    let mut wanted = vec![0; usize::try_from(size).unwrap()];
    [590, 3, 520].iter().for_each(|at| wanted[at * GRAIN..(at + 1) * GRAIN].fill(7));
    let disk = open(Bytes::fixed(container.bytes()), &Named::default()).unwrap();
    check(&disk, &wanted, &mut Random(7));
}

#[test]
fn nothing_opens_what_was_not_finished() {
    for options in [&["subformat=streamOptimized"][..], &[]] {
        let container = Bytes::growing(false);
        let disk = fresh(edge(container.clone()), 64 << 20, options);
        let mut random = Random(8);
        for grain in 0..40u64 {
            disk.write(&random.bytes(GRAIN), grain * GRAIN as u64, false).unwrap();
        }
        disk.flush().unwrap();
        drop(disk);
        assert!(!container.bytes().is_empty());
        assert!(open(Bytes::fixed(container.bytes()), &Named::default()).is_err());
    }
}

#[test]
fn a_writer_that_is_far_ahead_waits_for_those_below() {
    let container = Bytes::growing(true);
    let (size, options) =
        (2000 * GRAIN as u64, ["subformat=streamOptimized", "compression_level=1"]);
    let disk = fresh(edge(container.clone()), size, &options);
    let (ended, ends) = std::sync::mpsc::channel();
    let noise: Arc<Vec<u8>> = {
        let mut random = Random(9);
        Arc::new((0..GRAIN).map(|_| random.below(256) as u8).collect())
    };
    let write = |grain: u64| disk.write(&noise, grain * GRAIN as u64, false).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // The first grain is missing: only requests within the window end.
            for grain in 1..1000 {
                write(grain);
                ended.send(grain).unwrap();
            }
        });
        let mut last = 0;
        while let Ok(grain) = ends.recv_timeout(std::time::Duration::from_millis(500)) {
            last = grain;
        }
        assert!((300..600).contains(&last), "{last} ended");
        write(0);
    });
    let left = ends.try_iter().last();
    assert_eq!(left, Some(999));
}
