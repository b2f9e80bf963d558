//! Sums of what was read of a source that may be lost and come back as another disk: a mixture of
//! two disks must not be taken for a copy of either.
//!
//! A sum covers a *piece* of the source, and is linear in its bytes: so it does not matter in which
//! parts, in which order and by how many workers they were read, and zeroes count nothing, whether
//! they were read or are holes of the map. Each 32-bit word is multiplied by a random number for
//! its place, so two different pieces have the same sum with a probability of at most 2^-33,
//! whatever they are. It is no protection against a server that knows the numbers, which never
//! leave this process.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use runtime::{Mutex, RangeSet, SPREAD_STEP, spread_bits};

/// Bytes for which there are factors. The shortest piece.
const CHUNK: u64 = 64 << 10;
/// Bytes in a word.
const WORD: usize = 4;
/// Most pieces: 32 MiB of sums.
const MOST: u64 = 1 << 22;

/// What was read in one pass over a source.
pub(crate) struct Sums {
    /// Bytes in a piece, a multiple of a chunk.
    piece: u64,
    sums: Box<[AtomicU64]>,
    factors: Box<[u64]>,
    seed: u64,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    epoch: u64,
    /// Read, or seen in the map, in this epoch of the source.
    now: RangeSet,
    /// In an earlier one.
    before: RangeSet,
}

/// What a range adds to the sums, and to which: `first` and those that follow.
#[derive(Debug, Eq, PartialEq)]
pub(crate) struct SumPart {
    first: usize,
    parts: Box<[u64]>,
}

impl Sums {
    /// For a source of this many bytes, in its epoch.
    pub(crate) fn new(size: u64, epoch: u64) -> Self {
        let piece = size.div_ceil(MOST).next_multiple_of(CHUNK).max(CHUNK);
        let count = usize::try_from(size.div_ceil(piece)).unwrap_or(0);
        let seed = RandomState::new().build_hasher().finish();
        let words = CHUNK / WORD as u64;
        Self {
            piece,
            sums: (0..count).map(|_| AtomicU64::new(0)).collect(),
            factors: (0..words).map(|i| mixed(seed.wrapping_add(i))).collect(),
            seed,
            state: Mutex::new(State {
                epoch,
                now: RangeSet::default(),
                before: RangeSet::default(),
            }),
        }
    }

    /// A range was read, or is a hole of the map, by a request that began in the epoch `began`;
    /// `epoch` is that of now.
    pub(crate) fn saw(&self, range: Range<u64>, began: u64, epoch: u64) {
        let mut state = self.state.lock();
        state.advance(epoch);
        let when = if began == state.epoch { &mut state.now } else { &mut state.before };
        when.add(range);
    }

    /// The pieces of which something was seen in an earlier epoch than this, in order and apart.
    pub(crate) fn before(&self, epoch: u64) -> RangeSet {
        let mut state = self.state.lock();
        state.advance(epoch);
        state.before.iter().map(|range| self.whole(range)).collect()
    }

    /// The pieces of which something was seen, in order and apart.
    pub(crate) fn all(&self) -> RangeSet {
        let state = self.state.lock();
        let seen = state.before.iter().chain(state.now.iter());
        seen.map(|range| self.whole(range)).collect()
    }

    /// What bytes at an offset add.
    pub(crate) fn share(&self, offset: u64, bytes: &[u8]) -> SumPart {
        let first = self.number(offset);
        let mut parts = vec![0; self.number(offset + (bytes.len() as u64).max(1) - 1) - first + 1];
        let (mut at, mut rest) = (offset, bytes);
        while !rest.is_empty() {
            let room = usize::try_from(CHUNK - at % CHUNK).unwrap_or(usize::MAX);
            let (now, later) = rest.split_at(room.min(rest.len()));
            if let Some(part) = parts.get_mut(self.number(at) - first) {
                let factor = mixed(self.seed ^ (at / CHUNK).wrapping_mul(2).wrapping_add(1)) | 1;
                *part = factor.wrapping_mul(self.chunk(at % CHUNK, now)).wrapping_add(*part);
            }
            at += now.len() as u64;
            rest = later;
        }
        SumPart { first, parts: parts.into() }
    }

