//! A sparse extent: the places of its grains.

use std::sync::Arc;

use device::{Edge, Error, Result};
use runtime::Context;

use super::grains::Grains;
use super::header::{Entry, Layout, broken};
use crate::kit::cache::{Cache, Shelf};
use crate::kit::fields::le32;
use crate::kit::{Lies, Packed, Run, read};

/// Bytes of its directory and tables that are read, and kept, at a time.
const PAGE: u64 = 4096;
/// The marker before a compressed grain: its sector and its length.
pub(super) const MARKER: u64 = 12;

/// A sparse extent and its file.
pub(super) struct Sparse {
    pub(super) layout: Layout,
    pub(super) file: Edge,
    /// Pages of the file by their numbers.
    pages: Shelf,
    /// If it is written.
    pub(super) grains: Option<Grains>,
}

impl Sparse {
    pub(super) fn new(layout: Layout, file: Edge, context: &Context) -> Self {
        Self { layout, file, pages: Cache::of(context).shelf(), grains: None }
    }

    /// The longest compressed grain in the file, including the marker. Incompressible grains grow a
    /// little.
    fn longest_packed(&self) -> u64 {
        self.layout.grain.saturating_mul(2).saturating_add(MARKER)
    }

    /// The place of the byte `at` of the extent, and how far it goes: at most `len` bytes, and as
    /// far as a page of a table tells; `None` if that would have to wait and `may_wait` is false.
    pub(super) async fn run(&self, at: u64, len: u64, may_wait: bool) -> Result<Option<Run>> {
        let (size, entries) = (self.layout.grain, self.layout.entries);
        let (first, within) = (at / size, at % size);
        let end = at.saturating_add(len).min(self.layout.capacity);
        if at >= end {
            return Err(broken("a grain outside the disk"));
        }
        let table = first / entries;
        let Some(begins) = self.table(table, may_wait).await? else { return Ok(None) };
        let covered = (table + 1).saturating_mul(entries).saturating_mul(size);
        let end = end.min(covered);
        let Some(begins) = begins else {
            return Ok(Some(Run { len: end - at, lies: Lies::Beneath }));
        };
        let from = begins.saturating_add(first % entries * self.width());
        let Some((page, mut place)) = self.page(from, may_wait).await? else { return Ok(None) };
        let (mut found, mut grain): (Option<Run>, _) = (None, first);
        while grain.saturating_mul(size) < end
            && let Some(entry) = self.entry(&page, place)
        {
            let last = place.saturating_add(8 * 64).min(page.len());
            let ahead = page.get(place..last).unwrap_or_default();
            let next = Run { len: size, lies: self.classify(entry, grain, ahead)? };
            match &mut found {
                None => found = Some(next),
                Some(run) => {
                    if !run.extend(next) {
                        break;
                    }
                }
            }
            grain += 1;
            place += usize::try_from(self.width()).unwrap_or(8);
        }
        let run = found.ok_or_else(|| self.outside("table", from))?;
        let lies = match run.lies {
            Lies::At(offset) => Lies::At(offset + within),
            lies => lies,
        };
        Ok(Some(Run { len: (run.len - within).min(end - at), lies }))
    }

    /// Where a table begins, if there is one.
    pub(super) async fn table(&self, table: u64, may_wait: bool) -> Result<Option<Option<u64>>> {
        let at = self.layout.directory.saturating_add(table.saturating_mul(self.width()));
        let Some((page, within)) = self.page(at, may_wait).await? else { return Ok(None) };
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
        let size = self.size();
        let len = self.layout.entries * self.width();
        if begins < 512 || size.checked_sub(begins).is_none_or(|after| after < len) {
            return Err(self.outside("table", begins));
        }
        Ok(Some(Some(begins)))
    }

