//! A pipe as the target: every image that can be made goes into one, and what comes out of it is
//! what a file would hold.

use std::process::Command;

use blackbox::peers::{diskferry, peer};
use blackbox::run::{Outcome, run, text};
use blackbox::temp::{TempDir, pattern};

use super::theirs;

/// Our binary, whose standard output goes through `cat` into a file; the status is its own.
fn through_cat(words: &[&str], out: &str) -> Outcome {
    let line = "out=$1; shift; \"$@\" | cat > \"$out\"; exit ${PIPESTATUS[0]}";
    let binary = diskferry();
    let mut command = Command::new("bash");
    command.args(["-c", line, "-", out]).arg(binary).args(words);
    run(&mut command)
}

/// A disk of 9 MiB and some bytes with data, holes, and zeroes that are written.
fn disk(temp: &TempDir) -> String {
    use std::os::unix::fs::FileExt;
    let path = temp.sparse_file("disk.raw", (9 << 20) + 1536);
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.write_all_at(&pattern(0, 1 << 20), 0).unwrap();
    file.write_all_at(&pattern(3, 100_000), (3 << 20) + 512).unwrap();
    file.write_all_at(&vec![0; 1 << 20], 5 << 20).unwrap();
    file.write_all_at(&pattern(9, 1536), 9 << 20).unwrap();
    text(&path).to_owned()
}

#[test]
fn an_image_that_went_through_a_pipe_is_sound_and_the_same_disk() {
    let Some(qemu_img) = peer("qemu-img") else { return };
    let temp = TempDir::new();
    let raw = disk(&temp);
    let full = text(&temp.file("full.raw", &pattern(7, 5 << 20))).to_owned();
    let empty = text(&temp.sparse_file("empty.raw", 1 << 40)).to_owned();
    let out = temp.join("out");
    for (format, words, source, is_by_file) in [
        ("qcow2", &[][..], &raw, false),
        ("qcow2", &[], &full, false),
        ("qcow2", &[], &empty, false),
        ("qcow2", &["-S", "0"], &raw, false),
        ("qcow2", &["-o", "compat=0.10,cluster_size=512"], &raw, false),
        ("qcow2", &["-o", "extended_l2=on"], &raw, false),
        ("qcow2", &["-o", "refcount_bits=1,cluster_size=2M"], &raw, false),
        ("qcow2", &["-o", "preallocation=metadata"], &raw, false),
        ("qcow2", &["-c"], &raw, true),
        ("qcow2", &["-c", "-o", "compression_type=zstd"], &full, true),
        ("raw", &[], &raw, false),
        ("raw", &["-S", "0"], &raw, false),
        ("vmdk", &["-o", "subformat=streamOptimized"], &raw, false),
        ("vmdk", &[], &raw, true),
        ("vdi", &[], &raw, true),
        ("vpc", &["-o", "force_size=on"], &raw, true),
        ("vhdx", &[], &raw, true),
    ] {
        let all =
            [&["convert", "-f", "raw", "-O", format], words, &[source.as_str(), "-"]].concat();
        let outcome = through_cat(&all, text(&out));
        outcome.succeeded();
        assert_eq!(outcome.stderr.contains("unnamed temporary file"), is_by_file, "{outcome:#?}");
        assert_eq!(outcome.stderr.is_empty(), !is_by_file, "{outcome:#?}");
        let compare = ["compare", "-f", "raw", "-F", format, source, text(&out)];
        theirs(&qemu_img, &compare).succeeded();
        if ["qcow2", "vdi", "vhdx"].contains(&format) {
            theirs(&qemu_img, &["check", "-f", format, text(&out)]).succeeded();
        }
        if format == "qcow2" && words.is_empty() && *source == raw {
            // 1 MiB, two clusters and a bit, 1 MiB of zeroes that are written, the end: and not the
            // holes.
            let len = std::fs::metadata(&out).unwrap().len();
            assert!(len < 3 << 20, "{len}");
        }
    }
}

#[test]
fn a_disk_that_ends_within_a_sector_goes_through_a_pipe() {
    let Some(qemu_img) = peer("qemu-img") else { return };
    let temp = TempDir::new();
    let out = temp.join("out");
    for len in [4, 513, 65_537, (1 << 20) + 7] {
        let raw = temp.file("odd.raw", &pattern(5, len));
        for (format, words) in
            [("qcow2", &[][..]), ("raw", &[]), ("vmdk", &["-o", "subformat=streamOptimized"])]
        {
            let all = [&["convert", "-f", "raw", "-O", format], words, &[text(&raw), "-"]].concat();
            through_cat(&all, text(&out)).succeeded();
            theirs(&qemu_img, &["compare", "-f", "raw", "-F", format, text(&raw), text(&out)])
                .succeeded();
        }
    }
}

