//! A server that is lost at each kind of operation of a copy in turn, and is away for a while: the
//! copy waits for it.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

use blackbox::fake::{Fake, Script, Step};
use blackbox::nbd::{cflag, cmd, opt, tflag};
use blackbox::run::{Outcome, ours, run};
use blackbox::temp::{TempDir, pattern};

const SIZE: usize = 8 << 20;
/// How often connecting fails before the server is back.
const AWAY: usize = 3;
/// Data in every other 64 KiB, which no other program can name: so the target may be zeroed in
/// advance.
const SOURCE: &str = "sparse-random:8M?seed=4&percent=50&runlength=64K";

/// What a server is lost at.
#[derive(Clone, Copy, Debug)]
enum Loss {
    Option(u32),
    /// Before it is obeyed, or after it, and before that is acknowledged; only of a fast zero, if
    /// so.
    Request {
        command: u16,
        fast: bool,
        obeys: bool,
    },
}

/// A server that is lost at the `nth` of these (from 0), and then away for a while. The flag tells
/// whether it was.
fn lost_at(mut script: Script, loss: Loss, nth: usize) -> (Fake, Arc<AtomicBool>) {
    let lost = Arc::new(AtomicBool::new(false));
    let (away, seen) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let goes = {
        let (lost, away) = (lost.clone(), away.clone());
        move || {
            let now = seen.fetch_add(1, SeqCst) == nth;
            if now {
                lost.store(true, SeqCst);
                away.store(AWAY, SeqCst);
            }
            now
        }
    };
    script = script.on_connect(move |_| {
        match away.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1)) {
            Ok(_) => Step::Close,
            Err(_) => Step::Honest,
        }
    });
    script = match loss {
        Loss::Option(which) => {
            script.on_option(
                move |_, option, _| {
                    if option == which && goes() { Step::Close } else { Step::Honest }
                },
            )
        }
        Loss::Request { command, fast, obeys } => {
            script.on_request(move |peer, request, payload| {
                let is_it = request.command == command
                    && (command != cmd::WRITE_ZEROES
                        || (request.flags & cflag::FAST_ZERO != 0) == fast);
                if !is_it || !goes() {
                    return Step::Honest;
                }
                let at = usize::try_from(request.offset).unwrap();
                match request.command {
                    cmd::WRITE if obeys => {
                        peer.disk()[at..at + payload.len()].copy_from_slice(payload)
                    }
                    cmd::WRITE_ZEROES if obeys => {
                        peer.disk()[at..at + usize::try_from(request.length).unwrap()].fill(0);
                    }
                    _ => {}
                }
                Step::Close
            })
        }
    };
    (script.start(), lost)
}

fn request(command: u16) -> Loss {
    Loss::Request { command, fast: false, obeys: false }
}

fn copy(words: &[&str], from: &str, to: &str) -> Outcome {
    let waits = ["copy", "--connections=1", "--open-timeout=60", "--reconnect-delay=60"];
    run(ours(waits).args(words).args([from, to]))
}

#[test]
fn a_target_that_is_lost_at_any_operation_is_waited_for() {
    let temp = TempDir::new();
    let expected = temp.join("expected");
    copy(&[], SOURCE, expected.to_str().unwrap()).succeeded();
    let expected = fs::read(expected).unwrap();
    let fast = |obeys| Loss::Request { command: cmd::WRITE_ZEROES, fast: true, obeys };
    let all = [
        (Loss::Option(opt::GO), 0, true),
        (request(cmd::BLOCK_STATUS), 0, true),
        (request(cmd::WRITE), 0, true),
        (request(cmd::WRITE), 7, true),
        (Loss::Request { command: cmd::WRITE, fast: false, obeys: true }, 7, true),
        (request(cmd::FLUSH), 0, true),
        (request(cmd::FLUSH), 1, true),
        // The test of a sweep, twice, and the sweep.
        (fast(false), 0, true),
        (fast(true), 0, true),
        (fast(false), 1, true),
        (fast(true), 2, true),
        // Without fast zeroes each hole is read first where zeroing is writing, and zeroed.
        (request(cmd::WRITE_ZEROES), 0, false),
        (Loss::Request { command: cmd::WRITE_ZEROES, fast: false, obeys: true }, 5, false),
    ];
    for (loss, nth, fast) in all {
        let mut script = Script::new(SIZE as u64);
        script.disk = vec![0xee; SIZE];
        if !fast {
            script.flags &= !tflag::SEND_FAST_ZERO;
        }
        let (fake, lost) = lost_at(script, loss, nth);
        copy(&[], SOURCE, &fake.uri("")).succeeded();
        assert!(fake.disk() == expected, "{loss:?} {nth}: other bytes");
        // On a busy machine the target may look slow in the test; then no sweep follows.
        let depends_on_time = matches!(loss, Loss::Request { fast: true, .. }) && nth > 0;
        assert!(
            depends_on_time || lost.load(SeqCst),
            "{loss:?} {nth}: never asked: {:?}",
            fake.record()
        );
    }
    // Where there are no zeroes to ask for, what is zero already is found by reading.
    let mut script = Script::new(SIZE as u64);
    script.disk = vec![0xee; SIZE];
    script.flags &= !(tflag::SEND_FAST_ZERO | tflag::SEND_WRITE_ZEROES);
    let (fake, lost) = lost_at(script, request(cmd::READ), 2);
    copy(&[], SOURCE, &fake.uri("")).succeeded();
    assert!(fake.disk() == expected && lost.load(SeqCst));
}

