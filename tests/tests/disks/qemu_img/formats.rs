//! The verbs over images of other formats than raw, beside qemu-img.

use std::path::Path;

use blackbox::peers::peer;
use blackbox::run::{Outcome, program, run};
use blackbox::temp::{TempDir, pattern};
use serde_json::Value;

use super::{ends_saying, ferry};

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn theirs(qemu_img: &Path, words: &[&str]) -> Outcome {
    run(&mut program(&qemu_img.to_path_buf(), words))
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"))
}

/// A raw disk of 4 MiB with 1 MiB of data.
fn disk(temp: &TempDir) -> String {
    let mut bytes = vec![0; 4 << 20];
    bytes[1 << 20..2 << 20].copy_from_slice(&pattern(0, 1 << 20));
    text(&temp.file("disk.raw", &bytes)).to_owned()
}

#[test]
fn there_and_back_is_the_same_disk() {
    let Some(qemu_img) = peer("qemu-img") else { return };
    let temp = TempDir::new();
    let raw = disk(&temp);
    for (format, words) in [
        ("qcow2", &[][..]),
        ("qcow2", &["-c"]),
        ("qcow2", &["-o", "cluster_size=4k,compat=0.10"]),
        ("qcow2", &["-S", "0"]),
        ("vdi", &[]),
        ("vpc", &["-o", "force_size=on"]),
        ("vhdx", &[]),
    ] {
        let (image, back) = (temp.join("image"), temp.join("back"));
        let _ = std::fs::remove_file(&image);
        let words =
            [&["convert", "-f", "raw", "-O", format], words, &[&raw, text(&image)]].concat();
        assert_eq!(ferry(&words).succeeded(), "");
        theirs(&qemu_img, &["compare", "-f", "raw", "-F", format, &raw, text(&image)]).succeeded();
        ferry(["compare", &raw, text(&image)]).succeeded();
        // Without -f it is guessed, with a note.
        let guessed = ferry(["convert", text(&image), text(&back)]);
        guessed.succeeded();
        assert!(guessed.stderr.contains(&format!("looks like {format}")), "{guessed:#?}");
        assert!(std::fs::read(&back).unwrap() == std::fs::read(&raw).unwrap(), "{words:?}");
        assert_eq!(ferry(["convert", "-q", text(&image), text(&back)]).stderr, "");
        // A copy never guesses.
        let copied = ferry(["copy", text(&image), text(&back)]);
        copied.succeeded();
        assert!(std::fs::read(&back).unwrap() == std::fs::read(&image).unwrap());
        // What it makes of an image that is there has to be named.
        ferry(["copy", "-f", format, text(&image), text(&back)]).refused();
        ferry(["copy", "-f", format, "-O", "raw", text(&image), text(&back)]).succeeded();
        assert!(std::fs::read(&back).unwrap() == std::fs::read(&raw).unwrap(), "{words:?}");
    }
}

#[test]
fn info_of_a_qcow2_is_that_of_qemu_img() {
    let Some(qemu_img) = peer("qemu-img") else { return };
    let temp = TempDir::new();
    let raw = disk(&temp);
    let image = temp.join("image.qcow2");
    let image = text(&image);
    theirs(&qemu_img, &["convert", "-f", "raw", "-O", "qcow2", &raw, image]).succeeded();
    for words in [
        &["check", image][..],
        &["map", "--output=human", image],
        &["measure", "-O", "qcow2", "-f", "raw", &raw],
        &["measure", "-O", "qcow2", "-o", "cluster_size=4k", "--size", "1G"],
    ] {
        let wanted = theirs(&qemu_img, words);
        assert_eq!(ferry(words).succeeded(), wanted.succeeded(), "{words:?}");
    }
    let check = ["check", "--output=json", image];
    let wanted = theirs(&qemu_img, &check);
    assert_eq!(json(ferry(check).succeeded()), json(wanted.succeeded()));
    let map = ["map", "--output=json", image];
    let mut ours = json(ferry(map).succeeded());
    for entry in ours.as_array_mut().unwrap() {
        entry.as_object_mut().unwrap().remove("compressed");
    }
    assert_eq!(ours, json(theirs(&qemu_img, &map).succeeded()));
    // An image that is broken.
    let mut bytes = std::fs::read(image).unwrap();
    let refcounts = usize::try_from(u64::from_be_bytes(bytes[48..56].try_into().unwrap())).unwrap();
    let block = u64::from_be_bytes(bytes[refcounts..refcounts + 8].try_into().unwrap());
    let block = usize::try_from(block).unwrap();
    bytes[block + 10..block + 12].fill(0);
    std::fs::write(image, bytes).unwrap();
    let (wanted, found) = (theirs(&qemu_img, &["check", image]), ferry(["check", image]));
    assert_eq!((found.status.code(), wanted.status.code()), (Some(2), Some(2)), "{found:#?}");
}

