//! `convert`: every option about the bytes.

use std::os::unix::fs::MetadataExt;

use blackbox::peers::peer;
use blackbox::run::{program, run, text};
use blackbox::temp::{TempDir, pattern};

use super::{ends_saying, ferry};

#[test]
fn a_raw_disk_is_what_it_was_and_holes_stay_holes() {
    let temp = TempDir::new();
    let mut bytes = pattern(0, 1 << 20);
    bytes.resize(8 << 20, 0);
    bytes.extend(pattern(8 << 20, 12345));
    let from = temp.file("from", &bytes);
    let to = temp.join("to");
    let outcome = ferry(["convert", "-f", "raw", "-O", "raw", text(&from), text(&to)]);
    assert_eq!((outcome.succeeded(), &*outcome.stderr), ("", ""));
    assert!(std::fs::read(&to).unwrap() == bytes);
    assert!(std::fs::metadata(&to).unwrap().blocks() * 512 < 2 << 20);
    // -S 0: none.
    let full = temp.join("full");
    ferry(["convert", "-S", "0", text(&from), text(&full)]).succeeded();
    assert!(std::fs::read(&full).unwrap() == bytes);
    assert!(std::fs::metadata(&full).unwrap().blocks() * 512 >= 8 << 20);
    // What is there is written over, and as long as the source in the end.
    ferry(["convert", text(&from), text(&full)]).succeeded();
    assert!(std::fs::read(&full).unwrap() == bytes);
    let short = temp.file("short", b"short");
    ferry(["convert", text(&short), text(&full)]).succeeded();
    assert_eq!(std::fs::read(&full).unwrap(), b"short");
}

#[test]
fn several_sources_are_one_disk_as_with_qemu_img() {
    let Some(qemu_img) = peer("qemu-img") else { return };
    let temp = TempDir::new();
    let (a, b) = (temp.file("a", &pattern(0, 100_100)), temp.file("b", &pattern(9, 5120)));
    let (ours, theirs) = (temp.join("ours"), temp.join("theirs"));
    for (words, out) in [("ours", &ours), ("theirs", &theirs)] {
        let args = ["convert", "-f", "raw", text(&a), text(&b), text(&a), text(&b), text(out)];
        match words {
            "ours" => ferry(args).succeeded().to_owned(),
            _ => run(&mut program(&qemu_img, args)).succeeded().to_owned(),
        };
    }
    assert!(std::fs::read(ours).unwrap() == std::fs::read(theirs).unwrap());
}

#[test]
fn progress_is_what_readers_of_qemu_img_take_apart() {
    let temp = TempDir::new();
    let from = temp.file("from", &pattern(0, 1 << 20));
    let outcome = ferry(["convert", "-p", text(&from), text(&temp.join("to"))]);
    let last = outcome.succeeded().rsplit('\r').next().unwrap().to_owned();
    assert_eq!(last, "    (100.00/100%)\n");
    assert_eq!(outcome.stderr, "");
    let quiet = ferry(["convert", "-p", "-q", text(&from), text(&temp.join("to"))]);
    assert_eq!(quiet.succeeded(), "");
}

#[test]
fn a_target_that_is_there_is_written_into() {
    let temp = TempDir::new();
    let from = temp.file("from", &[&pattern(0, 4096)[..], &[0; 8192]].concat());
    let there = temp.file("there", &pattern(77, 20_000));
    ferry(["convert", "-n", text(&from), text(&there)]).succeeded();
    let found = std::fs::read(&there).unwrap();
    assert!(found[..12_288] == std::fs::read(&from).unwrap());
    assert!(found[12_288..] == pattern(77, 20_000)[12_288..], "the rest is left alone");
    let small = temp.file("small", b"x");
    ends_saying(1, &["convert", "-n", text(&from), text(&small)], &["too small"]);
    assert_eq!(std::fs::read(&small).unwrap(), b"x");
}

