//! A sparse extent: the places of its grains.

use device::{Edge, Error, Result};

use super::header::{Entry, Fields, Layout, broken};
use super::pages::{Kept, PAGE};

/// The most grain tables to read for one answer. Longer requests are answered in parts.
const TABLES: usize = 1024;
/// The marker before a compressed grain: its sector and its length.
pub(super) const MARKER: u64 = 12;

/// A sparse extent and its file.
pub(super) struct Sparse {
    pub(super) layout: Layout,
    pub(super) file: Edge,
    /// Its number among the image's extents.
    pub(super) number: usize,
    /// Grains of it.
    grains: u64,
}

/// The place of grains.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Found {
    /// In the parent, or zeroes without one.
    Absent,
    /// All zero.
    Zero,
    /// Plain, from this byte on.
    Plain(u64),
    /// Compressed: at this byte, with at most so many bytes in the file, including the marker.
    Packed(u64, u64),
}

/// Grains of the same kind, one after the other.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Run {
    pub(super) found: Found,
    /// How many; never 0.
    pub(super) grains: u64,
}

impl Run {
    /// Whether it can take one more grain.
    fn takes(&mut self, next: Found, grain: u64) -> bool {
        let same = match (self.found, next) {
            (Found::Absent, Found::Absent) | (Found::Zero, Found::Zero) => true,
            (Found::Plain(at), Found::Plain(next)) => {
                self.grains.checked_mul(grain).and_then(|len| at.checked_add(len)) == Some(next)
            }
            _ => false,
        };
        self.grains += u64::from(same);
        same
    }
}

impl Sparse {
    pub(super) fn new(layout: Layout, file: Edge, number: usize) -> Self {
        let grains = layout.capacity.div_ceil(layout.grain);
        Self { layout, file, number, grains }
    }

    /// The longest compressed grain in the file, including the marker. Incompressible grains grow a
    /// little.
    pub(super) fn longest_packed(&self) -> u64 {
        self.layout.grain.saturating_mul(2).saturating_add(MARKER)
    }

    /// The place of the grain `first`, and how many grains continue it, at most `most` in all;
    /// `None` if that would have to wait and `may_wait` is false.
    pub(super) async fn run(
        &self,
        kept: &Kept,
        first: u64,
        most: u64,
        may_wait: bool,
    ) -> Result<Option<Run>> {
        let end = self.grains.min(first.saturating_add(most));
        let (mut run, mut at) = (None, first);
        for _ in 0..TABLES {
            if at >= end {
                break;
            }
            let table = at / self.layout.entries;
            let Some(begins) = self.table(kept, table, may_wait).await? else { return Ok(None) };
            let stop = end.min((table + 1).saturating_mul(self.layout.entries));
            match begins {
                None => {
                    if !extend(&mut run, Found::Absent, self.layout.grain) {
                        break;
                    }
                    if let Some(run) = &mut run {
                        run.grains += stop - at - 1;
                    }
                    at = stop;
                }
                Some(begins) => {
                    let Some(next) =
                        self.entries(kept, begins, at..stop, &mut run, may_wait).await?
                    else {
                        return Ok(None);
                    };
                    if next < stop {
                        break;
                    }
                    at = stop;
                }
            }
        }
        let run = run.ok_or_else(|| broken("a grain outside the disk"))?;
        Ok(Some(run))
    }

    /// Where a table begins, if there is one.
    async fn table(&self, kept: &Kept, table: u64, may_wait: bool) -> Result<Option<Option<u64>>> {
        let at = self.layout.directory.saturating_add(table.saturating_mul(self.width()));
        let Some((page, within)) = self.page(kept, at, may_wait).await? else { return Ok(None) };
        let entry = self.entry(&page, within).ok_or_else(|| self.outside("directory", at))?;
        let begins = match (self.layout.entry, entry) {
            (_, 0) => return Ok(Some(None)),
            (Entry::Sector, sector) => sector * 512,
            (Entry::Numbered { tables, .. }, entry) if entry >> 32 == 0x1000_0000 => {
                let len = self.layout.entries * self.width();
                tables.saturating_add((entry & 0xffff_ffff) * len)
            }
            _ => return Err(broken(format!("the entry {entry:#x} of the grain directory")).at(at)),
        };
        let size = self.file.info().size;
        let len = self.layout.entries * self.width();
        if begins < 512 || size.checked_sub(begins).is_none_or(|after| after < len) {
            return Err(self.outside("table", begins));
        }
        Ok(Some(Some(begins)))
    }

