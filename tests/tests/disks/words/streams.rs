//! `-` as the source: a stream, whose length is known at its end.

use std::fs::{self, File};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Stdio;

use blackbox::peers::peer;
use blackbox::run::{Job, ours, program, run};
use blackbox::temp::{TempDir, pattern};
use blackbox::{GUARD, eventually};
use rustix::process::Signal;

use super::{script, text};

/// Through `cat`, so that it is a pipe.
const FROM_PIPE: &str = "in=$1; shift; cat \"$in\" | \"$ferry\" \"$@\"";

/// Data, a MiB of zeroes, data that ends within a sector.
fn bytes() -> Vec<u8> {
    let mut bytes = pattern(0, 300_000);
    bytes.resize(300_000 + (1 << 20), 0);
    bytes.extend(pattern(7, 700_001));
    bytes
}

#[test]
fn a_stream_of_any_length_becomes_a_file_of_that_length() {
    let temp = TempDir::new();
    let all = bytes();
    let out = temp.join("out");
    for len in [0, 1, 511, 512, 4096, 4097, 65_536, 262_144, 262_145, all.len()] {
        let source = temp.file("in", &all[..len]);
        for before in [None, Some(0), Some(5 << 20)] {
            let _ = fs::remove_file(&out);
            if let Some(before) = before {
                temp.file("out", &pattern(3, before));
            }
            script(FROM_PIPE, [text(&source), "copy", "-", text(&out)]).succeeded();
            assert!(fs::read(&out).unwrap() == all[..len], "{len} over {before:?}");
        }
    }
}

#[test]
fn zeroes_of_a_stream_become_holes_unless_they_are_to_be_allocated() {
    let temp = TempDir::new();
    let mut all = vec![0; 8 << 20];
    all[5 << 20..(5 << 20) + 4096].fill(7);
    let (source, out) = (temp.file("in", &all), temp.join("out"));
    let taken = |words: &[&str]| {
        let _ = fs::remove_file(&out);
        script(FROM_PIPE, [&[text(&source), "copy", "-"], words, &[text(&out)]].concat())
            .succeeded();
        assert!(fs::read(&out).unwrap() == all, "{words:?}");
        fs::metadata(&out).unwrap().blocks() * 512
    };
    assert!(taken(&[]) < 1 << 20);
    assert!(taken(&["--allocated"]) >= 8 << 20);
    assert!(taken(&["--wipe"]) >= 8 << 20);
    assert!(taken(&["-S", "0"]) >= 8 << 20);
}

#[test]
fn a_stream_goes_to_every_server_and_what_lies_behind_it_stays() {
    let temp = TempDir::new();
    let all = bytes();
    let source = temp.file("in", &all);
    let disk = temp.join("disk");
    let line = "in=$1; disk=$2; case $3 in \
        ours) run() { \"$ferry\" serve file \"$disk\" --run \"$1\"; } ;; \
        nbdkit) run() { nbdkit -U - file \"$disk\" --run \"$1\"; } ;; esac; \
        export in; run 'cat \"$in\" | \"$ferry\" copy - \"$uri\"'";
    let mut servers = vec!["ours"];
    servers.extend(peer("nbdkit").map(|_| "nbdkit"));
    for server in servers {
        temp.file("disk", &pattern(9, 4 << 20));
        script(line, [text(&source), text(&disk), server]).succeeded();
        let after = fs::read(&disk).unwrap();
        assert!(after[..all.len()] == all[..], "{server}");
        assert!(after[all.len()..] == pattern(9, 4 << 20)[all.len()..], "{server}");
    }
}

#[test]
fn a_stream_that_is_longer_than_a_server_fails_and_says_how_long_that_is() {
    let temp = TempDir::new();
    let source = temp.file("in", &pattern(0, (1 << 20) + 1));
    let line = "in=$1; export in; \"$ferry\" serve memory 1M --run 'cat \"$in\" | \"$ferry\" copy - \"$uri\"'";
    let outcome = script(line, [text(&source)]);
    assert_eq!(outcome.status.code(), Some(1), "{outcome:#?}");
    assert!(outcome.stderr.contains("target is too small: it has 1048576 bytes"), "{outcome:#?}");
    let fits = temp.file("fits", &pattern(0, 1 << 20));
    script(line, [text(&fits)]).succeeded();
}

#[test]
fn a_file_as_standard_input_is_a_disk_with_a_map_and_one_that_is_half_read_a_stream() {
    let temp = TempDir::new();
    let path = temp.sparse_file("in", 1 << 40);
    let mut source = File::options().read(true).write(true).open(&path).unwrap();
    source.write_all(b"first line\n").unwrap();
    source.rewind().unwrap();
    let out = temp.join("out");
    // All of it could not be read in the time that a test has.
    run_with(&["copy", "-", text(&out)], source);
    assert_eq!(fs::metadata(&out).unwrap().len(), 1 << 40);
    let all = bytes();
    let mut source = File::open(temp.file("small", &all)).unwrap();
    source.read_exact(&mut [0; 1000]).unwrap();
    run_with(&["copy", "-", text(&out)], source);
    assert!(fs::read(&out).unwrap() == all[1000..], "the rest of it");
}

fn run_with(words: &[&str], stdin: File) {
    Job::start(ours(words).stdin(Stdio::from(stdin))).wait().succeeded();
}

#[test]
fn a_file_is_not_copied_onto_itself_by_way_of_standard_input() {
    let temp = TempDir::new();
    let all = bytes();
    let path = temp.file("disk", &all);
    let outcome =
        Job::start(ours(["copy", "-", text(&path)]).stdin(File::open(&path).unwrap())).wait();
    assert!(outcome.failed().contains("is the source itself"), "{outcome:#?}");
    assert!(fs::read(&path).unwrap() == all);
}

