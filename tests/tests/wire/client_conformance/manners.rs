//! Check 40: what our client never sends. The fake server's rules blame every request that was
//! not offered, is out of range, misaligned or too long; these tests give it occasion.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use blackbox::fake::{ALL_FLAGS, Fake, Script, Step};
use blackbox::nbd::{alloc, cmd, opt, tflag};
use blackbox::run::{Outcome, measured, ours};
use blackbox::session::Mode;
use blackbox::temp::{TempDir, pattern};
use blackbox::{MIB, index};

use super::{MODES, copy_is_right};

/// A disk with data, zeroes and an unaligned end.
fn content(size: u64) -> Vec<u8> {
    let mut content = pattern(0, index(size));
    let third = content.len() / 3;
    content[third..2 * third].fill(0);
    content
}

/// Copies a file into the fake.
fn copy_in(fake: &Fake, content: &[u8], options: &[&str]) -> Outcome {
    let temp = TempDir::new();
    let source = temp.file("source", content);
    let uri = fake.uri("");
    let mut command = ours(["copy"]);
    let outcome = measured(command.args(options).arg(&source).arg(&uri));
    outcome.fits_in(super::MEMORY);
    outcome
}

#[test]
fn client_check_40_uses_only_what_is_offered() {
    let all = [
        tflag::HAS_FLAGS,
        tflag::HAS_FLAGS | tflag::SEND_FLUSH,
        tflag::HAS_FLAGS | tflag::SEND_TRIM,
        tflag::HAS_FLAGS | tflag::SEND_WRITE_ZEROES,
        tflag::HAS_FLAGS | tflag::SEND_WRITE_ZEROES | tflag::SEND_FUA,
        ALL_FLAGS,
        ALL_FLAGS | 0xe000,
    ];
    for mode in MODES {
        for flags in all {
            let fake = Script { flags, ..Script::new(3 * MIB) }.mode(mode).start();
            let content = content(3 * MIB);
            copy_in(&fake, &content, &[]).succeeded();
            assert!(fake.disk() == content, "the copy differs");
            copy_is_right(&fake);
        }
    }
}

#[test]
fn client_check_40_keeps_to_the_block_sizes() {
    for sizes in [(512, 4096, 65536), (4096, 4096, 1 << 20), (1, 512, 512), (65536, 65536, 65536)] {
        for mode in MODES {
            let script = Script { block_sizes: Some(sizes), ..Script::new(3 * MIB) };
            let fake = script.mode(mode).start();
            let content = content(3 * MIB);
            copy_in(&fake, &content, &[]).succeeded();
            assert!(fake.disk() == content, "the copy differs");
            copy_is_right(&fake);
        }
    }
}

#[test]
fn client_check_40_without_block_sizes_stays_below_32_mib() {
    for mode in MODES {
        let fake = Script { block_sizes: None, ..Script::new(40 * MIB) }.mode(mode).start();
        // The rules take 32 MiB as the maximum when none was advertised.
        copy_is_right(&fake);
        let zero = Script { block_sizes: None, ..Script::empty(40 * MIB) }.mode(mode).start();
        copy_in(&zero, &content(40 * MIB), &["--request-size", "32M"]).succeeded();
        zero.finish();
    }
}

#[test]
fn client_check_40_zeroes_that_are_offered_and_refused_are_written() {
    use blackbox::nbd::{cflag, err};
    for mode in MODES {
        // With 0 those without FAST_ZERO are done.
        for error in [0, err::EINVAL, err::EOVERFLOW, err::ENOTSUP, err::EIO, err::ENOSPC] {
            // All of them, or only those without FAST_ZERO.
            let which: &[bool] = if error == 0 { &[false] } else { &[true, false] };
            for all in which.iter().copied() {
                let script = Script::new(3 * MIB).mode(mode);
                let script = script.at(cmd::WRITE_ZEROES, move |peer, request| {
                    let fast = request.flags & cflag::FAST_ZERO != 0;
                    if error == 0 && !fast {
                        return Step::Honest;
                    }
                    peer.answer(request, if fast && !all { err::ENOTSUP } else { error });
                    Step::Done
                });
                let fake = script.start();
                let content = content(3 * MIB);
                let outcome = copy_in(&fake, &content, &[]);
                if [err::EIO, err::ENOSPC].contains(&error) {
                    outcome.failed();
                } else {
                    outcome.succeeded();
                    assert!(fake.disk() == content, "stale bytes");
                }
                fake.finish();
            }
        }
    }
}

#[test]
fn client_check_40_a_read_only_target_is_not_written() {
    let flags = ALL_FLAGS | tflag::READ_ONLY;
    for mode in MODES {
        let fake = Script { flags, ..Script::new(MIB) }.mode(mode).start();
        let before = fake.disk();
        copy_in(&fake, &content(MIB), &[]).failed();
        assert!(fake.disk() == before);
        fake.finish();
    }
}

