//! Copies over a bad network, at random.

use std::fs;
use std::time::Duration;

use blackbox::dice::{Case, Dice, long_form, seeds};
use blackbox::launch::Serve;
use blackbox::meddler::{Fault, Meddler, Mishap, somewhere};
use blackbox::run::{Outcome, ours, run};
use blackbox::temp::TempDir;

use super::{TRANSIENT, device, patchwork};

/// What the network does to a connection.
fn mishaps(dice: &mut Dice, bytes: u64, for_ever: bool) -> Vec<Mishap> {
    let ms = |n: usize| Duration::from_millis(u64::try_from(n).unwrap());
    (0..dice.between(1, 3))
        .map(|_| {
            let fault = match dice.below(if for_ever { 7 } else { 6 }) {
                0 | 1 => Fault::Cut,
                2 => Fault::Truncate,
                3 => Fault::Stall(ms(dice.between(1, 300))),
                4 => Fault::Delay(ms(dice.between(1, 3))),
                5 => Fault::Cap(dice.between(4 << 10, 64 << 10)),
                _ => Fault::StallForEver,
            };
            Mishap { to_server: dice.percent(50), after: somewhere(dice, bytes), fault }
        })
        .collect()
}

struct Ride {
    outcome: Outcome,
    /// The target is what the source is.
    equal: bool,
    /// It had to end well.
    must: bool,
}

/// One copy of `bytes`, from or to a server behind a bad network.
fn ride(dice: &mut Dice, bytes: &[u8]) -> Ride {
    let temp = TempDir::new();
    let source = temp.file("source", bytes);
    let (reads, patient, for_ever) = (dice.percent(40), dice.percent(75), dice.percent(25));
    let served = if reads { source.clone() } else { temp.file("disk", &vec![0xee; bytes.len()]) };
    let server = Serve::file(&served).start();
    let (plan, size) = (dice.clone(), u64::try_from(bytes.len()).unwrap());
    // After some connections the network is good.
    let bad = dice.between(1, 6);
    let meddler = Meddler::start(server.socket(), move |number| {
        let mut dice = plan.with(u64::try_from(number).unwrap());
        if number < bad { mishaps(&mut dice, size, for_ever) } else { Vec::new() }
    });
    let uri = if dice.percent(30) { meddler.tcp_uri("") } else { meddler.uri("") };
    let params = match (patient, for_ever) {
        (false, false) => "",
        (true, false) => "open-timeout=30&reconnect-delay=30",
        // A server that stalls for ever is given up, and must not be waited for for long.
        (true, true) => "open-timeout=30&timeout=500ms&reconnect-delay=2",
        (false, true) => "timeout=500ms",
    };
    let remote = device(&uri, params);
    let target = temp.join("target");
    let mut copy = ours(["copy"]);
    copy.args(["--connections", &dice.between(1, 4).to_string()]);
    copy.args(["--request-size", dice.pick(&["16K", "64K", "256K"])]);
    if dice.percent(30) {
        copy.arg("--no-extents");
    }
    if reads {
        copy.arg(remote).arg(&target);
    } else {
        copy.arg(&source).arg(remote);
    }
    let outcome = run(&mut copy);
    drop(meddler);
    let now = fs::read(if reads { &target } else { &served }).unwrap_or_default();
    Ride { outcome, equal: now == bytes, must: patient && !for_ever }
}

#[test]
fn a_copy_over_a_bad_network_is_whole_or_has_failed_and_never_hangs() {
    let count = if long_form() { 300 } else { 60 };
    for seed in seeds() {
        let bytes = patchwork(40, seed);
        let (mut whole, mut saved) = (0, 0);
        for number in 0..count {
            let _case = Case::new(&format!("ride {number}"), seed);
            let mut dice = Dice::new(seed).with(number);
            let Ride { outcome, equal, must } = ride(&mut dice, &bytes);
            if outcome.status.success() {
                assert!(equal, "exit 0, and another disk: {outcome:#?}");
                whole += 1;
                saved += usize::from(must);
                continue;
            }
            outcome.failed();
            let code = outcome.status.code();
            assert!([Some(1), Some(TRANSIENT)].contains(&code), "{outcome:#?}");
            assert!(!must, "the network was good again in time: {outcome:#?}");
        }
        assert!(whole > 0 && saved > 0, "nothing was ever copied");
    }
}
