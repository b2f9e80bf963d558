//! An overlay over another backing image reads as before, and as after `qemu-img rebase`; so does
//! one that was committed into its own.

use copy::{Cancel, CopyPlan, ListedRange, Options, Progress, RangeFate};
use device::{Edge, ErrorKind, Extent, Result};
use disk::{External, Image, Named, NewBacking, OpenOptions};
use runtime::Context;

use crate::support::{Dice, Place, has_qemu, when_unlocked};

const SECTOR: u64 = 512;

fn rebase(place: &Place, name: &str, new: Option<(&str, &str)>, trusted: bool) {
    let context = Context::default();
    let image = Image { external: External::Chain, ..Image::of("qcow2").unwrap() };
    let disk = Named::parse(&place.path(name)).unwrap();
    let new = NewBacking { backing: new, is_trusted: trusted, compress: false };
    let options = OpenOptions::read_write();
    when_unlocked(|| disk::rebase(&disk, &image, new, &options, &context, &mut |_, _| {})).unwrap();
    context.control.end();
    assert!(context.control.take_complaints().is_empty());
}

fn commit(place: &Place, name: &str, empties: bool) -> Result<()> {
    commit_to(place, name, (None, empties))
}

fn commit_to(place: &Place, name: &str, into: (Option<&str>, bool)) -> Result<()> {
    when_unlocked(|| try_commit(place, name, into))
}

fn try_commit(place: &Place, name: &str, into: (Option<&str>, bool)) -> Result<()> {
    let context = Context::default();
    let image = Image { external: External::Chain, ..Image::of("qcow2").unwrap() };
    let disk = Named::parse(&place.path(name)).unwrap();
    let mut copy = |source: &Edge, base: &Edge, held: Vec<Extent>| {
        let listed = held.iter().map(|extent| {
            let kind = if extent.kind.reads_zero() { RangeFate::Zero } else { RangeFate::Data };
            ListedRange { range: extent.start..extent.end(), kind }
        });
        let plan = CopyPlan::List(listed.collect());
        let (options, progress, cancel) =
            (Options::default(), Progress::default(), Cancel::default());
        let copied = copy::run(source, base, &plan, &options, &progress, &cancel);
        copied.map(drop).map_err(|failed| failed.error)
    };
    let options = OpenOptions::read_write();
    let done = disk::commit(&disk, &image, into, &options, &context, &mut copy);
    context.control.end();
    assert!(context.control.take_complaints().is_empty());
    done
}

/// Random bytes in an image, in sectors: some writes, and zeroes.
fn scribble(place: &Place, format: &str, name: &str, size: u64, dice: &mut Dice) {
    let mut commands = Vec::new();
    for _ in 0..10 {
        let at = dice.below_u64(size / SECTOR) * SECTOR;
        let len = ((1 + dice.below_u64(300)) * SECTOR).min(size - at);
        commands.push(match dice.below(4) {
            0 => format!("write -z -u {at} {len}"),
            1 => format!("discard {at} {len}"),
            _ => format!("write -P {} {at} {len}", 1 + dice.below(3)),
        });
    }
    place.qemu_io(format, name, &commands);
}

fn bytes_of(place: &Place, name: &str) -> Vec<u8> {
    place.qemu_img(&format!("convert -f qcow2 -O raw {name} expected.raw"));
    place.read("expected.raw")
}

