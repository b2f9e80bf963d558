//! Damaged images, repaired by us and by qemu-img: the same is found, repaired and left.

use device::{Edge, ErrorKind, Params, Result};
use disk::{Repair, Repaired};
use formats::{Closed, Format, Making, Opening};
use runtime::{Context, to_usize};
use trial::{PowerCut, TestDice};

use crate::support::{Place, has_qemu};

const CLUSTER: u64 = 4096;
const COPIED: u64 = 1 << 63;

fn at(image: &[u8], offset: u64) -> u64 {
    let at = usize::try_from(offset).unwrap();
    u64::from_be_bytes(image[at..at + 8].try_into().unwrap()) & !COPIED
}

fn qcow2() -> &'static Format {
    formats::format("qcow2").unwrap()
}

fn repaired(image: Vec<u8>, what: Repair) -> Option<(Repaired, Vec<u8>)> {
    let disk = PowerCut::new(image, true);
    let found = repair(&disk, what, &Params::default()).ok()?;
    Some((found, disk.bytes()))
}

fn repair(disk: &PowerCut, what: Repair, params: &Params) -> Result<Repaired> {
    let context = Context::default();
    let opening = Opening { params, files: &Closed, context: &context };
    (qcow2().upkeep.repair.unwrap())(disk.edge(), &opening, what)
}

/// The disk of an image, open to be written or not.
fn opened(disk: &PowerCut, params: &Params, write: bool) -> (Edge, Context) {
    let context = Context::default();
    let opening = Opening { params, files: &Closed, context: &context };
    let open = if write { qcow2().write.unwrap() } else { qcow2().open };
    (Edge::new(open(disk.edge(), &opening).unwrap(), context.pool.clone()), context)
}

fn all(disk: &PowerCut, params: &Params) -> Vec<u8> {
    let (edge, _context) = opened(disk, params, false);
    let mut bytes = vec![0xaa; to_usize(edge.info().size)];
    edge.read(&mut bytes, 0).unwrap();
    bytes
}

