//! Checks 26, 38 and 39: replies that come in pieces, with an error, or never.

use std::time::Duration;

use blackbox::MIB;
use blackbox::fake::{Fake, Script, Step};
use blackbox::nbd::{Message, chunk, cmd, err, tflag};
use blackbox::rules::Seen;
use blackbox::run::{Job, ours, peak_memory_of};
use blackbox::session::Mode;
use blackbox::temp::TempDir;
use rustix::process::Signal;

use super::{CHUNKED, MODES, copy_fails, copy_is_right};

#[test]
fn client_check_26_chunks_of_several_reads_interleaved() {
    for mode in CHUNKED {
        let script = Script::new(4 * MIB).mode(mode).at(cmd::READ, |peer, request| {
            peer.held.push((request.clone(), Vec::new()));
            if peer.more_comes() {
                return Step::Done;
            }
            let requests: Vec<Seen> = peer.held.drain(..).map(|(request, _)| request).collect();
            // Each read in four parts; the parts of all of them mixed, back to front.
            for part in (0..4).rev() {
                for request in requests.iter().rev() {
                    let size = request.length / 4;
                    let start = request.offset + part * size;
                    let end =
                        if part == 3 { request.offset + request.length } else { start + size };
                    if start == end {
                        continue;
                    }
                    let data = peer.bytes(start, end - start);
                    let payload = Message::new().u64(start).bytes(&data).0;
                    peer.chunk(request, 0, chunk::OFFSET_DATA, &payload);
                }
            }
            for request in &requests {
                peer.chunk(request, chunk::DONE, chunk::NONE, &[]);
            }
            Step::Done
        });
        copy_is_right(&script.start());
    }
}

#[test]
fn client_check_26_replies_in_segments_of_one_byte() {
    for mode in MODES {
        let script = Script::new(4096).mode(mode).at(cmd::READ, |peer, request| {
            let data = peer.bytes(request.offset, request.length);
            for byte in peer.read_reply(request, &data) {
                peer.send(&[byte]);
            }
            Step::Done
        });
        copy_is_right(&script.start());
    }
}

#[test]
fn client_check_38_each_error_is_reported_with_the_offset() {
    for (error, text) in [(err::EIO, "nput/output"), (err::EPERM, "ermi"), (err::EINVAL, "nvalid")]
    {
        let script = Script::new(4 * MIB).mode(Mode::Structured);
        let script = script.at(cmd::READ, move |peer, request| {
            // Only the third mebibyte is bad.
            if request.offset + request.length <= 2 * MIB || request.offset >= 3 * MIB {
                return Step::Honest;
            }
            peer.answer(request, error);
            Step::Done
        });
        let line = copy_fails(&script.start());
        // The exact words are not specified; the cause and the place must be there.
        let cause = line.contains(text) || line.contains(&format!("E{text}"));
        let named = ["EIO", "EPERM", "EINVAL"].iter().any(|name| line.contains(name));
        assert!(cause || named || line.contains("I/O error"), "the cause: {line}");
        assert!(line.chars().any(|c| c.is_ascii_digit()), "the offset: {line}");
    }
}

/// Starts a copy, interrupts it once the fake has seen `ready`, and expects an orderly end.
fn interrupted(arguments: &[&str], fake: &Fake, ready: impl Fn(&blackbox::fake::Record) -> bool) {
    let job = Job::start(&mut ours(arguments));
    fake.wait_until("the copy's requests", ready);
    // Let it run into the wait.
    std::thread::sleep(Duration::from_millis(200));
    let peak = peak_memory_of(job.pid());
    assert!(peak <= super::MEMORY, "{peak} bytes of memory used");
    job.signal(Signal::INT);
    let outcome = job.wait();
    assert!(!outcome.status.success(), "interrupted is not done: {outcome:#?}");
    assert!(!outcome.stderr.contains("panicked"), "{outcome:#?}");
}

#[test]
fn client_check_39_a_server_that_never_replies_can_be_left() {
    for mode in MODES {
        let fake = Script::new(4 * MIB).mode(mode).at(cmd::READ, |_, _| Step::Done).start();
        let temp = TempDir::new();
        let target = temp.join("copy");
        let uri = fake.uri("");
        let arguments = ["copy", &uri, target.to_str().unwrap()];
        interrupted(&arguments, &fake, |record| record.asked(cmd::READ));
    }
}

#[test]
fn client_check_39_a_server_that_stops_reading_can_be_left() {
    for mode in MODES {
        let script = Script::new(64 * MIB).mode(mode).at(cmd::WRITE, |_, _| {
            // Long enough for the guard of the run.
            std::thread::sleep(Duration::from_secs(100));
            Step::Honest
        });
        let fake = script.start();
        let uri = fake.uri("");
        interrupted(&["copy", "pattern:64M", &uri], &fake, |record| record.asked(cmd::WRITE));
    }
}

#[test]
fn client_check_39_a_silent_greeting_can_be_left() {
    let fake = Script::new(MIB)
        .on_connect(|peer| {
            peer.blame("connected");
            std::thread::sleep(Duration::from_secs(100));
            Step::Close
        })
        .start();
    let uri = fake.uri("");
    interrupted(&["info", &uri], &fake, |record| !record.violations.is_empty());
}

#[test]
fn client_check_39_a_writer_does_not_starve_the_reader() {
    // Every WRITE is answered by far more than the socket holds: error chunks without end,
    // then success. A client that only writes and never reads meanwhile would deadlock, since
    // the fake does not read while it sends.
    let flags = tflag::HAS_FLAGS | tflag::SEND_FLUSH;
    let script = Script { flags, ..Script::new(16 * MIB) };
    let script = script.mode(Mode::Structured).at(cmd::READ, |peer, request| {
        // A read in 512-byte chunks, each with a header.
        let mut at = request.offset;
        while at < request.offset + request.length {
            let data = peer.bytes(at, 512);
            let payload = Message::new().u64(at).bytes(&data).0;
            peer.chunk(request, 0, chunk::OFFSET_DATA, &payload);
            at += 512;
        }
        peer.chunk(request, chunk::DONE, chunk::NONE, &[]);
        Step::Done
    });
    copy_is_right(&script.start());
}

#[test]
fn client_check_38_an_error_of_a_write_fails_the_copy() {
    for mode in MODES {
        for command in [cmd::WRITE, cmd::FLUSH, cmd::WRITE_ZEROES] {
            let script = Script::new(4 * MIB).mode(mode).at(command, |peer, request| {
                peer.answer(request, err::ENOSPC);
                Step::Done
            });
            let fake = script.start();
            let temp = TempDir::new();
            // Data in the first half, a hole in the second.
            let mut content = blackbox::temp::pattern(0, 2 << 20);
            content.resize(4 << 20, 0);
            let source = temp.file("source", &content);
            let uri = fake.uri("");
            let mut run = ours(["copy", "--flush", source.to_str().unwrap(), &uri]);
            let outcome = blackbox::run::run(&mut run);
            if outcome.status.success() {
                // A refused zero may be made good by writing zeroes; a refused write or flush
                // may not be made good at all.
                assert_eq!(command, cmd::WRITE_ZEROES, "{outcome:#?}");
                assert!(fake.disk() == content);
            } else {
                outcome.failed();
            }
            fake.finish();
        }
    }
}