#[test]
fn a_source_that_is_lost_at_any_operation_is_waited_for() {
    let temp = TempDir::new();
    let target = temp.join("target");
    let bytes = pattern(3, SIZE);
    for (loss, nth) in [
        (Loss::Option(opt::GO), 0),
        (request(cmd::BLOCK_STATUS), 0),
        (request(cmd::READ), 0),
        (request(cmd::READ), 1),
        (request(cmd::READ), 9),
    ] {
        let mut script = Script::new(SIZE as u64);
        script.disk = bytes.clone();
        let (fake, lost) = lost_at(script, loss, nth);
        copy(&["--request-size=256K"], &fake.uri(""), target.to_str().unwrap()).succeeded();
        assert!(fs::read(&target).unwrap() == bytes, "{loss:?} {nth}: other bytes");
        assert!(lost.load(SeqCst), "{loss:?} {nth}: never asked: {:?}", fake.record());
        fs::remove_file(&target).unwrap();
    }
}

#[test]
fn a_server_that_stays_away_ends_the_copy_as_one_that_may_succeed_later() {
    let mut script = Script::new(SIZE as u64);
    script.disk = vec![0xee; SIZE];
    let gone = Arc::new(AtomicBool::new(false));
    let (now, then) = (gone.clone(), gone.clone());
    let script = script.on_connect(move |_| match now.load(SeqCst) {
        true => Step::Close,
        false => Step::Honest,
    });
    let fake = script
        .on_request(move |_, request, _| {
            let is_fast = request.command == cmd::WRITE_ZEROES;
            then.fetch_or(is_fast, SeqCst);
            if then.load(SeqCst) { Step::Close } else { Step::Honest }
        })
        .start();
    let outcome = run(ours(["copy", "--reconnect-delay=300ms", SOURCE]).arg(fake.uri("")));
    assert_eq!(outcome.status.code(), Some(75), "{outcome:?}");
}

/// A copy from a server that is lost in the middle, with what it then does to its disk.
fn comes_back(change: fn(&mut [u8]), words: &[&str]) -> (Outcome, Option<Vec<u8>>) {
    let temp = TempDir::new();
    let target = temp.join("target");
    let mut script = Script::new(SIZE as u64);
    script.disk = pattern(3, SIZE);
    let reads = AtomicUsize::new(0);
    let fake = script
        .on_request(move |peer, request, _| {
            if request.command != cmd::READ || reads.fetch_add(1, SeqCst) != 9 {
                return Step::Honest;
            }
            change(&mut peer.disk());
            Step::Close
        })
        .start();
    let words = [&["--request-size=256K", "--threads=1"], words].concat();
    let outcome = copy(&words, &fake.uri(""), target.to_str().unwrap());
    (outcome, fs::read(target).ok())
}

#[test]
fn a_source_that_comes_back_with_one_other_byte_where_it_was_read_is_refused() {
    // Not where the client takes a sample, the first 4 KiB of a read.
    let (outcome, target) = comes_back(|disk| disk[5000] ^= 1, &[]);
    assert!(outcome.failed().contains("another disk"), "{outcome:?}");
    assert_eq!(outcome.status.code(), Some(1));
    assert_eq!(target, None);
    // Where it was not read yet, it is the disk that is copied.
    let (outcome, target) = comes_back(|disk| disk[SIZE - 5000] ^= 1, &[]);
    outcome.succeeded();
    let mut wanted = pattern(3, SIZE);
    wanted[SIZE - 5000] ^= 1;
    assert!(target == Some(wanted));
}

#[test]
fn the_summary_says_how_much_was_seen_to_be_the_same() {
    let (outcome, target) = comes_back(|_| {}, &["--progress=json"]);
    assert!(outcome.status.success() && target == Some(pattern(3, SIZE)), "{outcome:?}");
    let last = outcome.stderr.lines().last().unwrap();
    let summary: serde_json::Value = serde_json::from_str(last).unwrap();
    let confirmed = summary["data"]["confirmed"].as_u64().unwrap();
    assert!((1..=SIZE as u64).contains(&confirmed), "{last}");
    let (outcome, _) = comes_back(|_| {}, &["--verbose"]);
    assert!(outcome.stderr.contains("was lost and reconnected: "), "{outcome:?}");
}
