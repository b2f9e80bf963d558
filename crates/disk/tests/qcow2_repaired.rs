//! Damaged images, repaired by us and by qemu-img: the same is found, repaired and left.

use device::{Edge, Params};
use disk::{Repair, Repaired};
use formats::{Closed, Opening};
use runtime::Context;
use trial::PowerCut;

use crate::support::{Place, has_qemu};

const CLUSTER: u64 = 4096;
const COPIED: u64 = 1 << 63;

fn at(image: &[u8], offset: u64) -> u64 {
    let at = usize::try_from(offset).unwrap();
    u64::from_be_bytes(image[at..at + 8].try_into().unwrap()) & !COPIED
}

fn repaired(image: Vec<u8>, what: Repair) -> Option<(Repaired, Vec<u8>)> {
    let (context, params) = (Context::default(), Params::default());
    let disk = PowerCut::new(image, true);
    let format = formats::format("qcow2").unwrap();
    let opening = Opening { params: &params, files: &Closed, context: &context };
    let container: Edge = disk.edge();
    let found = (format.upkeep.repair.unwrap())(container, &opening, what).ok()?;
    Some((found, disk.bytes()))
}

/// What qemu-img prints, whatever it finds.
fn report(place: &Place, words: &[&str]) -> String {
    String::from_utf8(place.output("qemu-img", words).stdout).unwrap()
}

/// A number of qemu-img's report.
fn said(report: &str, key: &str) -> u64 {
    let report: serde_json::Value = serde_json::from_str(report).unwrap_or_default();
    report[key].as_u64().unwrap_or(0)
}

#[test]
fn what_is_repaired_is_what_qemu_img_repairs_and_it_finds_nothing_after_that() {
    if !has_qemu() {
        return;
    }
    let place = Place::new();
    place.qemu_img("create -q -f qcow2 -o cluster_size=4k a.qcow2 1M");
    place.qemu_io("qcow2", "a.qcow2", &["write -P 1 0 256k".to_owned()]);
    let image = place.read("a.qcow2");
    let (l1, table) = (at(&image, 40), at(&image, 48));
    let (block, l2) = (at(&image, table), at(&image, l1));
    let data = at(&image, l2);
    let count = |of: u64, count: u64| (block + of / CLUSTER * 2, count << 48, 2);
    let entry = |of: u64, entry: u64| (of, entry, 8);
    let cases = [
        ("high", vec![count(data, 3)]),
        ("zero", vec![count(data, 0)]),
        ("flag", vec![entry(l2, data)]),
        ("shared", vec![entry(l2 + 8, data | COPIED)]),
        ("no block", vec![entry(table, 0)]),
        ("beyond", vec![entry(l2, 0x1000_0000 | COPIED)]),
        ("over the L1 table", vec![entry(l2, l1 | COPIED)]),
        ("over its own table", vec![entry(l2, l2 | COPIED)]),
        ("over the refcount table", vec![entry(l2, table | COPIED)]),
        ("at no cluster", vec![entry(l2, (data + 512) | COPIED)]),
        ("not closed", vec![(79, 1 << 56, 1), count(data, 0)]),
        ("corrupt", vec![(79, 2 << 56, 1)]),
        ("high, and no flag", vec![count(data, 2), entry(l2, data)]),
        ("no table", vec![(56, 0, 4)]),
        ("one block twice", vec![entry(table + 8, block)]),
    ];
    for (name, changes) in cases {
        let mut damaged = image.clone();
        for (at, number, len) in changes {
            let at = usize::try_from(at).unwrap();
            damaged[at..at + len].copy_from_slice(&number.to_be_bytes()[..len]);
        }
        for (word, what) in [("leaks", Repair::Leaks), ("all", Repair::All)] {
            let name = format!("{name}, -r {word}");
            place.write("theirs.qcow2", &damaged);
            let theirs = report(&place, &["check", "-r", word, "--output=json", "theirs.qcow2"]);
            let ours = repaired(damaged.clone(), what);
            let Some((found, left)) = ours else {
                assert!(theirs.is_empty(), "{name}: only we fail: {theirs}");
                continue;
            };
            let numbers = [
                ("corruptions", found.now.corruption_count),
                ("leaks", found.now.leaks),
                ("corruptions-fixed", found.corruptions_fixed),
                ("leaks-fixed", found.leaks_fixed),
            ];
            for (key, number) in numbers {
                assert_eq!(number, said(&theirs, key), "{name}: {key}: {found:?}");
            }
            place.write("ours.qcow2", &left);
            let check = report(&place, &["check", "--output=json", "ours.qcow2"]);
            assert_eq!(said(&check, "corruptions"), found.now.corruption_count, "{name}: {check}");
            assert_eq!(said(&check, "leaks"), found.now.leaks, "{name}: {check}");
        }
    }
}

