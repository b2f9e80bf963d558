//! Checks that each block of a Parallels disk lies in the file in a place of its own, and counts
//! unused places. Counts what `qemu-img check` counts.

use device::{Edge, Error, ErrorKind, Fault, Result};
use runtime::Context;

use super::header::{HEADER, Header};
use crate::Findings;
use crate::kit::Taken;
use crate::kit::fields::{le32, load};

/// Bytes of the table that are read at a time.
const PIECE: u64 = 64 << 10;

pub(super) fn check(container: &Edge, _: &Context) -> Result<Findings> {
    let header = Header::read(container)?;
    let size = container.info().size;
    let taken = Taken::of(size.div_ceil(header.block));
    if !taken.is_whole() {
        let action = "check an image of more than 512 million blocks";
        return Err(Error::new(ErrorKind::Limit, Fault::File, action));
    }
    let findings = Findings { total_clusters: header.entries, ..Findings::default() };
    let mut check = Check { header, size, taken, findings, lies: None, before: None };
    if check.header.in_use {
        check.findings.wrong("the image was not closed".into());
    }
    check.table(container)?;
    check.count_leaks();
    Ok(check.findings)
}

struct Check {
    header: Header,
    /// Of the container.
    size: u64,
    taken: Taken,
    findings: Findings,
    /// Where the first block in the file begins, and the last.
    lies: Option<(u64, u64)>,
    /// The offset of the block before, if it is in the file.
    before: Option<u64>,
}

impl Check {
    /// The first byte after the table.
    fn table_end(&self) -> u64 {
        self.header.entries * 4 + HEADER as u64
    }

    fn table(&mut self, container: &Edge) -> Result<()> {
        let (mut at, end) = (HEADER as u64, self.table_end());
        while at < end {
            let len = usize::try_from(PIECE.min(end - at)).unwrap_or(0);
            let piece = load(container, "table", at, len)?;
            for (block, entry) in ((at - HEADER as u64) / 4..).zip(piece.chunks_exact(4)) {
                match le32(entry, 0) {
                    0 => self.before = None,
                    entry => self.block(block, u64::from(entry).saturating_mul(self.header.unit)),
                }
            }
            at += PIECE;
        }
        Ok(())
    }

    fn block(&mut self, block: u64, start: u64) {
        let (len, before) = (self.header.block, self.before.take());
        if start < self.table_end() {
            return self.findings.wrong(format!("block {block} overlaps the headers: at {start}"));
        }
        if start > self.size || len > self.size - start {
            return self.findings.wrong(format!("block {block} lies outside the file: at {start}"));
        }
        let (low, high) = *self.lies.get_or_insert((start, start));
        self.lies = Some((low.min(start), high.max(start)));
        self.before = Some(start);
        self.findings.allocated_clusters += 1;
        let follows = before.is_none_or(|before| before + len == start);
        self.findings.fragmented_clusters += u64::from(!follows);
        if start % len != low % len {
            // Places can be tracked only if all blocks begin at multiples of their length after the
            // first.
            self.findings.check_errors += 1;
        } else if !self.taken.take(start / len, 1) {
            self.findings.wrong(format!("block {block} shares the space of another: {start}"));
        }
    }

    fn count_leaks(&mut self) {
        let len = self.header.block;
        let (end, between) = match self.lies {
            // The room of the first block is taken from the start.
            None => (self.header.data.min(self.size).max(self.table_end()), 0),
            Some((low, high)) => (high + len, (high - low) / len + 1),
        };
        let free = if self.findings.check_errors == 0 { between - self.taken.count() } else { 0 };
        self.findings.image_end = end;
        self.findings.leaks = free + (self.size - end.min(self.size)).div_ceil(len);
    }
}
