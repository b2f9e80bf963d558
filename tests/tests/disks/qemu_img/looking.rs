//! `info`, `map`, `compare`, `measure` and `check`: what they print and end with, beside qemu-img.

use std::path::Path;

use blackbox::peers::{info_as_before, peer};
use blackbox::run::{json, program, run, text};
use blackbox::temp::{TempDir, pattern};
use serde_json::Value;

use super::{ends_saying, ferry, theirs};

/// A raw disk with a hole, and an image of each kind that qemu-img makes here.
fn images(temp: &TempDir, qemu_img: &Path) -> Vec<String> {
    let mut bytes = vec![0; 4 << 20];
    bytes[1 << 20..2 << 20].copy_from_slice(&pattern(0, 1 << 20));
    let raw = temp.sparse_file("disk.raw", 4 << 20);
    ferry(["convert", "-f", "raw", text(&temp.file("bytes", &bytes)), text(&raw)]).succeeded();
    let mut all = vec![text(&raw).to_owned()];
    for (name, words) in [
        ("plain.qcow2", &["-O", "qcow2"][..]),
        ("small.qcow2", &["-O", "qcow2", "-o", "cluster_size=4k,compat=0.10"]),
        ("lazy.qcow2", &["-O", "qcow2", "-o", "lazy_refcounts=on,extended_l2=on"]),
    ] {
        let path = temp.join(name);
        let words = [&["convert", "-f", "raw"], words, &[text(&raw), text(&path)]].concat();
        theirs(qemu_img, &words).succeeded();
        all.push(text(&path).to_owned());
    }
    all
}

#[test]
fn info_says_what_qemu_img_says() {
    let Some(qemu_img) = peer("qemu-img") else { return };
    let temp = TempDir::new();
    let mut all = images(&temp, &qemu_img);
    theirs(&qemu_img, &["snapshot", "-c", "first one", &all[1]]).succeeded();
    let over = temp.join("over.qcow2");
    let create = ["create", "-q", "-f", "qcow2", "-F", "qcow2", "-b", "plain.qcow2", text(&over)];
    theirs(&qemu_img, &create).succeeded();
    all.push(text(&over).to_owned());
    for image in &all {
        let mut command = program(&qemu_img, ["info", image]);
        let wanted = run(command.env("TZ", "UTC"));
        let wanted = info_as_before(wanted.succeeded());
        for words in [&["info", image][..], &["info", "--output=human", "-U", image]] {
            let told = ferry(words);
            assert_eq!(info_as_before(told.succeeded()), wanted);
            assert!(told.succeeded().contains("Child node '/file':\n    filename: "), "{told:?}");
        }
        let wanted = json(theirs(&qemu_img, &["info", "--output=json", image]).succeeded());
        let told = ferry(["info", "--output", "json", image]);
        assert_eq!(info_as_before(told.succeeded()), wanted);
    }
    // The chain is followed only where that is allowed.
    let over = text(&over);
    ends_saying(1, &["info", "--backing-chain", over], &["plain.qcow2", "--allow-external"]);
    let seen = ferry(["info", "--backing-chain", "--output=json", over]);
    assert_eq!(json(&seen.stdout).as_array().map(Vec::len), Some(1), "{seen:?}");
    let wanted =
        json(theirs(&qemu_img, &["info", "--backing-chain", "--output=json", over]).succeeded());
    for allowed in ["chain", text(temp.path())] {
        let words = ["info", "--backing-chain", "--output=json", "--allow-external", allowed, over];
        assert_eq!(info_as_before(ferry(words).succeeded()), wanted, "{allowed}");
    }
}

#[test]
fn info_of_an_export_is_nbdinfos_unless_the_other_is_asked_for() {
    let binary = blackbox::peers::diskferry();
    let run_in = |words: &str| {
        let command = format!("{} {words} \"$uri\"", binary.display());
        ferry(["serve", "memory", "1M", "--run", &command]).succeeded().to_owned()
    };
    assert!(run_in("info").starts_with("protocol: newstyle"));
    assert!(json(&run_in("info --json"))["exports"].is_array());
    let info = json(&run_in("info --output=json"));
    assert_eq!((&info["virtual-size"], &info["format"]), (&(1 << 20).into(), &"raw".into()));
    assert!(run_in("map").contains("hole,zero"));
    assert_eq!(json(&run_in("map --output=json"))[0]["length"], 1 << 20);
}