#[test]
fn an_overlay_over_another_backing_image_reads_as_before_and_as_qemu_has_it() {
    if !has_qemu() {
        return;
    }
    let place = Place::new();
    let mut dice = Dice::new(26);
    for (n, options) in [
        "compat=1.1",
        "compat=0.10",
        "cluster_size=512",
        "cluster_size=4k",
        "cluster_size=2M",
        "extended_l2=on",
        "extended_l2=on,cluster_size=16k",
    ]
    .into_iter()
    .enumerate()
    {
        let size = |dice: &mut Dice| (1 + dice.below_u64(6000)) * SECTOR;
        // The base, one over it, one beside it, and the overlay.
        let (base, middle, other) = (size(&mut dice), size(&mut dice), size(&mut dice));
        place.qemu_img(&format!("create -q -f raw base.raw {base}"));
        scribble(&place, "raw", "base.raw", base, &mut dice);
        place.qemu_img(&format!("create -q -f qcow2 -b base.raw -F raw middle.qcow2 {middle}"));
        scribble(&place, "qcow2", "middle.qcow2", middle, &mut dice);
        place.qemu_img(&format!("create -q -f qcow2 -o cluster_size=8k other.qcow2 {other}"));
        scribble(&place, "qcow2", "other.qcow2", other, &mut dice);
        let over = size(&mut dice);
        let create = format!("create -q -f qcow2 -o {options} -b middle.qcow2 -F qcow2");
        place.qemu_img(&format!("{create} over.qcow2 {over}"));
        scribble(&place, "qcow2", "over.qcow2", over, &mut dice);
        let expected = bytes_of(&place, "over.qcow2");
        for (step, new) in [
            Some(("base.raw", "raw")),
            Some(("other.qcow2", "qcow2")),
            None,
            Some(("middle.qcow2", "qcow2")),
            Some(("middle.qcow2", "qcow2")),
        ]
        .into_iter()
        .enumerate()
        {
            let what = format!("{n}: {options}, step {step}");
            std::fs::copy(place.path("over.qcow2"), place.path("theirs.qcow2")).unwrap();
            let (name, format) = new.unwrap_or(("", "raw"));
            let words = ["rebase", "-f", "qcow2", "-b", name, "-F", format, "theirs.qcow2"];
            let words =
                if new.is_some() { words.to_vec() } else { [&words[..5], &words[7..]].concat() };
            place.run("qemu-img", &words);
            rebase(&place, "over.qcow2", new, false);
            place.qemu_img("check -q over.qcow2");
            assert!(bytes_of(&place, "over.qcow2") == expected, "{what}: other bytes");
            assert!(bytes_of(&place, "theirs.qcow2") == expected, "{what}: QEMU's differ");
            let info = place.qemu_img("info -U --output=json over.qcow2");
            let info: serde_json::Value = serde_json::from_str(&info).unwrap();
            assert_eq!(info["backing-filename"].as_str(), new.map(|(name, _)| name), "{what}");
            let format = info["backing-filename-format"].as_str();
            assert_eq!(format, new.map(|(_, format)| format), "{what}");
        }
    }
}

#[test]
fn what_an_overlay_gets_is_compressed_where_that_is_asked_for() {
    if !has_qemu() {
        return;
    }
    let place = Place::new();
    let mut dice = Dice::new(29);
    for options in [
        "compat=1.1",
        "compat=0.10",
        "compression_type=zstd",
        "cluster_size=4k,refcount_bits=1",
        "cluster_size=4k,refcount_bits=2",
        "cluster_size=2M",
        "extended_l2=on",
    ] {
        let size = 3_000_000 / SECTOR * SECTOR;
        place.qemu_img(&format!("create -q -f raw base.raw {size}"));
        scribble(&place, "raw", "base.raw", size, &mut dice);
        place.qemu_io("raw", "base.raw", &["write -P 9 0 700k", "write -P 8 2900k 29k"]);
        // What cannot be compressed stays as it is.
        let mut bytes = place.read("base.raw");
        for byte in &mut bytes[1_000_000..1_400_000] {
            *byte = u8::try_from(dice.below(256)).unwrap();
        }
        place.write("base.raw", &bytes);
        place.qemu_img(&format!("create -q -f qcow2 -o {options} -b base.raw -F raw over.qcow2"));
        place.qemu_io("qcow2", "over.qcow2", &["write -P 5 300k 70k"]);
        let expected = bytes_of(&place, "over.qcow2");
        let try_rebase = |name: &str| {
            let context = Context::default();
            let image = Image { external: External::Chain, ..Image::of("qcow2").unwrap() };
            let disk = Named::parse(&place.path(name)).unwrap();
            let new = NewBacking { backing: None, is_trusted: false, compress: true };
            let write = OpenOptions::read_write();
            let done = disk::rebase(&disk, &image, new, &write, &context, &mut |_, _| {});
            context.control.end();
            done
        };
        when_unlocked(|| try_rebase("over.qcow2")).unwrap();
        let found = place.qemu_img("check --output=json over.qcow2");
        let found: serde_json::Value = serde_json::from_str(&found).unwrap();
        let [all, packed] =
            ["allocated-clusters", "compressed-clusters"].map(|key| found[key].as_u64().unwrap());
        assert!(packed > 0 && (packed < all || options == "cluster_size=2M"), "{options}: {found}");
        assert!(bytes_of(&place, "over.qcow2") == expected, "{options}: other bytes");
        // It is an image like any other, and written where it lies.
        place.qemu_io("qcow2", "over.qcow2", &["write -P 4 100k 600k", "discard 0 64k"]);
        place.qemu_img("check -q over.qcow2");
        place.qemu_img("create -q -f qcow2 -o data_file=data -b base.raw -F raw apart");
        let before = place.read("apart");
        assert_eq!(try_rebase("apart").unwrap_err().kind(), ErrorKind::Unsupported);
        assert!(place.read("apart") == before, "changed");
    }
}

