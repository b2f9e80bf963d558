//! Damaged images that are repaired: what is wrong is put right, the disk reads as before, and
//! whenever the power is cut or something fails the image is not worse than it was.

use std::collections::HashSet;

use device::{Edge, ErrorKind, Params, Result};
use runtime::{Context, WorkPool};
use trial::{PowerCut, TestDice};

use super::super::entry::{COPIED, OFFSET};
use super::super::header::incompatible;
use super::super::refcounts::{refcount, set_refcount};
use super::super::repair::repaired;
use super::laid::{Kind, Laid, Layout};
use super::writing::{checked, number, opened, snapshot};
use crate::scripted::all;
use crate::{Opening, Repair, Repaired};

const CLUSTER: usize = 4096;
const ORDER: u32 = 4;

fn layout() -> Layout {
    Layout {
        version: 3,
        cluster_bits: 12,
        extended: false,
        zstd: false,
        refcount_order: ORDER,
        size: 64 << 12,
        clusters: vec![Kind::Plain, Kind::Packed, Kind::ZeroAt, Kind::Plain, Kind::Plain],
        mix: 0,
        backing: None,
    }
}

/// An image that can be damaged.
#[derive(Clone)]
struct Damaged(Vec<u8>);

impl Damaged {
    fn at(&self, offset: u64) -> u64 {
        number(&self.0, usize::try_from(offset).unwrap())
    }

    fn put(&mut self, offset: u64, number: u64) {
        let at = usize::try_from(offset).unwrap();
        self.0[at..at + 8].copy_from_slice(&number.to_be_bytes());
    }

    fn block(&self) -> u64 {
        self.at(self.at(48))
    }

    fn l2(&self) -> u64 {
        self.at(self.at(40)) & OFFSET
    }

    fn data(&self, n: u64) -> u64 {
        self.at(self.l2() + n * 8) & OFFSET
    }

    fn count(&mut self, offset: u64, count: u64) {
        let block = usize::try_from(self.block()).unwrap();
        set_refcount(&mut self.0[block..block + CLUSTER], offset >> 12, ORDER, count);
    }

    /// The refcount of each cluster, if the structure can be followed.
    fn counts(&self) -> Vec<u64> {
        let there = (self.0.len() as u64).div_ceil(4096);
        let block = self.block();
        let start = usize::try_from(block).unwrap();
        let Some(block) = self.0.get(start..start + CLUSTER).filter(|_| block != 0) else {
            return vec![0; usize::try_from(there).unwrap()];
        };
        (0..there).map(|unit| refcount(block, unit, ORDER)).collect()
    }
}

type Damage = fn(&mut Damaged);

/// What is wrong; whether all of it can be repaired, and only in new blocks.
const DAMAGES: &[(&str, bool, bool, Damage)] = &[
    ("a refcount too high", true, false, |image| image.count(image.data(0), 5)),
    ("a refcount of 0", true, false, |image| image.count(image.data(3), 0)),
    ("a shared cluster", true, false, |image| {
        image.put(image.l2() + 5 * 8, image.data(0) | COPIED);
    }),
    ("a leak", true, false, |image| image.put(image.l2(), 0)),
    ("a flag missing", true, false, |image| image.put(image.l2(), image.data(0))),
    ("the flag of a table", true, false, |image| {
        let (l1, l2) = (image.at(40), image.l2());
        image.put(l1, l2);
    }),
    ("a refcount of 2 and no flag", true, false, |image| {
        image.count(image.data(0), 2);
        image.put(image.l2(), image.data(0));
    }),
    ("no refcount block", true, true, |image| image.put(image.at(48), 0)),
    ("a refcount block beyond the end", true, true, |image| image.put(image.at(48), 1 << 40)),
    ("a refcount block at no cluster", true, true, |image| {
        image.put(image.at(48), image.block() + 512);
    }),
    ("one refcount block twice", true, true, |image| {
        image.put(image.at(48) + 8, image.block());
    }),
    ("data over a refcount block", true, true, |image| {
        image.put(image.l2(), image.block() | COPIED);
    }),
    ("data over the L1 table", true, false, |image| {
        image.put(image.l2(), image.at(40) | COPIED);
    }),
    ("not closed", true, false, |image| {
        image.0[79] |= 1;
        image.count(image.data(0), 0);
    }),
    ("marked as corrupt", true, false, |image| image.0[79] |= 2),
    ("data beyond the end", false, false, |image| image.put(image.l2(), 1 << 40 | COPIED)),
    ("data at no cluster", false, false, |image| {
        image.put(image.l2(), (image.data(0) + 512) | COPIED);
    }),
    ("a table beyond the end", false, false, |image| image.put(image.at(40), 1 << 40 | COPIED)),
];

