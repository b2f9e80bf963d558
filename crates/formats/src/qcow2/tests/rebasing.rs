//! Whenever the power is cut, an image has its old backing image or its new one, and all else.

use device::{Edge, Params, ZeroFlags};
use runtime::{Context, WorkPool};
use trial::{PowerCut, TestDice};

use super::super::header::Header;
use super::laid::{Kind, Laid, Layout};
use super::reading::Backing;
use crate::Opening;

/// An extension that this program does not know.
const UNKNOWN: u32 = 0x1234_5678;

fn layout(cluster_bits: u32, version: u32) -> Layout {
    Layout {
        version,
        cluster_bits,
        extended: false,
        zstd: false,
        refcount_order: 4,
        size: 8 << cluster_bits,
        clusters: vec![Kind::Plain, Kind::Absent, Kind::Packed, Kind::Plain],
        mix: 3,
        backing: None,
    }
}

/// Puts extensions behind the header: names of so many features, and one that is not known.
fn extend(container: &mut [u8], version: u32, features: usize) {
    let mut at = if version == 2 { 72 } else { 104 };
    container[100..104].copy_from_slice(&u32::to_be_bytes(104));
    if version == 2 {
        container[72..112].fill(0);
    }
    let mut add = |kind: u32, data: &[u8]| {
        container[at..at + 4].copy_from_slice(&kind.to_be_bytes());
        let len = u32::try_from(data.len()).unwrap();
        container[at + 4..at + 8].copy_from_slice(&len.to_be_bytes());
        container[at + 8..at + 8 + data.len()].copy_from_slice(data);
        at += 8 + data.len().next_multiple_of(8);
    };
    if features > 0 {
        let names: Vec<u8> =
            (0..features * 48).map(|n| if n % 48 < 2 { 0 } else { b'f' }).collect();
        add(super::super::header::extension::FEATURE_NAMES, &names);
    }
    add(UNKNOWN, b"kept by all");
    add(0, &[]);
}

fn has_unknown(container: &[u8]) -> bool {
    container[..1024.min(container.len())].windows(11).any(|bytes| bytes == b"kept by all")
}

type Named = Option<(String, String)>;

fn named(disk: &PowerCut) -> Named {
    let header = Header::read(&disk.again(true).edge()).unwrap();
    header.backing.map(|name| (name, header.backing_format.unwrap()))
}

#[test]
fn whenever_the_power_is_cut_the_name_of_the_backing_image_is_the_old_one_or_the_new_one() {
    let mut dice = TestDice(7);
    let rebase = super::super::FORMAT.upkeep.rebase.unwrap();
    for (bits, version, features) in
        [(9, 3, 0), (9, 2, 0), (10, 3, 3), (12, 3, 8), (12, 3, 12), (12, 2, 0), (16, 3, 8)]
    {
        let Laid { mut container, .. } = layout(bits, version).lay();
        extend(&mut container, version, features);
        let mut now: Named = None;
        let formats = ["raw", "qcow2", "parallels"];
        for step in 0..12 {
            let disk = PowerCut::new(container.clone(), true);
            let most = if bits == 9 { 200 } else { 300 };
            let len = 1 + usize::try_from(dice.below(most)).unwrap();
            let new: Named = (step % 4 != 3).then(|| {
                let format = formats[usize::try_from(dice.below(3)).unwrap()];
                ("n".repeat(len), format.to_owned())
            });
            let words = new.as_ref().map(|(name, format)| (&**name, &**format));
            let what = format!("clusters of 2^{bits}, {features} features, step {step}");
            let is_possible = (rebase.check)(&disk.edge(), words);
            let renamed = (rebase.rename)(&disk.edge(), words);
            assert_eq!(is_possible.is_ok(), renamed.is_ok(), "{what}");
            if renamed.is_err() {
                assert!(bits <= 10, "{what}: {renamed:?}");
                assert!(disk.bytes() == container, "{what}: changed");
                continue;
            }
            for step in 0..=disk.steps() {
                let left = disk.after_cut(step, &mut dice);
                let found = named(&left);
                assert!(found == now || found == new, "{what}: {found:?}");
                assert!(has_unknown(&left.bytes()), "{what}: an extension is lost");
            }
            assert_eq!(named(&disk), new, "{what}");
            container = disk.bytes();
            now = new;
        }
    }
}

#[test]
fn a_name_that_is_too_long_changes_nothing() {
    let Laid { container, .. } = layout(12, 3).lay();
    let disk = PowerCut::new(container.clone(), true);
    let rebase = super::super::FORMAT.upkeep.rebase.unwrap();
    let name = "n".repeat(1024);
    assert!((rebase.rename)(&disk.edge(), Some((&name, "raw"))).is_err());
    assert!(disk.bytes() == container);
    assert!((rebase.rename)(&disk.edge(), Some((&name[1..], "raw"))).is_ok());
}