#[test]
fn options_of_qemu_are_understood_as_names() {
    let temp = TempDir::new();
    let from = temp.file("fr,om", &pattern(0, 100_000));
    let source = format!("driver=raw,file.driver=file,file.filename={}", text(&from));
    let source = source.replace("fr,om", "fr,,om");
    let there = temp.file("there", &[1; 100_000]);
    let target = format!("driver=raw,file.filename={}", text(&there));
    ferry(["convert", "--image-opts", "-n", "--target-image-opts", &source, &target]).succeeded();
    assert!(std::fs::read(&there).unwrap() == pattern(0, 100_000));
    let json = format!(
        "json:{{\"driver\":\"raw\",\"file\":{{\"driver\":\"file\",\"filename\":\"{}\"}}}}",
        text(&from)
    );
    ferry(["convert", &json, text(&temp.join("to"))]).succeeded();
    assert!(std::fs::read(temp.join("to")).unwrap() == pattern(0, 100_000));
    // A part of a file, and nothing beside it.
    let window = format!("driver=raw,offset=512,size=4k,file.filename={}", text(&there));
    ferry(["convert", "--image-opts", &window, text(&temp.join("part"))]).succeeded();
    assert!(std::fs::read(temp.join("part")).unwrap() == pattern(0, 100_000)[512..512 + 4096]);
    let other = temp.file("other", &pattern(9, 4096));
    ferry(["convert", "-n", "--target-image-opts", "-f", "raw", text(&other), &window]).succeeded();
    let found = std::fs::read(&there).unwrap();
    let wanted = [&pattern(0, 512)[..], &pattern(9, 4096), &pattern(0, 100_000)[512 + 4096..]];
    assert!(found == wanted.concat());
    for (words, why) in [
        (&["info", "--image-opts", &window][..], "this verb is for images in files"),
        (
            &[
                "convert",
                "-n",
                "--target-image-opts",
                text(&other),
                "driver=raw,read-only=on,file.filename=x",
            ],
            "read-only",
        ),
        (&["resize", "--image-opts", &format!("{target},read-only=on"), "1M"], "not changed"),
    ] {
        ends_saying(1, words, &[why]);
    }
    assert!(std::fs::read(&there).unwrap() == wanted.concat());
}

#[test]
fn what_makes_no_difference_here_is_taken() {
    let temp = TempDir::new();
    let from = temp.file("from", &pattern(0, 100_000));
    let to = temp.join("to");
    let words = "convert -p -W -m 16 -t none -T none -C -U --no-flush -r 1G -f raw -O raw";
    let words = words.split(' ').chain([text(&from), text(&to)]);
    ferry(words).succeeded();
    assert!(std::fs::read(&to).unwrap() == pattern(0, 100_000));
}

#[test]
fn what_cannot_be_read_fails_and_is_zeroes_only_where_that_was_asked_for() {
    let temp = TempDir::new();
    let to = temp.join("to");
    let Some(nbdkit) = peer("nbdkit") else { return };
    let disk = temp.file("disk", &pattern(0, 1 << 20));
    let run_in = |words: &str| {
        let binary = blackbox::peers::diskferry();
        let command = format!("{} convert {words} -f raw \"$uri\" {}", binary.display(), text(&to));
        let script = "case \"$1\" in get_size) echo 1M;; pread) \
                      if [ $4 -lt 524288 ] && [ $(($4 + $3)) -gt 262144 ]; then echo EIO bad >&2; exit 1; fi; \
                      dd if=DISK skip=$4 count=$3 iflag=skip_bytes,count_bytes status=none;; \
                      *) exit 2;; esac";
        let script = temp.file("script", script.replace("DISK", text(&disk)).as_bytes());
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(&script, mode).unwrap();
        let script = format!("{}", script.display());
        run(&mut program(&nbdkit, ["-U", "-", "sh", &script, "--run", &command]))
    };
    let failed = run_in("");
    assert_eq!(failed.status.code(), Some(1), "{failed:#?}");
    assert!(!to.exists(), "{failed:#?}");
    let salvaged = run_in("--salvage");
    assert!(salvaged.status.success(), "{salvaged:#?}");
    assert!(salvaged.stderr.contains("error while reading offset 262144"), "{salvaged:#?}");
    let mut wanted = pattern(0, 1 << 20);
    wanted[262_144..524_288].fill(0);
    assert!(std::fs::read(&to).unwrap() == wanted);
}

/// What packs its blocks cannot read one back to change a part of it: what only looks on changes
/// nothing of how it is written.
#[test]
fn a_rate_and_what_looks_on_write_packed_images_as_they_are_written_without() {
    let temp = TempDir::new();
    let mut bytes = vec![0; 24 << 20];
    for i in 0..30 {
        let (at, len) = (i * 800_000 + i * i * 517, 1 + i * 9001);
        bytes[at..at + len].copy_from_slice(&pattern(u64::try_from(i).unwrap(), len));
    }
    let from = temp.file("from", &bytes);
    let (to, back) = (temp.join("to"), temp.join("back"));
    for (format, words) in [
        ("vmdk", &["-o", "subformat=streamOptimized"][..]),
        ("vmdk", &["-o", "subformat=monolithicSparse"]),
        ("qcow2", &["-c"]),
        ("qcow2", &["-c", "-o", "cluster_size=1M"]),
        ("qcow2", &["-c", "-o", "cluster_size=512"]),
    ] {
        let names = [text(&from), text(&to)];
        let convert = ["convert", "-q", "-r", "2G", "-f", "raw", "-O", format];
        ferry([&convert[..], words, &names].concat()).succeeded();
        let convert = ["convert", "-q", "-f", format, "-O", "raw", text(&to), text(&back)];
        ferry(convert).succeeded();
        assert!(std::fs::read(&back).unwrap() == bytes, "{format} {words:?}");
        std::fs::remove_file(&to).unwrap();
        std::fs::remove_file(&back).unwrap();
    }
}