/// A new image of 4 MiB.
fn made(options: &Params) -> PowerCut {
    let (context, disk) = (Context::default(), PowerCut::new(vec![0; 4 << 20], true));
    let making = Making {
        size: 4 << 20,
        options,
        compress: false,
        zeroed: true,
        durable: true,
        files: &Closed,
        context: &context,
    };
    let create = qcow2().create.as_ref().unwrap().open;
    create(disk.edge(), &making, &mut std::iter::empty()).unwrap().finish().unwrap();
    let mut bytes = disk.bytes();
    let found = (qcow2().check.unwrap())(&disk.edge(), &context).unwrap();
    bytes.truncate(to_usize(found.image_end));
    PowerCut::new(bytes, true)
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
        let disk = PowerCut::new(bytes, true);
        let (edge, context) = opened(&disk, &Params::default(), true);
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

/// What lies elsewhere is encrypted otherwise.
#[test]
fn clusters_that_entries_of_an_encrypted_image_share_are_parted_with_its_key_and_stay_without() {
    let place = Place::new();
    let key = format!("key-file={}", place.write("key", b"open"));
    let wrong = format!("key-file={}", place.write("wrong", b"shut"));
    let [key, wrong] = [key, wrong].map(|key| Params::parse([&*key]).unwrap());
    let own = format!("encrypt.key-file={}", place.path("key"));
    let options = ["cluster_size=4k", "encrypt.format=luks", "encrypt.iter-time=1", &own];
    let disk = made(&Params::parse(options).unwrap());
    let (edge, context) = opened(&disk, &key, true);
    for n in 0..6 {
        edge.write(&[n + 1; 4096], u64::from(n) * CLUSTER, false).unwrap();
    }
    context.control.end();
    let image = disk.bytes();
    let l1 = at(&image, 40);
    let l2 = at(&image, l1);
    // Which cluster of the disk gets the place of the first, and which entry says so.
    for (other, entries) in [(1, [l2, l2 + 8]), (512, [l1, l1 + 8])] {
        let mut damaged = image.clone();
        let [from, to] = entries.map(to_usize);
        damaged.copy_within(from..from + 8, to);
        let damaged = PowerCut::new(damaged, true);
        let expected = all(&damaged, &key);
        let (clusters, shared) = expected.split_at(2 << 20);
        assert!(if other > 1 { clusters == shared } else { clusters[4096] == 1 });
        for (params, parts) in [(&key, true), (&Params::default(), false), (&wrong, false)] {
            let (disk, what) = (damaged.again(true), format!("{other}, {params:?}"));
            let ended = repair(&disk, Repair::All, params);
            if params.get("key-file") == wrong.get("key-file") {
                assert_eq!(ended.unwrap_err().kind(), ErrorKind::NeedsKey, "{what}");
            } else {
                let now = ended.unwrap().now;
                assert_eq!((now.corruption_count, now.leaks), (0, 0), "{what}: {now:?}");
            }
            let bytes = disk.bytes();
            let is_parted = place_of(&bytes, 0) != place_of(&bytes, other);
            assert_eq!(is_parted, parts, "{what}");
            let mut dice = TestDice(other);
            for step in 0..=disk.steps() {
                let left = disk.after_cut(step, &mut dice);
                assert!(all(&left, &key) == expected, "{what}, after step {step}");
            }
            assert!(all(&disk.again(true), &key) == expected, "{what}");
            if parts {
                check_parted(&place, &disk.again(true), &key, expected.clone());
            }
        }
    }
}

/// Where a cluster of the disk lies.
fn place_of(image: &[u8], cluster: u64) -> u64 {
    let table = at(image, at(image, 40) + cluster / 512 * 8);
    at(image, table + cluster % 512 * 8)
}

/// Each of two entries is written without the other, and QEMU finds nothing wrong.
fn check_parted(place: &Place, disk: &PowerCut, key: &Params, mut expected: Vec<u8>) {
    let (edge, context) = opened(disk, key, true);
    for (offset, byte) in [(0, 0x71), (CLUSTER, 0x72), ((2 << 20) + CLUSTER, 0x73)] {
        edge.write(&[byte; 512], offset, false).unwrap();
        expected[to_usize(offset)..][..512].fill(byte);
    }
    context.control.end();
    assert!(all(&disk.again(true), key) == expected);
    if !has_qemu() {
        return;
    }
    let path = place.write("parted.qcow2", &disk.bytes());
    let secret = format!("secret,id=s,file={}", place.path("key"));
    let source = format!("driver=qcow2,encrypt.key-secret=s,file.filename={path}");
    place.qemu_img(&format!("check -q --object {secret} --image-opts {source}"));
    place.qemu_img(&format!("convert --object {secret} --image-opts {source} -O raw parted.raw"));
    assert!(place.read("parted.raw") == expected, "QEMU reads other bytes");
}

/// There a sector is encrypted by where it is on the disk, so its clusters lie anywhere.
#[test]
fn clusters_that_entries_share_under_the_old_encryption_are_parted_without_its_key() {
    if !has_qemu() {
        return;
    }
    let (place, none) = (Place::new(), Params::default());
    let (object, secret) = ("--object", "secret,id=s,data=open");
    let source = |name: &str| format!("driver=qcow2,encrypt.key-secret=s,file.filename={name}");
    let options = "cluster_size=4k,encrypt.format=aes,encrypt.key-secret=s";
    place.run(
        "qemu-img",
        &["create", "-q", "-f", "qcow2", object, secret, "-o", options, "aes", "4M"],
    );
    let run = |name: &str, commands: &[String]| {
        let (opts, mut given) = (source(name), vec![object, secret]);
        commands.iter().for_each(|command| given.extend(["-c", command]));
        place.run("qemu-io", &[&given[..], &["--image-opts", &opts]].concat());
    };
    let writes = (0..6).map(|n| format!("write -P {} {} 4k", n + 1, n * CLUSTER));
    run("aes", &writes.collect::<Vec<_>>());
    let bytes_of = |name: &str| {
        let opts = source(name);
        let words = ["convert", object, secret, "--image-opts", &opts, "-O", "raw", "aes.raw"];
        place.run("qemu-img", &words);
        place.read("aes.raw")
    };
    let image = place.read("aes");
    let l1 = at(&image, 40);
    let l2 = at(&image, l1);
    for (other, entries) in [(1, [l2, l2 + 8]), (512, [l1, l1 + 8])] {
        let mut damaged = image.clone();
        let [from, to] = entries.map(to_usize);
        damaged.copy_within(from..from + 8, to);
        let name = place.write("damaged", &damaged);
        let mut expected = bytes_of(&name);
        assert!(expected[..4096] == [1; 4096], "only the first of them reads as it was");
        let disk = PowerCut::new(damaged, true);
        let now = repair(&disk, Repair::All, &none).unwrap().now;
        assert_eq!((now.corruption_count, now.leaks), (0, 0), "{other}: {now:?}");
        let bytes = disk.bytes();
        assert!(place_of(&bytes, 0) != place_of(&bytes, other), "{other}: they are not parted");
        let mut dice = TestDice(other);
        for step in 0..=disk.steps() {
            let name = place.write("left", &disk.cut(step, &mut dice));
            assert!(bytes_of(&name) == expected, "{other}, after step {step}");
        }
        let name = place.write("parted", &bytes);
        assert!(bytes_of(&name) == expected, "{other}");
        let second = to_usize(other * CLUSTER);
        let writes = [(0, 0x71), (second, 0x72)].map(|(offset, byte)| {
            expected[offset..][..512].fill(byte);
            format!("write -P {byte} {offset} 512")
        });
        run(&name, &writes);
        assert!(bytes_of(&name) == expected, "{other}: one is written with the other");
        place.run("qemu-img", &["check", "-q", object, secret, "--image-opts", &source(&name)]);
    }
}

#[test]
fn a_shared_cluster_with_which_the_file_ends_has_no_old_bytes_behind_it_when_it_is_parted() {
    if !has_qemu() {
        return;
    }
    let place = Place::new();
    place.qemu_img("create -q -f qcow2 -o cluster_size=4k a.qcow2 1M");
    place.qemu_io("qcow2", "a.qcow2", &["write -P 7 0 32k".to_owned()]);
    let mut image = place.read("a.qcow2");
    let (l2, block) = (at(&image, at(&image, 40)), at(&image, at(&image, 48)));
    let [first, last] = [l2, l2 + 7 * 8].map(|entry| at(&image, entry));
    // The first is free now, and is what it was; the second one shares the last, which is cut off.
    let put = |image: &mut [u8], at: u64, number: u64| {
        image[to_usize(at)..][..8].copy_from_slice(&number.to_be_bytes());
    };
    put(&mut image, l2, 0);
    image[to_usize(block + first / CLUSTER * 2)..][..2].fill(0);
    put(&mut image, l2 + 8, last | COPIED);
    image.truncate(to_usize(last) + 512);
    let damaged = PowerCut::new(image, true);
    let expected = all(&damaged.again(true), &Params::default());
    let (found, bytes) = repaired(damaged.bytes(), Repair::All).unwrap();
    assert_eq!((found.now.corruption_count, found.now.leaks), (0, 0));
    assert!(place_of(&bytes, 1) != place_of(&bytes, 7), "they are not parted");
    assert!(all(&PowerCut::new(bytes, true), &Params::default()) == expected);
}
