//! `evil`: silently corrupts reads, to test software that must notice.
//!
//! Each block of 4 KiB has its own random sequence, which gives the distance from one bad bit to
//! the next. So the bad bits of any range are found at once, however rare they are and however
//! large the disk is. Writes are not corrupted, nor are ranges that the device below knows to be
//! zero.

use runtime::{spawn, to_usize};
use std::sync::atomic::{AtomicU64, Ordering};

use device::{
    Buffer, Done, Edge, Filter, Filtered, Operation, Outcome, Over, Params, Result, param, values,
};

use crate::FilterKind;
use crate::kit::below;
use crate::kit::chance::{Dice, Gaps, probability, seed_from_clock};

const MODES: &str = "stuck-bits|cosmic-rays|stuck-wires";

pub(crate) const KIND: FilterKind = FilterKind {
    word: "evil",
    summary: "silently corrupts reads: stuck bits, or random bit flips",
    keeps_disk: false,
    params: &[
        param("evil", MODES, "what is broken (default stuck-bits)"),
        param("evil-probability", "P", "of a bit being bad (default 1e-8; stuck-wires: 1e-6)"),
        param("evil-stuck-probability", "P", "of a stuck bit being read as such (default 1)"),
        param("evil-seed", "N", "decides which bits are bad (default: another each time)"),
    ],
    example: "serve --filter=evil random 10M evil-probability=1e-6 --run 'nbdcopy \"$uri\" null:'",
    open: |params, below, _| Ok(Filtered::device(Evil::read(params)?, below)),
    ..FilterKind::PLAIN
};

/// Bytes of the disk that have a random sequence of their own.
const BLOCK: u64 = 4096;

/// Extents asked for at a time.
const EXTENTS: usize = 1024;

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Mode {
    /// Fixed places on the disk.
    Bits,
    /// Random places, different each time.
    Rays,
    /// Fixed places in the data transferred, counted from the start of a read.
    Wires,
}

#[derive(Debug)]
struct Evil {
    mode: Mode,
    gaps: Gaps,
    /// The probability that a stuck bit reads as stuck.
    stuck: f64,
    seed: u64,
    /// Counts the reads, each of which has random bits of its own.
    reads: AtomicU64,
}

impl Evil {
    fn read(params: &Params) -> Result<Self> {
        let modes = [(Mode::Bits, 1e-8), (Mode::Rays, 1e-8), (Mode::Wires, 1e-6)];
        let (mode, usual) =
            values::meaning(params, "evil", MODES, modes)?.unwrap_or((Mode::Bits, 1e-8));
        let p = probability(params, "evil-probability")?.unwrap_or(usual);
        Ok(Self {
            mode,
            gaps: Gaps::new(p),
            stuck: probability(params, "evil-stuck-probability")?.unwrap_or(1.0),
            seed: values::number(params, "evil-seed")?.unwrap_or_else(seed_from_clock),
            reads: AtomicU64::new(0),
        })
    }

    /// A read that begins at `offset` of the disk.
    fn begin(&self, offset: u64) -> Passage {
        let number = self.reads.fetch_add(1, Ordering::Relaxed);
        let luck = Dice::of(!self.seed, number).throw();
        let (key, origin) = match self.mode {
            Mode::Bits => (self.seed, 0),
            Mode::Rays => (luck, offset),
            Mode::Wires => (self.seed, offset),
        };
        let (mode, gaps, stuck) = (self.mode, self.gaps, self.stuck);
        Passage { mode, gaps, stuck, luck, key, origin }
    }
}

/// One read: which of its bits are bad.
struct Passage {
    mode: Mode,
    gaps: Gaps,
    stuck: f64,
    luck: u64,
    key: u64,
    /// The disk offset of block 0.
    origin: u64,
}

impl Passage {
    /// Calls `each` with the bad bits of `len` bytes at `offset` of the disk: the byte, counted
    /// from `offset`, a mask, and whether it is stuck high. Stops when `each` says so.
    fn bad_bits(&self, offset: u64, len: u64, mut each: impl FnMut(u64, u8, bool) -> bool) {
        let start = offset - self.origin;
        for block in start / BLOCK..(start + len).div_ceil(BLOCK) {
            let mut dice = Dice::of(self.key, block);
            let mut luck = Dice::of(self.luck, block);
            let mut bit = 0;
            while let Some(gap) = self.gaps.next(&mut dice, BLOCK * 8 - bit) {
                bit += gap;
                let high = dice.throw() & 1 == 1;
                let awake = self.stuck >= 1.0 || luck.fraction() < self.stuck;
                let byte = (block * BLOCK + bit / 8).checked_sub(start).filter(|b| *b < len);
                if let Some(byte) = byte.filter(|_| awake)
                    && !each(byte, 1 << (bit % 8), high)
                {
                    return;
                }
                bit += 1;
            }
        }
    }

    /// Whether a bit is bad, even if it happens to be what it was.
    fn is_bad(&self, offset: u64, len: u64) -> bool {
        let mut found = false;
        self.bad_bits(offset, len, |_, _, _| {
            found = true;
            false
        });
        found
    }

    /// Corrupts `data`, which lies at `offset` of the disk.
    fn corrupt(&self, data: &mut [u8], offset: u64) {
        self.bad_bits(offset, data.len() as u64, |at, mask, high| {
            if let Some(byte) = data.get_mut(to_usize(at)) {
                match self.mode {
                    Mode::Rays => *byte ^= mask,
                    Mode::Bits | Mode::Wires if high => *byte |= mask,
                    Mode::Bits | Mode::Wires => *byte &= !mask,
                }
            }
            true
        });
    }
}

