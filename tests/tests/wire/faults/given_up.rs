//! Connections that the network gives up (TCP's keep-alive): what was asked for there may still be
//! done, at any time, and the server will never be seen to close.

use std::process::Command;
use std::sync::{Arc, Mutex};

use blackbox::fake::{Script, Step};
use blackbox::nbd::{cmd, tflag};
use blackbox::run::{Outcome, ours, run};
use blackbox::temp::TempDir;

use super::{TRANSIENT, device, patchwork};

/// Our copier, to which the system reports at the `nth` look at the replies that the peer is gone.
fn copy(nth: usize, words: &[&str]) -> Outcome {
    let mut command = Command::new(env!("CARGO_BIN_EXE_faulty"));
    command.args(["1", &format!("readv=ETIMEDOUT@{nth}:socket"), "--"]);
    let copy = ours(["copy", "--connections=1", "--request-size=64K", "--requests=2"]);
    command.arg(copy.get_program()).args(copy.get_args()).args(words);
    run(&mut command)
}

#[test]
#[cfg(target_arch = "x86_64")]
fn a_change_that_the_network_gave_up_is_never_asked_for_twice_and_what_was_answered_is_done_again()
{
    let temp = TempDir::new();
    let bytes = patchwork(16, 4);
    let source = temp.file("source", &bytes);
    let (mut failed, mut again) = (0, 0);
    for nth in 1..24 {
        let mut script = Script::new(u64::try_from(bytes.len()).unwrap());
        script.flags &= !tflag::SEND_FAST_ZERO;
        script.disk = vec![0xee; bytes.len()];
        let durable = Arc::new(Mutex::new(script.disk.clone()));
        let kept = Arc::clone(&durable);
        // What was not flushed is forgotten with each connection.
        let script = script
            .on_connect(move |peer| {
                peer.disk().clone_from(&kept.lock().unwrap());
                Step::Honest
            })
            .on_request(move |peer, request, _| {
                if request.command == cmd::FLUSH {
                    durable.lock().unwrap().clone_from(&peer.disk());
                }
                Step::Honest
            });
        let fake = script.start();
        let target = device(&fake.uri(""), "reconnect-delay=30");
        let outcome = copy(nth, &[&source.display().to_string(), &target]);
        let record = fake.finish();
        let changes =
            |r: &&blackbox::rules::Seen| [cmd::WRITE, cmd::WRITE_ZEROES].contains(&r.command);
        let mut ranges: Vec<_> =
            record.requests.iter().filter(changes).map(|r| (r.command, r.offset)).collect();
        let all = ranges.len();
        ranges.sort_unstable();
        ranges.dedup();
        if outcome.status.success() {
            assert!(fake.disk() == bytes, "exit 0, and another disk");
            again += usize::from(ranges.len() < all);
            continue;
        }
        outcome.failed();
        assert_eq!(outcome.status.code(), Some(TRANSIENT), "{outcome:#?}");
        assert_eq!(ranges.len(), all, "{nth}: it may still be done, and was asked for again");
        failed += 1;
    }
    assert!(failed > 0 && again > 0, "{failed} {again}");
}

#[test]
#[cfg(target_arch = "x86_64")]
fn a_read_that_the_network_gave_up_is_asked_for_again() {
    let bytes = patchwork(16, 4);
    let mut lost = 0;
    for nth in [1, 2, 5, 9] {
        let temp = TempDir::new();
        let mut script = Script::new(u64::try_from(bytes.len()).unwrap());
        script.disk.clone_from(&bytes);
        let fake = script.start();
        let source = device(&fake.uri(""), "reconnect-delay=30");
        let target = temp.join("target");
        copy(nth, &[&source, &target.display().to_string()]).succeeded();
        assert!(std::fs::read(&target).unwrap() == bytes, "{nth}");
        lost += usize::from(fake.finish().client_flags.len() > 1);
    }
    assert!(lost > 0, "nothing was lost");
}