    /// The sum of bytes that lie in one chunk, from this offset in it on.
    fn chunk(&self, offset: u64, bytes: &[u8]) -> u64 {
        let start = usize::try_from(offset).unwrap_or(0);
        let head = bytes.len().min(start.next_multiple_of(WORD) - start);
        let (head, rest) = bytes.split_at(head);
        let (words, tail) = rest.split_at(rest.len() - rest.len() % WORD);
        let single = |at: usize, bytes: &[u8]| {
            let each = (at..).zip(bytes).map(|(at, byte)| {
                let factor = self.factors.get(at / WORD).copied().unwrap_or(0);
                (u64::from(*byte) << (8 * (at % WORD))).wrapping_mul(factor)
            });
            each.fold(0, u64::wrapping_add)
        };
        let body = start + head.len();
        let factors = self.factors.get(body / WORD..).unwrap_or_default();
        let each = words.chunks_exact(WORD).zip(factors).map(|(word, factor)| {
            let word = word.try_into().map_or(0, u32::from_le_bytes);
            u64::from(word).wrapping_mul(*factor)
        });
        let sum = each.fold(0, u64::wrapping_add);
        sum.wrapping_add(single(start, head)).wrapping_add(single(body + words.len(), tail))
    }

    /// Adds it: those bytes are in the target.
    pub(crate) fn add(&self, share: &SumPart) {
        for (sum, part) in self.sums.iter().skip(share.first).zip(&share.parts) {
            sum.fetch_add(*part, Relaxed);
        }
    }

    /// The sums of the pieces that lie in a range, as they are.
    pub(crate) fn of(&self, range: &Range<u64>) -> Vec<u64> {
        let all = self.sums.get(self.numbers(range)).unwrap_or_default();
        all.iter().map(|sum| sum.load(Relaxed)).collect()
    }

    /// Takes back from the sums of the pieces in a range what they have by now.
    pub(crate) fn subtract(&self, range: &Range<u64>, sums: &mut [u64], share: &SumPart) {
        let skipped = share.first - self.number(range.start).min(share.first);
        for (sum, part) in sums.iter_mut().skip(skipped).zip(&share.parts) {
            *sum = sum.wrapping_sub(*part);
        }
    }

    /// One after the last piece of those that begin within `len` bytes from `at` on, which is the
    /// start of one.
    pub(crate) fn end_of(&self, at: u64, len: u64) -> u64 {
        at.saturating_add(self.piece.max(len - len % self.piece))
    }

    /// Forgets what was added to the pieces that these ranges meet: they will be read once more.
    /// Returns the pieces.
    pub(crate) fn forget(&self, ranges: &RangeSet) -> RangeSet {
        let whole: RangeSet = ranges.iter().map(|range| self.whole(range)).collect();
        for range in whole.iter() {
            let sums = self.sums.get(self.numbers(&range)).unwrap_or_default();
            sums.iter().for_each(|sum| sum.store(0, Relaxed));
        }
        whole
    }

    /// The pieces that a range meets.
    fn whole(&self, range: Range<u64>) -> Range<u64> {
        let end = range.end.checked_next_multiple_of(self.piece).unwrap_or(range.end);
        range.start - range.start % self.piece..end
    }

    /// First byte of the n-th piece in a range.
    pub(crate) fn start_of(&self, range: &Range<u64>, n: usize) -> u64 {
        (range.start / self.piece + n as u64) * self.piece
    }

    fn numbers(&self, range: &Range<u64>) -> Range<usize> {
        let end = usize::try_from(range.end.div_ceil(self.piece)).unwrap_or(usize::MAX);
        self.number(range.start)..end.min(self.sums.len())
    }

    fn number(&self, offset: u64) -> usize {
        usize::try_from(offset / self.piece).unwrap_or(usize::MAX)
    }
}

