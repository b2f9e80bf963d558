//! Numbers that are converted or spread, and times that are counted.

const _: () = assert!(usize::BITS == 64, "lengths on a disk are lengths in memory");

/// A number of bytes as a length in memory: they have the same range.
#[must_use]
#[expect(clippy::cast_possible_truncation, reason = "a usize has 64 bits")]
pub const fn to_usize(n: u64) -> usize {
    n as usize
}

/// A bijection that spreads every bit of a number (the output step of splitmix64). Numbers that
/// come [`SPREAD_STEP`] after each other give numbers that look random.
#[must_use]
pub const fn spread_bits(n: u64) -> u64 {
    let n = (n ^ (n >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let n = (n ^ (n >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    n ^ (n >> 31)
}

/// See [`spread_bits`].
pub const SPREAD_STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// The buckets of a histogram of times: 2^`bits` for each doubling, from 2^`first` to 2^`last` ns.
/// What is shorter or longer is in the first or the last one.
#[derive(Clone, Copy, Debug)]
pub struct TimeBuckets {
    /// See above.
    pub first: u32,
    /// See above; at most 64.
    pub last: u32,
    /// See above.
    pub bits: u32,
}

impl TimeBuckets {
    /// How many buckets there are.
    #[must_use]
    pub const fn count(self) -> usize {
        ((self.last - self.first) << self.bits) as usize
    }

    /// The bucket of a time, in ns.
    #[must_use]
    pub fn place(self, nanos: u64) -> usize {
        let nanos = nanos.max(1 << self.first);
        let doublings = nanos.ilog2();
        // The bits after the first one.
        let bits = match doublings.checked_sub(self.bits) {
            Some(further) => nanos >> further,
            None => nanos << (self.bits - doublings),
        };
        let part = bits & ((1 << self.bits) - 1);
        let before = u64::from(doublings - self.first) << self.bits;
        to_usize(before + part).min(self.count() - 1)
    }

    /// The first time, in ns, that is too long for a bucket but the last; longer than its shortest
    /// by 2^-`bits` of that at most, where that is a whole number.
    #[must_use]
    pub fn end_of(self, place: usize) -> u64 {
        let next = place as u128 + 1;
        let (doublings, part) =
            ((next >> self.bits) + u128::from(self.first), next % (1 << self.bits));
        u64::try_from((((1 << self.bits) + part) << doublings).div_ceil(1 << self.bits))
            .unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_in_the_bucket_that_ends_after_it() {
        for (first, last, bits) in [(0, 64, 4), (10, 38, 2)] {
            let buckets = TimeBuckets { first, last, bits };
            let near =
                (first..last).flat_map(|n| [1u64 << n, (1 << n) + 1, (1 << n) + (1 << n) / 3]);
            for nanos in near.chain(1 << first..2000).filter(|n| *n >= 1 << first) {
                let (place, end) = (buckets.place(nanos), buckets.end_of(buckets.place(nanos)));
                assert!(place < buckets.count() && nanos < end, "{nanos}: {end}");
                assert!(end - nanos <= (nanos >> bits) + 1, "{nanos}: {end}");
            }
            assert_eq!((buckets.place(0), buckets.place(u64::MAX)), (0, buckets.count() - 1));
        }
        assert_eq!(TimeBuckets { first: 0, last: 64, bits: 4 }.end_of(1023), u64::MAX);
    }
}
