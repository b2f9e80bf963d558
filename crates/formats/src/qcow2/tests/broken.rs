//! Images that contradict themselves: each gives one clear error.

use device::{Edge, ErrorKind, Params, Result};
use runtime::{Context, WorkPool};

use super::super::FORMAT;
use super::super::entry::{COMPRESSED, COPIED};
use super::laid::{Kind, Layout, edge};
use crate::{Closed, Opening};

const CLUSTER: usize = 4096;

fn image() -> Vec<u8> {
    let layout = Layout {
        version: 3,
        cluster_bits: 12,
        extended: false,
        zstd: false,
        refcount_order: 4,
        size: 64 << 12,
        clusters: vec![Kind::Plain, Kind::Packed, Kind::Zero, Kind::Plain],
        mix: 0,
        backing: None,
    };
    layout.lay().container
}

fn open(bytes: Vec<u8>) -> Result<Edge> {
    let context = Context::new(WorkPool::new(1));
    let params = Params::default();
    let opening = Opening { params: &params, files: &Closed, context: &context };
    let disk = (FORMAT.open)(edge(bytes, false, &context.pool), &opening)?;
    Ok(Edge::new(disk, context.pool.clone()))
}

/// The error of the image with these bytes put into it: when it is opened, or when its first two
/// clusters are read.
fn said(changes: &[(usize, &[u8])]) -> (ErrorKind, String) {
    let mut bytes = image();
    for (at, new) in changes {
        bytes[*at..at + new.len()].copy_from_slice(new);
    }
    let read = |edge: Edge| edge.read(&mut [0; 2 * CLUSTER], 0);
    let error = open(bytes).and_then(read).unwrap_err();
    (error.kind(), error.to_string())
}

/// Where the L2 table is.
fn l2() -> usize {
    let entry = u64::from_be_bytes(image()[CLUSTER..CLUSTER + 8].try_into().unwrap());
    usize::try_from(entry & !COPIED).unwrap()
}

#[test]
fn headers_that_cannot_be_are_refused_before_anything_is_read_by_them() {
    let huge = [0xff; 8];
    let cases: &[(usize, &[u8], &str)] = &[
        (0, b"QFI!", "no qcow2 header"),
        (4, &[0, 0, 0, 9], "version 9"),
        (20, &[0, 0, 0, 8], "2^8"),
        (20, &[0, 0, 0, 22], "2^22"),
        (20, &huge[..4], "2^4294967295"),
        (24, &huge, "disk"),
        (32, &[0, 0, 0, 1], "AES"),
        (32, &[0, 0, 0, 2], "LUKS"),
        (32, &[0, 0, 0, 7], "encryption 7"),
        (36, &huge[..4], "L1 table"),
        (36, &[0, 0, 0, 0], "L1 table is too short"),
        (40, &huge, "L1 table"),
        (40, &[0, 0, 0, 0, 0, 0, 0, 0], "L1 table overlaps the header"),
        (40, &[0, 0, 0, 0, 0, 0, 0x10, 8], "does not begin at a cluster"),
        (48, &[0, 0, 0, 0, 0, 0, 0x10, 0], "refcount table overlaps the L1 table"),
        (56, &huge[..4], "refcount table"),
        (60, &huge[..4], "snapshots"),
        (60, &[0, 0, 0, 1], "snapshot table"),
        (72, &[0, 0, 0, 0, 0, 0, 0, 0x20], "incompatible feature 5"),
        (72, &[0, 0, 0, 0, 0, 0, 0, 0x10], "extended L2"),
        (72, &[0, 0, 0, 0, 0, 0, 0, 8], "compression"),
        (72, &[0, 0, 0, 0, 0, 0, 0, 4], "data file"),
        (96, &[0, 0, 0, 7], "refcounts of 2^7"),
        (100, &[0, 0, 0, 96], "header has 96 bytes"),
        (100, &huge[..4], "cut off"),
        (104, &[2], "compressed in way 2"),
        (112, &[1, 2, 3, 4, 0xff, 0xff, 0xff, 0xff], "extension is too long"),
    ];
    for (at, new, expected) in cases {
        let (_, said) = said(&[(*at, new)]);
        assert!(said.contains(expected), "{at}: {said}");
        assert!(!said.contains('\n'));
    }
    let (_, said) = said(&[(8, &[0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 4, 0])]);
    assert!(said.contains("name of the backing image"), "{said}");
    for len in [0, 4, 71, 100, CLUSTER] {
        assert!(open(image()[..len].to_vec()).is_err(), "{len} bytes");
    }
}

#[test]
fn an_unknown_feature_is_refused_by_the_name_that_the_image_has_for_it() {
    let mut table = [0; 8 + 96];
    table[..8].copy_from_slice(&[0x68, 0x03, 0xf8, 0x57, 0, 0, 0, 96]);
    table[8..10].copy_from_slice(&[0, 5]);
    table[10..16].copy_from_slice(b"warp 9");
    table[56..58].copy_from_slice(&[1, 5]);
    table[58..63].copy_from_slice(b"other");
    let changes: &[(usize, &[u8])] = &[(72, &[0, 0, 0, 0, 0, 0, 0, 0x60]), (112, &table)];
    let (kind, said) = said(changes);
    assert_eq!(kind, ErrorKind::Unsupported);
    assert!(said.ends_with("warp 9, incompatible feature 6"), "{said}");
}

#[test]
fn tables_and_clusters_where_none_can_be_are_refused() {
    let entry = |n: u64| n.to_be_bytes();
    let l2 = l2();
    let cases: Vec<(usize, u64, &str)> = vec![
        (CLUSTER, CLUSTER as u64, "table overlaps the L1 table"),
        (CLUSTER, 1 << 40, "not all in the file"),
        (CLUSTER, l2 as u64 + 512, "does not begin at a cluster"),
        (l2, CLUSTER as u64, "data overlaps the L1 table"),
        (l2, 1 << 40, "beyond the end"),
        (l2, l2 as u64 + 512, "does not begin at a cluster"),
        (l2, COMPRESSED | 100, "overlaps the header"),
        (l2, COMPRESSED | CLUSTER as u64, "overlaps the L1 table"),
        (l2, COMPRESSED | 1 << 40, "beyond the end"),
        // A table's bytes are never compressed data.
        (l2, COMPRESSED | l2 as u64 | 1 << 58, "unpack a cluster"),
    ];
    for (at, number, expected) in cases {
        let (kind, said) = said(&[(at, &entry(number))]);
        assert!(said.contains(expected), "{at} {number:#x}: {said}");
        assert_eq!(kind, ErrorKind::Corrupt);
    }
}

#[test]
fn a_small_file_with_a_huge_disk_costs_nothing_before_it_is_read() {
    // 32 MiB of L1 table would be 16 TiB of disk with these clusters; the file has one cluster of
    // it.
    let (_, said) = said(&[(24, &(1u64 << 43).to_be_bytes()), (36, &(1u32 << 22).to_be_bytes())]);
    assert!(said.contains("L1 table") && said.contains("not all in the file"), "{said}");
}

#[test]
fn a_dirty_or_corrupt_image_is_read_and_said_to_be_one() {
    let mut bytes = image();
    bytes[79] = 3;
    let container = edge(bytes.clone(), false, &WorkPool::new(1));
    let described = (FORMAT.describe)(&container, &Context::default()).unwrap();
    assert!(described.dirty && described.corrupt);
    let mut read = [0; 8];
    open(bytes).unwrap().read(&mut read, 0).unwrap();
    assert!(read.iter().enumerate().all(|(at, byte)| *byte == super::laid::content(at as u64)));
}
