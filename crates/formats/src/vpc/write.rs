//! Writing into a VHD image where it lies.
//!
//! A new block goes behind all that the file has, its footer too, with a footer of its own behind
//! it. So nothing is written over, the file ends with a footer, and never with bytes of the disk
//! that could be taken for one. Every sector of a block that is written counts as written in its
//! bitmap, as QEMU has it; but not in a differencing image, where only those count that are not in
//! the parent. There a new block has all its sectors.

use std::ops::Range;
use std::sync::Arc;

use device::{Device, Edge, Error, ErrorKind, Fault, Result};
use runtime::Mutex;

use super::header::{Dynamic, FOOTER, Footer, Kind, SECTOR};
use super::map::{ABSENT, Map, Whole};
use super::parent;
use crate::Opening;
use crate::kit::blocks::Rank;
use crate::kit::fields::{corrupt, lies_within, load};
use crate::kit::{
    Appending, Appends, Later, NewBlock, Taken, WrittenFile, confused, disk_info, written_info,
};

/// The most blocks: where each lies is compared with all others when it is opened.
const BLOCKS_MAX: u64 = 1 << 24;
/// The most places that are used again because what was to be there could not be written.
const FREE_MAX: usize = 1 << 16;

/// What an image that is written has besides.
pub(super) struct Written {
    pub(super) file: Arc<WrittenFile>,
    footer: Vec<u8>,
    end: Mutex<End>,
    /// Blocks with whole bitmaps.
    whole: Mutex<Taken>,
}

/// The end of the image.
struct End {
    /// From there on all is free.
    next: u64,
    /// Places before it to which nothing refers.
    free: Vec<u64>,
    /// Where the last footer can end at most.
    limit: u64,
}

pub(super) fn open(container: Edge, opening: &Opening<'_>) -> Result<Arc<dyn Device>> {
    let footer = Footer::read(&container)?;
    let size = container.info().size;
    if footer.kind == Kind::Fixed {
        // The footer is behind the disk.
        lies_within(size - FOOTER as u64, "disk", 0, footer.size)?;
        let file = Arc::new(WrittenFile::open(container, SECTOR, opening.context)?);
        let info = written_info(disk_info(&file.edge, footer.size), &[&file]);
        let whole = Whole { container: file.edge.clone(), written: Some(file) };
        return Ok(Appending::device(info, opening.context, None, whole));
    }
    let dynamic = Dynamic::read(&container, &footer)?;
    let backing = match footer.kind {
        Kind::Differencing => Some(parent::open(&container, &dynamic, opening.files)?),
        Kind::Fixed | Kind::Dynamic => None,
    };
    if dynamic.entries > BLOCKS_MAX {
        return Err(refused("it has too many blocks"));
    }
    let copy = load(&container, "header", 0, FOOTER)?.to_vec();
    let map = Map::new((&container, opening.context), dynamic, footer.kind)?;
    check(&map)?;
    let grows = container.device().grows();
    let file = Arc::new(WrittenFile::open(container, SECTOR, opening.context)?);
    let next = if grows { size } else { end_of_blocks(&map)? };
    let end = End {
        next: next.next_multiple_of(SECTOR),
        free: Vec::new(),
        limit: file.container.limit(),
    };
    let whole = Mutex::new(Taken::of(map.dynamic.entries));
    let written = Written { file: file.clone(), footer: copy, end: Mutex::new(end), whole };
    let map = map.written(written)?;
    let info = written_info(disk_info(&file.edge, footer.size), &[&file]);
    Ok(Appending::device(info, opening.context, backing, map))
}

fn refused(why: &str) -> Error {
    Error::new(ErrorKind::ReadOnly, Fault::File, format!("cannot be written: {why}"))
}

