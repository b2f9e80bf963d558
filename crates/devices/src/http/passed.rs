//! What a pass over the object has brought so far, as a digest.
//!
//! A server without ranges sends everything again after it broke off. What it sends of the bytes
//! that have been handed on already must be the same, or it is another object: nothing else shows
//! that where it has neither an ETag nor a date.

use std::hash::{DefaultHasher, Hasher};

/// Words that are taken at once: each has a lane of its own, so that they need not wait for one
/// another.
const LANES: usize = 4;
const WORD: usize = size_of::<u64>();
/// Odd, so that no difference of two words is lost.
const FACTOR: u64 = 0x9E37_79B9_7F4A_7C15;

/// The digest of chunks in their order. It tells different objects apart, not those that are made
/// to have the same one: a server can send what it likes anyway.
#[derive(Clone, Debug, Default)]
pub(super) struct Passed(DefaultHasher);

impl Passed {
    /// The next chunk.
    pub(super) fn add(&mut self, chunk: &[u8]) {
        let mut lanes = [FACTOR; LANES];
        let mut blocks = chunk.chunks_exact(LANES * WORD);
        for block in &mut blocks {
            for (lane, word) in lanes.iter_mut().zip(block.chunks_exact(WORD)) {
                let word = word.try_into().map_or(0, u64::from_le_bytes);
                *lane = (*lane ^ word).wrapping_mul(FACTOR).rotate_left(29);
            }
        }
        self.0.write(blocks.remainder());
        self.0.write_usize(chunk.len());
        for lane in lanes {
            self.0.write_u64(lane);
        }
    }

    /// Whether these are the same chunks.
    pub(super) fn is(&self, other: &Self) -> bool {
        self.0.finish() == other.0.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(chunks: &[&[u8]]) -> Passed {
        let mut passed = Passed::default();
        chunks.iter().for_each(|chunk| passed.add(chunk));
        passed
    }

    #[test]
    fn any_bit_the_order_and_the_length_make_a_difference() {
        let bytes = super::super::site::content(301);
        let (first, last) = bytes.split_at(160);
        let all = digest(&[first, last]);
        assert!(all.is(&digest(&[first, last])));
        assert!(!all.is(&digest(&[last, first])));
        assert!(!all.is(&digest(&[first, &last[..140]])));
        for bit in 0..bytes.len() * 8 {
            let mut other = bytes.clone();
            other[bit / 8] ^= 1 << (bit % 8);
            assert!(!all.is(&digest(&[&other[..160], &other[160..]])), "{bit}");
        }
        let zeroes = [0; 4096];
        assert!(!digest(&[&zeroes]).is(&digest(&[&zeroes[32..]])));
    }
}
