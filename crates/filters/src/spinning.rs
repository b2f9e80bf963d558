//! `spinning`: simulates a disk with heads that take time to move. For tests of clients that know
//! what a spinning disk is.
//!
//! A request that waits for its arm holds no thread. All clients share one set of arms, since there
//! is one disk. When a client leaves, its waiting requests are dropped.

use std::sync::Arc;
use std::time::{Duration, Instant};

use device::{
    Arrival, Done, Filter, Filtered, Operation, Outcome, Over, Params, Result, param, values,
};
use runtime::{Mutex, Timers, to_usize};

use crate::FilterKind;
use crate::kit::waiting::Waiting;

const TIME: &str = "TIME";

pub(crate) const KIND: FilterKind = FilterKind {
    word: "spinning",
    summary: "simulates the seek times of a spinning disk",
    keeps_disk: false,
    params: &[
        param(
            "heads",
            "N",
            "number of heads, each over an equal part of the disk, 1 to 64 (default 1)",
        ),
        param(
            "separate-heads",
            "true|false",
            "each moves by itself (default false: all on one arm)",
        ),
        param("min-seek-time", TIME, "to the next track (default 10ms)"),
        param("half-seek-time", TIME, "half across (default 200ms)"),
        param("max-seek-time", TIME, "all across (default 500ms)"),
    ],
    example: "serve --filter=spinning memory 1G --run 'nbdinfo --is rotational \"$uri\"'",
    open: |params, below, context| {
        let settings = Settings::read(params)?;
        let arms = Arc::new(Arms::new(settings, below.info().size));
        Ok(Filtered::device(Spinning::new(arms, context.timers.clone()), below))
    },
    ..FilterKind::PLAIN
};

/// Moves over less than this, in bytes, take no time.
const TRACK: u64 = 128 << 10;

#[derive(Clone, Copy, Debug)]
struct Settings {
    heads: u64,
    separate: bool,
    /// Seconds for a stroke of 0, ½ and 1 of the way.
    seek: [f64; 3],
}

impl Settings {
    fn read(params: &Params) -> Result<Self> {
        let heads = values::number(params, "heads")?.unwrap_or(1);
        if !(1..=64).contains(&heads) {
            return Err(values::wrong("heads", format!("{heads} is not from 1 to 64")));
        }
        let seconds = |key: &str, usual: f64| -> Result<f64> {
            Ok(values::duration(params, key)?.map_or(usual, |time| time.as_secs_f64()))
        };
        let seek = [
            seconds("min-seek-time", 0.01)?,
            seconds("half-seek-time", 0.2)?,
            seconds("max-seek-time", 0.5)?,
        ];
        let separate = values::flag(params, "separate-heads")?.unwrap_or(false);
        Ok(Self { heads, separate, seek })
    }

    /// How long a stroke takes, from 0 to 1 of the way: the parabola through the three times.
    fn time(&self, stroke: f64) -> Duration {
        let [min, half, max] = self.seek;
        let a = 2.0 * (max - 2.0 * half + min);
        let b = max - min - a;
        let seconds = (a * stroke + b).mul_add(stroke, min).max(0.0);
        Duration::try_from_secs_f64(seconds).unwrap_or_default()
    }
}

/// An arm.
#[derive(Clone, Copy, Debug)]
struct Arm {
    /// Where its heads are, from the start of their parts, in bytes.
    at: u64,
    /// When it arrives; `None`: it has arrived.
    free: Option<Instant>,
}

struct Arms {
    settings: Settings,
    size: u64,
    arms: Mutex<Vec<Arm>>,
}

impl Arms {
    fn new(settings: Settings, size: u64) -> Self {
        let count = if settings.separate { settings.heads } else { 1 };
        let arm = Arm { at: 0, free: None };
        Self { settings, size, arms: Mutex::new((0..count).map(|_| arm).collect()) }
    }

    /// Sends the arm that is responsible to `offset`. Returns how long it takes from `now` on.
    fn seek(&self, offset: u64, now: Instant) -> Duration {
        let heads = self.settings.heads.min(self.size);
        let Some(part) = self.size.checked_div(heads) else { return Duration::ZERO };
        let head = (offset / part).min(heads - 1);
        let start = head * part;
        let len = if head == heads - 1 { self.size - start } else { part };
        let number = if self.settings.separate { to_usize(head) } else { 0 };
        let mut arms = self.arms.lock();
        let Some(arm) = arms.get_mut(number) else { return Duration::ZERO };
        let way = arm.at.abs_diff(offset - start);
        arm.at = offset - start;
        let busy = arm.free.map_or(Duration::ZERO, |free| free.saturating_duration_since(now));
        let mut wait = busy;
        if way > TRACK {
            wait = busy.saturating_add(self.settings.time(way as f64 / len as f64));
        }
        arm.free = now.checked_add(wait);
        wait
    }
}