/// Refuses an image of which a part lies over another: both would be changed.
fn check(map: &Map) -> Result<()> {
    let (dynamic, (table, len)) = (&map.dynamic, map.table.range());
    let mut parts = [(0, FOOTER as u64), dynamic.range(), (table, len)];
    parts.sort_unstable();
    let broken = |what: &str| corrupt(format!("the VHD image is broken: {what}"));
    if parts.windows(2).any(|pair| matches!(pair, [(a, n), (b, _)] if a + n > *b)) {
        return Err(broken("its table overlaps a header"));
    }
    let mut starts = Vec::new();
    for block in 0..dynamic.entries {
        let entry = map.table.entry_now(block)?;
        if entry != ABSENT {
            starts.push(u32::try_from(entry).map_err(|_| confused())?);
        }
    }
    starts.sort_unstable();
    let sectors = (dynamic.bitmap() + dynamic.block) / SECTOR;
    let are_close = |pair: &[u32]| matches!(pair, [a, b] if u64::from(b - a) < sectors);
    if starts.windows(2).any(are_close) {
        return Err(broken("two of its blocks overlap"));
    }
    Ok(())
}

/// The end of all blocks and headers, and of a footer behind them.
fn end_of_blocks(map: &Map) -> Result<u64> {
    let (dynamic, (table, len)) = (&map.dynamic, map.table.range());
    let (header, header_len) = dynamic.range();
    let mut end = (table + len).max(header + header_len);
    for block in 0..dynamic.entries {
        let entry = map.table.entry_now(block)?;
        if entry != ABSENT {
            end = end.max(entry * SECTOR + dynamic.bitmap() + dynamic.block);
        }
    }
    Ok(end.next_multiple_of(SECTOR) + FOOTER as u64)
}

impl End {
    /// A place for so many bytes, and whether it was never given out.
    fn take(&mut self, len: u64) -> Result<(u64, bool)> {
        if let Some(at) = self.free.pop() {
            return Ok((at, false));
        }
        let at = self.next;
        let room = self.limit.checked_sub(at);
        if room.is_none_or(|room| room < len) || at / SECTOR >= ABSENT {
            let action = "there is no space for another block in the image";
            return Err(Error::new(ErrorKind::NoSpace, Fault::File, action));
        }
        self.next += len;
        Ok((at, true))
    }
}

impl Map {
    fn changed(&self) -> Result<&Written> {
        self.written.as_ref().ok_or_else(confused)
    }

    fn blocks(&self, at: u64, len: u64) -> Range<u64> {
        at / self.dynamic.block..(at + len).div_ceil(self.dynamic.block)
    }
}

impl Appends for Map {
    fn written(&self) -> Vec<&WrittenFile> {
        self.written.iter().map(|written| &*written.file).collect()
    }

    fn written_at(&self, _: u64) -> Option<&WrittenFile> {
        self.written.as_ref().map(|written| &*written.file)
    }

    fn block(&self, at: u64) -> Range<u64> {
        let start = at - at % self.dynamic.block;
        start..start + self.dynamic.block
    }

    fn is_prepared(&self, at: u64, len: u64) -> bool {
        self.written.as_ref().is_some_and(|written| {
            let whole = written.whole.lock();
            self.differs || self.blocks(at, len).all(|block| whole.has(block))
        })
    }