    /// Decodes the table entry of the grain `grain`; `ahead` are the bytes from it on.
    fn classify(&self, entry: u64, grain: u64, ahead: &[u8]) -> Result<Lies> {
        let at = match self.layout.entry {
            Entry::Sector => match entry {
                0 => return Ok(Lies::Beneath),
                1 if self.layout.zero_grains => return Ok(Lies::Hole),
                sector => sector * 512,
            },
            Entry::Numbered { grains, .. } => match (entry >> 60, entry) {
                (0, 0) => return Ok(Lies::Beneath),
                (1 | 2, _) => return Ok(Lies::Hole),
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
        let after = self.size().saturating_sub(at);
        let needed = self.layout.capacity.saturating_sub(start).min(self.layout.grain);
        let needed = if self.layout.packed { MARKER } else { needed };
        // A grain inside the header is invalid.
        let first = self.grains.as_ref().map_or(512, |grains| grains.first);
        if at < first || self.in_directory(at, needed) || after < needed {
            return Err(self.lost(grain, entry));
        }
        if !self.layout.packed {
            return Ok(Lies::At(at));
        }
        // The next grain bounds it, so no more is read than needed.
        let mut later = ahead.chunks_exact(4).skip(1).map(|e| u64::from(le32(e, 0)) * 512);
        let next = later.find(|next| *next > at).map_or(u64::MAX, |next| next - at);
        let len = next.min(self.longest_packed()).min(after);
        Ok(Lies::Packed(Packed { start, size: self.layout.grain, offset: at, len }))
    }

    fn in_directory(&self, at: u64, len: u64) -> bool {
        let tables = self.layout.tables().unwrap_or(u64::MAX);
        let directory = self.layout.directory;
        let end = directory.saturating_add(tables.saturating_mul(self.width()));
        at < end && directory < at.saturating_add(len)
    }

    /// The page of a byte of the file, which may end in it, and the offset in the page.
    async fn page(&self, at: u64, may_wait: bool) -> Result<Option<(Arc<[u8]>, usize)>> {
        if let Some(Grains { file, .. }) = &self.grains {
            let start = file.blocks.start(at);
            let page = match file.blocks.get(start) {
                Some(page) => page,
                None if !may_wait => return Ok(None),
                None => file.blocks.load(start).await?,
            };
            return Ok(Some((page, usize::try_from(at - start).unwrap_or(0))));
        }
        let (number, within) = (at / PAGE, usize::try_from(at % PAGE).unwrap_or(0));
        if let Some(page) = self.pages.get(number) {
            return Ok(Some((page, within)));
        }
        let start = at - at % PAGE;
        let len = self.size().saturating_sub(start).min(PAGE);
        let len = usize::try_from(len).unwrap_or(0);
        let Some(bytes) = read(&self.file, start, len, may_wait).await? else { return Ok(None) };
        let page: Arc<[u8]> = Arc::from(&*bytes);
        self.pages.put(number, page.clone());
        Ok(Some((page, within)))
    }

    fn entry(&self, page: &[u8], within: usize) -> Option<u64> {
        let bytes = page.get(within..)?;
        match self.layout.entry {
            Entry::Sector => bytes.first_chunk().map(|b| u64::from(u32::from_le_bytes(*b))),
            Entry::Numbered { .. } => bytes.first_chunk().map(|b| u64::from_le_bytes(*b)),
        }
    }

    /// Bytes of its file now.
    fn size(&self) -> u64 {
        let written = self.grains.as_ref().map(|grains| grains.file.container.length());
        written.unwrap_or_else(|| self.file.info().size)
    }

    fn width(&self) -> u64 {
        self.layout.entry.width()
    }

    fn outside(&self, what: &str, at: u64) -> Error {
        broken(format!("a grain {what} is not in the file")).on(&self.file.info().name).at(at)
    }

    fn lost(&self, grain: u64, entry: u64) -> Error {
        let action = format!(
            "the entry {entry:#x} of grain {grain} leads outside the file, or not to a grain"
        );
        broken(action).on(&self.file.info().name)
    }
}