#[test]
fn a_snapshot_and_a_chain_are_read_where_that_is_wanted() {
    let Some(qemu_img) = peer("qemu-img") else { return };
    let temp = TempDir::new();
    let raw = disk(&temp);
    let (base, over, back) = (temp.join("base"), temp.join("over"), temp.join("back"));
    let (base, over, back) = (text(&base), text(&over), text(&back));
    theirs(&qemu_img, &["convert", "-f", "raw", "-O", "qcow2", &raw, base]).succeeded();
    theirs(&qemu_img, &["snapshot", "-c", "before", base]).succeeded();
    ferry(["create", "-q", "-f", "qcow2", "-b", base, "-F", "qcow2", over]).succeeded();
    theirs(&qemu_img, &["check", over]).succeeded();
    for allowed in ["chain", text(temp.path())] {
        ferry(["convert", "--allow-external", allowed, over, back]).succeeded();
        assert!(std::fs::read(back).unwrap() == std::fs::read(&raw).unwrap());
    }
    let elsewhere = TempDir::new();
    ends_saying(
        1,
        &["convert", "-q", "--allow-external", text(elsewhere.path()), over, back],
        &["base"],
    );
    for snapshot in ["before", "snapshot.name=before", "snapshot.id=1", "1"] {
        ferry(["convert", "-l", snapshot, base, back]).succeeded();
        assert!(std::fs::read(back).unwrap() == std::fs::read(&raw).unwrap());
    }
    ends_saying(1, &["convert", "-q", "-l", "after", base, back], &["after"]);
    ends_saying(1, &["create", "-f", "qcow2", "-b", base, "x"], &["-F"]);
}

/// The map below a format is slow: what it costs is noticed, and counted below us.
#[test]
fn a_slow_map_below_an_image_is_not_asked_for_ever() {
    let (Some(qemu_img), Some(nbdkit)) = (peer("qemu-img"), peer("nbdkit")) else { return };
    let temp = TempDir::new();
    let raw = temp.file("disk.raw", &pattern(0, 64 << 20));
    let (image, back, log) = (temp.join("image.qcow2"), temp.join("back"), temp.join("log"));
    // All is there, in runs that are long enough to be looked up.
    let words = ["convert", "-f", "raw", "-O", "qcow2", text(&raw), text(&image)];
    theirs(&qemu_img, &words).succeeded();
    let binary = blackbox::peers::diskferry();
    let command = format!("{} convert -f qcow2 \"$uri\" {}", binary.display(), text(&back));
    let log_word = format!("logfile={}", text(&log));
    let outcome = run(&mut program(
        &nbdkit,
        ["-U", "-", "--filter=log", "--filter=delay", "file", text(&image), "delay-extents=30ms"]
            .into_iter()
            .chain([&*log_word, "--run", &command]),
    ));
    outcome.succeeded();
    assert!(std::fs::read(&back).unwrap() == std::fs::read(&raw).unwrap());
    let asked = std::fs::read_to_string(&log).unwrap();
    let asked = asked.lines().filter(|line| line.contains(" Extents ")).count();
    assert!(asked < 40, "{asked}");
    // -S 0 asks for none.
    std::fs::remove_file(&log).unwrap();
    let command = format!("{} convert -S 0 -f raw \"$uri\" {}", binary.display(), text(&back));
    run(&mut program(
        &nbdkit,
        ["-U", "-", "--filter=log", "file", text(&raw), &log_word, "--run", &command],
    ))
    .succeeded();
    assert!(!std::fs::read_to_string(&log).unwrap().contains(" Extents "));
}

/// The examples of the page work as they are printed.
#[test]
fn the_page_on_these_verbs_is_true() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/qemu-img.md");
    let page = std::fs::read_to_string(page).unwrap();
    let block = page.split("```sh\n").nth(1).unwrap().split("```").next().unwrap();
    let temp = TempDir::new();
    let binary = blackbox::peers::diskferry().canonicalize().unwrap();
    let path = format!("{}:{}", binary.parent().unwrap().display(), std::env::var("PATH").unwrap());
    let mut shell = std::process::Command::new("sh");
    shell.args(["-exc", block]).current_dir(temp.path()).env("PATH", path);
    run(&mut shell).succeeded();
}
