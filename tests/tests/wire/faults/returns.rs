//! Servers that go and come back: as they were, without what was not flushed, or while they still
//! do what was asked for.

use std::fs;
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::thread;
use std::time::Duration;

use blackbox::fake::{Fake, Script, Step};
use blackbox::nbd::{cflag, cmd, tflag};
use blackbox::run::{Job, ours, run};
use blackbox::temp::{TempDir, pattern};
use blackbox::wait_for;

use super::{TRANSIENT, device, patchwork, serve_at};

const PATIENT: &str = "reconnect-delay=30";

#[test]
fn a_copy_to_a_server_that_is_killed_and_comes_back_is_whole() {
    for reads in [false, true] {
        let temp = TempDir::new();
        let bytes = patchwork(256, 5);
        let source = temp.file("source", &bytes);
        let served = if reads { source.clone() } else { temp.sparse_file("disk", 16 << 20) };
        let (socket, target) = (temp.join("s"), temp.join("target"));
        let first = serve_at(&socket, &served);
        let mut copy = ours(["copy", "--source-filter=rate?rate=64M"]);
        copy.args(["--connections", "3"]);
        let remote = device(&first.uri(""), PATIENT);
        if reads {
            copy.arg(remote).arg(&target);
        } else {
            copy.arg(&source).arg(remote);
        }
        let written = if reads { &target } else { &served };
        let job = Job::start(&mut copy);
        wait_for("something is copied", || {
            fs::read(written).unwrap_or_default().iter().filter(|b| **b != 0).count() >= 2 << 20
        });
        first.kill();
        thread::sleep(Duration::from_millis(1500));
        let _again = serve_at(&socket, &served);
        job.wait().succeeded();
        assert!(fs::read(written).unwrap() == bytes, "reads: {reads}");
    }
}

/// Loses the first fast zero: before it was done, or after.
fn lost_while_swept(done: bool) -> Fake {
    let seen = AtomicUsize::new(0);
    let mut script = Script::new(16 << 20);
    script.disk = vec![0xee; 16 << 20];
    let script = script.at(cmd::WRITE_ZEROES, move |peer, request| {
        let fast = request.flags & cflag::FAST_ZERO != 0;
        // The first ones test its claim.
        if !fast || seen.fetch_add(1, SeqCst) != 2 {
            return Step::Honest;
        }
        if done {
            let mut disk = peer.disk();
            let start = usize::try_from(request.offset).unwrap();
            disk[start..start + usize::try_from(request.length).unwrap()].fill(0);
        }
        Step::Close
    });
    script.start()
}

#[test]
fn a_target_that_is_lost_in_the_middle_of_a_sweep_gets_all_of_the_disk() {
    for done in [false, true] {
        let temp = TempDir::new();
        // A disk in memory, which no server can have: only then is anything zeroed in advance.
        let source = "data:(0x55*131072 @+65536)*85 0x66*65536";
        let expected = temp.join("expected");
        run(ours(["copy", source]).arg(&expected)).succeeded();
        let bytes = fs::read(expected).unwrap();
        let fake = lost_while_swept(done);
        run(ours(["copy", source]).arg(device(&fake.uri(""), PATIENT))).succeeded();
        assert!(fake.disk() == bytes, "done: {done}");
        let record = fake.record();
        let zeroes = |r: &&blackbox::rules::Seen| r.command == cmd::WRITE_ZEROES;
        let fast: Vec<_> = record.requests.iter().filter(zeroes).collect();
        let lost = fast.iter().filter(|r| r.flags & cflag::FAST_ZERO != 0).nth(2);
        let lost = lost.expect("it was swept");
        let again = fast.iter().filter(|r| (r.offset, r.length) == (lost.offset, lost.length));
        assert_eq!(again.count(), 1, "it was asked for again");
    }
}

