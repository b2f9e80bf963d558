//! `blocksize`: keeps what reaches the device below to block and length limits.
//!
//! The block and the longest read or write are limits of the disk as it is shown, so the edge
//! above rewrites parts of blocks and splits long requests, several pieces under way at a time.
//! Requests without data are split here. A fast zero that was begun is finished, slowly if need
//! be, rather than called "not fast": that would say that nothing was changed.

use std::sync::Arc;

use device::{
    BlockSizes, Client, Done, Edge, Extent, ExtentKind, Filter, Filtered, Info, Operation, Outcome,
    Params, Passes, Result, Seat, StatusRun, ZeroFlags, param, values,
};

use crate::Kind;

/// The largest `minblock`, in bytes.
const LARGEST_BLOCK: u64 = 64 << 10;
/// Default of `maxdata`, in bytes.
const MAX_DATA: u64 = 64 << 20;
/// Default of `maxlen`, in bytes, before it is rounded down to whole blocks.
const MAX_LEN: u64 = 0xffff_ffff;
/// Pieces of one request without data that are under way at a time.
const WIDTH: usize = 4;

pub(crate) const KIND: Kind = Kind {
    word: "blocksize",
    summary: "keeps requests to the device below to whole blocks and to a length",
    reads_only: false,
    params: &[
        param("minblock", "SIZE", "block, a power of two up to 64K (default the device's)"),
        param("maxdata", "SIZE", "longest read or write (default 64M or the device's, if less)"),
        param("maxlen", "SIZE", "longest zero, trim, prefetch or block status (default 4G-block)"),
    ],
    example: "serve --filter=blocksize memory 1000 minblock=512 --run 'nbdinfo --size \"$uri\"'",
    open: |params, below, _| {
        let settings = Settings::read(params, below.info())?;
        Ok(Filtered::device(BlockSize::new(settings, below)))
    },
};

#[derive(Clone, Copy, Debug)]
struct Settings {
    min_block: u32,
    max_data: u32,
    max_len: u64,
}

impl Settings {
    fn read(params: &Params, below: &Info) -> Result<Self> {
        let block = match values::size(params, "minblock")? {
            Some(n) if n.is_power_of_two() && n <= LARGEST_BLOCK => n,
            Some(n) => {
                let why = format!("{n} is not a power of two from 1 to 64K");
                return Err(values::wrong("minblock", why));
            }
            None => u64::from(below.blocks.minimum.max(1)),
        };
        let whole_blocks = |key: &str| match values::size(params, key)? {
            Some(n) if n == 0 || !n.is_multiple_of(block) => {
                Err(values::wrong(key, format!("{n} is not a multiple of the block of {block}")))
            }
            other => Ok(other),
        };
        let whole = |n: u64| n.max(block) / block * block;
        let max_data = whole_blocks("maxdata")?
            .unwrap_or_else(|| MAX_DATA.min(u64::from(below.blocks.maximum)))
            .min(MAX_LEN);
        let narrow = |n: u64| u32::try_from(n).unwrap_or(1);
        Ok(Self {
            min_block: narrow(block),
            max_data: narrow(whole(max_data)),
            max_len: whole_blocks("maxlen")?.unwrap_or_else(|| whole(MAX_LEN)),
        })
    }

    /// The pieces of `len` bytes from `offset` that are no longer than allowed.
    fn pieces(&self, offset: u64, len: u64) -> impl Iterator<Item = (u64, u64)> + Send + use<> {
        let longest = self.max_len;
        (0..len.div_ceil(longest)).map(move |i| {
            let at = i * longest;
            (offset + at, longest.min(len - at))
        })
    }

    /// The whole blocks around a range; it ends inside the disk, which is of whole blocks.
    fn around(&self, offset: u64, len: u64) -> (u64, u64) {
        let block = u64::from(self.min_block);
        let start = offset - offset % block;
        (start, (offset + len).next_multiple_of(block) - start)
    }
}

struct BlockSize {
    info: Info,
    below: Edge,
    settings: Settings,
}