struct Spinning {
    arms: Arc<Arms>,
    timers: Timers,
    waiting: Arc<Waiting>,
}

impl Spinning {
    fn new(arms: Arc<Arms>, timers: Timers) -> Self {
        Self { arms, timers, waiting: Arc::default() }
    }
}

impl Filter for Spinning {
    fn describe(&self, over: &mut Over) {
        over.info.abilities.rotational = true;
    }

    fn run(&self, over: &Over, operation: Operation, done: Done) {
        let offset = match &operation {
            Operation::Read { offset, .. }
            | Operation::Write { offset, .. }
            | Operation::Zero { offset, .. } => *offset,
            // The heads move for the writes that replace it.
            Operation::Take { .. } => return done(Ok(Outcome::Taken(0))),
            Operation::Flush
            | Operation::Prefetch { .. }
            | Operation::Resolve { .. }
            | Operation::Status { .. }
            | Operation::Trim { .. } => return over.below.submit(operation, done),
        };
        let wait = self.arms.seek(offset, Instant::now());
        if wait.is_zero() {
            return over.below.submit(operation, done);
        }
        self.waiting.submit_after(&self.timers, wait, &over.below, operation, done);
    }

    fn for_client(&self, _: &Over, arrival: &mut Arrival<'_>) -> Option<Arc<dyn Filter>> {
        let size = arrival.below.info().size;
        let arms = if size == self.arms.size {
            self.arms.clone()
        } else {
            Arc::new(Arms::new(self.arms.settings, size))
        };
        // Of its own, so that its requests can be dropped when it leaves.
        let own = Self::new(arms, self.timers.clone());
        let waiting = own.waiting.clone();
        arrival.client.presence.on_leaving(move || waiting.leave());
        Some(Arc::new(own))
    }
}

#[cfg(test)]
mod tests {

    use super::*;

    fn arms(words: &[&str], size: u64) -> Arms {
        Arms::new(Settings::read(&Params::parse(words.iter().copied()).unwrap()).unwrap(), size)
    }

    const G: u64 = 1 << 30;

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    fn is_about(a: Duration, b: Duration) -> bool {
        a.abs_diff(b) < ms(1)
    }

    #[test]
    fn the_further_the_longer_along_the_curve_that_was_asked_for() {
        let now = Instant::now();
        let seek = |from: u64, to: u64| {
            let arms = arms(&[], G);
            arms.seek(from, now);
            let later = now + Duration::from_secs(9);
            arms.seek(to, later)
        };
        assert_eq!(seek(0, TRACK), Duration::ZERO);
        assert_eq!(seek(G / 2, G / 2 - TRACK), Duration::ZERO);
        assert!(is_about(seek(0, TRACK + 1), ms(10)));
        assert!(is_about(seek(0, G / 2), ms(200)));
        assert!(is_about(seek(G - 1, 0), ms(500)));
        let linear = arms(&["min-seek-time=0", "half-seek-time=1", "max-seek-time=2"], G);
        assert!(is_about(linear.seek(G / 4, now), ms(500)));
    }

    #[test]
    fn heads_on_one_arm_move_together_and_others_do_not() {
        let now = Instant::now();
        let one = arms(&["heads=4"], 4 * G);
        assert_eq!(
            one.seek(3 * G, now),
            Duration::ZERO,
            "all heads are at the start of their parts"
        );
        assert!(is_about(one.seek(G / 2, now), ms(200)));
        // The arm is on its way, and then in the middle of all parts.
        assert!(is_about(one.seek(2 * G + G / 2, now), ms(200)));
        assert!(is_about(one.seek(2 * G, now), ms(400)));
        let four = arms(&["heads=4", "separate-heads=true"], 4 * G);
        assert!(is_about(four.seek(G / 2, now), ms(200)));
        assert_eq!(four.seek(3 * G, now), Duration::ZERO);
        // A disk that is too small for its heads gets fewer.
        assert_eq!(arms(&["heads=64"], 3).seek(2, now), Duration::ZERO);
        assert_eq!(arms(&[], 0).seek(0, now), Duration::ZERO);
    }
}