fn damaged(damage: Damage, shared: bool) -> Damaged {
    let Laid { container, .. } = layout().lay();
    let mut image = Damaged(container);
    if shared {
        snapshot(&mut image.0, &layout());
    }
    damage(&mut image);
    image
}

fn run(disk: &PowerCut, what: Repair) -> Result<Repaired> {
    let (context, params) = (Context::new(WorkPool::new(1)), Params::default());
    let opening = Opening { params: &params, files: &crate::Closed, context: &context };
    Ok(repaired(&disk.edge(), what, &opening)?.0)
}

/// What each cluster of the disk reads as, if it can be read.
fn read(disk: &PowerCut) -> Vec<Option<Vec<u8>>> {
    let (edge, _) = opened(disk, &layout(), false);
    let cluster = |n: u64| {
        let mut bytes = vec![0; CLUSTER];
        edge.read(&mut bytes, n * CLUSTER as u64).ok().map(|()| bytes)
    };
    (0..64).map(cluster).collect()
}

fn again(bytes: Vec<u8>, grows: bool) -> PowerCut {
    PowerCut::new(bytes, grows)
}

#[test]
fn what_is_damaged_is_repaired_and_the_disk_reads_as_before() {
    for (name, all, anew, damage) in DAMAGES {
        for (shared, grows) in [(false, true), (true, true), (false, false)] {
            let mut image = damaged(*damage, shared);
            if !grows {
                image.0.resize(image.0.len() + 8 * CLUSTER, 0x5a);
            }
            let before = read(&again(image.0.clone(), true));
            let disk = again(image.0.clone(), grows);
            let found = run(&disk, Repair::All).unwrap();
            let what = format!("{name}, shared {shared}, grows {grows}: {found:?}");
            assert_eq!(found.now, checked(&disk), "{what}");
            assert_eq!(found.now.corruption_count == 0, *all, "{what}");
            assert!(read(&again(disk.bytes(), true)) == before, "{what}");
            let left = Damaged(disk.bytes());
            let unsound = left.at(72) & (incompatible::DIRTY | incompatible::CORRUPT);
            assert_eq!(left.at(48) != image.at(48), *anew, "{what}");
            if *all {
                assert_eq!((found.now.leaks, unsound), (0, 0), "{what}");
                let disk = again(disk.bytes(), grows);
                let (edge, context) = opened(&disk, &layout(), true);
                edge.write(&[3; 512], 40 << 12, false).unwrap();
                context.control.end();
                assert_eq!(checked(&disk).corruption_count, 0, "{what}");
                // What lies over the image's own tables is never written.
                if !name.starts_with("data over") {
                    check_alone(&disk, &layout(), &what);
                }
            }
            // There is nothing more to do.
            let second = run(&again(disk.bytes(), grows), Repair::All).unwrap();
            assert_eq!((second.leaks_fixed, second.corruptions_fixed), (0, 0), "{what}");
        }
    }
}

/// Whichever cluster of the disk is written alone, a check finds nothing wrong after that: no other
/// entry has a flag that is right only as long as nobody writes.
fn check_alone(disk: &PowerCut, layout: &Layout, what: &str) {
    let bytes = all(&opened(&again(disk.bytes(), true), layout, false).0);
    for cluster in 0..layout.size >> layout.cluster_bits {
        let disk = again(disk.bytes(), true);
        let (edge, context) = opened(&disk, layout, true);
        let mut wanted = bytes.clone();
        let offset = cluster << layout.cluster_bits;
        edge.write(&[0x6b; 512], offset, false).unwrap();
        wanted[at(offset)..][..512].fill(0x6b);
        context.control.end();
        let found = checked(&again(disk.bytes(), true));
        assert_eq!((&found.corruptions[..], found.leaks), (&[][..], 0), "{what}: {cluster}");
        let now = all(&opened(&again(disk.bytes(), true), layout, false).0);
        assert!(now == wanted, "{what}: {cluster}");
    }
}

/// Whatever was stopped, the disk reads as before, nothing in use has a lower refcount than it had
/// and needs, and what is left is repaired the next time.
fn check_not_worse(left: &PowerCut, image: &Damaged, before: &[Option<Vec<u8>>], what: &str) {
    assert!(read(left) == before, "{what}");
    let done = again(left.bytes(), true);
    run(&done, Repair::All).unwrap();
    let (is, wanted) = (Damaged(left.bytes()), Damaged(done.bytes()));
    let counts = is.counts().into_iter().zip(image.counts()).zip(wanted.counts());
    for (unit, ((is, was), wanted)) in counts.enumerate() {
        assert!(is >= was.min(wanted), "{what}: cluster {unit}: {is}, {was}, {wanted}");
    }
    assert!(read(&again(done.bytes(), true)) == before, "{what}");
}

