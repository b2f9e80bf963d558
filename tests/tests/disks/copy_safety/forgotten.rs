//! A server that is lost during the copy and has forgotten what was not flushed.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use blackbox::fake::{Fake, Script, Step};
use blackbox::launch::Server;
use blackbox::nbd::cmd;
use blackbox::peers::peer;
use blackbox::run::{Job, ours};
use blackbox::temp::{TempDir, pattern};
use blackbox::wait_for;

use super::copy;

const SIZE: usize = 4 << 20;

/// Answers changes over the first connection, and forgets them with it after a few.
fn forgetful() -> Fake {
    let (connections, changes) = (Arc::new(AtomicUsize::new(0)), AtomicUsize::new(0));
    let now = connections.clone();
    let mut script = Script::new(SIZE as u64);
    script.disk = vec![0xee; SIZE];
    let script = script.on_connect(move |_| {
        connections.fetch_add(1, SeqCst);
        Step::Honest
    });
    let script = script.on_request(move |peer, request, _| {
        let changes_it = [cmd::WRITE, cmd::WRITE_ZEROES].contains(&request.command);
        if !changes_it || now.load(SeqCst) > 1 {
            return Step::Honest;
        }
        if changes.fetch_add(1, SeqCst) == 9 {
            return Step::Close;
        }
        peer.answer(request, 0);
        Step::Done
    });
    script.start()
}

#[test]
fn what_a_server_forgot_is_copied_once_more_where_it_may_be_connected_to_again() {
    let temp = TempDir::new();
    let bytes = [pattern(7, SIZE / 2), vec![0; SIZE / 4], pattern(9, SIZE / 4)].concat();
    let source = temp.file("source", &bytes);
    let fake = forgetful();
    let again = "--target-filter=retry?retry-delay=10ms";
    copy(&[again], &source, fake.uri("")).succeeded();
    assert!(fake.disk() == bytes, "something is missing");
    let record = fake.record();
    assert!(record.asked(cmd::FLUSH) && record.client_flags.len() == 2);
}

#[test]
fn without_leave_to_connect_again_a_lost_server_ends_the_copy() {
    let temp = TempDir::new();
    let source = temp.file("source", &pattern(7, SIZE));
    let fake = forgetful();
    let outcome = copy(&[], &source, fake.uri(""));
    let line = outcome.failed();
    assert!(line.contains("the server") && line.contains("incomplete"), "{line}");
    assert_eq!(fake.record().client_flags.len(), 1);
}

#[test]
fn a_server_that_is_killed_and_started_again_gets_all_of_the_disk() {
    let Some(nbdkit) = peer("nbdkit") else { return };
    let temp = TempDir::new();
    let bytes = pattern(3, 16 << 20);
    let source = temp.file("source", &bytes);
    let disk = temp.file("disk", &vec![0xee; bytes.len()]);
    let (socket, words) = (temp.join("socket"), ["file", disk.to_str().unwrap()]);
    let first = Server::nbdkit_at(&nbdkit, &socket, &words);
    let mut copy = ours(["copy", "--source-filter=rate?rate=64M"]);
    copy.arg("--target-filter=retry?retry-delay=50ms&retry-exponential=false&retries=1000");
    let job = Job::start(copy.arg(&source).arg(first.uri("")));
    wait_for("something is copied", || {
        fs::read(&disk).unwrap().iter().filter(|b| **b != 0xee).count() >= 4 << 20
    });
    first.kill();
    let _again = Server::nbdkit_at(&nbdkit, &socket, &words);
    job.wait().succeeded();
    assert!(fs::read(&disk).unwrap() == bytes);
}
