//! What sparse extents that are written have besides: where new grains go, and their tables.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use device::{Edge, Error, ErrorKind, Fault, Result};
use runtime::{Gate, Mutex};

use super::descriptor::SECTOR;
use super::header::{HEADER, KDMV, Layout, REDUNDANT, broken};
use crate::kit::fields::{le32, le64, load};
use crate::kit::{Taken, WrittenFile};

/// The most tables of an extent.
const TABLES_MAX: u64 = 1 << 21;
/// Bytes of a directory that are checked at a time.
const AT_ONCE: u64 = 64 << 10;
/// The most places that are used again because what was to be there could not be written.
const FREE_MAX: usize = 1 << 16;

/// What an image that is written has besides.
pub(super) struct Written {
    /// By their numbers; the container is the first.
    pub(super) files: Vec<Arc<WrittenFile>>,
    /// The content ID: where its digits are in the container, how many, and what it is.
    pub(super) cid: Option<(u64, usize, u32)>,
    /// Whether the image says that it is written.
    pub(super) is_marked: AtomicBool,
    pub(super) marking: Arc<Gate>,
}

/// What a sparse extent that is written has besides.
pub(super) struct Grains {
    pub(super) file: Arc<WrittenFile>,
    /// Where the first grain can be: behind all tables.
    pub(super) first: u64,
    /// Where the redundant directory is.
    pub(super) redundant: Option<u64>,
    end: Mutex<End>,
}

/// The end of the file.
struct End {
    /// From there on all is free.
    next: u64,
    /// Places before it to which nothing refers.
    free: Vec<u64>,
}

pub(super) fn refused(why: &str) -> Error {
    Error::new(ErrorKind::ReadOnly, Fault::File, format!("cannot be written: {why}"))
}

impl Grains {
    /// Those of an extent that is in `before`, and is to be written in `file`.
    pub(super) fn find(layout: &Layout, before: &Edge, file: &Arc<WrittenFile>) -> Result<Self> {
        let header = load(before, "header", 0, HEADER)?;
        if layout.packed {
            return Err(refused("its grains are compressed; `convert` it to another kind"));
        }
        if !header.starts_with(KDMV) {
            return Err(refused("it has an extent of ESX"));
        }
        if !before.device().grows() {
            return Err(refused("its sparse extent is not in a file that grows"));
        }
        let first = le64(&header, 64).checked_mul(SECTOR).filter(|at| *at <= before.info().size);
        let first = first.ok_or_else(|| broken("its grains begin outside the file"))?;
        let redundant = le64(&header, 48).checked_mul(SECTOR).filter(|at| *at > 0);
        let redundant =
            redundant.filter(|at| le32(&header, 8) & REDUNDANT != 0 && *at != layout.directory);
        let mut taken = Taken::of(first.div_ceil(SECTOR));
        let parts = [Some((0, HEADER as u64)), layout.descriptor];
        for (at, len) in parts.into_iter().flatten() {
            take(&mut taken, at, len, first)?;
        }
        for directory in [Some(layout.directory), redundant].into_iter().flatten() {
            check_directory(before, layout, (directory, first), &mut taken)?;
        }
        let next = before.info().size.next_multiple_of(layout.grain);
        let end = Mutex::new(End { next, free: Vec::new() });
        Ok(Self { file: file.clone(), first, redundant, end })
    }

    /// Where the entry of a grain lies in the tables of a directory.
    pub(super) async fn entry(&self, layout: &Layout, directory: u64, grain: u64) -> Result<u64> {
        let at = directory + grain / layout.entries * 4;
        let start = self.file.blocks.start(at);
        let block = self.file.blocks.load(start).await?;
        let sector = le32(&block, usize::try_from(at - start).unwrap_or(usize::MAX));
        let table = u64::from(sector) * SECTOR;
        let is_known = table >= SECTOR && table + layout.entries * 4 <= self.first;
        if !is_known {
            return Err(broken("a grain table is not where it was"));
        }
        Ok(table + grain % layout.entries * 4)
    }

    /// A place for a grain, and whether it was never given out.
    pub(super) fn take(&self, len: u64) -> Result<(u64, bool)> {
        let end = &mut *self.end.lock();
        if let Some(at) = end.free.pop() {
            return Ok((at, false));
        }
        let at = end.next;
        if at / SECTOR > u64::from(u32::MAX) {
            let action = "there is no space for another grain in the extent";
            return Err(Error::new(ErrorKind::NoSpace, Fault::File, action));
        }
        end.next += len;
        Ok((at, true))
    }

    pub(super) fn give_back(&self, at: u64) {
        let end = &mut *self.end.lock();
        if end.free.len() < FREE_MAX {
            end.free.push(at);
        }
    }
}

/// Takes the sectors of a part of an extent, which has to be in front of its grains.
fn take(taken: &mut Taken, at: u64, len: u64, first: u64) -> Result<()> {
    if at.checked_add(len).is_none_or(|end| end > first) {
        return Err(refused("not all of its tables are in front of its grains"));
    }
    if !taken.take(at / SECTOR, (at + len).div_ceil(SECTOR) - at / SECTOR) {
        return Err(broken(format!("two of its parts overlap at {at}")));
    }
    Ok(())
}

/// Refuses an extent of which not all tables are there, apart from each other, in front of all
/// grains.
fn check_directory(
    file: &Edge,
    layout: &Layout,
    (directory, first): (u64, u64),
    taken: &mut Taken,
) -> Result<()> {
    let tables = layout.tables()?;
    if tables > TABLES_MAX {
        return Err(refused("it has too many grain tables"));
    }
    take(taken, directory, tables * 4, first)?;
    let mut at = 0;
    while at < tables * 4 {
        let len = usize::try_from((tables * 4 - at).min(AT_ONCE)).unwrap_or(0);
        for entry in load(file, "grain directory", directory + at, len)?.chunks_exact(4) {
            let table = u64::from(le32(entry, 0)) * SECTOR;
            take(taken, table, layout.entries * 4, first)?;
        }
        at += len as u64;
    }
    Ok(())
}
