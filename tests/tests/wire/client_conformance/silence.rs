//! Servers that fall silent, and servers that never stop talking.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::sleep;
use std::time::Duration;

use blackbox::MIB;
use blackbox::conformance::replies::CONTEXT;
use blackbox::fake::{ALL_FLAGS, Fake, Script, Step, greeting};
use blackbox::nbd::{FIXED_NEWSTYLE, Message, alloc, chunk, cmd, err, opt, tflag};
use blackbox::run::{Outcome, measured, ours, run};
use blackbox::session::Mode;
use blackbox::temp::{TempDir, pattern};

use super::{CHUNKED, MODES};

/// The fake's export, with a limit to its silence.
fn impatient(fake: &Fake, timeout: &str) -> String {
    format!("nbd:?socket={}&timeout={timeout}", fake.socket().display())
}

fn copy_out(source: &str, options: &[&str]) -> (Outcome, Option<Vec<u8>>) {
    let temp = TempDir::new();
    let target = temp.join("copy");
    let outcome = measured(ours(["copy"]).args(options).arg(source).arg(&target));
    (outcome, std::fs::read(&target).ok())
}

#[test]
fn a_server_that_falls_silent_in_the_handshake_is_given_up_after_the_timeout() {
    let silent = |peer: &mut blackbox::fake::Peer| {
        let _ = peer.more_comes();
        sleep(Duration::from_secs(1));
        Step::Close
    };
    let dumb = Script::new(MIB).on_connect(silent).start();
    let half = Script::new(MIB).on_connect(move |peer| {
        peer.send(&greeting(FIXED_NEWSTYLE)[..9]);
        silent(peer)
    });
    let deaf =
        Script::new(MIB).on_option(
            move |peer, option, _| {
                if option == opt::GO { silent(peer) } else { Step::Honest }
            },
        );
    for fake in [dumb, half.start(), deaf.start()] {
        let (outcome, _) = copy_out(&impatient(&fake, "200ms"), &[]);
        let line = outcome.failed();
        assert!(line.contains("no answer within 0.2 seconds"), "{line}");
    }
}

/// A fake that never answers one command.
fn never_answers(mode: Mode, command: u16, flags: u16) -> Fake {
    Script { flags, ..Script::new(MIB) }.mode(mode).at(command, |_, _| Step::Done).start()
}

#[test]
fn a_server_that_owes_an_answer_and_is_silent_is_given_up_after_the_timeout() {
    let temp = TempDir::new();
    let source = temp.file("source", &pattern(0, 1 << 20));
    for mode in MODES {
        let fake = never_answers(mode, cmd::READ, ALL_FLAGS);
        let (outcome, _) = copy_out(&impatient(&fake, "0.2"), &[]);
        let line = outcome.failed();
        assert!(line.contains("it was silent for 0.2 seconds"), "{line}");
        let plain = tflag::HAS_FLAGS | tflag::SEND_FLUSH;
        for (command, flags) in [(cmd::WRITE, plain), (cmd::FLUSH, plain)] {
            let fake = never_answers(mode, command, flags);
            let mut copy = ours(["copy", "--flush"]);
            let outcome = run(copy.arg(&source).arg(impatient(&fake, "200ms")));
            assert!(outcome.failed().contains("it was silent for"), "{command}: {outcome:#?}");
        }
    }
    let fake = never_answers(Mode::Structured, cmd::BLOCK_STATUS, ALL_FLAGS);
    let outcome = run(&mut ours(["map", &impatient(&fake, "200ms")]));
    assert!(outcome.failed().contains("it was silent for"), "{outcome:#?}");
}

#[test]
fn a_slow_server_is_not_a_silent_one() {
    // Each answer takes longer than the timeout, but no pause does.
    for mode in MODES {
        let slow = Script::new(64 << 10).mode(mode).at(cmd::READ, move |peer, request| {
            let (offset, quarter) = (request.offset, request.length / 4);
            if mode == Mode::Simple {
                peer.send(&blackbox::fake::simple(0, request.cookie));
            }
            for part in 0..4 {
                sleep(Duration::from_millis(400));
                let at = offset + part * quarter;
                let size = if part == 3 { request.length - 3 * quarter } else { quarter };
                let bytes = peer.bytes(at, size);
                if mode == Mode::Simple {
                    peer.send(&bytes);
                } else {
                    let payload = Message::new().u64(at).bytes(&bytes).0;
                    peer.chunk(request, 0, chunk::OFFSET_DATA, &payload);
                }
            }
            if mode != Mode::Simple {
                peer.chunk(request, chunk::DONE, chunk::NONE, &[]);
            }
            Step::Done
        });
        let fake = slow.start();
        let (outcome, content) = copy_out(&impatient(&fake, "1"), &["--request-size=64K"]);
        outcome.succeeded();
        assert!(content == Some(fake.disk()), "the copy differs");
        fake.finish();
    }
}

#[test]
fn retry_leaves_a_silent_connection_for_a_new_one() {
    let connections = Arc::new(AtomicUsize::new(0));
    let count = connections.clone();
    let counting = Script::new(MIB).on_connect(move |_| {
        count.fetch_add(1, Ordering::SeqCst);
        Step::Honest
    });
    let fake = counting
        .at(cmd::READ, move |_, _| {
            if connections.load(Ordering::SeqCst) == 1 { Step::Done } else { Step::Honest }
        })
        .start();
    let retry = "--source-filter=retry?retries=3&retry-delay=0";
    let (outcome, content) = copy_out(&impatient(&fake, "200ms"), &[retry]);
    outcome.succeeded();
    assert!(content == Some(fake.disk()), "the copy differs");
}

#[test]
fn answers_that_never_end_are_refused_while_they_come() {
    let error = Message::new().u32(err::EIO).u16(0).0;
    for mode in CHUNKED {
        for (verb, command, kind) in [
            ("copy", cmd::READ, chunk::ERROR),
            ("copy", cmd::READ, 0x8007),
            ("map", cmd::BLOCK_STATUS, chunk::ERROR),
            ("map", cmd::BLOCK_STATUS, 0xffff),
            ("map", cmd::BLOCK_STATUS, chunk::BLOCK_STATUS),
        ] {
            let error = error.clone();
            let script = Script::new(MIB).mode(mode).at(command, move |peer, request| {
                let (kind, payload) = match kind {
                    chunk::BLOCK_STATUS => {
                        let extents = [(request.length, alloc::HOLE)];
                        (peer.status_kind(), peer.status_payload(CONTEXT, &extents))
                    }
                    kind => (kind, error.clone()),
                };
                let one = blackbox::fake::chunk_bytes(mode, request, 0, kind, &payload);
                let many = one.repeat(1024);
                while std::io::Write::write_all(&mut peer.stream, &many).is_ok() {}
                Step::Close
            });
            let fake = script.start();
            let outcome = match verb {
                "map" => measured(&ours(["map", &fake.uri("")])),
                _ => copy_out(&fake.uri(""), &[]).0,
            };
            let line = outcome.fits_in(super::MEMORY).failed();
            let said = ["does not end", "two block status chunks for one context"];
            assert!(said.iter().any(|words| line.contains(words)), "{verb} {kind:#x}: {line}");
        }
    }
}