#[test]
fn whenever_a_repair_is_stopped_the_image_is_not_worse_and_is_repaired_later() {
    let mut dice = TestDice(11);
    for (name, all, anew, damage) in DAMAGES {
        for shared in [false, true] {
            let image = damaged(*damage, shared);
            let before = read(&again(image.0.clone(), true));
            let disk = again(image.0.clone(), true);
            run(&disk, Repair::All).unwrap();
            for step in 0..=disk.steps() {
                for _ in 0..6 {
                    let left = again(disk.cut(step, &mut dice), true);
                    let what = format!("{name}, shared {shared}, after step {step}");
                    // New blocks have another place each time.
                    if *anew {
                        assert!(read(&left) == before, "{what}");
                        let found = run(&left, Repair::All).unwrap();
                        assert_eq!(found.now.corruption_count == 0, *all, "{what}");
                    } else {
                        check_not_worse(&left, &image, &before, &what);
                    }
                }
            }
            for (fails, kind) in
                (0..disk.steps()).flat_map(|n| [(n, ErrorKind::Io), (n, ErrorKind::NoSpace)])
            {
                let what = format!("{name}, shared {shared}, fails {fails}: {kind:?}");
                let left = again(image.0.clone(), true);
                left.fail(fails, usize::MAX, kind);
                assert_eq!(run(&left, Repair::All).unwrap_err().kind(), kind, "{what}");
                let left = again(left.cut(left.steps(), &mut dice), true);
                assert!(read(&left) == before, "{what}");
                let found = run(&left, Repair::All).unwrap();
                assert_eq!(found.now.corruption_count == 0, *all, "{what}");
            }
        }
    }
}

#[test]
fn leaks_alone_are_freed_and_nothing_where_a_table_cannot_be_followed() {
    let of = |name: &str| {
        let found = DAMAGES.iter().find(|(known, ..)| *known == name).unwrap();
        again(damaged(found.3, false).0, true)
    };
    let disk = of("a refcount of 2 and no flag");
    let found = run(&disk, Repair::Leaks).unwrap();
    assert_eq!((found.leaks_fixed, found.corruptions_fixed), (1, 1));
    let disk = of("a shared cluster");
    let found = run(&disk, Repair::Leaks).unwrap();
    assert_eq!((found.leaks_fixed, found.now.corruption_count), (0, 1));
    for name in ["a refcount of 0", "no refcount block"] {
        let disk = of(name);
        let said = run(&disk, Repair::Leaks).unwrap_err();
        assert!(said.to_string().contains("-r all"), "{said}");
        assert_eq!(disk.steps(), 0, "{name}");
    }
    let disk = of("a table beyond the end");
    let found = run(&disk, Repair::All).unwrap();
    assert_eq!((found.leaks_fixed, found.now.leaks), (0, found.before.leaks));
    assert!(found.now.leaks > 3);
}

#[test]
fn what_may_be_meant_is_not_freed_and_nothing_gets_the_place_of_what_was_cut_off() {
    let made = || {
        let Laid { container, .. } = Layout { clusters: vec![Kind::Plain; 5], ..layout() }.lay();
        Damaged(container)
    };
    // The last cluster in the file: half of what the entry says is behind the end.
    let mut image = made();
    let last = image.0.len() as u64;
    image.0.resize(image.0.len() + CLUSTER, 7);
    image.count(last, 1);
    image.put(image.l2() + 40 * 8, (last + 512) | COPIED);
    let disk = again(image.0.clone(), true);
    let found = run(&disk, Repair::All).unwrap();
    assert_eq!((found.leaks_fixed, Damaged(disk.bytes()).counts()), (0, image.counts()));
    // The new refcounts are not where an entry leads, and what is written later is not, either.
    let cut_off = |behind: u64| {
        let mut image = made();
        let lost = image.0.len() as u64 + behind * 4096;
        image.put(image.l2(), lost | COPIED);
        image.put(image.at(48), 1 << 40);
        (again(image.0, true), lost)
    };
    let (disk, _) = cut_off(0);
    let said = run(&disk, Repair::All).unwrap_err();
    assert!(said.to_string().contains("--salvage") && disk.steps() == 0, "{said}");
    let (disk, lost) = cut_off(8);
    assert_eq!(run(&disk, Repair::All).unwrap().now.corruption_count, 1);
    let disk = again(disk.bytes(), true);
    let (edge, context) = opened(&disk, &layout(), true);
    edge.write(&[3; 12 * CLUSTER], 40 << 12, false).unwrap();
    context.control.end();
    let now = Damaged(disk.bytes());
    assert!((40..52).all(|n| now.data(n) != lost) && now.0.len() as u64 > lost);
}