async fn read(below: Edge, passage: Passage, offset: u64, buffer: Buffer) -> Result<Buffer> {
    let mut buffer = below::read(&below, offset, buffer).await?;
    let end = offset + buffer.len() as u64;
    if !below.info().abilities.extents {
        passage.corrupt(&mut buffer, offset);
        return Ok(buffer);
    }
    let mut at = offset;
    // Few reads have a bad bit; only those ask for the map.
    while at < end && passage.is_bad(at, end - at) {
        for extent in below::resolve(&below, at, end - at, EXTENTS).await? {
            let range = to_usize(at - offset)..to_usize(extent.end() - offset);
            if !extent.kind.reads_zero()
                && let Some(data) = buffer.get_mut(range)
            {
                passage.corrupt(data, at);
            }
            at = extent.end();
        }
    }
    Ok(buffer)
}

impl Filter for Evil {
    fn run(&self, over: &Over, operation: Operation, done: Done) {
        let Operation::Read { offset, buffer } = operation else {
            return over.below.submit(operation, done);
        };
        let (below, passage) = (over.below.clone(), self.begin(offset));
        spawn(async move {
            done(read(below, passage, offset, buffer).await.map(Outcome::Read));
        });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use device::model::Model;

    use super::*;
    use crate::kit::tested::{blank, bytes, put, simple};

    const SIZE: usize = 4 << 20;

    /// Over a disk of 0x55.
    fn spoilt(words: &[&str]) -> Edge {
        let disk = put("evil", blank(SIZE), words).unwrap();
        disk.write(&vec![0x55; SIZE], 0, false).unwrap();
        disk
    }

    fn flipped(data: &[u8], was: u8) -> u32 {
        data.iter().map(|b| (b ^ was).count_ones()).sum()
    }

    /// Whether `count` is what `n` trials of probability `p` give, within six deviations.
    fn is_likely(count: u32, n: f64, p: f64) -> bool {
        (f64::from(count) - n * p).abs() <= 6.0 * (n * p * (1.0 - p)).sqrt()
    }

    #[test]
    fn as_many_bits_are_bad_as_the_probability_says() {
        let bits = (SIZE * 8) as f64;
        for (mode, share) in [("cosmic-rays", 1.0), ("stuck-bits", 0.5), ("stuck-wires", 0.5)] {
            let mode = format!("evil={mode}");
            let disk = spoilt(&[&mode, "evil-probability=1e-4", "evil-seed=1"]);
            let count = flipped(&bytes(&disk, 0, SIZE), 0x55);
            assert!(is_likely(count, bits, 1e-4 * share), "{mode}: {count}");
        }
    }

    #[test]
    fn rare_bad_bits_of_a_large_range_are_found_without_looking_at_each_bit() {
        let params = Params::parse(["evil-seed=5"]).unwrap();
        let passage = Evil::read(&params).unwrap().begin(0);
        let (len, mut count) = (8u64 << 30, 0);
        passage.bad_bits(3 << 40, len, |_, _, _| {
            count += 1;
            true
        });
        assert!(is_likely(count, len as f64 * 8.0, 1e-8), "{count}");
    }

    #[test]
    fn stuck_bits_are_the_same_however_they_are_read() {
        let disk = spoilt(&["evil-probability=1e-3", "evil-seed=2"]);
        let all = bytes(&disk, 0, SIZE);
        assert!(flipped(&all, 0x55) > 0);
        for (offset, len) in [(0, 100), (4095, 2), (777, 100_000), (SIZE - 5, 5)] {
            assert_eq!(bytes(&disk, offset as u64, len), all[offset..offset + len]);
        }
        let other = spoilt(&["evil-probability=1e-3", "evil-seed=3"]);
        assert_ne!(bytes(&other, 0, SIZE), all);
    }

    #[test]
    fn cosmic_rays_strike_elsewhere_each_time_and_wires_are_stuck_wherever_one_reads() {
        let rays = spoilt(&["evil=cosmic-rays", "evil-probability=1e-3"]);
        assert_ne!(bytes(&rays, 0, SIZE), bytes(&rays, 0, SIZE));
        let wires = spoilt(&["evil=stuck-wires", "evil-probability=1e-3"]);
        let first = bytes(&wires, 0, 65536);
        assert!(flipped(&first, 0x55) > 0);
        assert_eq!(bytes(&wires, 12345, 65536), first);
    }

    #[test]
    fn bits_that_are_stuck_now_and_then_are_right_now_and_then() {
        let disk = spoilt(&["evil-probability=1e-3", "evil-stuck-probability=50%"]);
        let count = flipped(&bytes(&disk, 0, SIZE), 0x55);
        assert!(is_likely(count, (SIZE * 8) as f64, 1e-3 / 4.0), "{count}");
        assert_ne!(bytes(&disk, 0, SIZE), bytes(&disk, 0, SIZE));
    }

    #[test]
    fn holes_stay_zero_and_what_is_written_is_not_touched() {
        let model = Arc::new(Model::new(SIZE));
        let disk = put("evil", simple(model.clone()), &["evil-probability=1"]).unwrap();
        disk.write(&[0x55; 8192], 100_000, false).unwrap();
        let data = bytes(&disk, 90_000, 30_000);
        assert_eq!(flipped(&data[..10_000], 0), 0);
        assert_eq!(flipped(&data[18_192..], 0), 0);
        assert!(flipped(&data[10_000..18_192], 0x55) > 20_000);
        assert_eq!(flipped(&model.bytes()[100_000..108_192], 0x55), 0);
    }
}
