//! `sparse-random`: a sparse disk of random runs, computed from a seed; accepts only writes that
//! match.
//!
//! Nothing is stored, however large the disk. It is cut into regions of equal length. In each
//! region lies one run of the rarer kind (data, if less than half of the disk is data; else
//! hole), and all around it is the other kind. The run's length is even between half of and one
//! and a half times its mean, and its place in the region is even, both from the hash of the
//! region's number. The mean and the region's length follow from `runlength` and `percent`, so
//! the density is right on average, the map of any range costs what it says, and its end is
//! found without looking at what lies before. On a small disk runs are shortened so that there
//! are at least eight or so.
//!
//! Everything is in blocks of 4096 bytes. The content of a data block is one byte of 1 to 255
//! repeated (cheap to make and to check), or with `random-content` random bytes.

use device::{Blocking, Extent, ExtentKind, Info, Params, Result, ZeroFlags, merge_extent};

use crate::random::info;
use crate::words::{Generator, first_difference, seed_from_clock};
use crate::{OpenOptions, oracle};
use device::values;
use runtime::to_usize;

const BLOCK: u64 = 4096;
/// 2^63 bytes are so many blocks.
const MOST_BLOCKS: u64 = 1 << 51;

pub(crate) struct SparseRandom {
    info: Info,
    plan: Plan,
    bytes: Generator,
    random_content: bool,
}

/// Where the data lies, in blocks.
#[derive(Clone, Copy, Debug)]
struct Plan {
    /// Length of a region, at least 1.
    region: u64,
    /// Mean length of the run in a region, at most half of it, in whole blocks...
    mean: u64,
    /// ...and what is missing of it: how often, of 2^64 times, a run is one block longer.
    extra: u64,
    /// What the run is; the rest is the other kind.
    run: ExtentKind,
    places: Generator,
}

/// Opens `sparse-random`.
pub(crate) fn open(params: &Params, options: &OpenOptions) -> Result<SparseRandom> {
    let size = values::size(params, "size")?.unwrap_or(0);
    let seed = values::number(params, "seed")?.unwrap_or_else(seed_from_clock);
    let percent = percent(params)?;
    let runlength = values::size(params, "runlength")?.unwrap_or(16 << 20);
    let random_content = values::flag(params, "random-content")?.unwrap_or(false);
    let generator = Generator::new(seed);
    let mut info = info(
        format!("sparse-random:{size}?seed={seed}"),
        format!("{percent}% random data, seed={seed}; accepts only writes that match"),
        size,
        options,
    );
    info.abilities.extents = true;
    let plan = Plan::new(size, percent, runlength, generator.branch(1));
    Ok(SparseRandom { info, plan, bytes: generator.branch(2), random_content })
}

fn percent(params: &Params) -> Result<f64> {
    let Some(text) = params.get("percent") else { return Ok(10.0) };
    let text = text.strip_suffix('%').unwrap_or(text);
    let good = |p: &f64| (0.0..=100.0).contains(p);
    text.parse().ok().filter(good).ok_or_else(|| values::not_a("percent", text, "0 to 100"))
}

impl Plan {
    fn new(size: u64, percent: f64, runlength: u64, places: Generator) -> Self {
        let share = percent / 100.0;
        let data_blocks = whole(float(size.div_ceil(BLOCK)) * share);
        let mean_data = (runlength / BLOCK).min(data_blocks / 8).clamp(1, MOST_BLOCKS);
        let (run, rarer) =
            if share <= 0.5 { (ExtentKind::Data, share) } else { (ExtentKind::Hole, 1.0 - share) };
        if rarer <= 0.0 {
            return Self { region: MOST_BLOCKS, mean: 0, extra: 0, run, places };
        }
        let region = whole(float(mean_data) / share).clamp(1, MOST_BLOCKS);
        // Lengths are whole blocks; the mean need not be.
        let mean = float(region) * rarer;
        let extra = whole(mean.fract() * float(u64::MAX));
        Self { region, mean: whole(mean.floor()), extra, run, places }
    }

    /// The run of region `number`: its first block and the block after its last.
    fn run_of(&self, number: u64) -> (u64, u64) {
        let start = number.saturating_mul(self.region);
        let shortest = self.mean.div_ceil(2);
        // Even between `shortest` and `2 * mean - shortest`, whose middle is the mean.
        let len = shortest
            + self.places.below(number * 4, (self.mean - shortest) * 2 + 1)
            + u64::from(self.places.word(number * 4 + 1) < self.extra);
        let len = len.min(self.region);
        let first = start + self.places.below(number * 4 + 2, self.region - len + 1);
        (first, first + len)
    }

