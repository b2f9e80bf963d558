//! `zero` and `trim`: the range that was named and nothing else, on every kind of disk; and what
//! they say when they do not.

use std::fs;
use std::path::{Path, PathBuf};

use blackbox::fake::{Script, Step};
use blackbox::launch::{Serve, Server, allocated};
use blackbox::nbd::{cflag, cmd, err};
use blackbox::peers::{peer, succeeds};
use blackbox::run::{Job, ferry, ours, run};
use blackbox::session::Mode;
use blackbox::temp::{TempDir, pattern};
use blackbox::{MIB, index, wait_for};
use rustix::process::Signal;

/// Panics unless `bytes` are the pattern with zeroes in the middle.
#[track_caller]
fn assert_zeroed(bytes: &[u8], start: u64, end: u64) {
    let (start, end) = (index(start), index(end));
    let whole = pattern(0, bytes.len());
    assert!(bytes[..start] == whole[..start], "changed before it");
    assert!(bytes[start..end].iter().all(|b| *b == 0), "not zeroed");
    assert!(bytes[end..] == whole[end..], "changed after it");
}

fn disk(temp: &TempDir, mib: u64) -> PathBuf {
    temp.file("disk", &pattern(0, index(mib * MIB)))
}

/// nbdkit with these words before a disk of 8 MiB of the pattern, if it has the filters.
fn nbdkit(disk: &Path, words: &[&str]) -> Option<Server> {
    let path = peer("nbdkit")?;
    let filters: Vec<&str> = words.iter().filter(|w| w.starts_with("--")).copied().collect();
    for filter in &filters {
        if !succeeds(&path, &[*filter, "null", "--dump-plugin"]) {
            blackbox::peers::skip(&format!("needs nbdkit with {filter}"));
            return None;
        }
    }
    let file = format!("file={}", disk.display());
    let mut all = filters.clone();
    all.extend(["file", file.as_str()]);
    all.extend(words.iter().filter(|w| !filters.contains(w)));
    Some(Server::nbdkit(&path, &all))
}

#[test]
fn zero_changes_the_range_it_was_given_and_nothing_else() {
    for (offset, length, start, end) in [
        ("1M", "2M", MIB, 3 * MIB),
        ("0", "512", 0, 512),
        ("4097", "5", 4097, 4102),
        ("8388607", "1", 8 * MIB - 1, 8 * MIB),
        ("8M", "0", 8 * MIB, 8 * MIB),
    ] {
        let temp = TempDir::new();
        let path = disk(&temp, 8);
        let outcome = run(ours(["zero", "--offset", offset, "--length", length]).arg(&path));
        assert!(outcome.succeeded().is_empty() && outcome.stderr.is_empty(), "{outcome:?}");
        assert_zeroed(&fs::read(&path).unwrap(), start, end);
        // The same over NBD.
        let path = disk(&temp, 8);
        let server = Serve::file(&path).start();
        ferry(["zero", "--offset", offset, "--length", length, &server.uri("")]).succeeded();
        assert_zeroed(&fs::read(&path).unwrap(), start, end);
    }
}

#[test]
fn without_a_range_it_is_all_of_the_disk_and_from_an_offset_the_rest() {
    let temp = TempDir::new();
    let path = disk(&temp, 8);
    run(ours(["zero", "--offset=5M"]).arg(&path)).succeeded();
    assert_zeroed(&fs::read(&path).unwrap(), 5 * MIB, 8 * MIB);
    run(ours(["zero"]).arg(&path)).succeeded();
    assert!(fs::read(&path).unwrap() == vec![0; index(8 * MIB)]);
}

#[test]
fn what_is_zeroed_becomes_a_hole_unless_it_shall_not() {
    let temp = TempDir::new();
    let path = disk(&temp, 8);
    run(ours(["zero", "--no-hole"]).arg(&path)).succeeded();
    assert!(allocated(&path) >= 8 * MIB);
    run(ours(["zero"]).arg(&path)).succeeded();
    assert!(allocated(&path) < MIB, "{} bytes are allocated", allocated(&path));
    assert!(fs::read(&path).unwrap() == vec![0; index(8 * MIB)]);
}

#[test]
fn a_file_of_any_format_is_bytes() {
    let temp = TempDir::new();
    let mut image = pattern(0, index(MIB));
    image[..8].copy_from_slice(b"QFI\xfb\0\0\0\x03");
    let path = temp.file("image.qcow2", &image);
    run(ours(["zero", "--length", "4"]).arg(&path)).succeeded();
    let bytes = fs::read(&path).unwrap();
    assert!(bytes[..4] == [0; 4] && bytes[4..] == image[4..]);
}

#[test]
fn a_disk_that_cannot_zero_is_written_to() {
    let temp = TempDir::new();
    let path = disk(&temp, 8);
    let Some(server) = nbdkit(&path, &["--filter=nozero"]) else { return };
    ferry(["zero", "--offset=1M", "--length=5M", &server.uri("")]).succeeded();
    assert_zeroed(&fs::read(&path).unwrap(), MIB, 6 * MIB);
}

#[test]
fn a_fast_zero_is_done_where_it_is_fast() {
    let server = Serve::memory("8M").start();
    let uri = server.uri("");
    ferry(["copy", "pattern:8M", &uri]).succeeded();
    ferry(["zero", "--fast", "--offset=1M", "--length=1M", &uri]).succeeded();
    let bytes = server.session(Mode::Simple, "").read(0, 3 * MIB).unwrap();
    assert!(bytes[index(MIB)..index(2 * MIB)].iter().all(|b| *b == 0));
    // Each 8 bytes are their own offset.
    assert!(bytes[index(MIB) - 1] == 0xf8 && bytes[index(2 * MIB) + 15] == 8, "changed around it");
}