impl BlockSize {
    fn new(settings: Settings, below: Edge) -> Self {
        let over = Info::over(&below);
        let block = settings.min_block;
        let info = Info {
            size: over.size - over.size % u64::from(block),
            blocks: BlockSizes {
                minimum: block,
                preferred: over.blocks.preferred.max(block),
                maximum: settings.max_data,
            },
            // Any request is taken, whatever the device below would tell clients.
            advertised: None,
            ..over
        };
        Self { info, below, settings }
    }

    fn prefetch(&self, offset: u64, len: u64, done: Done) {
        let (start, len) = self.settings.around(offset, len);
        let pieces = self.settings.pieces(start, len);
        let pieces = pieces.map(|(offset, len)| (Operation::Prefetch { offset, len }, None));
        self.below.submit_all(pieces, WIDTH, |result| done(result.map(|()| Outcome::Done)));
    }

    /// Asks for whole blocks, of the first piece only: whoever wants more asks again.
    fn resolve(&self, offset: u64, len: u64, max: usize, done: Done) {
        let (start, whole) = self.settings.around(offset, len);
        let block = u64::from(self.settings.min_block);
        let longest = whole.min(self.settings.max_len);
        let question =
            Question { below: self.below.clone(), block, offset, end: offset + len, max };
        question.ask((start, longest), max, done);
    }

    /// The same of a status context. A device that tells only of the beginning of a block is asked
    /// for what was wanted, as it is.
    fn status(&self, context: Arc<str>, (offset, len): (u64, u64), max: usize, done: Done) {
        let (start, whole) = self.settings.around(offset, len);
        let (skip, longest) = (offset - start, self.settings.max_len);
        let below = self.below.clone();
        let (same, shorter) = (context.clone(), len.min(longest));
        let then: Done = Box::new(move |result| match result {
            Ok(Outcome::Status(runs)) => match clip_runs(runs, skip, len, max) {
                runs if runs.is_empty() => {
                    let exactly = Operation::Status { context: same, offset, len: shorter, max };
                    below.submit(exactly, done);
                }
                runs => done(Ok(Outcome::Status(runs))),
            },
            other => done(other),
        });
        let max = max.saturating_add(usize::try_from(skip).unwrap_or(usize::MAX));
        let len = whole.min(longest);
        self.below.submit(Operation::Status { context, offset: start, len, max }, then);
    }

    /// Whether there is no flush for all pieces together.
    fn needs_fua_each(&self) -> bool {
        !self.below.info().abilities.flush
    }

    fn trim(&self, offset: u64, len: u64, fua: bool, done: Done) {
        if len <= self.settings.max_len {
            return self.below.submit(Operation::Trim { offset, len, fua }, done);
        }
        let each = fua && self.needs_fua_each();
        let pieces = self.settings.pieces(offset, len);
        let pieces =
            pieces.map(move |(offset, len)| (Operation::Trim { offset, len, fua: each }, None));
        self.below.submit_all(pieces, WIDTH, then_flush(&self.below, fua && !each, done));
    }

    fn zero(&self, offset: u64, len: u64, flags: ZeroFlags, done: Done) {
        if len <= self.settings.max_len {
            return self.below.submit(Operation::Zero { offset, len, flags }, done);
        }
        // One flush at the end costs less than FUA on every piece.
        let fua = flags.fua && self.needs_fua_each();
        let each = ZeroFlags { fua, ..flags };
        let done = then_flush(&self.below, flags.fua && !fua, done);
        if !flags.fast_only {
            return zero_pieces(&self.below, self.settings, (offset, len), each, done);
        }
        // The first piece answers for all whether it is fast; from there on something is changed.
        let (below, settings, first) = (self.below.clone(), self.settings, self.settings.max_len);
        let then: Done = Box::new(move |result| match result {
            Err(e) => done(Err(e)),
            Ok(_) => {
                let each = ZeroFlags { fast_only: false, ..each };
                zero_pieces(&below, settings, (offset + first, len - first), each, done);
            }
        });
        self.below.submit(Operation::Zero { offset, len: first, flags: each }, then);
    }
}

/// A question about the map, and who has it answered.
struct Question {
    below: Edge,
    /// Bytes of a block.
    block: u64,
    /// What was asked, from here to there, and how many extents there may be.
    offset: u64,
    end: u64,
    max: usize,
}

