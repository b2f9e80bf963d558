//! Content made from offsets: a disk as a row of 8-byte words, each computed from its number.
//!
//! [`Generator`] gives random words: a key mixed with the word's number through one 64×64→128
//! bit multiplication whose halves are XORed (the step of the wyrand generator, by counter
//! instead of by state). Any word costs the same, so any range is computed at once, and a core
//! makes well over 5 GB/s of it.

use runtime::{SPREAD_STEP, spread_bits};

/// Fills `buf`, which begins at `offset` of the disk, with the bytes of the words that `word`
/// computes from their numbers (offset / 8).
#[inline]
pub(crate) fn fill(buf: &mut [u8], offset: u64, word: impl Fn(u64) -> [u8; 8]) {
    let mut number = offset / 8;
    let mut rest = buf;
    let skip = (offset % 8) as usize;
    if skip > 0 {
        let n = rest.len().min(8 - skip);
        let (head, tail) = std::mem::take(&mut rest).split_at_mut(n);
        head.copy_from_slice(&word(number)[skip..skip + n]);
        rest = tail;
        number = number.wrapping_add(1);
    }
    let (words, tail) = rest.as_chunks_mut::<8>();
    for w in words {
        *w = word(number);
        number = number.wrapping_add(1);
    }
    if !tail.is_empty() {
        tail.copy_from_slice(&word(number)[..tail.len()]);
    }
}

/// Random words by number.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Generator {
    key: u64,
}

impl Generator {
    /// The generator of `seed`. Different seeds give unrelated rows.
    pub(crate) fn new(seed: u64) -> Self {
        Self { key: splitmix(splitmix(seed)) }
    }

    /// Another generator from the same seed, for another purpose.
    pub(crate) fn branch(self, purpose: u64) -> Self {
        Self { key: splitmix(self.key ^ splitmix(purpose)) }
    }

    /// The word `number`.
    #[inline(always)]
    pub(crate) fn word(self, number: u64) -> u64 {
        let x = self.key.wrapping_add(number.wrapping_mul(0xa076_1d64_78bd_642f));
        let product = u128::from(x) * u128::from(x ^ 0xe703_7ed1_a0b4_28db);
        low(product) ^ low(product >> 64)
    }

    /// A number below `bound`, from the word `number`; 0 if `bound` is 0. The bias is below
    /// `bound` / 2^64.
    pub(crate) fn below(self, number: u64, bound: u64) -> u64 {
        low((u128::from(self.word(number)) * u128::from(bound)) >> 64)
    }

    /// Fills `buf`, which begins at `offset` of the disk.
    pub(crate) fn fill(self, buf: &mut [u8], offset: u64) {
        fill(buf, offset, |n| self.word(n).to_le_bytes());
    }
}

#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "the low half is what is wanted")]
fn low(n: u128) -> u64 {
    n as u64
}

fn splitmix(seed: u64) -> u64 {
    spread_bits(seed.wrapping_add(SPREAD_STEP))
}

/// A seed for a disk, if the user named none.
pub(crate) fn seed_from_clock() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    // Short enough to be typed again when a run is to be repeated.
    now.map_or(1, |t| t.as_secs() ^ u64::from(t.subsec_nanos()))
}

/// The index of the first byte at which two buffers of one length differ.
pub(crate) fn first_difference(a: &[u8], b: &[u8]) -> Option<u64> {
    if a == b {
        return None;
    }
    let at = a.iter().zip(b).position(|(x, y)| x != y);
    Some(at.map_or_else(|| a.len().min(b.len()) as u64, |i| i as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_do_not_depend_on_how_they_are_asked_for() {
        let g = Generator::new(42);
        let mut all = vec![0; 1000];
        g.fill(&mut all, 5);
        for start in 0..40 {
            for n in [0, 1, 7, 8, 9, 100] {
                let mut some = vec![0; n];
                g.fill(&mut some, 5 + start as u64);
                assert_eq!(some, all[start..start + n]);
            }
        }
    }

    #[test]
    fn bytes_of_the_generator_are_evenly_spread() {
        let mut counts = [0u32; 256];
        let mut bytes = vec![0; 1 << 20];
        Generator::new(1).fill(&mut bytes, 0);
        for b in bytes {
            counts[usize::from(b)] += 1;
        }
        // 4096 expected of each; six standard deviations are 384.
        assert!(counts.iter().all(|c| (3712..4480).contains(c)), "{counts:?}");
    }
}