#[test]
fn a_snapshot_is_the_one_that_is_named_and_a_disk_has_whole_sectors() {
    let (Some(qemu_img), Some(qemu_io)) = (peer("qemu-img"), peer("qemu-io")) else { return };
    let temp = TempDir::new();
    let (image, to) = (temp.join("image"), temp.join("to"));
    let theirs = |program_of: &std::path::PathBuf, words: &[&str]| {
        run(&mut program(program_of, words)).succeeded().to_owned()
    };
    theirs(&qemu_img, &["create", "-q", "-f", "qcow2", text(&image), "1M"]);
    for (byte, name) in [(1, "2"), (2, "1"), (3, "now")] {
        let write = format!("write -q -P {byte} 0 1M");
        theirs(&qemu_io, &["-f", "qcow2", "-c", &write, text(&image)]);
        theirs(&qemu_img, &["snapshot", "-q", "-c", name, text(&image)]);
    }
    for (wanted, byte) in [
        ("2", 2),
        ("now", 3),
        ("snapshot.name=2", 1),
        ("snapshot.id=2", 2),
        ("snapshot.id=1,snapshot.name=2", 1),
    ] {
        let words = ["convert", "-l", wanted, "-f", "qcow2", "-O", "raw", text(&image), text(&to)];
        theirs(&qemu_img, &words);
        assert_eq!(std::fs::read(&to).unwrap()[0], byte, "qemu-img {wanted}");
        std::fs::remove_file(&to).unwrap();
        ferry(words).succeeded();
        assert_eq!(std::fs::read(&to).unwrap()[0], byte, "{wanted}");
        std::fs::remove_file(&to).unwrap();
    }
    let words = ["-f", "qcow2", "-O", "raw", text(&image), text(&to)];
    // The last byte of the size: what is behind a whole sector is no part of the disk, as for QEMU.
    let mut bytes = std::fs::read(&image).unwrap();
    bytes[24..32].copy_from_slice(&((1_u64 << 20) - 511).to_be_bytes());
    std::fs::write(&image, bytes).unwrap();
    ferry([&["convert"], &words[..]].concat()).succeeded();
    assert_eq!(std::fs::metadata(&to).unwrap().len(), (1 << 20) - 512);
}

/// What `qemu-img info` says of the bitmaps, and what is set in them.
fn bitmaps(qemu_img: &std::path::Path, image: &str) -> (String, Vec<String>) {
    let told = super::theirs(qemu_img, &["info", "--output=json", image]);
    let told: serde_json::Value = serde_json::from_str(told.succeeded()).unwrap();
    let all = told["format-specific"]["data"]["bitmaps"].clone();
    let bits = all.as_array().into_iter().flatten().map(|one| {
        let context = format!("qemu:dirty-bitmap:{}", one["name"].as_str().unwrap());
        let words = ["map", "--json", "-f", "qcow2", "--context", &context, image];
        ferry(words).succeeded().to_owned()
    });
    let bits = bits.collect();
    (all.to_string(), bits)
}