    /// Adds the grains of `range`, whose table begins at `begins`, to the run while they continue
    /// it. Returns the first that does not, or the end.
    async fn entries(
        &self,
        kept: &Kept,
        begins: u64,
        range: std::ops::Range<u64>,
        run: &mut Option<Run>,
        may_wait: bool,
    ) -> Result<Option<u64>> {
        let mut at = range.start;
        while at < range.end {
            let from = begins.saturating_add(at % self.layout.entries * self.width());
            let Some((page, within)) = self.page(kept, from, may_wait).await? else {
                return Ok(None);
            };
            let mut within = within;
            let before = at;
            while at < range.end
                && let Some(entry) = self.entry(&page, within)
            {
                let last = within.saturating_add(8 * 64).min(page.len());
                let ahead = page.get(within..last).unwrap_or_default();
                let found = self.classify(entry, at, ahead)?;
                let packed = matches!(found, Found::Packed(..));
                if !extend(run, found, self.layout.grain) {
                    return Ok(Some(at));
                }
                at += 1;
                if packed {
                    return Ok(Some(at));
                }
                within += usize::try_from(self.width()).unwrap_or(8);
            }
            if at == before {
                return Err(self.outside("table", from));
            }
        }
        Ok(Some(at))
    }

    /// Decodes the table entry of the grain `grain`; `ahead` are the bytes from it on.
    fn classify(&self, entry: u64, grain: u64, ahead: &[u8]) -> Result<Found> {
        let at = match self.layout.entry {
            Entry::Sector => match entry {
                0 => return Ok(Found::Absent),
                1 if self.layout.zero_grains => return Ok(Found::Zero),
                sector => sector * 512,
            },
            Entry::Numbered { grains, .. } => match (entry >> 60, entry) {
                (0, 0) => return Ok(Found::Absent),
                (1 | 2, _) => return Ok(Found::Zero),
                (3, entry) => {
                    let number = (entry >> 48 & 0xfff) | (entry & 0xffff_ffff_ffff) << 12;
                    let at = number.checked_mul(self.layout.grain);
                    at.and_then(|at| at.checked_add(grains))
                        .ok_or_else(|| self.lost(grain, entry))?
                }
                _ => return Err(self.lost(grain, entry)),
            },
        };
        let start = grain.saturating_mul(self.layout.grain);
        let after = self.file.info().size.saturating_sub(at);
        let needed = self.layout.capacity.saturating_sub(start).min(self.layout.grain);
        let needed = if self.layout.packed { MARKER } else { needed };
        // A grain inside the header is invalid.
        if at < 512 || self.in_directory(at, needed) || after < needed {
            return Err(self.lost(grain, entry));
        }
        if !self.layout.packed {
            return Ok(Found::Plain(at));
        }
        // The next grain bounds it, so no more is read than needed.
        let mut later = ahead.chunks_exact(4).skip(1).map(|e| u64::from(Fields(e).u32(0)) * 512);
        let next = later.find(|next| *next > at).map_or(u64::MAX, |next| next - at);
        Ok(Found::Packed(at, next.min(self.longest_packed()).min(after)))
    }

    fn in_directory(&self, at: u64, len: u64) -> bool {
        let tables = self.layout.tables().unwrap_or(u64::MAX);
        let directory = self.layout.directory;
        let end = directory.saturating_add(tables.saturating_mul(self.width()));
        at < end && directory < at.saturating_add(len)
    }

    /// The page of a byte of the file, and the offset in it.
    async fn page(
        &self,
        kept: &Kept,
        at: u64,
        may_wait: bool,
    ) -> Result<Option<(std::sync::Arc<[u8]>, usize)>> {
        let within = usize::try_from(at % PAGE).unwrap_or(0);
        let page = kept.page(&self.file, (self.number, at / PAGE), may_wait).await?;
        Ok(page.map(|page| (page, within)))
    }

    fn entry(&self, page: &[u8], within: usize) -> Option<u64> {
        let bytes = page.get(within..)?;
        match self.layout.entry {
            Entry::Sector => bytes.first_chunk().map(|b| u64::from(u32::from_le_bytes(*b))),
            Entry::Numbered { .. } => bytes.first_chunk().map(|b| u64::from_le_bytes(*b)),
        }
    }

    fn width(&self) -> u64 {
        self.layout.entry.width()
    }

    fn outside(&self, what: &str, at: u64) -> Error {
        broken(format!("a grain {what} is not in the file")).on(&self.file.info().name).at(at)
    }

    fn lost(&self, grain: u64, entry: u64) -> Error {
        let action = format!(
            "the entry {entry:#x} of grain {grain} leads outside the file, or to what is no grain"
        );
        broken(action).on(&self.file.info().name)
    }
}

/// Adds one grain to a run, if it belongs to it.
fn extend(run: &mut Option<Run>, found: Found, grain: u64) -> bool {
    match run {
        Some(run) => run.takes(found, grain),
        None => {
            *run = Some(Run { found, grains: 1 });
            true
        }
    }
}