#[test]
fn client_check_40_a_target_too_small_is_not_touched() {
    let fake = Script::new(MIB).start();
    let before = fake.disk();
    copy_in(&fake, &content(MIB + 1), &[]).failed();
    assert!(fake.disk() == before, "the target was touched");
    let record = fake.finish();
    assert!(!record.asked(cmd::WRITE) && !record.asked(cmd::WRITE_ZEROES));
}

#[test]
fn client_check_40_one_connection_without_multi_conn() {
    // The fake blames a second one.
    let fake = Script::new(16 * MIB).start();
    copy_in(&fake, &content(16 * MIB), &["--connections", "8", "--threads", "4"]).succeeded();
    copy_is_right(&fake);
    assert_eq!(fake.record().most_sessions, 1);
}

#[test]
fn client_check_40_no_more_connections_than_asked() {
    for wanted in [1, 2, 4] {
        let flags = ALL_FLAGS | tflag::CAN_MULTI_CONN;
        let fake = Script { flags, ..Script::new(16 * MIB) }.start();
        let count = wanted.to_string();
        copy_in(&fake, &content(16 * MIB), &["-C", &count]).succeeded();
        assert!(fake.disk() == content(16 * MIB));
        let most = fake.finish().most_sessions;
        assert!((1..=wanted).contains(&most), "{most} connections, {wanted} wanted");
    }
}

#[test]
fn a_further_connection_does_not_ask_in_vain_for_what_the_first_one_did_not_get() {
    for mode in [Mode::Structured, Mode::Extended] {
        let asked = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&asked);
        let flags = ALL_FLAGS | tflag::CAN_MULTI_CONN;
        let script = Script { flags, ..Script::new(16 * MIB) }.mode(mode);
        let script = script.on_option(move |_, option, _| {
            count.fetch_add(usize::from(option == opt::EXTENDED_HEADERS), Ordering::SeqCst);
            Step::Honest
        });
        let fake = script.start();
        copy_in(&fake, &content(16 * MIB), &["--connections=4", "--threads=2"]).succeeded();
        let connections = fake.finish().most_sessions;
        assert!(connections >= 2, "{connections}");
        let wanted = if mode == Mode::Extended { connections } else { 1 };
        assert_eq!(asked.load(Ordering::SeqCst), wanted, "{mode:?}");
    }
}

#[test]
fn client_check_40_flush_waits_for_the_writes_that_it_covers() {
    // Replies to writes are held back until nothing more comes on their connection. A FLUSH that
    // comes among held writes of its own connection does not wait for them; and the last FLUSH
    // of all must come when no connection has a write unanswered.
    for mode in MODES {
        let open = Arc::new(AtomicUsize::new(0));
        let last = Arc::new(AtomicUsize::new(0));
        let open_at_last_flush = Arc::clone(&last);
        let flags = ALL_FLAGS | tflag::CAN_MULTI_CONN;
        let script = Script { flags, ..Script::new(4 * MIB) }.mode(mode);
        let fake = script
            .on_request(move |peer, request, payload| {
                if request.command == cmd::FLUSH {
                    if !peer.held.is_empty() {
                        peer.blame("FLUSH while writes of its connection are unanswered");
                    }
                    open_at_last_flush.store(open.load(Ordering::SeqCst), Ordering::SeqCst);
                }
                if request.command == cmd::WRITE {
                    open.fetch_add(1, Ordering::SeqCst);
                    peer.held.push((request.clone(), payload.to_vec()));
                } else {
                    peer.honest(request, payload);
                }
                if !peer.more_comes() {
                    for (request, payload) in std::mem::take(&mut peer.held) {
                        open.fetch_sub(1, Ordering::SeqCst);
                        peer.honest(&request, &payload);
                    }
                }
                Step::Done
            })
            .start();
        let content = content(4 * MIB);
        copy_in(&fake, &content, &["--flush"]).succeeded();
        assert!(fake.disk() == content);
        assert!(fake.finish().asked(cmd::FLUSH), "--flush flushes");
        assert_eq!(last.load(Ordering::SeqCst), 0, "writes unanswered at the last FLUSH");
    }
}

#[test]
fn client_check_40_an_empty_disk_is_copied_without_a_request() {
    for mode in MODES {
        let fake = Script::new(0).mode(mode).start();
        copy_is_right(&fake);
        let record = fake.finish();
        assert!(!record.asked(cmd::READ), "nothing can be read from nothing");
    }
}

#[test]
fn client_check_40_holes_are_neither_read_nor_written() {
    let script = Script::empty(1 << 40).at(cmd::BLOCK_STATUS, |peer, request| {
        peer.answer_status(request, &[(request.length, alloc::HOLE | alloc::ZERO)]);
        Step::Done
    });
    let fake = script.start();
    let uri = fake.uri("");
    let outcome = measured(&ours(["copy", &uri, "null:"]));
    outcome.fits_in(64 * MIB).succeeded();
    assert!(!fake.finish().asked(cmd::READ));
}
