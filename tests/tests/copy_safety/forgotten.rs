//! A server that is lost on the way and has forgotten what it was not told to make durable.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use blackbox::fake::{Fake, Script, Step};
use blackbox::nbd::cmd;
use blackbox::temp::{TempDir, pattern};

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