#[test]
fn from_a_pipe_into_a_pipe_every_byte_goes_once() {
    let temp = TempDir::new();
    let all = bytes();
    let (source, out) = (temp.file("in", &all), temp.join("out"));
    let line = "cat \"$1\" | \"$ferry\" copy - - | cat > \"$2\"; exit ${PIPESTATUS[1]}";
    let outcome = script(line, [text(&source), text(&out)]);
    outcome.succeeded();
    assert!(outcome.stderr.is_empty(), "{outcome:#?}");
    assert!(fs::read(&out).unwrap() == all);
    let line = "cat \"$1\" | \"$ferry\" copy - - | head -c 100 >/dev/null; exit ${PIPESTATUS[1]}";
    let outcome = script(line, [text(&source)]);
    assert_eq!(outcome.status.code(), Some(1), "{outcome:#?}");
}

#[test]
fn a_pipe_that_has_a_name_and_one_of_the_shell_are_streams_too() {
    let temp = TempDir::new();
    let all = bytes();
    let (source, out, fifo) = (temp.file("in", &all), temp.join("out"), temp.join("fifo"));
    let line = "mkfifo \"$3\"; cat \"$1\" > \"$3\" & \"$ferry\" copy \"$3\" \"$2\"";
    script(line, [text(&source), text(&out), text(&fifo)]).succeeded();
    assert!(fs::read(&out).unwrap() == all);
    fs::remove_file(&out).unwrap();
    script("\"$ferry\" copy <(cat \"$1\") \"$2\"", [text(&source), text(&out)]).succeeded();
    assert!(fs::read(&out).unwrap() == all);
}

#[test]
fn what_needs_more_than_a_stream_goes_through_a_temporary_file() {
    let Some(qemu_img) = peer("qemu-img") else { return };
    let temp = TempDir::new();
    let all = bytes();
    let (source, image, out) = (temp.file("in", &all), temp.join("image"), temp.join("out"));
    let outcome = script(FROM_PIPE, [text(&source), "copy", "-O", "qcow2", "-", text(&image)]);
    outcome.succeeded();
    assert!(outcome.stderr.contains("unnamed temporary file"), "{outcome:#?}");
    let words = ["compare", "-f", "raw", "-F", "qcow2", text(&source), text(&image)];
    run(&mut program(&qemu_img, words)).succeeded();
    for words in [&["copy", "-f", "qcow2", "-"][..], &["convert", "-"]] {
        let _ = fs::remove_file(&out);
        script(FROM_PIPE, [&[text(&image)], words, &[text(&out)]].concat()).succeeded();
        assert!(fs::read(&out).unwrap()[..all.len()] == all, "{words:?}");
    }
    let words = ["copy", "--source-filter=offset?offset=1000", "-", text(&out)];
    script(FROM_PIPE, [&[text(&source)], &words[..]].concat()).succeeded();
    assert!(fs::read(&out).unwrap() == all[1000..]);
}

#[test]
fn nothing_is_changed_before_the_first_byte_and_what_was_made_is_removed_after_a_signal() {
    let temp = TempDir::new();
    let (old, new) = (temp.file("old", b"precious"), temp.join("new"));
    for target in [&old, &new] {
        let (stdin, mut feeder) = std::io::pipe().unwrap();
        let job = Job::start(ours(["copy", "-", text(target)]).stdin(stdin));
        if target == &new {
            // It is made when there is something to write, and has no name before it is complete.
            feeder.write_all(&pattern(0, 1 << 20)).unwrap();
            let process = job.pid().as_raw_nonzero().get();
            eventually("the target is made", || has_nameless(process, temp.path()).then_some(()));
            assert!(!new.exists());
        } else {
            eventually("it waits", || waits(job.pid().as_raw_nonzero().get()).then_some(()));
        }
        // A test-suite in the background of a shell may have interrupts ignored, and hand that on.
        job.signal(Signal::TERM);
        let outcome = job.wait_within(GUARD);
        assert!(!outcome.status.success(), "{outcome:#?}");
        drop(feeder);
    }
    assert_eq!(fs::read(&old).unwrap(), b"precious");
    assert!(!new.exists());
}

/// Whether the process holds a file without a name in a directory.
fn has_nameless(process: i32, directory: &Path) -> bool {
    let open = fs::read_dir(format!("/proc/{process}/fd")).into_iter().flatten().flatten();
    open.filter_map(|file| fs::read_link(file.path()).ok()).any(|leads_to| {
        leads_to.starts_with(directory) && leads_to.to_string_lossy().ends_with(" (deleted)")
    })
}

/// Whether the process sleeps, as it does when nothing comes.
fn waits(process: i32) -> bool {
    let text = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    text.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('S'))
}

#[test]
fn the_progress_of_a_stream_is_shown_without_a_length() {
    let temp = TempDir::new();
    let (source, out) = (temp.file("in", &bytes()), temp.join("out"));
    let words = [text(&source), "copy", "--progress=json", "-", text(&out)];
    let outcome = script(FROM_PIPE, words);
    outcome.succeeded();
    let last: serde_json::Value =
        serde_json::from_str(outcome.stderr.lines().last().unwrap()).unwrap();
    assert_eq!(last["type"], "summary");
    assert_eq!(last["data"]["total"], bytes().len());
    assert_eq!(last["data"]["done"], bytes().len());
}
