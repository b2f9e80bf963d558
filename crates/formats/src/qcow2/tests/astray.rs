//! Entries that lead astray: what they call data is metadata, or is not there. Nothing there is
//! written over, nor given up.

use device::{Edge, ErrorKind, Result, ZeroFlags};
use trial::PowerCut;

use super::super::entry::{COMPRESSED, COPIED, OFFSET, ZERO};
use super::super::header::incompatible;
use super::super::refcounts::refcount;
use super::laid::{Kind, Layout};
use super::writing::{number, opened, snapshot};

const CLUSTER: u64 = 4096;

fn layout() -> Layout {
    Layout {
        version: 3,
        cluster_bits: 12,
        extended: false,
        zstd: false,
        refcount_order: 4,
        size: 16 * CLUSTER,
        clusters: vec![Kind::Plain; 8],
        mix: 0,
        backing: None,
    }
}

fn at(image: &[u8], offset: u64) -> u64 {
    number(image, usize::try_from(offset).unwrap())
}

/// The refcount of the cluster at an offset.
fn count_of(image: &[u8], offset: u64) -> u64 {
    let block = usize::try_from(at(image, at(image, 48))).unwrap();
    refcount(&image[block..], offset / CLUSTER, 4)
}

type Change = fn(&Edge) -> Result<()>;

/// What is done to the first cluster of the disk.
fn operations() -> [(&'static str, Change); 4] {
    let zero =
        |edge: &Edge| edge.zero(0, CLUSTER, ZeroFlags { may_unmap: true, ..ZeroFlags::default() });
    [
        ("a part is written", |edge| edge.write(&[7; 512], 512, false)),
        ("all is written", |edge| edge.write(&[7; 4096], 0, false)),
        ("zero", zero),
        ("trim", |edge| edge.trim(0, CLUSTER, false)),
    ]
}

#[test]
fn what_an_entry_calls_data_and_is_none_is_neither_written_over_nor_given_up() {
    let mut image = layout().lay().container;
    snapshot(&mut image, &layout());
    let l1 = at(&image, 40);
    let table = at(&image, l1) & OFFSET;
    // The tables are those of the snapshot: with a write the image gets its own.
    let disk = PowerCut::new(image, true);
    let (edge, context) = opened(&disk, &layout(), true);
    edge.write(&[1; 512], 5 * CLUSTER, false).unwrap();
    context.control.end();
    let image = disk.bytes();
    let l2 = at(&image, l1) & OFFSET;
    assert!(l2 != table, "it has its own");
    let (refcounts, list) = (at(&image, 48), at(&image, 64));
    let places = [
        ("L1 table", l1),
        ("L2 table", l2),
        ("refcount table", refcounts),
        ("refcount block", at(&image, refcounts)),
        ("snapshot table", list),
        ("L1 table of the snapshot", at(&image, list)),
        ("beyond the end", (image.len() as u64).next_multiple_of(CLUSTER) + CLUSTER),
        ("far beyond the end", (OFFSET - 0xe00) & !(CLUSTER - 1)),
    ];
    for (place, offset) in places {
        // The last sector of what is packed is the first of the place.
        let packed = COMPRESSED | 1 << 58 | (offset - 512) & ((1 << 58) - 1);
        let entries = [("own", offset | COPIED), ("shared", offset), ("zero", offset | ZERO)];
        for (kind, entry) in entries.into_iter().chain([("packed", packed)]) {
            for (what, operation) in operations() {
                let what = format!("{place}, {kind}: {what}");
                let mut image = image.clone();
                let entry_at = usize::try_from(l2).unwrap();
                image[entry_at..entry_at + 8].copy_from_slice(&entry.to_be_bytes());
                let disk = PowerCut::new(image.clone(), true);
                let (edge, context) = opened(&disk, &layout(), true);
                let said = operation(&edge).expect_err(&what);
                assert_eq!(said.kind(), ErrorKind::Corrupt, "{what}: {said}");
                edge.write(&[1; 512], 9 * CLUSTER, false).expect_err(&what);
                edge.flush().unwrap();
                context.control.end();
                let left = disk.bytes();
                assert_eq!(at(&left, l2), entry, "{what}");
                if offset < image.len() as u64 {
                    assert_eq!(count_of(&left, offset), count_of(&image, offset), "{what}");
                }
                assert!(at(&left, 72) & incompatible::CORRUPT != 0, "{what}");
            }
        }
    }
}

/// More clusters in a row than there are tables, of which the tables are looked for among them.
#[test]
fn free_clusters_in_a_row_of_which_one_is_a_table_are_not_taken() {
    let mut image = layout().lay().container;
    snapshot(&mut image, &layout());
    let disk = PowerCut::new(image, true);
    let (edge, context) = opened(&disk, &layout(), true);
    edge.write(&[1; 512], 5 * CLUSTER, false).unwrap();
    // Behind its own table there are data now.
    edge.write(&[2; 5 * 4096], 9 * CLUSTER, false).unwrap();
    context.control.end();
    let mut image = disk.bytes();
    let l2 = at(&image, at(&image, 40)) & OFFSET;
    let block = usize::try_from(at(&image, at(&image, 48))).unwrap();
    for n in 0..6 {
        let count = block + usize::try_from((l2 / CLUSTER + n) * 2).unwrap();
        image[count..count + 2].fill(0);
        let entry = usize::try_from(l2 + (9 + n) * 8).unwrap();
        image[entry..entry + 8].fill(0);
    }
    let disk = PowerCut::new(image.clone(), true);
    let (edge, context) = opened(&disk, &layout(), true);
    let said = edge.write(&[7; 5 * 4096], 9 * CLUSTER, false).unwrap_err();
    assert_eq!(said.kind(), ErrorKind::Corrupt, "{said}");
    context.control.end();
    let table = usize::try_from(l2).unwrap()..usize::try_from(l2 + CLUSTER).unwrap();
    assert!(disk.bytes()[table.clone()] == image[table], "the table is written over");
}