impl Question {
    /// Asks for whole blocks: offset and length. The answer may end before what was asked for
    /// begins; then for all extents of that block.
    fn ask(self, (start, len): (u64, u64), max: usize, done: Done) {
        let below = self.below.clone();
        let then: Done = Box::new(move |result| match result {
            Ok(Outcome::Extents(list)) => {
                let mut wanted = clip(&list, self.offset, self.end);
                wanted.truncate(self.max);
                let most = self.most();
                if !wanted.is_empty() {
                    done(Ok(Outcome::Extents(wanted)));
                } else if max < most {
                    let block = (start, self.block);
                    self.ask(block, most, done);
                } else {
                    done(Ok(Outcome::Extents(vec![self.unknown()])));
                }
            }
            other => done(other),
        });
        below.submit(Operation::Resolve { offset: start, len, max }, then);
    }

    /// The extents of a block, at most.
    fn most(&self) -> usize {
        usize::try_from(self.block).unwrap_or(usize::MAX)
    }

    /// The block in which the device below tells nothing but of its beginning.
    fn unknown(&self) -> Extent {
        let end = (self.offset - self.offset % self.block).saturating_add(self.block);
        Extent::new(self.offset, end.min(self.end) - self.offset, ExtentKind::Data)
    }
}

/// Zeroes a range, offset and length, in pieces.
fn zero_pieces(
    below: &Edge,
    settings: Settings,
    range: (u64, u64),
    flags: ZeroFlags,
    done: impl FnOnce(Result<()>) + Send + 'static,
) {
    let pieces = settings.pieces(range.0, range.1);
    let pieces = pieces.map(move |(offset, len)| (Operation::Zero { offset, len, flags }, None));
    below.submit_all(pieces, WIDTH, done);
}

/// `done`, after a flush if all went well and it is `wanted`.
fn then_flush(below: &Edge, wanted: bool, done: Done) -> impl FnOnce(Result<()>) + Send + 'static {
    let below = below.clone();
    move |result| match result {
        Ok(()) if wanted => below.submit(Operation::Flush, done),
        other => done(other.map(|()| Outcome::Done)),
    }
}

/// What of `list`, which begins at or before `start`, lies from `start` to `end`.
fn clip(list: &[Extent], start: u64, end: u64) -> Vec<Extent> {
    list.iter().filter_map(|extent| extent.part(start, end)).collect()
}

/// The runs without their first `skip` bytes: at most `max`, and `len` bytes.
fn clip_runs(runs: Vec<StatusRun>, mut skip: u64, mut len: u64, max: usize) -> Vec<StatusRun> {
    let clipped = runs.into_iter().filter_map(|run| {
        let before = skip.min(run.len);
        skip -= before;
        let n = (run.len - before).min(len);
        len -= n;
        (n > 0).then_some(StatusRun { len: n, value: run.value })
    });
    clipped.take(max).collect()
}

impl Filter for BlockSize {
    fn info(&self) -> &Info {
        &self.info
    }

    fn below(&self) -> &Edge {
        &self.below
    }

    fn run(&self, operation: Operation, done: Done) {
        match operation {
            Operation::Prefetch { offset, len } => self.prefetch(offset, len, done),
            Operation::Resolve { offset, len, max } => self.resolve(offset, len, max, done),
            Operation::Status { context, offset, len, max } => {
                self.status(context, (offset, len), max, done);
            }
            Operation::Take { offset, len, from, share_only } => {
                let len = len.min(self.settings.max_len);
                self.below.submit(Operation::Take { offset, len, from, share_only }, done);
            }
            Operation::Trim { offset, len, fua } => self.trim(offset, len, fua, done),
            Operation::Zero { offset, len, flags } => self.zero(offset, len, flags, done),
            // The edge above has made them of whole blocks and short enough.
            other @ (Operation::Flush | Operation::Read { .. } | Operation::Write { .. }) => {
                self.below.submit(other, done);
            }
        }
    }

    fn for_client(&self, below: Edge, _client: &Client, _seat: Seat) -> Self {
        Self::new(self.settings, below)
    }

    fn passes(&self) -> Passes {
        Passes::ALL
    }

