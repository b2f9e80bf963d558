//! Another size for the disk.
//!
//! One that grows gets its L1 table first, then what is behind its old end is made to read as
//! zeroes, and when all of that is durable the header says the new size. One that shrinks has its
//! new size first, and then gives up what is behind its end. So at every moment it is what it was,
//! or what it was to be. Its bitmaps get new tables before, and the header says where they are
//! together with the size.

use std::ops::Range;
use std::sync::Arc;

use device::{Buffer, Edge, Error, ErrorKind, Fault, Result, ZeroFlags, below};
use runtime::{spawn, wait_for};

use super::super::bitmap::{self, BITS_MAX, Bitmap};
use super::super::header::{Header, L1_MAX};
use super::super::map::Map;
use super::super::open;
use super::super::region::Region;
use super::data::AT_ONCE;
use super::directory::ResizedBitmaps;
use super::link::Becomes;
use super::{Writer, WrittenImage, check_bitmaps};
use crate::kit::blocks::Rank;
use crate::kit::confused;
use crate::{NewRoom, NewSize, Opening};

const L1_AT: u64 = 36;

const UNMAP: ZeroFlags =
    ZeroFlags { may_unmap: true, fast_only: false, written: false, fua: false };

/// Gives the disk in an image another size.
pub(in super::super) fn resize(
    container: Edge,
    opening: &Opening<'_>,
    size: NewSize<'_>,
    room: NewRoom,
) -> Result<()> {
    let size = size(open::header(&container)?.size)?;
    let (header, container) = open::to_change(&container, opening)?;
    let bitmaps = bitmap::read(&container, &header)?;
    check(&header, size, &bitmaps)?;
    let room = match room {
        // Whoever reads the file as it is has no tables.
        NewRoom::None if header.is_data_file_raw() => NewRoom::Tables,
        room => room,
    };
    let most = header.size.max(size);
    let image = Arc::new(open::written(&container, &header, opening, (most, Vec::new()))?);
    let bitmaps = ResizedBitmaps::of(&container, &header, &bitmaps, size)?;
    let change = Change { from: header.size, to: size, entries: header.l1_entries, room };
    let resized = wait_for(|promise| {
        spawn(async move { promise.keep(image.resize(&header, change, bitmaps).await) });
    });
    resized.unwrap_or_else(|| Err(Error::unanswered()))
}

/// From one size to another.
#[derive(Clone, Copy, Debug)]
pub(super) struct Change {
    /// Bytes of the disk.
    pub(super) from: u64,
    pub(super) to: u64,
    /// What the L1 table has.
    pub(super) entries: u32,
    pub(super) room: NewRoom,
}

/// Refuses what cannot be, and what QEMU could not open.
pub(super) fn check(header: &Header, size: u64, bitmaps: &[Bitmap]) -> Result<()> {
    let geometry = header.geometry();
    let why = if size == 0 {
        "the new size must be positive".to_owned()
    } else if !size.is_multiple_of(512) {
        "the new size must be a multiple of 512".to_owned()
    } else if geometry.l1_entries(size) > L1_MAX / 8 || size > i64::MAX.unsigned_abs() {
        let most = device::format_size((L1_MAX / 8).saturating_mul(geometry.l2_covers()));
        format!("clusters of {} bytes allow at most {most}", geometry.cluster())
    } else if header.version < 3 && header.snapshot_count > 0 {
        "it is of version 2 and has snapshots, which do not say how large they are".to_owned()
    } else if header.is_data_file_raw() && size < header.size {
        "its data file is a raw disk, which would not become shorter".to_owned()
    } else if let Some(name) = bitmaps.iter().find_map(|it| endless(it, size)) {
        let name = device::text::shown(name);
        format!(
            "its bitmap `{name}` would be too long; `diskferry bitmap --remove FILE BITMAP` removes it"
        )
    } else {
        return check_bitmaps(bitmaps);
    };
    Err(Error::new(ErrorKind::InvalidInput, Fault::User, format!("resize: {why}")))
}

/// The name of a bitmap that would have more bits than a bitmap has.
fn endless(bitmap: &Bitmap, size: u64) -> Option<&str> {
    let bytes = size.div_ceil(1 << bitmap.granularity_bits).div_ceil(8);
    (bitmap.is_sound() && bytes > BITS_MAX).then_some(&*bitmap.name)
}

