//! The places that requests go to: by steps, or in an order that looks random and goes to each
//! place once before it goes to any again.

use std::ops::Range;

use runtime::{SPREAD_STEP, spread_bits};

/// An order of places in a range.
#[derive(Clone, Debug)]
pub(super) struct PlaceOrder {
    first: u64,
    /// Bytes from one place to the next.
    step: u64,
    /// How many there are; at least 1.
    places: u64,
    random: bool,
}

impl PlaceOrder {
    /// One request of `size` bytes (≥ 1) after the other, at random. The range has room for one.
    pub(super) fn random(range: Range<u64>, size: u64) -> Self {
        Self { random: true, ..Self::steps(range, size, size) }
    }

    /// Each `step` bytes (≥ 1) after the one before, and again from the beginning.
    pub(super) fn steps(range: Range<u64>, size: u64, step: u64) -> Self {
        let places = (range.end - range.start - size) / step.max(1) + 1;
        Self { first: range.start, step: step.max(1), places, random: false }
    }

    pub(super) fn is_random(&self) -> bool {
        self.random
    }

    pub(super) fn step(&self) -> u64 {
        self.step
    }

    pub(super) fn first(&self) -> u64 {
        self.first
    }

    /// How many places there are.
    pub(super) fn places(&self) -> u64 {
        self.places
    }

    /// Where the request with this number goes.
    pub(super) fn place(&self, number: u64) -> u64 {
        let place = number % self.places;
        let place = if self.random { shuffled(place, self.places) } else { place };
        self.first + place * self.step
    }
}

/// A bijection of the numbers below `count` (≥ 1): one of those below the next power of two, until
/// it gives one that is small enough.
fn shuffled(mut number: u64, count: u64) -> u64 {
    let bits = 64 - (count - 1).leading_zeros();
    if bits < 2 {
        return number;
    }
    let mask = u64::MAX >> (64 - bits);
    loop {
        for round in 1..=3u64 {
            let key = spread_bits(round.wrapping_mul(SPREAD_STEP)) | 1;
            number = number.wrapping_mul(key).wrapping_add(key >> 7) & mask;
            number ^= number >> (bits / 2);
        }
        if number < count {
            return number;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_random_order_goes_to_each_place_once_and_is_none_of_steps() {
        for count in [1, 2, 3, 4, 5, 1000, 1024, 1025] {
            let order = PlaceOrder::random(8192..8192 + count * 4096 + 100, 4096);
            let places: Vec<u64> = (0..count).map(|number| order.place(number)).collect();
            let all: BTreeSet<u64> = places.iter().copied().collect();
            assert_eq!(all, (0..count).map(|n| 8192 + n * 4096).collect());
            assert_eq!(order.place(count), order.place(0));
            let in_a_row = places.windows(2).filter(|two| two[1] == two[0] + 4096).count();
            assert!(count < 100 || in_a_row < 30, "{count}: {in_a_row}");
        }
    }

    #[test]
    fn steps_stay_in_the_range_and_begin_anew() {
        let order = PlaceOrder::steps(100..1000, 300, 250);
        let places: Vec<u64> = (0..4).map(|number| order.place(number)).collect();
        assert_eq!(places, [100, 350, 600, 100]);
        let whole = PlaceOrder::steps(0..u64::MAX, 1, 1);
        assert_eq!((whole.places(), whole.place(7)), (u64::MAX, 7));
        assert!(PlaceOrder::random(0..u64::MAX, 1).place(9) < u64::MAX);
    }
}