    /// Maps are asked for in whole blocks, and not for more than is allowed.
    fn resolve_now(&self, _: u64, _: u64, _: usize, _: &mut Vec<Extent>) -> Result<bool> {
        Ok(false)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use device::model::Model;
    use device::{Abilities, Blocking, ErrorKind};

    use super::*;
    use crate::kit::tested::put;
    use trial::Direct as _;

    #[test]
    fn requests_reach_the_device_in_whole_blocks_and_no_longer_than_asked() {
        let blocks = BlockSizes { minimum: 512, preferred: 4096, maximum: 2048 };
        let all = Model::new(1).info().abilities;
        // This model panics when it is asked for anything else.
        let model = Arc::new(Model::with(10_000, all, blocks));
        // The last 272 bytes are not a block.
        let disk = put(
            "blocksize",
            crate::kit::tested::simple(model.clone()),
            &["minblock=512", "maxdata=2048", "maxlen=4096"],
        )
        .unwrap();
        assert_eq!(disk.info().size, 9728);
        disk.write(&[7; 5000], 100, false).unwrap();
        let mut read = [0; 5200];
        disk.read(&mut read, 0).unwrap();
        assert!(read[..100].iter().chain(&read[5100..]).all(|b| *b == 0));
        assert!(read[100..5100].iter().all(|b| *b == 7));
        disk.zero(0, 9728, ZeroFlags::default()).unwrap();
        disk.trim(0, 9728, true).unwrap();
        let log = model.log();
        let tail = &log[log.len() - 6..];
        assert!(tail[2].starts_with("zero 8192+1536"), "{tail:?}");
        assert!(tail[5].starts_with("trim 8192+1536"), "{tail:?}");
        assert_eq!(model.flushes(), 1);
        assert_eq!(disk.write(&[1], 9728, false).unwrap_err().kind(), ErrorKind::OutOfBounds);
    }

    #[test]
    fn limits_that_make_no_sense_are_refused() {
        for words in [
            &["minblock=513"][..],
            &["minblock=128K"],
            &["minblock=0"],
            &["minblock=512", "maxdata=1000"],
            &["maxdata=0"],
            &["maxlen=0"],
            &["minblock=4K", "maxlen=5K"],
        ] {
            assert!(
                put("blocksize", crate::kit::tested::simple(Arc::new(Model::new(100_000))), words)
                    .is_err(),
                "{words:?}"
            );
        }
    }

    #[test]
    fn a_fast_zero_in_pieces_is_refused_before_anything_is_changed_or_not_at_all() {
        let all = Model::new(1).info().abilities;
        let flags = ZeroFlags { fast_only: true, ..ZeroFlags::default() };
        let never = Abilities { fast_zero: false, ..all };
        let slow = Arc::new(Model::with(8192, never, BlockSizes::ANY));
        let disk =
            put("blocksize", crate::kit::tested::simple(slow.clone()), &["maxlen=1024"]).unwrap();
        disk.write(&[1; 8192], 0, false).unwrap();
        assert_eq!(disk.zero(0, 8192, flags).unwrap_err().kind(), ErrorKind::NotFast);
        assert!(slow.bytes().iter().all(|b| *b == 1));

        let half = Arc::new(FastUpTo { model: Model::new(8192), end: 3000 });
        let disk =
            put("blocksize", crate::kit::tested::simple(half.clone()), &["maxlen=1024"]).unwrap();
        disk.write(&[1; 8192], 0, false).unwrap();
        disk.zero(0, 8192, flags).unwrap();
        assert!(half.model.bytes().iter().all(|b| *b == 0));
    }

    /// Zeroes fast only in its first part.
    struct FastUpTo {
        model: Model,
        end: u64,
    }

    impl Blocking for FastUpTo {
        fn info(&self) -> &Info {
            self.model.info()
        }
        fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
            self.model.read_at(buf, offset)
        }
        fn write_at(&self, data: &[u8], offset: u64, fua: bool) -> Result<()> {
            self.model.write_at(data, offset, fua)
        }
        fn zero(&self, offset: u64, len: u64, flags: ZeroFlags) -> Result<()> {
            if flags.fast_only && offset + len > self.end {
                return Err(device::Error::not_fast());
            }
            self.model.zero(offset, len, flags)
        }
        fn flush(&self) -> Result<()> {
            self.model.flush()
        }
    }

