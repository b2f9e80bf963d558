//! A fast link with a long delay: as many bytes are in flight as fill it, and neither end holds
//! more memory for that than documented.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use blackbox::MIB;
use blackbox::fake::{Fake, Script, Step};
use blackbox::launch::Serve;
use blackbox::nbd::{Message, chunk, cmd, tflag};
use blackbox::run::{Job, ours};
use blackbox::session::{Mode, Request};

/// What either end may hold, in anonymous memory.
const MOST: u64 = 96 * MIB;
/// What 10 Gbit/s carry in 20 ms.
const CARRIED: u64 = 25_000_000;

/// A server at the end of a way that takes long and any number of bytes: it answers when nothing
/// more comes for 30 ms. Says how many bytes it was asked for, or sent, at a time.
fn far_away(several: bool) -> (Fake, Arc<AtomicU64>) {
    let (now, most) = (AtomicU64::new(0), Arc::new(AtomicU64::new(0)));
    let seen = Arc::clone(&most);
    let mut script = Script::empty(512 * MIB);
    if several {
        script.flags |= tflag::CAN_MULTI_CONN;
    }
    let script = script.on_request(move |peer, request, _| {
        if ![cmd::READ, cmd::WRITE].contains(&request.command) {
            return Step::Honest;
        }
        peer.held.push((request.clone(), Vec::new()));
        seen.fetch_max(now.fetch_add(request.length, SeqCst) + request.length, SeqCst);
        if peer.more_comes() {
            return Step::Done;
        }
        for (request, _) in std::mem::take(&mut peer.held) {
            now.fetch_sub(request.length, SeqCst);
            if request.command == cmd::READ {
                // The way is as wide as can be.
                let length = u32::try_from(request.length).unwrap();
                let hole = Message::new().u64(request.offset).u32(length).0;
                peer.chunk(&request, chunk::DONE, chunk::OFFSET_HOLE, &hole);
            } else {
                peer.answer(&request, 0);
            }
        }
        Step::Done
    });
    (script.start(), most)
}

/// Runs a copy; its peak of anonymous memory.
fn held_by(words: &[&str]) -> u64 {
    let job = Job::start(&mut ours(words));
    let status = format!("/proc/{}/status", job.pid().as_raw_nonzero());
    let watch = std::thread::spawn(move || {
        let mut most = 0;
        while let Ok(text) = std::fs::read_to_string(&status) {
            let Some(line) = text.lines().find_map(|l| l.strip_prefix("RssAnon:")) else { break };
            most = most.max(line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024);
            std::thread::sleep(Duration::from_millis(3));
        }
        most
    });
    job.wait().succeeded();
    watch.join().unwrap()
}

#[test]
fn a_copy_over_a_long_way_fills_it_and_stays_small() {
    for (several, reads) in [(true, true), (false, true), (true, false)] {
        let (fake, most) = far_away(several);
        let uri = fake.uri("");
        let held = match reads {
            true => held_by(&["copy", "--no-extents", &uri, "null:"]),
            false => held_by(&["copy", "--no-flush", "pattern:512M", &uri]),
        };
        let most = most.load(SeqCst);
        assert!(most >= CARRIED * 5 / 4, "{several} {reads}: {most} bytes in flight at most");
        assert!(held < MOST, "{several} {reads}: {held} bytes of memory");
    }
}

#[test]
fn a_copy_stays_small_however_many_requests_it_may_have() {
    let (fake, most) = far_away(true);
    let uri = fake.uri("");
    for words in [["--no-extents", &uri, "null:"], ["--no-flush", "pattern:512M", &uri]] {
        let held = held_by(&[&["copy", "--requests=10000", "--threads=4"], &words[..]].concat());
        assert!(held < MOST, "{words:?}: {held} bytes of memory");
    }
    // Beside the copy's own, the client asks each connection for a few bytes, to know that all lead
    // to one server.
    assert!(most.load(SeqCst) <= 36 * MIB + 4096, "{most:?} bytes in flight at most");
}

#[test]
fn a_server_that_is_asked_for_much_ahead_stays_small() {
    const LEN: u64 = 256 << 10;
    let server = Serve::device(["pattern", "1G"]).start();
    let mut sessions: Vec<_> = (0..8).map(|_| server.session(Mode::Structured, "")).collect();
    // No reply is read for a while, as if all of them were on their way.
    for number in 0..40 {
        for (at, session) in (0..).zip(&mut sessions) {
            session.send(&Request::new(cmd::READ, (number * 8 + at) * LEN, LEN));
        }
    }
    let mut most = 0;
    for _ in 0..60 {
        most = most.max(server.anonymous_memory());
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(most < MOST, "{most}");
}