#[test]
fn a_header_that_is_trusted_changes_alone_and_the_image_itself_is_no_backing_image() {
    if !has_qemu() {
        return;
    }
    let place = Place::new();
    place.qemu_img("create -q -f raw base.raw 1M");
    place.qemu_img("create -q -f qcow2 -b base.raw -F raw over.qcow2");
    rebase(&place, "over.qcow2", Some(("not-there", "vmdk")), true);
    let info = place.qemu_img("info --output=json over.qcow2");
    assert!(info.contains("\"not-there\"") && info.contains("\"vmdk\""), "{info}");
    rebase(&place, "over.qcow2", None, true);
    place.qemu_img("check -q over.qcow2");
    let context = Context::default();
    let disk = Named::parse(&place.path("over.qcow2")).unwrap();
    let new =
        NewBacking { backing: Some(("over.qcow2", "qcow2")), is_trusted: false, compress: false };
    let image = Image::of("qcow2").unwrap();
    let before = place.read("over.qcow2");
    let options = OpenOptions::read_write();
    disk::rebase(&disk, &image, new, &options, &context, &mut |_, _| {}).unwrap_err();
    assert!(place.read("over.qcow2") == before);
}

#[test]
fn what_an_overlay_holds_is_in_its_backing_image_and_the_overlay_is_empty_or_as_it_was() {
    if !has_qemu() {
        return;
    }
    let place = Place::new();
    let mut dice = Dice::new(27);
    for (n, options) in [
        "compat=1.1",
        "compat=0.10",
        "cluster_size=512",
        "cluster_size=2M",
        "extended_l2=on",
        "data_file=data",
    ]
    .into_iter()
    .enumerate()
    {
        for base in ["raw", "qcow2"] {
            let what = format!("{n}: {options} over {base}");
            let (over, below) =
                ((10 + dice.below_u64(6000)) * SECTOR, (10 + dice.below_u64(6000)) * SECTOR);
            place.qemu_img(&format!("create -q -f {base} base {below}"));
            scribble(&place, base, "base", below, &mut dice);
            let create = format!("create -q -f qcow2 -o {options} -b base -F {base}");
            place.qemu_img(&format!("{create} over {over}"));
            scribble(&place, "qcow2", "over", over, &mut dice);
            let (expected, held) = (bytes_of(&place, "over"), place.read("over"));
            commit(&place, "over", false).unwrap();
            assert!(place.read("over") == held, "{what}: changed");
            commit(&place, "over", true).unwrap();
            place.qemu_img("check -q over");
            assert!(bytes_of(&place, "over") == expected, "{what}: the overlay");
            let map = place.qemu_img("map --output=json over");
            assert!(!map.contains("\"depth\": 0, \"present\": true"), "{what}: {map}");
            place.qemu_img(&format!("convert -f {base} -O raw base expected.raw"));
            let now = place.read("expected.raw");
            assert!(now[..expected.len()] == expected, "{what}: the backing image");
            assert_eq!(now.len() as u64, over.max(below), "{what}");
            if base == "qcow2" {
                place.qemu_img("check -q base");
            }
        }
    }
}