#[test]
fn a_server_that_forgets_what_was_not_flushed_at_each_loss_gets_all_of_the_disk() {
    for flushes in [true, false] {
        let temp = TempDir::new();
        let bytes = patchwork(128, 2);
        let source = temp.file("source", &bytes);
        let durable = Arc::new(std::sync::Mutex::new(vec![0xee; bytes.len()]));
        let (changes, losses) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let mut script = Script::new(u64::try_from(bytes.len()).unwrap());
        script.disk = vec![0xee; bytes.len()];
        let script = script.on_request(move |peer, request, _| {
            match request.command {
                cmd::FLUSH => durable.lock().unwrap().clone_from(&peer.disk()),
                cmd::WRITE | cmd::WRITE_ZEROES => {
                    let number = changes.fetch_add(1, SeqCst);
                    if number % 13 == 12 && losses.fetch_add(1, SeqCst) < 3 {
                        let kept = durable.lock().unwrap();
                        peer.disk().clone_from(&kept);
                        return Step::Close;
                    }
                }
                _ => {}
            }
            Step::Honest
        });
        let fake = script.start();
        let mut copy = ours(["copy"]);
        if !flushes {
            copy.arg("--no-flush");
        }
        let outcome = run(copy.arg(&source).arg(device(&fake.uri(""), PATIENT)));
        if flushes {
            outcome.succeeded();
            assert!(fake.disk() == bytes, "something is missing");
        } else {
            outcome.failed();
            assert_eq!(outcome.status.code(), Some(TRANSIENT), "{outcome:#?}");
        }
    }
}

#[test]
fn an_end_that_cannot_be_reached_is_tried_for_as_long_as_the_user_allows() {
    let temp = TempDir::new();
    let (disk, socket) = (temp.file("disk", &pattern(1, 1 << 20)), temp.join("s"));
    // No connection is accepted there.
    drop(UnixListener::bind(&socket).unwrap());
    let uri = format!("nbd+unix:///?socket={}", socket.display());
    let outcome = run(&mut ours(["map", "--open-timeout=200ms", &uri]));
    assert_eq!(outcome.status.code(), Some(TRANSIENT), "{outcome:#?}");
    let verbs: [&[&str]; 6] = [
        &["map"],
        &["info"],
        &["list"],
        &["zero", "--length=4K"],
        &["trim", "--length=4K"],
        &["copy"],
    ];
    for words in verbs {
        let mut command = ours(words);
        command.args(["--open-timeout=30", &uri]);
        if words == ["copy"] {
            command.arg("null:");
        }
        let job = Job::start(&mut command);
        thread::sleep(Duration::from_millis(300));
        let server = serve_at(&socket, &disk);
        job.wait().succeeded();
        drop(server);
        let _ = fs::remove_file(&socket);
        drop(UnixListener::bind(&socket).unwrap());
    }
}

/// Closes at every eleventh change, a few times, and does it late: when it was asked for again and
/// answered, or soon after.
fn late(losses: usize) -> Fake {
    let (changes, lost) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let kept = std::sync::Mutex::new(Vec::<(usize, Vec<u8>)>::new());
    let mut script = Script::new(8 << 20);
    // Without fast zeroes: it is not known when a sweep may no longer be done.
    script.flags &= !tflag::SEND_FAST_ZERO;
    script.disk = vec![0xee; 8 << 20];
    let script = script.on_request(move |peer, request, payload| {
        let start = usize::try_from(request.offset).unwrap();
        let len = usize::try_from(request.length).unwrap();
        match request.command {
            // What it was still to do is done before what comes is durable.
            cmd::FLUSH => {
                for (start, bytes) in kept.lock().unwrap().drain(..) {
                    peer.disk()[start..start + bytes.len()].copy_from_slice(&bytes);
                }
            }
            cmd::WRITE | cmd::WRITE_ZEROES => {
                let number = changes.fetch_add(1, SeqCst);
                if number % 11 == 10 && lost.fetch_add(1, SeqCst) < losses {
                    let zeroes = vec![0; len];
                    let is_write = request.command == cmd::WRITE;
                    let bytes = if is_write { payload.to_vec() } else { zeroes };
                    kept.lock().unwrap().push((start, bytes));
                    return Step::Close;
                }
            }
            _ => {}
        }
        Step::Honest
    });
    script.start()
}

#[test]
fn a_lost_write_that_is_done_after_its_repeat_changes_nothing() {
    for connections in ["1", "4"] {
        let temp = TempDir::new();
        let bytes = patchwork(128, 6);
        let source = temp.file("source", &bytes);
        let fake = late(4);
        let mut copy = ours(["copy", "--connections", connections]);
        run(copy.arg(&source).arg(device(&fake.uri(""), PATIENT))).succeeded();
        assert!(fake.disk() == bytes, "it was done twice, and is not the same");
    }
}
