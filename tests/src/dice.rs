//! Random choices that can be made again: everything follows from one seed.
//!
//! Environment:
//! - `BLACKBOX_SEED=N`: the seed of the first round, to repeat a failure or to try what was never
//!   tried. Without it the short form is the same each time, so that a change fails by what it
//!   changes, and the long form begins anywhere.
//! - `BLACKBOX_ROUNDS=N`: the long form of the random tests: this many rounds with a seed each,
//!   and more operations in each of them.
//! - `BLACKBOX_CASES=all`: all cases of long tables, of which the gate tries every third.

use std::time::{SystemTime, UNIX_EPOCH};

/// A source of random numbers (splitmix64): the same ones for the same seed.
#[derive(Debug, Clone)]
pub struct Dice(u64);

impl Dice {
    /// Begins with a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Another source, which depends on this seed and on `salt` alone.
    pub fn with(&self, salt: u64) -> Self {
        let mut dice = Self(self.0 ^ salt.wrapping_mul(0xd134_2543_de82_ef95));
        dice.number();
        dice
    }

    /// Any number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `limit`, which is not 0.
    pub fn below(&mut self, limit: usize) -> usize {
        let limit = u64::try_from(limit).unwrap();
        usize::try_from(self.number() % limit).unwrap()
    }

    /// A number from `low` up to and with `high`.
    pub fn between(&mut self, low: usize, high: usize) -> usize {
        low + self.below(high - low + 1)
    }

    /// True in this many cases of a hundred.
    pub fn percent(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    /// One of these.
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }
}

/// The seed of the short form.
const FIRST: u64 = 1;

/// The seeds of the rounds of a random test: one, or as many as `BLACKBOX_ROUNDS` says.
pub fn seeds() -> impl Iterator<Item = u64> {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let begin = if long_form() { u64::from(since.subsec_nanos()) << 8 } else { FIRST };
    let first = number_in("BLACKBOX_SEED").unwrap_or(begin);
    (0..number_in("BLACKBOX_ROUNDS").unwrap_or(1)).map(move |round| first + round)
}

/// Whether this is the long form.
pub fn long_form() -> bool {
    number_in("BLACKBOX_ROUNDS").is_some()
}

/// The cases of a long table that are tried.
pub fn tried<T>(table: &[T]) -> impl Iterator<Item = &T> {
    let all = long_form() || std::env::var_os("BLACKBOX_CASES").is_some_and(|it| it == "all");
    table.iter().step_by(if all { 1 } else { 3 })
}

fn number_in(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok().filter(|text| !text.is_empty())?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")))
}

/// Says, when a test fails, what it takes to repeat it.
#[derive(Debug)]
pub struct Case(String);

impl Case {
    /// What is tested now: the words for a person, and the seed.
    pub fn new(what: &str, seed: u64) -> Self {
        Self(format!("in the case {what}; repeat with BLACKBOX_SEED={seed}"))
    }
}

impl Drop for Case {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.0);
        }
    }
}
