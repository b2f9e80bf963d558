//! Servers whose replies come in any order, late, twice, or after something that was not asked for.

use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use blackbox::dice::{Case, Dice, long_form, seeds};
use blackbox::fake::{Fake, Peer, Script, Step};
use blackbox::nbd::{cmd, tflag};
use blackbox::rules::Seen;
use blackbox::run::{ours, run};
use blackbox::session::Mode;
use blackbox::temp::TempDir;

use super::{TRANSIENT, device, patchwork};

/// How a server behaves.
#[derive(Clone, Copy)]
struct Habits {
    /// Requests that it collects before it answers them in any order.
    together: usize,
    /// In this many cases of a thousand a reply is late, is sent twice, or the connection ends
    /// instead.
    late: usize,
    doubled: usize,
    closes: usize,
}

fn serve(peer: &mut Peer, request: &Seen, payload: &[u8]) {
    let range = || {
        let start = usize::try_from(request.offset).unwrap();
        start..start + usize::try_from(request.length).unwrap()
    };
    match request.command {
        cmd::READ => {
            let bytes = peer.disk()[range()].to_vec();
            peer.answer_read(request, &bytes);
        }
        cmd::WRITE => {
            peer.disk()[range()].copy_from_slice(payload);
            peer.answer(request, 0);
        }
        _ => {
            peer.disk()[range()].fill(0);
            peer.answer(request, 0);
        }
    }
}

fn start(bytes: Vec<u8>, seed: u64, habits: Habits, mode: Mode) -> Fake {
    let dice = Mutex::new(Dice::new(seed));
    let mut script = Script::new(u64::try_from(bytes.len()).unwrap()).mode(mode);
    script.disk = bytes;
    script.flags |= tflag::CAN_MULTI_CONN;
    // It is not known when a sweep that was lost is no longer done.
    script.flags &= !tflag::SEND_FAST_ZERO;
    let script = script.on_request(move |peer, request, payload| {
        let kinds = [cmd::READ, cmd::WRITE, cmd::WRITE_ZEROES];
        if kinds.contains(&request.command) {
            peer.held.push((request.clone(), payload.to_vec()));
        }
        let is_held = kinds.contains(&request.command);
        if is_held && peer.held.len() < habits.together && peer.more_comes() {
            return Step::Done;
        }
        let mut held = std::mem::take(&mut peer.held);
        while !held.is_empty() {
            let (at, late, doubled, closes) = {
                let mut dice = dice.lock().unwrap();
                let mut happens = |times| dice.below(1000) < times;
                let faults =
                    (happens(habits.late), happens(habits.doubled), happens(habits.closes));
                (dice.below(held.len()), faults.0, faults.1, faults.2)
            };
            let (request, payload) = held.swap_remove(at);
            if closes {
                return Step::Close;
            }
            if late {
                thread::sleep(Duration::from_millis(20));
            }
            serve(peer, &request, &payload);
            if doubled {
                serve(peer, &request, &payload);
            }
        }
        if is_held { Step::Done } else { Step::Honest }
    });
    script.start()
}

#[test]
fn whatever_order_replies_come_in_a_copy_is_whole_or_has_failed() {
    let count = if long_form() { 200 } else { 40 };
    for seed in seeds() {
        let bytes = patchwork(40, seed);
        let mut whole = 0;
        for number in 0..count {
            let _case = Case::new(&format!("copy {number}"), seed);
            let mut dice = Dice::new(seed).with(number);
            let habits = Habits {
                together: dice.between(1, 12),
                late: dice.pick(&[0, 50]),
                doubled: dice.pick(&[0, 0, 5, 30]),
                closes: dice.pick(&[0, 10, 30]),
            };
            let mode = dice.pick(&[Mode::Simple, Mode::Structured, Mode::Extended]);
            let reads = dice.percent(50);
            let disk = if reads { bytes.clone() } else { vec![0xee; bytes.len()] };
            let fake = start(disk, dice.number(), habits, mode);
            let temp = TempDir::new();
            let remote = device(&fake.uri(""), dice.pick(&["", "reconnect-delay=30"]));
            let mut copy = ours(["copy", "--request-size", dice.pick(&["16K", "64K", "256K"])]);
            copy.args(["--connections", dice.pick(&["1", "3"])]);
            let target = temp.join("target");
            if reads {
                copy.arg(remote).arg(&target);
            } else {
                copy.arg(temp.file("source", &bytes)).arg(remote);
            }
            let outcome = run(&mut copy);
            if outcome.status.success() {
                let now = if reads { std::fs::read(&target).unwrap() } else { fake.disk() };
                assert!(now == bytes, "exit 0, and another disk: {outcome:#?}");
                whole += 1;
                continue;
            }
            outcome.failed();
            let code = outcome.status.code();
            assert!([Some(1), Some(TRANSIENT)].contains(&code), "{outcome:#?}");
            assert!(habits.doubled + habits.closes > 0, "it was honest: {outcome:#?}");
        }
        assert!(whole > 0, "nothing was ever copied");
    }
}
