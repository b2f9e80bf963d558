//! Resume points, in streams that do not give their size.

use std::io::Write;
use std::sync::Arc;

use device::model::Model;
use device::{Edge, Simple};
use runtime::WorkPool;

use super::index::count;
use super::{Kind, bz2, device as unpacked, gz, zstd};

fn container(bytes: &[u8]) -> Edge {
    let edge = Simple::shared_edge(Arc::new(Model::new(bytes.len())), &WorkPool::new(2));
    edge.write(bytes, 0, false).unwrap();
    edge
}

/// Bytes that compress a little.
fn plain(len: usize) -> Vec<u8> {
    let mut state = 1_u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state >> 24
    };
    (0..len)
        .map(|i| u8::try_from(if i / 1000 % 3 == 0 { 7 } else { next() & 0x3f }).unwrap())
        .collect()
}

fn gzipped(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::new(3));
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn bzipped(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = bzip2::write::BzEncoder::new(Vec::new(), bzip2::Compression::new(1));
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// Without its length.
fn zstandard(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = ::zstd::stream::write::Encoder::new(Vec::new(), 1).unwrap();
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// Counts a stream, reads it in random order, and returns its number of sections.
fn sections(kind: &'static Kind, packed: &[u8], bytes: &[u8], apart: u64) -> usize {
    let below = container(packed);
    let index = count(kind, &below, 1 << 30, apart).unwrap();
    assert_eq!(index.size, bytes.len() as u64);
    let count = index.sections.len();
    let disk = Edge::new(unpacked::open(kind, below, index), WorkPool::new(2));
    for at in (0..bytes.len()).rev().step_by(7919) {
        let len = 5000.min(bytes.len() - at);
        let mut found = vec![0xaa; len];
        disk.read(&mut found, at as u64).unwrap();
        assert!(found == bytes[at..at + len], "{at}");
    }
    count
}

#[test]
fn a_stream_of_one_member_is_read_from_points_in_its_middle() {
    let bytes = plain(300_000);
    assert!(sections(&gz::KIND, &gzipped(&bytes), &bytes, 20_000) > 8);
    // More points than the limit: they are thinned out.
    assert!((100..600).contains(&sections(&gz::KIND, &gzipped(&bytes), &bytes, 300)));
    let two = [gzipped(&bytes[..123_456]), gzipped(&bytes[123_456..])].concat();
    assert!(sections(&gz::KIND, &two, &bytes, 20_000) > 8);
}

#[test]
fn streams_and_frames_that_follow_each_other_are_points_too() {
    let bytes = plain(200_000);
    for (kind, pack) in [(&bz2::KIND, bzipped as fn(&[u8]) -> Vec<u8>), (&zstd::KIND, zstandard)] {
        let packed: Vec<_> = bytes.chunks(10_001).flat_map(pack).collect();
        let many = sections(kind, &packed, &bytes, 5000);
        assert!((10..25).contains(&many), "{many}");
        assert_eq!(sections(kind, &pack(&bytes), &bytes, 5000), 1);
    }
}