#[test]
fn an_image_that_was_not_closed_is_repaired_when_it_is_opened_for_writing() {
    for (name, all, _, damage) in DAMAGES.iter().filter(|(name, ..)| *name != "marked as corrupt") {
        let mut image = damaged(*damage, false);
        image.0[79] |= 1;
        let before = read(&again(image.0.clone(), true));
        let disk = again(image.0, true);
        let context = Context::default();
        let params = device::Params::default();
        let files = crate::Closed;
        let opening = crate::Opening { params: &params, files: &files, context: &context };
        let opened = (super::super::FORMAT.write.unwrap())(disk.edge(), &opening);
        if !*all {
            assert_eq!(opened.err().unwrap().kind(), ErrorKind::ReadOnly, "{name}");
            continue;
        }
        let edge = Edge::new(opened.unwrap(), context.pool.clone());
        edge.write(&[5; CLUSTER], 60 << 12, false).unwrap();
        context.control.end();
        let found = checked(&disk);
        assert_eq!((&found.corruptions[..], found.leaks), (&[][..], 0), "{name}");
        let now = read(&again(disk.bytes(), true));
        assert_eq!(now[..60], before[..60], "{name}");
        assert_eq!(now[60], Some(vec![5; CLUSTER]), "{name}");
    }
}

#[test]
fn entries_that_lead_to_one_l2_table_get_one_each_whatever_stops_that() {
    // A table is of 64 clusters, and the disk of 4 tables.
    let layout = Layout {
        cluster_bits: 9,
        size: 256 << 9,
        clusters: vec![Kind::Plain, Kind::Packed, Kind::ZeroAt, Kind::Plain, Kind::Plain],
        ..layout()
    };
    let bytes_of = |disk: &PowerCut| all(&opened(&again(disk.bytes(), true), &layout, false).0);
    let mut dice = TestDice(12);
    for (is_shared, others) in [(false, &[1, 3][..]), (true, &[1, 3]), (false, &[3])] {
        let mut image = Damaged(layout.lay().container);
        if is_shared {
            snapshot(&mut image.0, &layout);
        }
        let (l1, l2) = (image.at(40), image.l2());
        for index in others {
            image.put(l1 + index * 8, l2 | COPIED);
        }
        let bytes = bytes_of(&again(image.0.clone(), true));
        let disk = again(image.0.clone(), true);
        let found = run(&disk, Repair::All).unwrap();
        assert_eq!((found.now.corruption_count, found.now.leaks), (0, 0), "{found:?}");
        assert_eq!(checked(&disk), found.now);
        assert!(bytes_of(&disk) == bytes);
        for step in 0..=disk.steps() {
            let left = again(disk.cut(step, &mut dice), true);
            assert!(bytes_of(&left) == bytes, "after step {step}");
            let found = run(&left, Repair::All).unwrap();
            assert_eq!((found.now.corruption_count, found.now.leaks), (0, 0), "{found:?}");
            let table = |n: u64| number(&left.bytes(), at(l1 + n * 8)) & OFFSET;
            let all: HashSet<_> = others.iter().copied().chain([0]).map(table).collect();
            assert_eq!(all.len(), others.len() + 1, "after step {step}");
        }
        for fails in 0..disk.steps() {
            let left = again(image.0.clone(), true);
            left.fail(fails, usize::MAX, ErrorKind::Io);
            assert_eq!(run(&left, Repair::All).unwrap_err().kind(), ErrorKind::Io);
            let left = again(left.cut(left.steps(), &mut dice), true);
            assert!(bytes_of(&left) == bytes, "fails {fails}");
            assert_eq!(run(&left, Repair::All).unwrap().now.corruption_count, 0);
        }
        check_alone(&disk, &layout, "parted");
        // What is written by one of them is not seen by the others.
        let disk = again(disk.bytes(), true);
        let (edge, context) = opened(&disk, &layout, true);
        let mut bytes = bytes;
        for (cluster, byte) in [(0, 3), (65, 4), (3 * 64 + 4, 5)] {
            edge.write(&[byte; 512], cluster << 9, false).unwrap();
            bytes[at(cluster << 9)..][..512].fill(byte);
        }
        context.control.end();
        assert!(bytes_of(&disk) == bytes);
        let found = checked(&disk);
        assert_eq!((&found.corruptions[..], found.leaks), (&[][..], 0));
    }
}

fn at(offset: u64) -> usize {
    usize::try_from(offset).unwrap()
}