    fn prepare(&self, at: u64, len: u64) -> Later<'_, ()> {
        Box::pin(async move {
            let Written { file, whole, .. } = self.changed()?;
            if self.differs {
                // What is there counts as written already.
                return Ok(());
            }
            for block in self.blocks(at, len) {
                if whole.lock().has(block) {
                    continue;
                }
                let entry = self.table.entry(block, true).await?.ok_or_else(confused)?;
                if entry == ABSENT {
                    continue;
                }
                let start = entry * SECTOR;
                let sectors = (start..start + self.dynamic.bitmap()).step_by(FOOTER);
                let sectors: Vec<u64> = sectors.collect();
                let full = [0xff; FOOTER];
                file.change(&sectors, |blocks| {
                    for at in &sectors {
                        if blocks.get(*at).is_none_or(|bits| *bits != full) {
                            blocks.change(*at, Rank::First, &full)?;
                        }
                    }
                    Ok(())
                })
                .await?;
                whole.lock().take(block, 1);
            }
            Ok(())
        })
    }

    fn part(&self, at: u64, len: u64) -> Later<'_, Option<(Range<u64>, u64)>> {
        Box::pin(async move {
            let (block, within) = (at / self.dynamic.block, at % self.dynamic.block);
            let entry = self.table.entry(block, true).await?.ok_or_else(confused)?;
            if !self.differs || entry == ABSENT {
                return Ok(None);
            }
            let start = at - at % SECTOR;
            let place = entry * SECTOR + self.dynamic.bitmap() + (within - within % SECTOR);
            Ok(Some((start..(at + len).next_multiple_of(SECTOR), place)))
        })
    }

    fn link_part(&self, part: Range<u64>) -> Later<'_, ()> {
        Box::pin(async move {
            let file = &self.changed()?.file;
            let (block, within) =
                (part.start / self.dynamic.block, part.start % self.dynamic.block);
            let entry = self.table.entry(block, true).await?.ok_or_else(confused)?;
            let bitmap = entry * SECTOR;
            let first = within / SECTOR;
            let sectors = first..first + (part.end - part.start) / SECTOR;
            let bytes = bitmap + sectors.start / 8..bitmap + sectors.end.div_ceil(8);
            // The highest bit of a byte is the first sector.
            let mask = |at: u64| {
                let bits = (0..8).filter(|bit| sectors.contains(&((at - bitmap) * 8 + bit)));
                bits.fold(0, |mask, bit| mask | 0x80 >> bit)
            };
            let starts = file.starts(&bytes);
            file.change(&starts, |blocks| blocks.set_bits(bytes, Rank::Last, mask)).await
        })
    }

    fn take(&self, _: u64) -> Result<NewBlock> {
        let Written { file, footer, end, .. } = self.changed()?;
        let bitmap = self.dynamic.bitmap();
        let len = bitmap + self.dynamic.block + footer.len() as u64;
        let (start, is_first) = end.lock().take(len)?;
        let front = vec![0xff; usize::try_from(bitmap).map_err(|_| confused())?];
        let is_zero = is_first && file.is_new(start);
        Ok(NewBlock { at: start + bitmap, front, is_zero })
    }

    fn behind(&self) -> &[u8] {
        self.written.as_ref().map_or(&[], |written| &written.footer)
    }

    fn give_back(&self, _: u64, new: NewBlock) {
        if let Some(written) = &self.written {
            let end = &mut *written.end.lock();
            if end.free.len() < FREE_MAX {
                end.free.push(new.at - self.dynamic.bitmap());
            }
        }
    }

    fn link<'a>(&'a self, start: u64, new: &'a NewBlock) -> Later<'a, ()> {
        Box::pin(async move {
            let Written { file, whole, .. } = self.changed()?;
            let block = start / self.dynamic.block;
            let (place, sector) =
                (self.table.place(block), (new.at - self.dynamic.bitmap()) / SECTOR);
            let sector = u32::try_from(sector).map_err(|_| confused())?;
            file.change(&[place], |blocks| blocks.change(place, Rank::Last, &sector.to_be_bytes()))
                .await?;
            whole.lock().take(block, 1);
            Ok(())
        })
    }
}

impl Appends for Whole {
    fn written(&self) -> Vec<&WrittenFile> {
        self.written.iter().map(|file| &**file).collect()
    }

    fn written_at(&self, _: u64) -> Option<&WrittenFile> {
        self.written.as_deref()
    }

    fn block(&self, at: u64) -> Range<u64> {
        at..at.saturating_add(1)
    }

    fn take(&self, _: u64) -> Result<NewBlock> {
        Err(confused())
    }

    fn give_back(&self, _: u64, _: NewBlock) {}

    fn link<'a>(&'a self, _: u64, _: &'a NewBlock) -> Later<'a, ()> {
        Box::pin(async move { Err(confused()) })
    }
}