#[test]
fn map_says_what_qemu_img_says() {
    let Some(qemu_img) = peer("qemu-img") else { return };
    let temp = TempDir::new();
    let [raw, image, ..] = &images(&temp, &qemu_img)[..] else { unreachable!() };
    let human = ["map", "--output=human", image];
    assert_eq!(ferry(human).succeeded(), theirs(&qemu_img, &human).succeeded());
    for words in [&[][..], &["--start-offset=1500K"], &["-s", "512K", "-l", "1M"]] {
        let human = [&["map", "--output=human", raw], words].concat();
        assert_eq!(ferry(&human).succeeded(), theirs(&qemu_img, &human).succeeded());
        let words = [&["map", "--output=json", raw], words].concat();
        let mut ours = json(ferry(&words).succeeded());
        // Newer ones say this too.
        for entry in ours.as_array_mut().unwrap() {
            assert_eq!(entry.as_object_mut().unwrap().remove("compressed"), Some(false.into()));
        }
        assert_eq!(ours, json(theirs(&qemu_img, &words).succeeded()), "{words:?}");
    }
    // What an image has an entry for is present, and what it has none for is not; of formats that
    // lie over nothing, all is.
    let overlay = text(&temp.join("overlay")).to_owned();
    let create = ["create", "-q", "-f", "qcow2", "-F", "raw", "-b", raw, &overlay];
    theirs(&qemu_img, &create).succeeded();
    let zero = ["-f", "qcow2", "-c", "write -q -z -u 1M 64k", &overlay];
    run(&mut program(&peer("qemu-io").unwrap(), zero)).succeeded();
    let empty = ["vdi", "vpc", "qcow2", "vmdk", "parallels", "qed"].map(|format| {
        let path = text(&temp.join(&format!("empty.{format}"))).to_owned();
        theirs(&qemu_img, &["create", "-q", "-f", format, &path, "4M"]).succeeded();
        (format, path)
    });
    for (format, image) in empty.into_iter().chain([("qcow2", overlay)]) {
        let words = ["map", "--output=json", "-f", format, &image];
        let leave = [&words[..1], &["--allow-external", text(temp.path())], &words[1..]].concat();
        let of = |told: Value| -> Vec<Value> {
            let keys = ["start", "length", "depth", "present", "zero", "data"];
            let entries = told.as_array().unwrap().iter();
            entries.map(|e| keys.iter().map(|key| e[*key].clone()).collect()).collect()
        };
        let (ours, theirs) = (ferry(leave), theirs(&qemu_img, &words));
        assert_eq!(of(json(ours.succeeded())), of(json(theirs.succeeded())), "{format}");
    }
}

#[test]
fn compare_ends_as_qemu_img_does() {
    let Some(qemu_img) = peer("qemu-img") else { return };
    let temp = TempDir::new();
    let bytes = pattern(0, 3 << 20);
    let same = temp.file("same", &bytes);
    let file = temp.file("file", &bytes);
    let mut changed = bytes.clone();
    changed[1_500_001] ^= 1;
    changed[2_500_000] ^= 1;
    let other = temp.file("other", &changed);
    let longer = temp.file("longer", &[&bytes[..], &[0; 100 << 10]].concat());
    let more = temp.file("more", &[&bytes[..], &[0; 100 << 10], &[1; 512]].concat());
    let missing = temp.join("missing");
    for (second, words) in [
        (&same, &[][..]),
        (&other, &[]),
        (&longer, &[]),
        (&longer, &["-s"]),
        (&more, &[]),
        (&same, &["-s"]),
        (&same, &["-q"]),
        (&other, &["-q"]),
        (&missing, &[]),
    ] {
        let words = [&["compare", "-f", "raw", "-F", "raw"], words, &[text(&file), text(second)]];
        let words = words.concat();
        let (ours, theirs) = (ferry(&words), theirs(&qemu_img, &words));
        assert_eq!(ours.status.code(), theirs.status.code(), "{ours:#?}{theirs:#?}");
        assert_eq!(ours.stdout, theirs.stdout, "{words:?}");
    }
    let progress = ferry(["compare", "-p", text(&file), text(&same)]);
    assert_eq!(progress.succeeded(), "    (100.00/100%)\nImages are identical.\n");
}