#[test]
fn bitmaps_are_copied_as_by_qemu_img() {
    let (Some(qemu_img), Some(qemu_io)) = (peer("qemu-img"), peer("qemu-io")) else { return };
    let temp = TempDir::new();
    let image = |name: &str| text(&temp.join(name)).to_owned();
    let (from, ours, peers) = (image("from"), image("ours"), image("theirs"));
    let qemu = |words: &[&str]| super::theirs(&qemu_img, words);
    qemu(&["create", "-q", "-f", "qcow2", "-o", "cluster_size=4k", &from, "40M"]).succeeded();
    for (granularity, name) in [("512", "fine"), ("64k", "still"), ("128k", "a coarse one")] {
        qemu(&["bitmap", "--add", "-g", granularity, &from, name]).succeeded();
    }
    super::theirs(&qemu_io, &["-c", "write 5M 9000", "-c", "write 39M 1M", &from]).succeeded();
    qemu(&["bitmap", "--disable", &from, "still"]).succeeded();
    let words = ["convert", "--bitmaps", "-f", "qcow2", "-O", "qcow2"];
    for options in [&[][..], &["-o", "cluster_size=512"], &["-o", "cluster_size=2M"]] {
        let with = |to| [&words[..], options, &[&*from, to]].concat();
        let outcome = ferry(with(&ours));
        assert_eq!((outcome.succeeded(), &*outcome.stderr), ("", ""));
        qemu(&with(&peers)).succeeded();
        let wanted = bitmaps(&qemu_img, &peers);
        assert_eq!(wanted.1.len(), 3);
        assert_eq!(bitmaps(&qemu_img, &ours), wanted, "{options:?}");
        qemu(&["check", "-q", &ours]).succeeded();
        qemu(&["compare", "-q", &from, &ours]).succeeded();
        std::fs::remove_file(&ours).unwrap();
    }
    // One that was in use is an error, or left out.
    let mut bytes = std::fs::read(&from).unwrap();
    // Older directories may still lie where there is nothing now.
    let entry = b"\0\0\0\x02\x01\x09\0\x04\0\0\0\0fine";
    let found = bytes.windows(entry.len()).enumerate().filter(|(_, at)| at == entry);
    let found: Vec<_> = found.map(|(at, _)| at).collect();
    found.iter().for_each(|at| bytes[at + 3] |= 1);
    std::fs::write(&from, bytes).unwrap();
    let all = [&words[..], &[&*from, &*ours]].concat();
    assert_eq!(qemu(&all).status.code(), Some(1));
    ends_saying(1, &all, &["`fine` is inconsistent", "--skip-broken-bitmaps"]);
    assert!(!temp.join("ours").exists());
    let with = |to| [&words[..], &["--skip-broken-bitmaps", &*from, to]].concat();
    let outcome = ferry(with(&ours));
    assert_eq!(outcome.succeeded(), "");
    assert!(outcome.stderr.contains("warning: the bitmap `fine`"), "{outcome:#?}");
    qemu(&with(&peers)).succeeded();
    let wanted = bitmaps(&qemu_img, &peers);
    assert_eq!(wanted.1.len(), 2);
    assert_eq!(bitmaps(&qemu_img, &ours), wanted);
    // Where there can be none nothing is made.
    let raw = text(&temp.file("raw", &pattern(0, 1 << 20))).to_owned();
    let new = image("new");
    let (of, qcow2) = (&["convert", "--bitmaps", "-f"], "qcow2");
    for more in [
        &[qcow2, "-O", "raw", &*from, &*new][..],
        &[qcow2, "-O", "vmdk", &from, &new],
        &[qcow2, "-O", qcow2, "-o", "compat=0.10", &from, &new],
        &["raw", "-O", qcow2, &raw, &new],
        &[qcow2, "-O", qcow2, &from, &from, &new],
    ] {
        let words = [of, more].concat();
        assert_eq!(qemu(&words).status.code(), Some(1), "{words:?}");
        let _ = std::fs::remove_file(&new);
        ends_saying(1, &words, &["--bitmaps: "]);
        assert!(!temp.join("new").exists(), "{words:?}");
    }
    ends_saying(
        1,
        &["convert", "--skip-broken-bitmaps", "-f", qcow2, "-O", qcow2, &from, &new],
        &["needs --bitmaps"],
    );
}

#[test]
fn people_at_a_terminal_see_how_far_it_is_and_callers_of_qemu_img_see_nothing() {
    let Some(script) = peer("script") else { return };
    let temp = TempDir::new();
    let from = temp.file("from", &pattern(0, 4 << 20));
    let (ours, named) = (blackbox::peers::diskferry(), temp.join("qemu-img"));
    std::os::unix::fs::symlink(ours.canonicalize().unwrap(), &named).unwrap();
    let typed = |tool: &str, words: &str| {
        let line = format!("{tool} {words}");
        let mut command = program(&script, ["-q", "-e", "-c", &line, "/dev/null"]);
        run(command.current_dir(temp.path()).stdin(std::process::Stdio::null()))
            .succeeded()
            .to_owned()
    };
    let words = format!("convert -f raw -O qcow2 {} to", text(&from));
    let (ours, named) = (text(&ours), text(&named));
    let seen = typed(ours, &words);
    assert!(seen.contains("copied 4 MiB of data"), "{seen}");
    assert_eq!(typed(ours, &words.replace("convert", "convert -q")), "");
    assert_eq!(typed(named, &words), "");
    let compared = typed(ours, &format!("compare -f raw -F qcow2 {} to", text(&from)));
    assert!(compared.ends_with("Images are identical.\r\n"), "{compared}");
}
