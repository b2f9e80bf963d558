//! Servers under everything at once: clients that stop at each stage, flood, never read, reset and
//! are killed, a disk that is full or fails, too few descriptors, little memory, and an end at any
//! moment. Meanwhile well-behaved clients verify their own bytes. Afterwards nothing is left
//! behind.
//!
//! The short form is one spell or two with each server. `scripts/soak` is the long one:
//! - `SOAK_SECONDS=N`: servers at random for so long, after a storm of 10,000 connections and a
//!   thousand idle ones.
//! - `BLACKBOX_SEED=N`: the same servers, and the same choices of each client, again.

mod grounds;
mod held;
mod hostile;
mod verifying;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use blackbox::GUARD;
use blackbox::dice::{Case, Dice, seeds};
use rustix::process::{Resource, Signal, getrlimit, setrlimit};

use grounds::{GROUNDS, Ground, Running};
use held::Held;
use verifying::{Reader, Verifier};

/// How much is done.
#[derive(Debug, Clone, Copy)]
struct Plan {
    /// How long to go on; none: once with each server.
    time: Option<Duration>,
    spells: usize,
    spell: Duration,
}

impl Plan {
    fn of_environment() -> Self {
        let seconds = std::env::var("SOAK_SECONDS").ok().filter(|text| !text.is_empty());
        let seconds = seconds.map(|text| text.parse().expect("SOAK_SECONDS is a number"));
        match seconds.map(Duration::from_secs) {
            None => Self { time: None, spells: 2, spell: Duration::from_millis(600) },
            time => Self { time, spells: 3, spell: Duration::from_secs(2) },
        }
    }
}

fn wide(number: usize) -> u64 {
    u64::try_from(number).unwrap()
}

/// Descriptors that are made once, when they are needed first: zeroes to be sent, a temporary file,
/// durable writes.
const MADE_LATE: usize = 4;

/// What was done so far, for people.
static CONNECTIONS: AtomicU64 = AtomicU64::new(0);
static VERIFIED: AtomicU64 = AtomicU64::new(0);

#[test]
fn nothing_leaks_and_no_other_client_suffers_whatever_clients_and_disks_do() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).unwrap();
    let plan = Plan::of_environment();
    let seed = seeds().next().unwrap();
    let begun = Instant::now();
    eprintln!("soak: seed {seed}");
    for stage in 0.. {
        let ground = match plan.time {
            None if stage == GROUNDS.len() => break,
            Some(time) if stage > 0 && begun.elapsed() >= time => break,
            // Each comes once, and then at random.
            _ if stage < GROUNDS.len() => &GROUNDS[stage],
            _ => &GROUNDS[Dice::new(seed).with(wide(stage)).below(GROUNDS.len())],
        };
        let _case = Case::new(&format!("of {} (stage {stage})", ground.name), seed);
        let mut dice = Dice::new(seed).with(1000 + wide(stage));
        run(ground, plan, stage == 0, &mut dice);
        eprintln!(
            "soak: {} s: {}; {} hostile connections, {} requests verified",
            begun.elapsed().as_secs(),
            ground.name,
            CONNECTIONS.load(Relaxed),
            VERIFIED.load(Relaxed)
        );
    }
}

/// One server, from its start to its end.
fn run(ground: &Ground, plan: Plan, is_first: bool, dice: &mut Dice) {
    let Some(place) = (ground.prepare)() else { return };
    let is_long = plan.time.is_some();
    let mut running = place.start();
    let mut readers = readers(ground, dice);
    // What is made with the first requests stays: threads, buffers, temporary files.
    for reader in &mut readers {
        reader.work(&running, &AtomicBool::new(true));
    }
    let before = warm(&running);
    let mut first = None;
    for spell in 0..plan.spells {
        if is_first && spell == 0 && is_long {
            hostile::storm(&running, 10_000);
            hostile::with_idle_clients(&running, 1000, || {
                readers.iter_mut().for_each(|reader| reader.work(&running, &AtomicBool::new(true)));
            });
        }
        rage(&running, plan.spell, &mut readers, dice);
        let after = settled(&running, before);
        after.fits(*first.get_or_insert(after));
    }
    for signal in [Signal::TERM, Signal::KILL].into_iter().filter(|_| place.lasts()) {
        end(running, signal, is_long, dice);
        // All that was answered is there.
        running = place.start();
        for reader in &mut readers {
            reader.check_all(&running);
        }
    }
    end(running, Signal::TERM, is_long, dice);
}

/// Clients that check what they read.
fn readers(ground: &Ground, dice: &mut Dice) -> Vec<Reader> {
    let mut readers: Vec<Reader> = match ground.content {
        grounds::Content::Fixed => {
            vec![Reader::of_pattern(dice.with(1)), Reader::of_pattern(dice.with(2))]
        }
        grounds::Content::Written { may_fail } => (0..3)
            .map(|number| Reader::Writing(Verifier::new(number, may_fail, dice.with(number))))
            .collect(),
    };
    if ground.is_secure {
        readers.push(Reader::Secure);
    }
    readers
}

/// Has all stop when it is dropped, whatever went wrong.
struct Stops<'a>(&'a AtomicBool);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// Hostile clients for a while, and others that verify beside them.
fn rage(running: &Running, time: Duration, readers: &mut [Reader], dice: &mut Dice) {
    let stop = AtomicBool::new(false);
    scope(|scope| {
        let (stop, _stops) = (&stop, Stops(&stop));
        for reader in readers {
            // A client that is there before the others is served.
            reader.connect(running);
            scope.spawn(move || reader.work(running, stop));
        }
        for number in 0..4 {
            let dice = dice.with(dice.clone().number() ^ number);
            scope.spawn(move || hostile::go_on(running, dice, stop));
        }
        sleep(time);
        running.held().is_within(running.memory_limit());
    });
    dice.number();
}

/// Descriptors that it has before anything happens, when the last clients have left.
fn warm(running: &Running) -> usize {
    sleep(Duration::from_millis(300));
    running.held().descriptors
}

/// What it holds once all have left: few more descriptors than it had, and if there are more, not
/// for long.
fn settled(running: &Running, before: usize) -> Held {
    let begun = Instant::now();
    loop {
        let held = running.held();
        if held.descriptors <= before + MADE_LATE {
            return held;
        }
        let has = || running.descriptors().join(", ");
        assert!(
            begun.elapsed() < GUARD,
            "it keeps descriptors, {before} before: {held:?}: {}",
            has()
        );
        sleep(Duration::from_millis(50));
    }
}

/// Ends it while hostile clients are there; in the long form some stay to the end.
fn end(running: Running, signal: Signal, is_long: bool, dice: &mut Dice) {
    let stop = AtomicBool::new(false);
    let (at, job) = running.into_parts();
    scope(|scope| {
        let _stops = Stops(&stop);
        for number in 0..2 {
            let dice = dice.with(7 + number);
            let (at, stop) = (&at, &stop);
            scope.spawn(move || hostile::go_on(at, dice, stop));
        }
        sleep(Duration::from_millis(wide(dice.below(300))));
        job.signal(signal);
        // A client that never reads what is owed is waited for, some seconds.
        let all_stay = is_long && dice.percent(25);
        stop.store(!all_stay, Relaxed);
        let outcome = job.wait();
        assert!(!outcome.stderr.contains("panicked"), "{outcome:#?}");
        if signal == Signal::TERM {
            outcome.succeeded();
        }
    });
    dice.number();
}
