//! The bits of a bitmap in memory.

use std::sync::atomic::{AtomicU64, Ordering};

use device::{Error, ErrorKind, Fault, Result, StatusRun, merge_run};

/// Granules in a word.
const WORD: u64 = 64;

/// Which granules of a disk were changed. Only ever set, by any threads at once.
pub(super) struct DirtyBits {
    /// Of the disk, in bytes.
    size: u64,
    granularity_bits: u32,
    words: Box<[AtomicU64]>,
}

impl DirtyBits {
    /// With nothing set. Takes an eighth of a byte for each granule.
    ///
    /// # Errors
    /// There is no memory for it.
    pub(super) fn new(size: u64, granularity_bits: u32) -> Result<Self> {
        let count = words(size, granularity_bits);
        let none = || {
            let action = format!("{} bytes of memory for a bitmap", count.saturating_mul(8));
            Error::new(ErrorKind::NoMemory, Fault::File, action)
        };
        let count = usize::try_from(count).map_err(|_| none())?;
        let mut words = Vec::new();
        words.try_reserve_exact(count).map_err(|_| none())?;
        words.extend((0..count).map(|_| AtomicU64::new(0)));
        Ok(Self { size, granularity_bits, words: words.into() })
    }

    /// Sets the bits of a range, of which nothing behind the end of the disk counts.
    pub(super) fn set(&self, offset: u64, len: u64) {
        let end = offset.saturating_add(len).min(self.size);
        if offset >= end {
            return;
        }
        let (first, last) = (offset >> self.granularity_bits, (end - 1) >> self.granularity_bits);
        for number in first / WORD..=last / WORD {
            let from = if number == first / WORD { first % WORD } else { 0 };
            let to = if number == last / WORD { last % WORD } else { WORD - 1 };
            let mask = u64::MAX << from & u64::MAX >> (WORD - 1 - to);
            let word = usize::try_from(number).ok().and_then(|at| self.words.get(at));
            if let Some(word) = word
                && word.load(Ordering::Acquire) & mask != mask
            {
                word.fetch_or(mask, Ordering::AcqRel);
            }
        }
    }

    /// The status of a range: 1 where a granule was changed, else 0. At most `max` (≥ 1) runs, and
    /// none behind the range.
    pub(super) fn runs(&self, offset: u64, len: u64, max: usize) -> Vec<StatusRun> {
        let (mut at, mut found) = (offset, Vec::new());
        let end = offset.saturating_add(len).min(self.size);
        while at < end && found.len() <= max {
            let bit = at >> self.granularity_bits;
            let word = usize::try_from(bit / WORD).ok().and_then(|at| self.words.get(at));
            let word = word.map_or(0, |word| word.load(Ordering::Acquire)) >> (bit % WORD);
            let value = word & 1;
            let alike = if value == 1 { word.trailing_ones() } else { word.trailing_zeros() };
            // The shift has brought zeroes in.
            let next = (bit + u64::from(alike)).min((bit / WORD + 1) * WORD);
            let to = next.saturating_mul(1 << self.granularity_bits).min(end);
            merge_run(&mut found, StatusRun { len: to - at, value });
            at = to;
        }
        found.truncate(max);
        found
    }

    /// Bytes of the granules that were changed.
    pub(super) fn dirty_bytes(&self) -> u64 {
        let set =
            self.words.iter().map(|word| u64::from(word.load(Ordering::Relaxed).count_ones()));
        set.sum::<u64>().saturating_mul(1 << self.granularity_bits).min(self.size)
    }
}

/// Words that the bits of a disk take.
pub(super) fn words(size: u64, granularity_bits: u32) -> u64 {
    size.div_ceil(1 << granularity_bits).div_ceil(WORD)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_those_of_the_granules_that_were_set_and_end_with_the_range() {
        let size = (200 << 9) + 17;
        for (offset, len) in [(0, 1), (511, 2), (512 * 63, 513), (512 * 60, 512 * 90), (7, size)] {
            let bits = DirtyBits::new(size, 9).unwrap();
            bits.set(offset, len);
            let end = (offset + len).min(size);
            let dirty =
                |at: u64| u64::from(at / 512 >= offset / 512 && at / 512 <= (end - 1) / 512);
            for (from, to) in [(0, size), (100, 40_000), (size - 17, size), (33_000, 33_001)] {
                let (mut at, runs) = (from, bits.runs(from, to - from, usize::MAX - 1));
                for run in &runs {
                    assert!((at..at + run.len).all(|at| dirty(at) == run.value), "{offset} {len}");
                    at += run.len;
                }
                assert_eq!(at, to);
                assert!(runs.windows(2).all(|two| two[0].value != two[1].value));
                assert_eq!(bits.runs(from, to - from, 1), runs[..1]);
            }
        }
        let all = DirtyBits::new(size, 9).unwrap();
        all.set(0, u64::MAX);
        assert_eq!(all.dirty_bytes(), size);
        assert_eq!(all.runs(0, size, 9), [StatusRun { len: size, value: 1 }]);
    }
}
