//! Writing into an image where it lies.
//!
//! A new block gets the room after all that is used, in whole MiB; nothing is ever used again for
//! something else, so what is trimmed keeps its block. In a differencing image it has all its
//! sectors; in one that was there with some of them, those that are written are added to its
//! bitmap. How the table of blocks and the bitmaps become durable is in [`journal`].

use std::ops::Range;
use std::sync::Arc;

use device::{Device, Edge, Error, ErrorKind, Fault, Result};
use runtime::Mutex;

use super::header::{Header, MIB};
use super::journal::{self, Journal};
use super::map::{Map, PARTLY, PRESENT};
use super::{CONTAINER_MAX, FORMAT, VhdxImage, check, id_of, log};
use crate::Opening;
use crate::kit::blocks::Rank;
use crate::kit::{
    Appending, Appends, Later, NewBlock, WrittenFile, confused, disk_info, written_info,
};

/// Bytes of the structures that are logged together: a sector of the log.
const UNIT: u64 = log::SECTOR;

/// What an image that is written has besides.
pub(super) struct Written {
    pub(super) file: Arc<WrittenFile>,
    journal: Journal,
    /// From there on nothing is used.
    end: Mutex<u64>,
}

fn refused(why: &str) -> Error {
    Error::new(ErrorKind::ReadOnly, Fault::File, format!("cannot be written: {why}"))
}

/// Opens it for writing. What its log has is replayed in place first.
pub(super) fn open(container: Edge, opening: &Opening<'_>) -> Result<Arc<dyn Device>> {
    let header = Header::read(&container)?;
    journal::check(&container, header.log)?;
    let changes = log::read(&container, &header)?;
    let image = VhdxImage::read(container.clone())?;
    let VhdxImage { regions, metadata, .. } = image;
    let backing = match &metadata.parent {
        Some(parent) => Some(parent.open(FORMAT.word, opening.files, id_of)?),
        None => None,
    };
    let map = Map::new((&image.container, opening.context), regions, metadata.clone())?;
    let (findings, end) = check::blocks(&map, &image.container)?;
    if let Some(first) = findings.corruptions.first() {
        return Err(refused(&format!("its blocks are broken ({first})")));
    }
    let file = Arc::new(WrittenFile::open(container.clone(), UNIT, opening.context)?);
    // All that can be refused has been.
    let header = match changes {
        Some(changes) => {
            journal::restore(&file, header, &changes)?;
            Header::read(&container)?
        }
        None => header,
    };
    let end = if container.device().grows() { end.max(file.container.length()) } else { end };
    let end = regions.end().max(end).next_multiple_of(MIB);
    let journal = Journal::new(file.clone(), header);
    let info = written_info(disk_info(&file.edge, metadata.size), &[&file]);
    let map = Map::new((&file.edge, opening.context), regions, metadata)?;
    let map = map.written(Written { file, journal, end: Mutex::new(end) })?;
    Ok(Appending::device(info, opening.context, backing, map))
}

impl Map {
    fn changed(&self) -> Result<&Written> {
        self.written.as_ref().ok_or_else(confused)
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
        let start = at - at % self.metadata.block;
        start..start + self.metadata.block
    }

    fn is_prepared(&self, _: u64, _: u64) -> bool {
        self.written.as_ref().is_some_and(|written| written.journal.has_begun())
    }

    fn prepare(&self, _: u64, _: u64) -> Later<'_, ()> {
        Box::pin(async move { self.changed()?.journal.begin().await })
    }

    fn part(&self, at: u64, len: u64) -> Later<'_, Option<(Range<u64>, u64)>> {
        Box::pin(async move {
            let (block, within) = (at / self.metadata.block, at % self.metadata.block);
            let entry = self.table.entry(self.index(block), true).await?.ok_or_else(confused)?;
            if entry & 7 != PARTLY {
                return Ok(None);
            }
            let sector = self.metadata.sector;
            let place = self.place(entry, self.metadata.block)? + (within - within % sector);
            Ok(Some((at - at % sector..(at + len).next_multiple_of(sector), place)))
        })
    }

    fn link_part(&self, part: Range<u64>) -> Later<'_, ()> {
        Box::pin(async move {
            let file = &self.changed()?.file;
            let bitmap = self.bitmap(part.start, true).await?.ok_or_else(confused)?;
            let sector = self.metadata.sector;
            // Each chunk has a bitmap of 1 MiB.
            let first = part.start / sector % (8 * MIB);
            let sectors = first..first + (part.end - part.start) / sector;
            let bytes = bitmap + sectors.start / 8..bitmap + sectors.end.div_ceil(8);
            // The lowest bit of a byte is the first sector.
            let mask = |at: u64| {
                let bits = (0..8).filter(|bit| sectors.contains(&((at - bitmap) * 8 + bit)));
                bits.fold(0, |mask, bit| mask | 1 << bit)
            };
            let starts = file.starts(&bytes);
            file.change(&starts, |blocks| blocks.set_bits(bytes, Rank::Last, mask)).await
        })
    }

    fn take(&self, _: u64) -> Result<NewBlock> {
        let Written { file, end, .. } = self.changed()?;
        let (mut end, limit) = (end.lock(), file.container.limit().min(CONTAINER_MAX));
        if limit.saturating_sub(*end) < self.metadata.block {
            let action = "there is no space for another block in the image";
            return Err(Error::new(ErrorKind::NoSpace, Fault::File, action));
        }
        let at = *end;
        *end += self.metadata.block;
        Ok(NewBlock { at, front: Vec::new(), is_zero: file.is_new(at) })
    }

    fn give_back(&self, _: u64, new: NewBlock) {
        let Some(Written { end, .. }) = &self.written else { return };
        let mut end = end.lock();
        // Something may have been written there, so in a file that grows it is not zero any more.
        if !new.is_zero && *end == new.at + self.metadata.block {
            *end = new.at;
        }
    }

    fn link<'a>(&'a self, start: u64, new: &'a NewBlock) -> Later<'a, ()> {
        Box::pin(async move {
            let entry = self.table.place(self.index(start / self.metadata.block));
            let to = (new.at | PRESENT).to_le_bytes();
            let file = &self.changed()?.file;
            file.change(&[entry], |blocks| blocks.change(entry, Rank::Last, &to)).await
        })
    }

    fn save<'a>(&'a self, file: &'a WrittenFile) -> Later<'a, ()> {
        Box::pin(async move {
            let journal = &self.changed()?.journal;
            file.flush_by(|moment| journal.save(moment)).await
        })
    }

    fn close(&self) -> Later<'_, ()> {
        Box::pin(async move { self.changed()?.journal.close().await })
    }

    fn is_open(&self) -> bool {
        self.written.as_ref().is_some_and(|written| written.journal.is_open())
    }
}