#[test]
fn compare_says_what_could_not_be_read() {
    let Some(nbdkit) = peer("nbdkit") else { return };
    let temp = TempDir::new();
    let zeroes = temp.sparse_file("zeroes", 1 << 20);
    let command = format!(
        "{} compare -f raw \"$uri\" {}",
        blackbox::peers::diskferry().display(),
        text(&zeroes)
    );
    let outcome = run(&mut program(
        &nbdkit,
        ["-U", "-", "--filter=error", "memory", "1M", "error-pread-rate=100%", "--run", &command],
    ));
    // A hole is not read.
    assert_eq!(outcome.status.code(), Some(0), "{outcome:#?}");
    let outcome = run(&mut program(
        &nbdkit,
        ["-U", "-", "--filter=error", "pattern", "1M", "error-pread-rate=100%", "--run", &command],
    ));
    assert_eq!(outcome.status.code(), Some(4), "{outcome:#?}");
    assert!(outcome.stderr.contains("Error while reading offset 0"), "{outcome:#?}");
}

/// The room that the bitmaps of the source would take is reported for formats that can hold them,
/// and for no others.
#[test]
fn measure_counts_bitmaps_as_qemu_img_does() {
    let Some(qemu_img) = peer("qemu-img") else { return };
    let temp = TempDir::new();
    let image = |name: &str, options: &str, size: &str| {
        let path = text(&temp.join(name)).to_owned();
        let words = ["create", "-q", "-f", "qcow2", "-o", options, &path, size];
        theirs(&qemu_img, &words).succeeded();
        path
    };
    let (none, old) = (image("none", "compat=1.1", "10M"), image("old", "compat=0.10", "10M"));
    let (two, large) =
        (image("two", "cluster_size=4k", "10M"), image("large", "compat=1.1", "100G"));
    theirs(&qemu_img, &["bitmap", "--add", &two, "b0"]).succeeded();
    theirs(&qemu_img, &["bitmap", "--add", "-g", "512", &two, "a name of twenty-six bytes"])
        .succeeded();
    theirs(&qemu_img, &["bitmap", "--add", "-g", "128k", &large, "b"]).succeeded();
    theirs(&qemu_img, &["bitmap", "--disable", &large, "b"]).succeeded();
    let vdi = text(&temp.join("vdi")).to_owned();
    theirs(&qemu_img, &["create", "-q", "-f", "vdi", &vdi, "10M"]).succeeded();
    for (source, format) in
        [(&none, "qcow2"), (&old, "qcow2"), (&two, "qcow2"), (&large, "qcow2"), (&vdi, "vdi")]
    {
        for target in [
            &["-O", "qcow2"][..],
            &["-O", "qcow2", "-o", "cluster_size=512"],
            &["-O", "qcow2", "-o", "cluster_size=2M,refcount_bits=1"],
            &["-O", "qcow2", "-o", "compat=0.10"],
            &["-O", "raw"],
        ] {
            let words = [&["measure", "-f", format], target, &[source.as_str()]].concat();
            let wanted = theirs(&qemu_img, &words);
            assert_eq!(ferry(&words).succeeded(), wanted.succeeded(), "{words:?}");
            let words = [&words[..], &["--output=json"]].concat();
            let wanted = json(theirs(&qemu_img, &words).succeeded());
            assert_eq!(json(ferry(&words).succeeded()), wanted, "{words:?}");
        }
    }
    // An empty disk has no extent to print.
    let words = ["measure", "-O", "qcow2", "--size", "10M"];
    assert!(!ferry(words).succeeded().contains("bitmaps"));
    assert!(ferry(["measure", "-O", "qcow2", &two]).succeeded().contains("bitmaps size: "));
}