impl WrittenImage {
    pub(super) async fn resize(
        self: Arc<Self>,
        header: &Header,
        change: Change,
        bitmaps: Option<ResizedBitmaps>,
    ) -> Result<()> {
        let writer = &self.writer;
        let (directory, rows) = match &bitmaps {
            Some(bitmaps) => writer.add_resized(bitmaps).await?,
            None => (Region { offset: 0, len: 0 }, Vec::new()),
        };
        let directories = bitmaps.as_ref().map(|bitmaps| (bitmaps, directory));
        if change.to < change.from {
            let ready = match self.prepare_to_shrink(change).await {
                Ok(()) => writer.flush().await,
                Err(e) => Err(e),
            };
            if let Err(e) = ready {
                let why = writer.without(rows, e).await;
                let _ = writer.close().await;
                return Err(why);
            }
            writer.say_size(header, change.to, directories).await?;
            self.shrink(change).await?;
        } else {
            let grown = match self.grow(change).await {
                Ok(()) => writer.say_size(header, change.to, directories).await,
                Err(e) => Err(e),
            };
            if let Err(e) = grown {
                let before = bitmaps.as_ref().map(|bitmaps| (bitmaps, bitmaps.before()));
                return Err(self.as_before(header, (change, before), rows, e).await);
            }
        }
        if let Some(bitmaps) = bitmaps {
            writer.release(bitmaps.dropped(), false).await;
        }
        writer.close().await
    }

    /// Gives up what a disk got that could not grow. Returns why it could not.
    async fn as_before(
        &self,
        header: &Header,
        (change, bitmaps): (Change, Option<(&ResizedBitmaps, Region)>),
        rows: Vec<Range<u64>>,
        why: Error,
    ) -> Error {
        let writer = &self.writer;
        // While the header may say the new size, all of it is in use.
        if writer.say_size(header, change.from, bitmaps).await.is_err() {
            return why;
        }
        let from = change.from.next_multiple_of(writer.geometry.cluster());
        let to = change.to.next_multiple_of(writer.geometry.cluster());
        let _ = self.give_up(writer, from..to, Becomes::Absent).await;
        let why = writer.without(rows, why).await;
        let _ = writer.close().await;
        why
    }

    /// Does all that is done before the header says the new size.
    async fn grow(self: &Arc<Self>, change: Change) -> Result<()> {
        let (writer, Change { from, to, .. }) = (&self.writer, change);
        let cluster = writer.geometry.cluster();
        if writer.geometry.l1_entries(to) > change.entries.into() {
            writer.move_l1(&self.map).await?;
        }
        let (start, end) = (from.next_multiple_of(cluster), to.next_multiple_of(cluster));
        if writer.is_raw {
            writer.zero_file(from..to, UNMAP).await?;
        } else {
            self.write_zeroes(from..start.min(to)).await?;
        }
        if start < to && change.room == NewRoom::None {
            // Whatever else was left behind the end is dropped, too.
            let backing = self.disk.backing.as_ref().map_or(0, |backing| backing.info().size);
            let seen = backing.clamp(start, to);
            if writer.geometry.zeroes {
                let seen = seen.next_multiple_of(cluster);
                self.give_up(writer, start..seen, Becomes::Zero).await?;
                self.give_up(writer, seen..end, Becomes::Absent).await?;
            } else {
                self.give_up(writer, start..end, Becomes::Absent).await?;
                self.write_zeroes(start..seen).await?;
            }
        } else if start < to {
            self.preallocate(start..end, (to, change.room)).await?;
        }
        if writer.is_raw && writer.data.container.length() < to {
            let zeroes = Buffer::zeroed(512).into();
            below::write(&writer.data.edge, to - 512, zeroes, false).await?;
        }
        writer.flush().await
    }

    /// Takes all the room that [`shrink`](Self::shrink) needs, while nothing of the disk has
    /// changed: for a table that a snapshot has as well, and for what of the last cluster is behind
    /// the new end, which is written as it is.
    async fn prepare_to_shrink(self: &Arc<Self>, Change { from, to, .. }: Change) -> Result<()> {
        let (writer, cluster) = (&self.writer, self.writer.geometry.cluster());
        if !to.is_multiple_of(writer.geometry.l2_covers()) {
            writer.own_table(&self.map, to).await?;
        }
        let end = to.next_multiple_of(cluster).min(from);
        if to < end && !self.is_zero((to, end)).await? {
            let bytes = Buffer::zeroed(usize::try_from(end - to).map_err(|_| confused())?);
            let bytes = self.disk.clone().read(to, bytes).await?;
            self.clone().write(to, bytes.into()).await?;
        }
        Ok(())
    }