#[test]
fn entries_that_lead_to_one_l2_table_get_one_each_and_the_image_is_written_again() {
    if !has_qemu() {
        return;
    }
    let place = Place::new();
    place.qemu_img("create -q -f qcow2 -o cluster_size=4k a.qcow2 8M");
    place.qemu_io("qcow2", "a.qcow2", &["write -P 1 0 256k".to_owned()]);
    let mut image = place.read("a.qcow2");
    let l1 = usize::try_from(at(&image, 40)).unwrap();
    image.copy_within(l1..l1 + 8, l1 + 8);
    place.write("theirs.qcow2", &image);
    report(&place, &["check", "-r", "all", "theirs.qcow2"]);
    // Also where qemu-img has made the refcounts right, and nothing else is wrong.
    for damaged in [image, place.read("theirs.qcow2")] {
        let (found, bytes) = repaired(damaged, Repair::All).unwrap();
        assert_eq!((found.now.corruption_count, found.now.leaks), (0, 0));
        assert!(at(&bytes, l1 as u64) != at(&bytes, l1 as u64 + 8));
        place.write("ours.qcow2", &bytes);
        let found = report(&place, &["check", "--output=json", "ours.qcow2"]);
        assert_eq!((said(&found, "corruptions"), said(&found, "leaks")), (0, 0), "{found}");
        place.qemu_img("compare -q -f qcow2 -F qcow2 ours.qcow2 theirs.qcow2");
        let (context, params) = (Context::default(), Params::default());
        let disk = PowerCut::new(bytes, true);
        let opening = Opening { params: &params, files: &Closed, context: &context };
        let open = formats::format("qcow2").unwrap().write.unwrap();
        let edge = Edge::new(open(disk.edge(), &opening).unwrap(), context.pool.clone());
        // Clusters that both tables referred to: by each of them, and by one alone.
        edge.write(&[7; 4096], 2 << 20, false).unwrap();
        edge.write(&[8; 4096], 0, false).unwrap();
        edge.write(&[9; 4096], 8 << 10, false).unwrap();
        edge.write(&[9; 4096], (2 << 20) + (16 << 10), false).unwrap();
        context.control.end();
        place.write("ours.qcow2", &disk.bytes());
        let found = report(&place, &["check", "--output=json", "ours.qcow2"]);
        assert_eq!((said(&found, "corruptions"), said(&found, "leaks")), (0, 0), "{found}");
        let reads = [
            "read -P 8 0 4k",
            "read -P 1 4k 4k",
            "read -P 9 8k 4k",
            "read -P 1 12k 244k",
            "read -P 7 2M 4k",
            "read -P 1 2052k 12k",
            "read -P 9 2064k 4k",
            "read -P 1 2068k 236k",
            // By QEMU, too.
            "write -P 5 20k 4k",
            "write -P 6 2072k 4k",
        ];
        place.qemu_io("qcow2", "ours.qcow2", &reads.map(str::to_owned));
        let found = report(&place, &["check", "--output=json", "ours.qcow2"]);
        assert_eq!((said(&found, "corruptions"), said(&found, "leaks")), (0, 0), "{found}");
    }
}