/// The output and the status: for good images, for truncated ones, and for such as have wrong
/// tables.
#[test]
fn a_qcow2_a_vmdk_a_vdi_and_a_vhdx_are_checked_as_qemu_img_does_it() {
    let Some(qemu_img) = peer("qemu-img") else { return };
    let temp = TempDir::new();
    let raw = temp.file("raw", &pattern(0, 3 << 20));
    let image = temp.join("image");
    let image = text(&image);
    for (format, options) in [
        ("qcow2", "cluster_size=64k"),
        ("vmdk", "subformat=monolithicSparse"),
        ("vmdk", "subformat=streamOptimized"),
        ("vdi", "static=off"),
        ("vdi", "static=on"),
        ("vhdx", "block_size=1M"),
        ("vhdx", "subformat=fixed,block_size=1M"),
    ] {
        let words = ["convert", "-f", "raw", "-O", format, "-o", options, text(&raw), image];
        theirs(&qemu_img, &words).succeeded();
        for words in [
            &["check", "-f", format, image][..],
            &["check", "--output=json", image],
            &["check", "-q", "-f", format, image],
        ] {
            assert_eq!(ferry(words).succeeded(), theirs(&qemu_img, words).succeeded(), "{words:?}");
        }
        let file = std::fs::OpenOptions::new().write(true).open(image).unwrap();
        // A stream is shorter than that.
        let len = file.metadata().unwrap().len().checked_sub(1 << 20);
        let Some(len) = len else { continue };
        file.set_len(len).unwrap();
        let words = ["check", "-f", format, image];
        let (ours, theirs) = (ferry(words), theirs(&qemu_img, &words));
        let least = if format == "vmdk" { 2 } else { 1 };
        assert!(ours.status.code().is_some_and(|code| (least..=2).contains(&code)), "{ours:#?}");
        // It does not look how long the file of a vdi is.
        assert!(format == "vdi" || theirs.status.code() != Some(0), "{theirs:#?}");
    }
}

/// The bytes of an image are changed, and what we find is what qemu-img finds.
fn checks_alike(qemu_img: &Path, format: &str, image: &str, status: i32) {
    let words = ["check", "-f", format, "--output=json", image];
    let (ours, theirs) = (ferry(words), theirs(qemu_img, &words));
    assert_eq!(ours.status.code(), Some(status), "{ours:#?}");
    assert_eq!(theirs.status.code(), Some(status), "{theirs:#?}");
    assert_eq!(json(&ours.stdout), json(&theirs.stdout), "{format}");
}

#[test]
fn a_qed_and_a_parallels_disk_are_checked_as_qemu_img_does_it() {
    let Some(qemu_img) = peer("qemu-img") else { return };
    let temp = TempDir::new();
    let mut disk = pattern(0, 4 << 20);
    disk[1 << 20..2 << 20].fill(0);
    let (raw, image) = (temp.file("raw", &disk), temp.join("image"));
    let image = text(&image);
    for (format, options) in [
        ("qed", "cluster_size=64k"),
        ("qed", "cluster_size=4k,table_size=2"),
        ("parallels", "cluster_size=64k"),
    ] {
        // The room that an empty one begins with is none that is lost.
        theirs(&qemu_img, &["create", "-q", "-f", format, "-o", options, image, "4M"]).succeeded();
        checks_alike(&qemu_img, format, image, 0);
        let words = ["convert", "-f", "raw", "-O", format, "-o", options, text(&raw), image];
        theirs(&qemu_img, &words).succeeded();
        for words in [&["check", "-f", format, image][..], &["check", "-q", "-f", format, image]] {
            assert_eq!(ferry(words).succeeded(), theirs(&qemu_img, words).succeeded(), "{words:?}");
        }
        checks_alike(&qemu_img, format, image, 0);
        let sound = std::fs::read(image).unwrap();
        // More room than there is.
        std::fs::write(image, [&sound[..], &[0; 1 << 20]].concat()).unwrap();
        checks_alike(&qemu_img, format, image, 3);
        // Two have one room.
        let mut shared = sound.clone();
        let at = if format == "qed" {
            let first = usize::try_from(u64::from_le_bytes(shared[40..48].try_into().unwrap()));
            let first = first.unwrap();
            let second = u64::from_le_bytes(shared[first..first + 8].try_into().unwrap());
            usize::try_from(second).unwrap()
        } else {
            64
        };
        let width = if format == "qed" { 8 } else { 4 };
        shared.copy_within(at..at + width, at + width);
        std::fs::write(image, &shared).unwrap();
        if format == "qed" {
            checks_alike(&qemu_img, format, image, 2);
        }
        ends_saying(2, &["check", "-f", format, image], &["the space of another"]);
        // The file is cut off.
        std::fs::write(image, &sound[..sound.len() - (1 << 20)]).unwrap();
        let words = ["check", "-q", "-f", format, image];
        let (ours, theirs) = (ferry(words), theirs(&qemu_img, &words));
        assert_eq!(ours.status.code(), Some(2), "{ours:#?}");
        assert_eq!(theirs.status.code(), Some(2), "{theirs:#?}");
    }
}