#[test]
fn what_a_chain_holds_is_put_past_the_images_between_as_qemu_does() {
    if !has_qemu() {
        return;
    }
    let place = Place::new();
    std::fs::create_dir(place.path("theirs")).unwrap();
    let mut dice = Dice::new(28);
    for (n, options) in
        ["compat=1.1", "compat=0.10", "cluster_size=512", "extended_l2=on"].into_iter().enumerate()
    {
        for (base, many) in [("raw", 1), ("qcow2", 1), ("raw", 2), ("qcow2", 3)] {
            let what = format!("{n}: {options} over {many} over {base}");
            let size = |dice: &mut Dice| (10 + dice.below_u64(6000)) * SECTOR;
            let bytes = size(&mut dice);
            place.qemu_img(&format!("create -q -f {base} base {bytes}"));
            scribble(&place, base, "base", bytes, &mut dice);
            let mut below = ("base".to_owned(), base);
            let between = (1..=many).map(|n| format!("between{n}"));
            for name in between.clone().chain(["over".to_owned()]) {
                let size = size(&mut dice);
                let create =
                    format!("create -q -f qcow2 -o {options} -b {} -F {}", below.0, below.1);
                place.qemu_img(&format!("{create} {name} {size}"));
                scribble(&place, "qcow2", &name, size, &mut dice);
                below = (name, "qcow2");
            }
            for name in between.chain(["base".to_owned(), "over".to_owned()]) {
                std::fs::copy(place.path(&name), place.path(&format!("theirs/{name}"))).unwrap();
            }
            let (expected, held) = (bytes_of(&place, "over"), place.read("over"));
            place.qemu_img("commit -q -f qcow2 -b base theirs/over");
            let missing = commit_to(&place, "over", (Some("over"), true)).unwrap_err().to_string();
            assert!(missing.contains("Did not find 'over' in the backing chain of"), "{missing}");
            commit_to(&place, "over", (Some("base"), true)).unwrap();
            assert!(place.read("over") == held, "{what}: changed");
            assert!(bytes_of(&place, "over") == expected, "{what}: the overlay");
            let convert = |name: &str| {
                place.qemu_img(&format!("convert -f {base} -O raw {name} expected.raw"));
                place.read("expected.raw")
            };
            let now = convert("base");
            assert!(now[..expected.len()] == expected, "{what}: the backing image");
            assert!(now == convert("theirs/base"), "{what}: not as QEMU's");
            if base == "qcow2" {
                place.qemu_img("check -q base");
            }
        }
    }
}

#[test]
fn a_backing_image_that_grows_does_not_show_what_is_below_its_old_end() {
    if !has_qemu() {
        return;
    }
    let place = Place::new();
    place.write("deep", &[5; 300 << 10]);
    for over in ["150k", "400k"] {
        place.qemu_img("create -q -f qcow2 -b deep -F raw base 100k");
        place.qemu_img(&format!("create -q -f qcow2 -b base -F qcow2 over {over}"));
        place.qemu_io("qcow2", "over", &["write -P 6 90k 20k", "write -P 7 130k 4k"]);
        let expected = bytes_of(&place, "over");
        commit(&place, "over", true).unwrap();
        place.qemu_img("check -q base");
        assert!(bytes_of(&place, "over") == expected, "{over}: the overlay");
        assert!(bytes_of(&place, "base") == expected, "{over}: the backing image");
    }
    place.qemu_img("create -q -f vdi base 1M");
    place.qemu_img("create -q -f qcow2 -b base -F vdi over 3M");
    let before = (place.read("over"), place.read("base"));
    assert_eq!(commit(&place, "over", true).unwrap_err().kind(), ErrorKind::Unsupported);
    assert!((place.read("over"), place.read("base")) == before, "changed");
}

#[test]
fn an_overlay_whose_bytes_could_not_be_copied_is_not_emptied() {
    if !has_qemu() {
        return;
    }
    let place = Place::new();
    place.qemu_img("create -q -f raw base 1M");
    place.qemu_img("create -q -f qcow2 -b base -F raw over");
    place.qemu_io("qcow2", "over", &["write -P 7 64k 256k"]);
    let before = place.read("over");
    let context = Context::default();
    let image = Image { external: External::Chain, ..Image::of("qcow2").unwrap() };
    let disk = Named::parse(&place.path("over")).unwrap();
    let options = OpenOptions::read_write();
    let mut copy = |_: &Edge, base: &Edge, _: Vec<Extent>| {
        base.write(&[7; 4096], 64 << 10, false)?;
        Err(device::Error::unsupported("go on"))
    };
    disk::commit(&disk, &image, (None, true), &options, &context, &mut copy).unwrap_err();
    context.control.end();
    assert!(place.read("over") == before);
}