#[test]
fn a_long_range_is_several_requests_and_a_refusal_in_between_reports_what_was_changed() {
    // 12 GiB in compact requests are four.
    let (size, longest) = (12_u64 << 30, (4 << 30) - 65536);
    for (fast, refused) in [(true, 2 * longest), (true, 0), (true, size), (false, size)] {
        let script = Script::empty(size).mode(Mode::Structured);
        let server = script
            .on_request(move |peer, request, _| {
                if request.command != cmd::WRITE_ZEROES || request.offset != refused {
                    return Step::Honest;
                }
                peer.answer(request, err::ENOTSUP);
                Step::Done
            })
            .start();
        let uri = server.uri("");
        let outcome = ferry(["zero", &uri].into_iter().chain(fast.then_some("--fast")));
        let requests = server.record().requests;
        let zeroes: Vec<_> = requests.iter().filter(|r| r.command == cmd::WRITE_ZEROES).collect();
        assert!(zeroes.iter().all(|r| (r.flags & cflag::FAST_ZERO != 0) == fast), "{zeroes:?}");
        match refused {
            0 => {
                assert!(outcome.failed().contains("nothing was changed"), "{outcome:?}");
                assert_eq!((outcome.status.code(), zeroes.len()), (Some(3), 1));
            }
            n if n < size => {
                let line = outcome.failed();
                assert_eq!(outcome.status.code(), Some(1), "{line}");
                assert!(line.contains(&format!("of {size} bytes were zeroed")), "{line}");
                assert!(line.contains(&format!("is at {n}")), "{line}");
            }
            _ => {
                outcome.succeeded();
                let mut ranges: Vec<_> = zeroes.iter().map(|r| (r.offset, r.length)).collect();
                ranges.sort_unstable();
                let last = (3 * longest, size - 3 * longest);
                let all = [(0, longest), (longest, longest), (2 * longest, longest), last];
                assert_eq!(ranges, all);
                // And then they are made durable.
                assert!(requests.iter().any(|r| r.command == cmd::FLUSH));
            }
        }
    }
}

#[test]
fn trim_gives_room_back_and_says_when_it_cannot() {
    let temp = TempDir::new();
    let path = disk(&temp, 8);
    run(ours(["trim", "--offset=1M", "--length=6M"]).arg(&path)).succeeded();
    assert!(allocated(&path) < 4 * MIB);
    let bytes = fs::read(&path).unwrap();
    assert!(bytes[..index(MIB)] == pattern(0, index(MIB))[..]);
    assert!(bytes[index(7 * MIB)..] == pattern(0, index(8 * MIB))[index(7 * MIB)..]);
    let path = disk(&temp, 8);
    let Some(server) = nbdkit(&path, &["--filter=nozero"]) else { return };
    ferry(["trim", &server.uri("")]).succeeded();
    let outcome = ferry(["trim", "pattern:1M"]);
    assert!(outcome.failed().contains("pattern"));
}

#[test]
fn a_server_that_does_not_answer_the_flush_does_not_keep_a_stop_waiting() {
    let script = || {
        Script::new(MIB).on_request(|_, request, _| {
            if request.command == cmd::FLUSH { Step::Done } else { Step::Honest }
        })
    };
    // What a cache still holds is written, and flushed, when all is copied.
    let cached = ["copy", "--target-filter=cache?cache=unsafe", "pattern:1M"];
    for words in [&["zero"][..], &["trim"], &["copy", "pattern:1M"], &cached] {
        let fake = script().start();
        let job = Job::start(ours(words).arg(fake.uri("")));
        fake.wait_until("the flush", |record| record.asked(cmd::FLUSH));
        let outcome = if words == cached {
            job.signal_until_it_ends(Signal::INT)
        } else {
            job.signal(Signal::INT);
            job.wait()
        };
        assert_eq!(outcome.status.code(), Some(130), "{words:?}: {outcome:?}");
        let told = outcome.stderr.contains("may not be durable");
        assert_eq!(told, words.len() == 1, "{words:?}: {outcome:?}");
    }
}

#[test]
fn a_long_zero_says_how_far_it_is_when_asked_and_when_it_is_stopped() {
    let temp = TempDir::new();
    let big = temp.sparse_file("big", 1 << 30);
    // Slow to write, and it cannot zero.
    let words = ["--filter=nozero", "--filter=delay", "delay-write=50ms"];
    let Some(server) = nbdkit(&big, &words) else { return };
    let uri = server.uri("");
    let job = Job::start(&mut ours(["zero", &uri]));
    wait_for("something is zeroed", || allocated(&big) > 0);
    job.signal(Signal::USR1);
    wait_for("the report", || job.said().ends_with('\n'));
    job.signal(Signal::INT);
    let outcome = job.wait();
    assert_eq!(outcome.status.code(), Some(130), "{outcome:?}");
    let lines: Vec<&str> = outcome.stderr.lines().collect();
    let [report, verdict] = lines.as_slice() else { panic!("{outcome:?}") };
    assert!(report.contains("of 1 GiB"), "{report}");
    assert!(verdict.contains("of 1073741824 bytes were zeroed"), "{verdict}");
}

#[test]
fn zero_and_trim_show_progress_and_end_with_a_summary() {
    let temp = TempDir::new();
    let path = disk(&temp, 4);
    for (verb, done) in [("zero", "zeroed 4 MiB"), ("trim", "trimmed 4 MiB")] {
        let outcome = ferry([verb, "--progress", path.to_str().unwrap()]);
        outcome.succeeded();
        assert!(outcome.stderr.contains(done), "{outcome:?}");
        let outcome = ferry([verb, path.to_str().unwrap()]);
        assert_eq!((outcome.succeeded(), outcome.stderr.as_str()), ("", ""));
    }
}
