//! Writing into a VDI image where it lies.
//!
//! A new block gets the room after the last one. Other programs put their next block where the
//! header's count of blocks says, so that count is durable before the map refers to a block: it is
//! never too small, and too large only if the power was cut.

use std::ops::Range;
use std::sync::Arc;

use device::{Device, Edge, Error, ErrorKind, Fault, Result};
use runtime::Mutex;

use super::header::{ALLOCATED_AT, Header};
use super::map::{ABSENT, GIVEN_UP, Map, Written};
use crate::Opening;
use crate::kit::blocks::Rank;
use crate::kit::fields::corrupt;
use crate::kit::{
    Appending, Appends, Later, NewBlock, Taken, WrittenFile, confused, disk_info, written_info,
};

/// Bytes of metadata that are written together: the header is one, and the map is apart.
const UNIT: u64 = 512;
/// The most rooms: a bit for each is remembered while it is opened.
const ROOMS_MAX: u64 = 1 << 26;
/// The most rooms between others that are used again.
const FREE_MAX: usize = 1 << 16;

/// Which rooms are free.
pub(super) struct Rooms(Mutex<Inner>);

struct Inner {
    /// From this one on all are.
    next: u64,
    /// Some before it.
    free: Vec<u64>,
    /// The first one for which there is no place.
    end: u64,
    /// The first one that is not referred to, nor any after it.
    linked: u64,
}

pub(super) fn open(container: Edge, opening: &Opening<'_>) -> Result<Arc<dyn Device>> {
    let header = Header::read(&container)?;
    let map = Map::new((&container, opening.context), header.clone())?;
    let size = container.info().size;
    let file = Arc::new(WrittenFile::open(container, UNIT, opening.context)?);
    let rooms = Rooms::find(&map, size, file.container.limit())?;
    let map = map.written(file.clone(), rooms)?;
    let info = written_info(disk_info(&file.edge, header.size), &[&file]);
    Ok(Appending::device(info, opening.context, None, map))
}

impl Rooms {
    /// Looks through the map of an image of `size` bytes, which may grow to `limit`.
    fn find(map: &Map, size: u64, limit: u64) -> Result<Self> {
        let header = &map.header;
        let rooms = size.saturating_sub(header.data).div_ceil(header.block).min(header.blocks);
        if rooms > ROOMS_MAX {
            let action = format!("cannot be written: it has more than {ROOMS_MAX} blocks");
            return Err(Error::new(ErrorKind::ReadOnly, Fault::File, action));
        }
        let (mut taken, mut next) = (Taken::of(rooms), 0);
        for block in 0..header.blocks {
            let index = map.table.entry_now(block)?;
            if index == ABSENT || index == GIVEN_UP {
                continue;
            }
            if index >= rooms || !taken.take(index, 1) {
                let why =
                    format!("its block {block} shares the space of another, or has none: {index}");
                return Err(corrupt(why));
            }
            next = next.max(index + 1);
        }
        let free = (0..next).rev().filter(|room| taken.take(*room, 1)).take(FREE_MAX).collect();
        let end = (limit.saturating_sub(header.data) / header.block).min(header.blocks);
        Ok(Self(Mutex::new(Inner { next, free, end, linked: next })))
    }

    /// A room, and whether it was never given out.
    fn take(&self) -> Result<(u64, bool)> {
        let inner = &mut *self.0.lock();
        if let Some(room) = inner.free.pop() {
            return Ok((room, false));
        }
        if inner.next >= inner.end {
            let action = "there is no space for another block in the image";
            return Err(Error::new(ErrorKind::NoSpace, Fault::File, action));
        }
        inner.next += 1;
        Ok((inner.next - 1, true))
    }

    fn give_back(&self, room: u64) {
        let inner = &mut *self.0.lock();
        if inner.free.len() < FREE_MAX {
            inner.free.push(room);
        }
    }

    /// A room is referred to: how many the header has to count now.
    fn link(&self, room: u64) -> u64 {
        let inner = &mut *self.0.lock();
        inner.linked = inner.linked.max(room + 1);
        inner.linked
    }
}

impl Map {
    fn changed(&self) -> Result<&Written> {
        self.written.as_ref().ok_or_else(confused)
    }

    fn room(&self, new: &NewBlock) -> u64 {
        (new.at - self.header.data) / self.header.block
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
        let start = at - at % self.header.block;
        start..start + self.header.block
    }

    fn take(&self, _: u64) -> Result<NewBlock> {
        let Written { file, rooms } = self.changed()?;
        let (room, is_first) = rooms.take()?;
        let at = self.header.place(room).ok_or_else(confused)?;
        Ok(NewBlock { at, front: Vec::new(), is_zero: is_first && file.is_new(at) })
    }

    fn give_back(&self, _: u64, new: NewBlock) {
        if let Some(written) = &self.written {
            written.rooms.give_back(self.room(&new));
        }
    }

    fn link<'a>(&'a self, start: u64, new: &'a NewBlock) -> Later<'a, ()> {
        Box::pin(async move {
            let Written { file, rooms } = self.changed()?;
            let narrow = |n: u64| u32::try_from(n).map(u32::to_le_bytes).map_err(|_| confused());
            let entry = self.table.place(start / self.header.block);
            file.change(&[ALLOCATED_AT, entry], |blocks| {
                let room = self.room(new);
                let (count, index) = (narrow(rooms.link(room))?, narrow(room)?);
                blocks.change(ALLOCATED_AT, Rank::Second, &count)?;
                blocks.change(entry, Rank::Last, &index)
            })
            .await
        })
    }
}