fn all(edge: &Edge) -> Vec<u8> {
    let mut bytes = vec![0xaa; usize::try_from(edge.info().size).unwrap()];
    edge.read(&mut bytes, 0).unwrap();
    bytes
}

#[test]
fn an_image_that_is_emptied_reads_as_what_is_below_and_may_lose_its_power_meanwhile() {
    for (seed, bits) in (0..).zip([9, 10, 12]) {
        let mut dice = TestDice(seed);
        let kinds = [Kind::Absent, Kind::Plain, Kind::Packed, Kind::Zero, Kind::ZeroAt];
        let clusters: Vec<_> =
            (0..150).map(|_| kinds[usize::try_from(dice.below(5)).unwrap()]).collect();
        let size = 150 << bits;
        let below: Vec<u8> = (0..size).map(|at| u8::try_from(at / 3 % 255).unwrap() | 1).collect();
        let backing = Some(below[..below.len() - 700].to_vec());
        let layout = Layout { clusters, backing, size: size as u64, ..layout(bits, 3) };
        let Laid { container, bytes } = layout.lay();
        let disk = PowerCut::new(container, true);
        let context = Context::new(WorkPool::new(1));
        let files = Backing(layout.backing.clone(), false);
        let params = Params::default();
        let opening = Opening { params: &params, files: &files, context: &context };
        let format = super::super::FORMAT;
        (format.upkeep.empty.unwrap())(disk.edge(), &opening).unwrap();
        let mut expected = layout.backing.clone().unwrap();
        expected.resize(size, 0);
        for step in 0..=disk.steps() {
            let left = disk.after_cut(step, &mut dice);
            let found = (format.check.unwrap())(&left.edge(), &context).unwrap();
            assert_eq!(found.corruptions, [""; 0], "2^{bits}, step {step}");
            let edge =
                Edge::new((format.open)(left.edge(), &opening).unwrap(), context.pool.clone());
            let now = all(&edge);
            let sectors = now.chunks(512).zip(bytes.chunks(512).zip(expected.chunks(512)));
            for (now, (was, is)) in sectors {
                assert!(now == was || now == is, "2^{bits}, step {step}: neither");
            }
            assert!(step < disk.steps() || now == expected, "2^{bits}: not emptied");
        }
        let found = (format.check.unwrap())(&disk.edge(), &context).unwrap();
        assert_eq!((found.leaks, found.allocated_clusters), (0, 0), "2^{bits}");
    }
}

#[test]
fn where_clusters_are_compressed_as_they_are_written_each_is_counted_and_reads_as_written() {
    let rebase = super::super::FORMAT.upkeep.rebase.unwrap();
    for (seed, (bits, refcount_order)) in (0..).zip([(9, 4), (12, 4), (12, 0), (12, 1), (16, 3)]) {
        let (mut dice, cluster) = (TestDice(seed), 1u64 << bits);
        let layout = Layout { refcount_order, size: 40 << bits, ..layout(bits, 3) };
        let Laid { container, bytes: mut model } = layout.lay();
        let disk = PowerCut::new(container, true);
        let (context, params) = (Context::new(WorkPool::new(1)), Params::default());
        let opening = Opening { params: &params, files: &Backing(None, false), context: &context };
        let edge = Edge::new((rebase.pack)(disk.edge(), &opening).unwrap(), context.pool.clone());
        let (check, mut most) = (super::super::FORMAT.check.unwrap(), 0);
        for step in 0..400 {
            let what = format!("clusters of 2^{bits}, refcounts of 2^{refcount_order}, {step}");
            let first = dice.below(40) << bits;
            let end = (first + ((1 + dice.below(3)) << bits)).min(40 << bits);
            let (at, end) = match dice.below(4) {
                0 => (first + dice.below(cluster), end),
                _ => (first, end),
            };
            // Bytes of many values do not become fewer.
            let many = if dice.below(4) == 0 { 255 } else { 3 };
            let range = usize::try_from(at).unwrap()..usize::try_from(end).unwrap();
            let is_zero = dice.below(4) == 0;
            for byte in &mut model[range.clone()] {
                *byte = if is_zero { 0 } else { 1 + u8::try_from(dice.below(many)).unwrap() };
            }
            match is_zero {
                true => {
                    let flags = ZeroFlags { may_unmap: true, ..ZeroFlags::default() };
                    edge.zero(at, end - at, flags).unwrap();
                }
                false => edge.write(&model[range], at, false).unwrap(),
            }
            if step % 3 == 0 {
                edge.flush().unwrap();
                let found = check(&disk.again(true).edge(), &context).unwrap();
                assert_eq!(found.corruptions, [""; 0], "{what}");
                most = most.max(found.compressed_clusters);
                assert!(all(&edge) == model, "{what}: other bytes");
            }
        }
        edge.device().finish().unwrap();
        let found = check(&disk.again(true).edge(), &context).unwrap();
        assert_eq!((found.leaks, found.corruptions), (0, Vec::new()), "2^{bits}");
        assert!(most > 4, "2^{bits}: {most} were compressed");
    }
}