impl State {
    fn advance(&mut self, epoch: u64) {
        if epoch > self.epoch {
            self.before.add_all(&std::mem::take(&mut self.now));
            self.epoch = epoch;
        }
    }
}

/// Bits that look random.
fn mixed(n: u64) -> u64 {
    spread_bits(n.wrapping_mul(SPREAD_STEP))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: usize = 300_000;

    fn bytes() -> Vec<u8> {
        (0..SIZE as u64).map(|i| mixed(i).to_le_bytes()[0]).collect()
    }

    #[test]
    fn the_parts_in_which_bytes_were_read_do_not_matter_nor_zeroes() {
        let (sums, mut bytes) = (Sums::new(SIZE as u64, 0), bytes());
        bytes[70_000..150_001].fill(0);
        let whole = 0..SIZE as u64;
        let mut at = 0;
        for step in (1..).map(|i| 1 + usize::try_from(mixed(i) % 9_000).unwrap()) {
            let end = SIZE.min(at + step);
            // Part of the zeroes is a hole.
            if !(80_000..140_000).contains(&at) {
                sums.add(&sums.share(at as u64, &bytes[at..end]));
            }
            at = end;
            if at == SIZE {
                break;
            }
        }
        let mut left = sums.of(&whole);
        assert_eq!(left.len(), SIZE.div_ceil(64 << 10));
        sums.subtract(&whole, &mut left, &sums.share(0, &bytes));
        assert!(left.iter().all(|sum| *sum == 0));
    }

    #[test]
    fn every_change_of_a_byte_shows_in_its_piece_and_no_other() {
        let (sums, mut bytes) = (Sums::new(SIZE as u64, 0), bytes());
        let whole = 0..SIZE as u64;
        sums.add(&sums.share(0, &bytes));
        for at in (0..SIZE).step_by(997) {
            bytes[at] ^= 1 << (at % 8);
            let mut left = sums.of(&whole);
            sums.subtract(&whole, &mut left, &sums.share(0, &bytes));
            let others: Vec<_> = (0..left.len()).filter(|n| left[*n] != 0).collect();
            assert_eq!(others, [at >> 16], "{at}");
            bytes[at] ^= 1 << (at % 8);
        }
        // Two pieces that have changed places.
        let (a, b) = bytes.split_at_mut(64 << 10);
        a.swap_with_slice(&mut b[..64 << 10]);
        let mut left = sums.of(&whole);
        sums.subtract(&whole, &mut left, &sums.share(0, &bytes));
        assert!(left[0] != 0 && left[1] != 0);
    }

    #[test]
    fn the_memory_is_bounded_whatever_the_size() {
        for size in [0, 1, CHUNK + 1, 1 << 38, (1 << 38) + 1, 1 << 45, i64::MAX.cast_unsigned()] {
            let sums = Sums::new(size, 0);
            assert!(sums.sums.len() as u64 <= MOST, "{size}");
            assert!(
                sums.sums.len() as u64 * sums.piece >= size && sums.piece.is_multiple_of(CHUNK)
            );
        }
        // Chunks of one piece that have changed places differ all the same.
        let sums = Sums::new(1 << 40, 0);
        assert_ne!(sums.share(0, &[1; 8]), sums.share(CHUNK, &[1; 8]));
    }

    #[test]
    fn what_was_seen_before_the_source_came_back_is_known_in_whole_pieces() {
        let sums = Sums::new(1 << 20, 3);
        sums.saw(0..10, 3, 3);
        assert!(sums.before(3).is_empty());
        // It began before, and ended after.
        sums.saw(200_000..200_001, 3, 4);
        sums.saw(500_000..600_000, 4, 4);
        let before = |epoch| sums.before(epoch).iter().collect::<Vec<_>>();
        assert_eq!(before(4), [0..CHUNK, 3 * CHUNK..4 * CHUNK]);
        assert_eq!(before(5), [0..CHUNK, 3 * CHUNK..4 * CHUNK, 7 * CHUNK..10 * CHUNK]);
    }
}