    /// What block `block` is, and the first block after it that is another kind or that lies in
    /// the next region.
    fn piece_at(&self, block: u64) -> (ExtentKind, u64) {
        let number = block / self.region;
        let (first, after) = self.run_of(number);
        let other = if self.run == ExtentKind::Data { ExtentKind::Hole } else { ExtentKind::Data };
        if block < first {
            (other, first)
        } else if block < after {
            (self.run, after)
        } else {
            (other, (number + 1).saturating_mul(self.region))
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "a density needs no more than 53 bits")]
fn float(n: u64) -> f64 {
    n as f64
}

/// Rounds to the nearest whole number; `n` is not negative.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the conversion saturates"
)]
fn whole(n: f64) -> u64 {
    n.round() as u64
}

impl SparseRandom {
    /// Calls `f` with what lies in `offset..offset + len`: kind, start, length in bytes, in order,
    /// until it answers false.
    fn pieces(&self, offset: u64, len: u64, mut f: impl FnMut(ExtentKind, u64, u64) -> bool) {
        let (mut at, mut left) = (offset, len);
        while left > 0 {
            let (kind, next) = self.plan.piece_at(at / BLOCK);
            let n = next.saturating_mul(BLOCK).saturating_sub(at).clamp(1, left);
            if !f(kind, at, n) {
                return;
            }
            at += n;
            left -= n;
        }
    }

    /// Fills `buf`, all of which is data.
    fn fill_data(&self, buf: &mut [u8], offset: u64) {
        if self.random_content {
            return self.bytes.fill(buf, offset);
        }
        let mut at = offset;
        let mut rest = buf;
        while !rest.is_empty() {
            let n = to_usize(BLOCK - at % BLOCK).min(rest.len());
            let (block, tail) = std::mem::take(&mut rest).split_at_mut(n);
            block.fill(self.byte_of(at / BLOCK));
            at += n as u64;
            rest = tail;
        }
    }

    fn byte_of(&self, block: u64) -> u8 {
        u8::try_from(1 + self.bytes.below(block, 255)).unwrap_or(1)
    }

    fn fill(&self, buf: &mut [u8], offset: u64) {
        let mut rest = buf;
        self.pieces(offset, rest.len() as u64, |kind, at, n| {
            let (piece, tail) = std::mem::take(&mut rest).split_at_mut(to_usize(n));
            if kind == ExtentKind::Data {
                self.fill_data(piece, at);
            } else {
                piece.fill(0);
            }
            rest = tail;
            true
        });
    }

    /// Whether a range is all hole. Ends at the first data, so its cost does not grow with `len`
    /// unless it is.
    fn must_be_hole(&self, offset: u64, len: u64) -> Result<()> {
        let mut wrong = None;
        self.pieces(offset, len, |kind, at, n| {
            if kind == ExtentKind::Data {
                wrong = self.first_not_zero(at, n);
            }
            wrong.is_none()
        });
        wrong.map_or(Ok(()), |at| Err(oracle::mismatch(&self.info.name, at)))
    }

    /// The first byte of a range of data that is not zero. Random content has zeroes, but no long
    /// run of them.
    fn first_not_zero(&self, offset: u64, len: u64) -> Option<u64> {
        let (mut at, mut left) = (offset, len);
        let mut piece = [0; 4096];
        while left > 0 {
            let n = left.min(piece.len() as u64);
            let bytes = &mut piece[..to_usize(n)];
            self.fill_data(bytes, at);
            if let Some(i) = first_difference(bytes, &[0; 4096][..to_usize(n)]) {
                return Some(at + i);
            }
            at += n;
            left -= n;
        }
        None
    }
}

impl Blocking for SparseRandom {
    fn info(&self) -> &Info {
        &self.info
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.fill(buf, offset);
        Ok(())
    }

    fn write_at(&self, data: &[u8], offset: u64, _fua: bool) -> Result<()> {
        oracle::verify(&self.info.name, data, offset, |buf, at| self.fill(buf, at))
    }

    fn zero(&self, offset: u64, len: u64, _flags: ZeroFlags) -> Result<()> {
        self.must_be_hole(offset, len)
    }

    fn trim(&self, offset: u64, len: u64, _fua: bool) -> Result<()> {
        self.must_be_hole(offset, len)
    }

    fn flush(&self) -> Result<()> {
        Ok(())
    }

    fn resolve(&self, offset: u64, len: u64, max: usize, out: &mut Vec<Extent>) -> Result<()> {
        let before = out.len();
        self.pieces(offset, len, |kind, at, n| {
            let next = Extent::new(at, n, kind);
            if out.len() == before {
                out.push(next);
            } else {
                merge_extent(out, next);
            }
            out.len() - before <= max
        });
        out.truncate(before + max);
        Ok(())
    }
}