#[test]
fn what_somebody_else_has_open_is_neither_rebased_nor_committed() {
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};
    if !has_qemu() {
        return;
    }
    let place = Place::new();
    place.qemu_img("create -q -f raw base 1M");
    place.qemu_img("create -q -f qcow2 -b base -F raw over");
    for (name, format) in [("over", "qcow2"), ("base", "raw")] {
        let mut command = Command::new("qemu-io");
        command.args(["-f", format, name]).current_dir(&place.0);
        let mut other = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        // It has opened the image when it asks for a command.
        let mut stdin = other.stdin.take().unwrap();
        std::io::Write::write_all(&mut stdin, b"length\n").unwrap();
        let mut line = String::new();
        BufReader::new(other.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let before = place.read("over");
        let done = try_commit(&place, "over", (None, true));
        assert_eq!(done.unwrap_err().kind(), ErrorKind::Locked, "{name}");
        let context = Context::default();
        let image = Image { external: External::Chain, ..Image::of("qcow2").unwrap() };
        let disk = Named::parse(&place.path("over")).unwrap();
        let new = NewBacking { backing: None, is_trusted: false, compress: false };
        let options = OpenOptions::read_write();
        let done = disk::rebase(&disk, &image, new, &options, &context, &mut |_, _| {});
        assert_eq!(done.unwrap_err().kind(), ErrorKind::Locked, "{name}");
        context.control.end();
        assert!(place.read("over") == before, "{name}: changed");
        drop(stdin);
        other.wait().unwrap();
    }
}

#[test]
fn an_overlay_that_was_not_closed_or_grows_is_rebased_and_committed() {
    if !has_qemu() {
        return;
    }
    let place = Place::new();
    let create = "create -q -f qcow2 -o cluster_size=512,lazy_refcounts=on -b base.raw -F raw";
    let commands = ["-f", "qcow2", "-c", "write -P 7 0 512k", "-c", "flush", "-c", "abort"];
    for is_rebased in [true, false] {
        place.qemu_img("create -q -f raw base.raw 12M");
        place.qemu_io("raw", "base.raw", &["write -P 3 0 12M"]);
        place.qemu_img(&format!("{create} over.qcow2"));
        // It ends without closing the image.
        place.output("qemu-io", &[&commands[..], &["over.qcow2"]].concat());
        assert_eq!(place.read("over.qcow2")[79], 1, "it is marked");
        if is_rebased {
            // More clusters than its first refcount table counts.
            rebase(&place, "over.qcow2", None, false);
        } else {
            commit(&place, "over.qcow2", true).unwrap();
        }
        place.qemu_img("check -q over.qcow2");
        let reads = ["read -P 7 0 512k".to_owned(), "read -P 3 512k 11776k".to_owned()];
        place.qemu_io("qcow2", "over.qcow2", &reads);
    }
}

#[test]
fn what_snapshots_of_an_overlay_lie_over_is_not_changed() {
    if !has_qemu() {
        return;
    }
    let place = Place::new();
    place.qemu_img("create -q -f raw base.raw 1M");
    place.qemu_img("create -q -f qcow2 -b base.raw -F raw over.qcow2");
    place.qemu_img("snapshot -c before over.qcow2");
    place.qemu_io("qcow2", "over.qcow2", &["write -P 7 0 64k"]);
    let (base, over) = (place.read("base.raw"), place.read("over.qcow2"));
    let refused = |done: Result<()>| {
        assert!(done.unwrap_err().to_string().contains("has snapshots"));
        assert!(place.read("base.raw") == base && place.read("over.qcow2") == over);
    };
    refused(when_unlocked(|| commit(&place, "over.qcow2", true)));
    refused(when_unlocked(|| commit(&place, "over.qcow2", false)));
    let context = Context::default();
    let image = Image { external: External::Chain, ..Image::of("qcow2").unwrap() };
    let disk = Named::parse(&place.path("over.qcow2")).unwrap();
    let new = NewBacking { backing: None, is_trusted: false, compress: false };
    let options = OpenOptions::read_write();
    let rebased = || disk::rebase(&disk, &image, new, &options, &context, &mut |_, _| {});
    refused(when_unlocked(rebased));
    rebase(&place, "over.qcow2", None, true);
}