#[test]
fn a_source_without_a_map_is_read_twice_and_its_zeroes_take_no_room() {
    let Some(qemu_img) = peer("qemu-img") else { return };
    let temp = TempDir::new();
    let (raw, out) = (disk(&temp), temp.join("out"));
    let words = ["copy", "--source-filter=noextents", "-O", "qcow2", &raw, "-"];
    through_cat(&words, text(&out)).succeeded();
    theirs(&qemu_img, &["compare", "-f", "raw", "-F", "qcow2", &raw, text(&out)]).succeeded();
    theirs(&qemu_img, &["check", "-f", "qcow2", text(&out)]).succeeded();
    let len = std::fs::metadata(&out).unwrap().len();
    assert!(len < 2 << 20, "{len}");
}

#[test]
fn a_pipe_that_has_a_name_is_one_too() {
    let Some(qemu_img) = peer("qemu-img") else { return };
    let temp = TempDir::new();
    let (raw, out, fifo) = (disk(&temp), temp.join("out"), temp.join("fifo"));
    run(Command::new("mkfifo").arg(&fifo)).succeeded();
    for (verb, format) in [("copy", "qcow2"), ("convert", "qcow2"), ("convert", "vdi")] {
        let line = "cat \"$2\" > \"$1\" & shift 2; \"$@\"; code=$?; wait; exit $code";
        let mut command = Command::new("bash");
        command.args(["-c", line, "-", text(&out), text(&fifo)]).arg(diskferry());
        run(command.args([verb, "-f", "raw", "-O", format, &raw, text(&fifo)])).succeeded();
        let compare = ["compare", "-f", "raw", "-F", format, &raw, text(&out)];
        theirs(&qemu_img, &compare).succeeded();
    }
    through_cat(&["convert", "-f", "raw", "-O", "qcow2", &raw, "/dev/stdout"], text(&out))
        .succeeded();
    theirs(&qemu_img, &["compare", "-f", "raw", "-F", "qcow2", &raw, text(&out)]).succeeded();
}

#[test]
fn standard_output_that_is_a_file_is_written_from_where_it_is() {
    let temp = TempDir::new();
    let (raw, out) = (disk(&temp), temp.join("out"));
    let lines = [
        "out=$1; shift; { printf head; \"$@\"; } > \"$out\"",
        "out=$1; shift; printf head > \"$out\"; \"$@\" >> \"$out\"",
    ];
    let formats = ["raw", "vdi"];
    let all = lines.iter().flat_map(|line| formats.map(|format| (line, format)));
    for ((line, format), name) in all.flat_map(|how| ["-", "/dev/stdout"].map(|name| (how, name))) {
        let mut command = Command::new("bash");
        command.args(["-c", line, "-", text(&out)]).arg(diskferry());
        run(command.args(["convert", "-f", "raw", "-O", format, &raw, name])).succeeded();
        let bytes = std::fs::read(&out).unwrap();
        assert!(bytes.starts_with(b"head"));
        if format == "raw" {
            assert!(bytes[4..] == std::fs::read(&raw).unwrap());
        }
    }
}

#[test]
fn a_reader_that_goes_away_is_one_clear_line_and_no_success() {
    let temp = TempDir::new();
    let full = text(&temp.file("full.raw", &pattern(7, 5 << 20))).to_owned();
    for (format, words) in [("qcow2", &[][..]), ("raw", &[]), ("qcow2", &["-c"]), ("vmdk", &[])] {
        let line = "\"$@\" | head -c 100 > /dev/null; exit ${PIPESTATUS[0]}";
        let mut command = Command::new("bash");
        command.args(["-c", line, "-"]).arg(diskferry());
        command.args(["convert", "-f", "raw", "-O", format]).args(words);
        let outcome = run(command.args([&full, "-"]));
        assert_eq!(outcome.status.code(), Some(1), "{outcome:#?}");
        let last = outcome.stderr.lines().last().unwrap();
        assert!(last.contains("the reader has closed it"), "{outcome:#?}");
        assert!(!last.contains("removed"), "{outcome:#?}");
    }
}

#[test]
fn a_source_that_cannot_be_read_is_no_success_through_a_pipe_either() {
    let temp = TempDir::new();
    let (full, out) = (temp.file("full.raw", &pattern(7, 5 << 20)), temp.join("out"));
    let filter = "--source-filter=error?error-pread=EIO&error-pread-rate=100%";
    for format in ["raw", "qcow2", "vdi"] {
        let outcome = through_cat(&["copy", filter, "-O", format, text(&full), "-"], text(&out));
        assert_eq!(outcome.status.code(), Some(1), "{outcome:#?}");
        assert!(outcome.stderr.contains("full.raw"), "{outcome:#?}");
    }
}