/// An entry of the refcount table has bits that mean nothing, above and below its offset.
#[test]
fn a_refcount_table_with_reserved_bits_is_broken() {
    let (Some(qemu_img), Some(qemu_io)) = (peer("qemu-img"), peer("qemu-io")) else { return };
    let temp = TempDir::new();
    let image = text(&temp.join("image")).to_owned();
    theirs(&qemu_img, &["create", "-q", "-f", "qcow2", &image, "1M"]).succeeded();
    run(&mut program(&qemu_io, ["-f", "qcow2", "-c", "write -q 0 64k", &image])).succeeded();
    let sound = std::fs::read(&image).unwrap();
    let table = usize::try_from(u64::from_be_bytes(sound[48..56].try_into().unwrap())).unwrap();
    for (at, bit) in [(0, 0x20), (0, 0x01), (7, 0x01), (1, 0x80)] {
        let mut broken = sound.clone();
        broken[table + at] |= bit;
        std::fs::write(&image, broken).unwrap();
        let words = ["check", "-q", "-f", "qcow2", &image];
        assert_eq!(theirs(&qemu_img, &words).status.code(), Some(2), "{at} {bit}");
        assert_eq!(ferry(words).status.code(), Some(2), "{at} {bit}");
    }
}

/// What a header says that is not known is no matter of checks that there are not.
#[test]
fn a_feature_that_is_not_known_is_named_by_check_and_info_too() {
    let Some(qemu_img) = peer("qemu-img") else { return };
    let temp = TempDir::new();
    let image = temp.join("image");
    let image = text(&image);
    theirs(&qemu_img, &["create", "-q", "-f", "qcow2", image, "1M"]).succeeded();
    let mut bytes = std::fs::read(image).unwrap();
    bytes[72] |= 0x20;
    std::fs::write(image, bytes).unwrap();
    assert_eq!(theirs(&qemu_img, &["check", image]).status.code(), Some(1));
    ends_saying(1, &["check", image], &["61"]);
    // What it says may mean something else.
    assert_eq!(theirs(&qemu_img, &["info", image]).status.code(), Some(1));
    for words in [&["info", image][..], &["info", "--output=json", "-f", "qcow2", image]] {
        ends_saying(1, words, &["61"]);
    }
    let over = text(&temp.join("over")).to_owned();
    ends_saying(1, &["create", "-f", "qcow2", "-F", "qcow2", "-b", image, &over], &["61"]);
    let named = ["info", "--backing-chain", "--allow-external", "chain", &over];
    theirs(
        &qemu_img,
        &["create", "-q", "-u", "-f", "qcow2", "-F", "qcow2", "-b", image, &over, "1M"],
    )
    .succeeded();
    ends_saying(1, &named, &["61"]);
}
