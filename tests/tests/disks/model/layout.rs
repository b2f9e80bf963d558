//! Which client may change which bytes. The disk is cut into runs of odd lengths, each with an
//! owner, so that the bytes of one block belong to several clients; one range in the middle belongs
//! to all.

use std::ops::Range;

use blackbox::dice::Dice;

/// A run of bytes and the number of the client that alone changes it.
#[derive(Debug, Clone)]
pub(crate) struct Run {
    pub(crate) range: Range<usize>,
    pub(crate) owner: usize,
}

/// The whole disk.
#[derive(Debug)]
pub(crate) struct Layout {
    pub(crate) size: usize,
    pub(crate) runs: Vec<Run>,
    /// Bytes that all clients change.
    pub(crate) common: Range<usize>,
    /// What the disk holds at first.
    pub(crate) first: Vec<u8>,
}

const LENGTHS: &[usize] =
    &[1, 3, 64, 100, 512, 512, 512, 1000, 2048, 4096, 4096, 5000, 8192, 20_000, 70_000, 150_000];

impl Layout {
    /// A disk of `size` bytes for this many clients.
    pub(crate) fn new(size: usize, clients: usize, dice: &mut Dice) -> Self {
        let begin = dice.between(size / 4, size / 2);
        let common = begin..begin + dice.between(3000, 50_000).min(size - begin);
        let mut runs: Vec<Run> = Vec::new();
        let mut at = 0;
        while at < size {
            if at == common.start {
                at = common.end;
                continue;
            }
            let limit = if at < common.start { common.start } else { size };
            // Small runs stand together, so that a block has many owners.
            let some = if dice.percent(60) { &LENGTHS[..9] } else { LENGTHS };
            let end = limit.min(at + dice.pick(some));
            runs.push(Run { range: at..end, owner: dice.below(clients) });
            at = end;
        }
        let mut layout = Self { size, runs, common, first: vec![0; size] };
        layout.fill(dice);
        layout
    }

    /// Half of the runs begin with data, marked with their owner, and half are zero.
    fn fill(&mut self, dice: &mut Dice) {
        for run in &self.runs {
            if dice.percent(60) {
                mark(&mut self.first[run.range.clone()], run.owner, dice.number());
            }
        }
        if dice.percent(50) {
            mark(&mut self.first[self.common.clone()], 0, dice.number());
        }
    }

    /// The runs of a client.
    pub(crate) fn of(&self, owner: usize) -> Vec<Range<usize>> {
        self.runs.iter().filter(|r| r.owner == owner).map(|r| r.range.clone()).collect()
    }

    /// Calls `see` for each run that a range touches, with the part touched.
    pub(crate) fn runs_in(&self, range: &Range<usize>, mut see: impl FnMut(Range<usize>, usize)) {
        let from = self.runs.partition_point(|run| run.range.end <= range.start);
        for run in self.runs[from..].iter().take_while(|run| run.range.start < range.end) {
            let part = run.range.start.max(range.start)..run.range.end.min(range.end);
            see(part, run.owner);
        }
    }
}

/// Fills bytes with values that are never zero, show their owner, and differ each time.
pub(crate) fn mark(bytes: &mut [u8], owner: usize, version: u64) {
    let high = u8::try_from(owner + 1).unwrap() << 4;
    let mut low = version % 15;
    for byte in bytes {
        *byte = high | u8::try_from(low + 1).unwrap();
        low = (low + 7) % 15;
    }
}

/// Whether a byte of this owner may hold this: zero, or something that the owner wrote.
pub(crate) fn may_be(byte: u8, owner: usize) -> bool {
    byte == 0 || usize::from(byte >> 4) == owner + 1
}