    /// Gives up what is behind the end that the header says.
    async fn shrink(self: &Arc<Self>, Change { from, to, .. }: Change) -> Result<()> {
        let (writer, map) = (&self.writer, &self.map);
        let cluster = writer.geometry.cluster();
        let kept = writer.geometry.l1_entries(to);
        for index in usize::try_from(kept).unwrap_or(usize::MAX)..map.l1.len() {
            writer.drop_table(index, map.l1_entry(index)).await?;
            map.set_l1_entry(index, 0);
        }
        let end = kept.saturating_mul(writer.geometry.l2_covers());
        let end = end.min(from.next_multiple_of(cluster));
        let start = to.next_multiple_of(cluster);
        if start < end {
            self.give_up(writer, start..end, Becomes::Absent).await?;
        }
        // It would be seen if the disk grows again.
        self.write_zeroes(to..start.min(from)).await
    }

    /// Writes zeroes where they are not known to be.
    async fn write_zeroes(self: &Arc<Self>, range: Range<u64>) -> Result<()> {
        let mut at = range.start;
        while at < range.end {
            let to = range.end.min(at + AT_ONCE);
            if !self.is_zero((at, to)).await? {
                let len = usize::try_from(to - at).map_err(|_| confused())?;
                self.clone().write(at, Buffer::zeroed(len).into()).await?;
            }
            at = to;
        }
        Ok(())
    }

    /// Gives whole clusters places, which read as zeroes. Of a data file only what is before `end`.
    async fn preallocate(
        self: &Arc<Self>,
        range: Range<u64>,
        (end, room): (u64, NewRoom),
    ) -> Result<()> {
        let (writer, map) = (&self.writer, &self.map);
        let (bits, data) = (writer.geometry.cluster_bits, &writer.data);
        let mut at = range.start;
        while at < range.end {
            let to = range.end.min(writer.end_of_block(at)).min(at + AT_ONCE.max(1 << bits));
            let units = self.take(writer, at >> bits, (to - at) >> bits).await?;
            let (place, count) = (units.start << bits, units.end - units.start);
            let mut zeroes = place..units.end << bits;
            if writer.geometry.data_file {
                zeroes.end = zeroes.end.min(end);
                writer.zero_file(zeroes.clone(), UNMAP).await?;
            }
            // A place is in the file.
            let is_zero = writer.geometry.data_file || data.container.is_untouched(place);
            if room == NewRoom::Tables && is_zero && !writer.is_encrypted {
                zeroes.start = zeroes.end - 512;
            }
            let len = usize::try_from(zeroes.end - zeroes.start).map_err(|_| confused())?;
            let buffer = Buffer::zeroed(len).into();
            let written = below::write(&data.edge, zeroes.start, buffer, false).await;
            let linked = match written {
                Ok(()) => {
                    let fate = |n| Becomes::At(place + (n << bits));
                    writer.link(map, at, count, fate).await
                }
                Err(e) => Err(e),
            };
            if let Err(e) = linked {
                writer.give_back(units).await;
                return Err(e);
            }
            at += count << bits;
            writer.save_much().await?;
        }
        Ok(())
    }
}

impl Writer {
    /// Changes a field of the header, which is then durable.
    pub(super) async fn set_header(&self, at: u64, field: &[u8]) -> Result<()> {
        self.attempt(|_| {
            self.block(at)?;
            Ok(self.blocks.change(at, Rank::Second, field)?)
        })
        .await?;
        self.flush().await
    }

    /// Writes the L1 table anew, as long as it is in memory, and lets the header refer to it.
    async fn move_l1(&self, map: &Map) -> Result<()> {
        // What it refers to is durable.
        self.flush().await?;
        let (cluster, bits) = (self.geometry.cluster(), self.geometry.cluster_bits);
        let entries = map.l1.len() as u64;
        let mut table: Vec<u8> =
            (0..map.l1.len()).flat_map(|index| map.l1_entry(index).to_be_bytes()).collect();
        table.resize(table.len().next_multiple_of(usize::try_from(cluster).unwrap_or(1)), 0);
        self.attempt(|state| {
            self.block(L1_AT)?;
            let units = self.take_row(state, (entries * 8).div_ceil(cluster))?;
            let offset = units.start << bits;
            let mut taken = self.taken.write();
            let is_old = |(what, _): &(&str, Region)| *what == "L1 table";
            if let Some((_, Region { offset, len })) = taken.iter().find(|it| is_old(it)) {
                state.room.drop_units(offset >> bits..(offset + len).div_ceil(cluster));
            }
            taken.retain(|region| !is_old(region));
            taken.push(("L1 table", Region { offset, len: entries * 8 }));
            state.l1_offset = offset;
            self.blocks.add(offset, Rank::Last, &table);
            let count = u32::try_from(entries).unwrap_or(0);
            let header = [&count.to_be_bytes()[..], &offset.to_be_bytes()].concat();
            Ok(self.blocks.change(L1_AT, Rank::Second, &header)?)
        })
        .await?;
        self.flush().await
    }
}
