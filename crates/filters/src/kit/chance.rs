//! Chance: probabilities as users write them, and random numbers that a key determines.

use std::time::{SystemTime, UNIX_EPOCH};

use device::{Params, Result, values};
use runtime::{SPREAD_STEP, spread_bits};

/// The value of `key` as a probability, 0 to 1: `0.1`, `1e-8`, `10%`, `1:10`, `1/10`.
///
/// # Errors
/// It is not a probability.
pub(crate) fn probability(params: &Params, key: &str) -> Result<Option<f64>> {
    let read = |text| {
        let what = "a probability from 0 to 1, such as 0.1, 1e-8, 10%, 1:10 or 1/10";
        parse(text).ok_or_else(|| values::not_a(key, text, what))
    };
    params.get(key).map(read).transpose()
}

fn parse(text: &str) -> Option<f64> {
    let number = |text: &str| -> Option<f64> {
        let plain = |b: u8| b.is_ascii_digit() || matches!(b, b'.' | b'e' | b'E' | b'-' | b'+');
        text.bytes().all(plain).then(|| text.parse().ok()).flatten()
    };
    let p = if let Some(percent) = text.strip_suffix('%') {
        number(percent)? / 100.0
    } else if let Some((one, of)) = text.split_once([':', '/']) {
        number(one)? / number(of)?
    } else {
        number(text)?
    };
    (0.0..=1.0).contains(&p).then_some(p)
}

/// Random numbers that a key determines: the same key gives the same numbers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dice(u64);

impl Dice {
    /// The sequence `number` of those that `seed` gives.
    pub(crate) fn of(seed: u64, number: u64) -> Self {
        Self(spread_bits(spread_bits(seed).wrapping_add(number)))
    }

    /// Any number.
    pub(crate) fn throw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(SPREAD_STEP);
        spread_bits(self.0)
    }

    /// A number from 0 up to, not including, 1.
    #[expect(clippy::cast_precision_loss, reason = "53 bits are exactly what an f64 holds")]
    pub(crate) fn fraction(&mut self) -> f64 {
        (self.throw() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// How many failures come before the next success, given the probability of a success. It takes one
/// random number, however rare successes are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gaps {
    /// ln(1 - p), from -∞ to 0.
    log: f64,
}

impl Gaps {
    /// Successes of probability `p`, 0 to 1.
    pub(crate) fn new(p: f64) -> Self {
        Self { log: (-p).ln_1p() }
    }

    /// The next gap; `None` if it is not below `limit`.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "what is cast lies between 0 and the limit"
    )]
    pub(crate) fn next(self, dice: &mut Dice, limit: u64) -> Option<u64> {
        if self.log == 0.0 {
            return None;
        }
        let gap = (1.0 - dice.fraction()).ln() / self.log;
        (gap < limit as f64).then_some(gap as u64)
    }
}

/// A seed, if the user gave none.
pub(crate) fn seed_from_clock() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(1, |t| t.as_secs() ^ (u64::from(t.subsec_nanos()) << 20))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probabilities_are_read_as_users_write_them() {
        for (text, p) in [
            ("0", 0.0),
            ("1", 1.0),
            ("0.25", 0.25),
            ("1e-8", 1e-8),
            ("10%", 0.1),
            ("1:10", 0.1),
            ("1/8", 0.125),
        ] {
            assert!((parse(text).unwrap() - p).abs() < 1e-15, "{text}");
        }
        for text in
            ["", "2", "-1", "101%", "1:0", "0:0", "nan", "inf", "1:", "%", "1:2:3", "1/2:3", "9/8"]
        {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    #[test]
    fn gaps_have_the_mean_that_the_probability_says() {
        for p in [1.0, 0.5, 0.01] {
            let (gaps, mut dice) = (Gaps::new(p), Dice::of(1, 2));
            let n = 20_000;
            let sum: u64 = (0..n).map(|_| gaps.next(&mut dice, u64::MAX).unwrap()).sum();
            let (mean, want) = (sum as f64 / f64::from(n), (1.0 - p) / p);
            let deviation = (1.0 - p).sqrt() / p / f64::from(n).sqrt();
            assert!((mean - want).abs() <= 6.0 * deviation, "{p}: {mean} instead of {want}");
        }
        assert_eq!(Gaps::new(0.0).next(&mut Dice::of(1, 2), u64::MAX), None);
    }
}