    #[test]
    fn a_zero_of_more_than_4_gib_leaves_not_one_stale_byte() {
        // A sparse disk of 5 GiB, with bytes at the ends of pieces.
        let memory = devices::Named::parse("memory:5G").unwrap();
        let memory =
            memory.open(&devices::OpenOptions::read_write(), &runtime::Context::default()).unwrap();
        for words in [&["minblock=4096"][..], &["maxlen=1G"], &["maxlen=1073737728"]] {
            let disk = put("blocksize", memory.clone(), words).unwrap();
            let ends = (0..20u64).map(|i| i << 28).chain([(4 << 30) - 4096, (5 << 30) - 4096]);
            for at in ends {
                disk.write(&[9; 4096], at, false).unwrap();
            }
            let flags = ZeroFlags { may_unmap: true, ..ZeroFlags::default() };
            disk.zero(0, 5 << 30, flags).unwrap();
            let mut map = Vec::new();
            memory.resolve(0, 5 << 30, 100, &mut map).unwrap();
            assert!(map.iter().all(|e| e.kind.reads_zero()), "{words:?}: {map:?}");
            assert_eq!(map.iter().map(|e| e.len).sum::<u64>(), 5 << 30);
        }
    }

    #[test]
    fn the_map_is_asked_for_in_whole_blocks_and_answered_as_asked() {
        let disk = put(
            "blocksize",
            crate::kit::tested::simple(Arc::new(Model::new(8192))),
            &["minblock=1024", "maxlen=2048"],
        )
        .unwrap();
        disk.write(&[1; 1024], 1024, false).unwrap();
        let mut map = Vec::new();
        disk.resolve(1000, 5000, 9, &mut map).unwrap();
        let seen: Vec<_> = map.iter().map(|e| (e.start, e.len, e.kind.reads_zero())).collect();
        assert_eq!(seen, [(1000, 24, true), (1024, 1024, false)]);
    }

    /// Its map is of pieces of ten bytes, data and holes by turns; of which it tells no more than
    /// so many at a time. It takes only whole blocks of 64 bytes.
    struct Pieces {
        model: Model,
        at_a_time: usize,
    }

    impl Blocking for Pieces {
        fn info(&self) -> &Info {
            self.model.info()
        }
        fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
            self.model.read_at(buf, offset)
        }
        fn write_at(&self, data: &[u8], offset: u64, fua: bool) -> Result<()> {
            self.model.write_at(data, offset, fua)
        }
        fn flush(&self) -> Result<()> {
            self.model.flush()
        }
        fn resolve(&self, offset: u64, len: u64, max: usize, out: &mut Vec<Extent>) -> Result<()> {
            assert!(
                offset.is_multiple_of(64) && len.is_multiple_of(64) && len > 0,
                "{offset}+{len}"
            );
            let (mut at, end) = (offset, offset + len);
            for _ in 0..max.min(self.at_a_time) {
                let next = (at / 10 * 10 + 10).min(end);
                let kind =
                    if (at / 10).is_multiple_of(2) { ExtentKind::Data } else { ExtentKind::Hole };
                if next > at {
                    out.push(Extent::new(at, next - at, kind));
                }
                at = next;
            }
            Ok(())
        }
    }

    #[test]
    fn the_map_is_asked_for_in_whole_blocks_however_little_the_device_tells_at_a_time() {
        for at_a_time in [100, 9, 1] {
            let model = Model::new(1024);
            let disk = put(
                "blocksize",
                crate::kit::tested::simple(Arc::new(Pieces { model, at_a_time })),
                &["minblock=64"],
            );
            let disk = disk.unwrap();
            for (offset, max) in (0..1023).flat_map(|offset| [(offset, 1), (offset, 3)]) {
                let mut map = Vec::new();
                disk.resolve(offset, 1024 - offset, max, &mut map).unwrap();
                assert!(map.len() <= max);
                for extent in map {
                    // In doubt it is data; a hole is one.
                    let is_hole = |at: u64| at / 10 % 2 == 1;
                    let all = (extent.start..extent.end()).all(is_hole);
                    let none = !(extent.start..extent.end()).any(is_hole);
                    let hole = extent.kind.reads_zero();
                    assert!(if at_a_time == 1 {
                        !hole || all
                    } else {
                        hole == all && hole != none
                    });
                }
            }
        }
    }
}
