//! Dirty bitmaps: added, removed and changed by a verb.
//!
//! What becomes of them is made beside what there is: new bits, new tables, a new directory. When
//! they are durable, the header says where the directory is, in one sector where it has it so; only
//! then what there was before is given up.

use std::collections::BTreeMap;
use std::ops::Range;

use device::{Edge, Error, ErrorKind, Fault, Result};

use super::super::bitmap::{
    self, BITS_MAX, Bitmap, FIXED, GRANULARITY_BITS, NAME_MAX, TRACKS, flags,
};
use super::super::check;
use super::super::dirty::ONES;
use super::super::entry::OFFSET;
use super::super::header::{BITMAP_DIRECTORY_MAX, BITMAPS_MAX, Header};
use super::super::open;
use super::super::region::Region;
use super::heading::Heading;
use super::offline::{done, writer};
use super::{Writer, clear_features};
use crate::kit::confused;
use crate::kit::numbers::be64;
use crate::{BitmapChange, Opening};

/// A bitmap as it is to be.
#[derive(Clone)]
struct NewBitmap {
    bitmap: Bitmap,
    /// What is set, where that is not what the image has.
    bits: Option<Bits>,
    /// Bits of the disk.
    count: u64,
    is_new: bool,
}

/// What is set in a bitmap: its clusters that have something set, by number.
#[derive(Clone, Default)]
struct Bits(BTreeMap<u64, Vec<u8>>);

/// Changes the bitmap `name` of the image in `container`.
///
/// # Errors
/// It is not there, or is there already, or cannot be used: then nothing is changed. Or the change
/// failed.
pub(in super::super) fn change_bitmap(
    container: Edge,
    opening: &Opening<'_>,
    name: &str,
    changes: &[BitmapChange<'_>],
) -> Result<()> {
    let (header, container) = open::to_change(&container, opening)?;
    let writer = writer(&container, &header, opening.context)?;
    check::check_sound(&container)?;
    let before = bitmap::read(&container, &header)?;
    let old = before.iter().map(|bitmap| NewBitmap::of(bitmap.clone(), &header));
    let mut wanted: Vec<NewBitmap> = old.collect();
    for change in changes {
        apply(&mut wanted, &container, &header, name, *change)?;
    }
    let gone = before.iter().filter(|old| {
        let is_kept = |new: &&NewBitmap| !new.is_new && new.bitmap.entry == old.entry;
        wanted.iter().find(is_kept).is_none_or(|new| new.bits.is_some())
    });
    let mut old = Vec::new();
    for bitmap in gone {
        old.extend(units_of(&container, &header, bitmap)?);
    }
    let heading = Heading::read(&container, &header)?;
    if let Some(directory) = header.usable_bitmaps() {
        old.push(units(&header, directory.offset, directory.len));
    }
    let entries: Vec<_> = wanted.iter().map(|one| entry(&container, one)).collect::<Result<_>>()?;
    let len: u64 = entries.iter().map(|entry| entry.len() as u64).sum();
    if entries.len() as u64 > u64::from(BITMAPS_MAX) || len > BITMAP_DIRECTORY_MAX {
        return Err(Error::new(ErrorKind::Limit, Fault::File, "there are too many bitmaps"));
    }
    heading.check(&header, !wanted.is_empty())?;
    clear_features(&container, &header)?;
    done(async move {
        let mut rows = Vec::new();
        let directory = writer.add_bitmaps(&wanted, entries, &mut rows).await;
        let made = match directory {
            Ok(directory) => writer.flush().await.map(|()| directory),
            Err(e) => Err(e),
        };
        let directory = match made {
            Ok(directory) => directory,
            Err(e) => return Err(writer.without(rows, e).await),
        };
        writer.say_bitmaps(&header, &heading, wanted.len(), directory).await?;
        writer.release(old, false).await;
        writer.close().await
    })
}

/// The bitmaps of a disk that gets another size, where tables of them get another length: QEMU
/// takes no others.
pub(super) struct ResizedBitmaps {
    heading: Heading,
    entries: Vec<Vec<u8>>,
    /// The new tables, by the index of the bitmap.
    tables: Vec<(usize, Vec<u8>)>,
    before: Region,
    /// What only the old ones refer to, with themselves and their directory.
    dropped: Vec<Range<u64>>,
}

impl ResizedBitmaps {
    /// What becomes of `bitmaps`, which are those of the image; `None`: they stay as they are.
    ///
    /// # Errors
    /// They cannot be read.
    pub(super) fn of(
        container: &Edge,
        header: &Header,
        bitmaps: &[Bitmap],
        size: u64,
    ) -> Result<Option<Self>> {
        let Some(directory) = header.usable_bitmaps() else { return Ok(None) };
        let cluster = header.geometry().cluster();
        let before = Region { offset: directory.offset, len: directory.len };
        let mut dropped = vec![units(header, before.offset, before.len)];
        let (mut entries, mut tables) = (Vec::new(), Vec::new());
        for (index, bitmap) in bitmaps.iter().enumerate() {
            let mut wanted = NewBitmap::of(bitmap.clone(), header);
            let bits = size.div_ceil(1 << bitmap.granularity_bits);
            let count =
                u32::try_from(bits.div_ceil(8).div_ceil(cluster)).map_err(|_| confused())?;
            if bitmap.is_sound() && count != bitmap.table_entries {
                let mut table = table_of(container, bitmap)?;
                let len = usize::try_from(count).map_err(|_| confused())?;
                let lost = table.iter().skip(len).map(|entry| entry & OFFSET);
                dropped.extend(lost.filter(|at| *at != 0).map(|at| units(header, at, 1)));
                dropped.push(units(header, bitmap.table_offset, table.len() as u64 * 8));
                table.resize(len, 0);
                tables.push((index, table.into_iter().flat_map(u64::to_be_bytes).collect()));
                wanted.bitmap.table_entries = count;
            }
            entries.push(entry(container, &wanted)?);
        }
        if tables.is_empty() {
            return Ok(None);
        }
        let heading = Heading::read(container, header)?;
        heading.check_moves(header)?;
        Ok(Some(Self { heading, entries, tables, before, dropped }))
    }

    pub(super) fn heading(&self) -> &Heading {
        &self.heading
    }

    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.entries.len()
    }

    /// Where the directory was.
    pub(super) fn before(&self) -> Region {
        self.before
    }

    /// What nothing refers to once the header says where the new directory is.
    pub(super) fn dropped(self) -> Vec<Range<u64>> {
        self.dropped
    }
}

fn units(header: &Header, offset: u64, len: u64) -> Range<u64> {
    let bits = header.cluster_bits;
    offset >> bits..(offset >> bits) + len.div_ceil(1 << bits)
}

/// The clusters of a bitmap.
fn units_of(container: &Edge, header: &Header, bitmap: &Bitmap) -> Result<Vec<Range<u64>>> {
    let table = table_of(container, bitmap)?;
    let clusters = table.iter().map(|entry| entry & OFFSET).filter(|offset| *offset != 0);
    let mut all: Vec<_> = clusters.map(|offset| units(header, offset, 1)).collect();
    all.push(units(header, bitmap.table_offset, table.len() as u64 * 8));
    Ok(all)
}

fn table_of(container: &Edge, bitmap: &Bitmap) -> Result<Vec<u64>> {
    let len = usize::try_from(bitmap.table_entries).map_err(|_| confused())?;
    let mut bytes = vec![0; len * 8];
    container.read(&mut bytes, bitmap.table_offset)?;
    Ok(bytes.chunks_exact(8).map(|entry| be64(entry, 0).unwrap_or(0)).collect())
}

/// Lets a change happen in the list.
fn apply(
    all: &mut Vec<NewBitmap>,
    container: &Edge,
    header: &Header,
    name: &str,
    change: BitmapChange<'_>,
) -> Result<()> {
    if let BitmapChange::Add(granularity) = change {
        if all.iter().any(|one| one.bitmap.name == name) {
            return Err(Error::unfit(format!("there is already a bitmap `{}`", shown(name))));
        }
        all.push(NewBitmap::new(header, name, granularity)?);
        return Ok(());
    }
    let none = || Error::unfit(format!("there is no bitmap `{}` in the image", shown(name)));
    let at = all.iter().position(|one| one.bitmap.name == name).ok_or_else(none)?;
    if matches!(change, BitmapChange::Remove) {
        all.remove(at);
        return Ok(());
    }
    let more = match change {
        BitmapChange::Merge(from, other) => {
            Some(merged(all, at, container, header, (from, other))?)
        }
        _ => None,
    };
    let Some(one) = all.get_mut(at) else { return Err(confused()) };
    one.check()?;
    match change {
        BitmapChange::Clear => one.bits = Some(Bits::default()),
        BitmapChange::Enable => one.bitmap.flags |= flags::AUTO,
        BitmapChange::Disable => one.bitmap.flags &= !flags::AUTO,
        _ => one.bits = more,
    }
    Ok(())
}

/// What is set in one of them or in the other that is named.
fn merged(
    all: &[NewBitmap],
    at: usize,
    container: &Edge,
    header: &Header,
    (from, other): (&str, Option<&Edge>),
) -> Result<Bits> {
    let one = all.get(at).ok_or_else(confused)?;
    one.check()?;
    let elsewhere = match other {
        Some(other) => {
            let header = Header::read(other)?;
            header.check_features()?;
            Some((other, bitmap::read(other, &header)?, header))
        }
        None => None,
    };
    let none = || Error::unfit(format!("there is no bitmap `{}` to merge", shown(from)));
    let (source, of, read) = match &elsewhere {
        Some((other, bitmaps, of)) => {
            let found = bitmaps.iter().find(|bitmap| bitmap.name == from).ok_or_else(none)?;
            (NewBitmap::of(found.clone(), of), of, *other)
        }
        None => {
            let found = all.iter().find(|one| one.bitmap.name == from).ok_or_else(none)?;
            (found.clone(), header, container)
        }
    };
    source.check()?;
    if of.size != header.size {
        let action = format!(
            "the bitmap `{}` is of a disk of {} bytes, and this disk has {}",
            shown(from),
            of.size,
            header.size
        );
        return Err(Error::unfit(action));
    }
    let mut bits = one.read(container, header)?;
    let more = source.read(read, of)?;
    let (theirs, ours) = (source.bitmap.granularity_bits, one.bitmap.granularity_bits);
    bits.add(&more, (theirs, of.geometry().cluster()), (ours, header.geometry().cluster()))?;
    Ok(bits)
}

fn shown(name: &str) -> String {
    device::text::shown(name).into_owned()
}

impl NewBitmap {
    fn of(bitmap: Bitmap, header: &Header) -> Self {
        let count = header.size.div_ceil(1 << bitmap.granularity_bits);
        Self { bitmap, bits: None, count, is_new: false }
    }

    fn new(header: &Header, name: &str, granularity: Option<u64>) -> Result<Self> {
        if header.version < 3 {
            let action = "an image of version 2 (compat=0.10) has no bitmaps";
            return Err(Error::unsupported(action));
        }
        if name.is_empty() || name.len() > usize::from(NAME_MAX) {
            let action = format!("the name of a bitmap has 1 to {NAME_MAX} bytes");
            return Err(Error::invalid(action));
        }
        let cluster = header.geometry().cluster();
        let granularity = granularity.unwrap_or_else(|| cluster.clamp(4096, 1 << 16));
        let bits = u8::try_from(granularity.trailing_zeros()).unwrap_or(0);
        if !granularity.is_power_of_two() || !GRANULARITY_BITS.contains(&bits) {
            let action = "the granularity of a bitmap is a power of two from 512 bytes to 2 GiB";
            return Err(Error::invalid(action));
        }
        let bytes = header.size.div_ceil(granularity).div_ceil(8);
        if bytes > BITS_MAX {
            let action =
                format!("a bitmap of {bytes} bytes; with a larger granularity it is shorter");
            return Err(Error::new(ErrorKind::Limit, Fault::User, action));
        }
        let bitmap = Bitmap {
            name: name.to_owned(),
            flags: flags::AUTO,
            granularity_bits: bits,
            table_entries: u32::try_from(bytes.div_ceil(cluster)).map_err(|_| confused())?,
            ..Bitmap::default()
        };
        Ok(Self { bits: Some(Bits::default()), is_new: true, ..Self::of(bitmap, header) })
    }

    /// Refuses one that cannot be used: it can only be removed.
    fn check(&self) -> Result<()> {
        if self.bitmap.is_sound() {
            return Ok(());
        }
        let name = shown(&self.bitmap.name);
        let action = format!(
            "the bitmap `{name}` is inconsistent, and can only be removed: the image was not \
             closed while it was in use"
        );
        Err(Error::unfit(action))
    }

    /// What is set in it.
    fn read(&self, container: &Edge, header: &Header) -> Result<Bits> {
        if let Some(bits) = &self.bits {
            return Ok(bits.clone());
        }
        let cluster = usize::try_from(header.geometry().cluster()).map_err(|_| confused())?;
        let mut bits = Bits::default();
        for (n, entry) in (0u64..).zip(table_of(container, &self.bitmap)?) {
            let offset = entry & OFFSET;
            let mut bytes = vec![0xff; cluster];
            if offset != 0 {
                container.read(&mut bytes, offset)?;
            } else if entry & ONES == 0 {
                continue;
            }
            bits.0.insert(n, bytes);
        }
        Ok(bits)
    }
}

impl Bits {
    /// Sets what is set in others: granularities, in bits, and bytes of their clusters.
    fn add(&mut self, more: &Self, theirs: (u8, u64), ours: (u8, u64)) -> Result<()> {
        for (n, bytes) in &more.0 {
            if theirs == ours {
                let own = self.cluster(*n, ours.1)?;
                own.iter_mut().zip(bytes).for_each(|(own, more)| *own |= more);
                continue;
            }
            for (at, byte) in (n * theirs.1..).zip(bytes).filter(|(_, byte)| **byte != 0) {
                for bit in (0..8).filter(|bit| byte >> bit & 1 != 0).map(|bit| at * 8 + bit) {
                    let first = bit << theirs.0;
                    let last = first + ((1 << theirs.0) - 1);
                    for bit in first >> ours.0..=last >> ours.0 {
                        self.set(bit, ours.1)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn cluster(&mut self, n: u64, cluster: u64) -> Result<&mut Vec<u8>> {
        let len = usize::try_from(cluster).map_err(|_| confused())?;
        Ok(self.0.entry(n).or_insert_with(|| vec![0; len]))
    }

    fn set(&mut self, bit: u64, cluster: u64) -> Result<()> {
        let byte = bit / 8;
        let own = self.cluster(byte / cluster, cluster)?;
        let within = usize::try_from(byte % cluster).map_err(|_| confused())?;
        *own.get_mut(within).ok_or_else(confused)? |= 1 << (bit % 8);
        Ok(())
    }

    /// Clears what is behind the end of the disk.
    fn cut(&mut self, bits: u64, cluster: u64) {
        for (n, bytes) in &mut self.0 {
            for (at, byte) in (n * cluster..).zip(bytes.iter_mut()) {
                let left = bits.saturating_sub(at * 8);
                if left < 8 {
                    *byte &= (1u8 << left) - 1;
                }
            }
        }
        self.0.retain(|_, bytes| bytes.iter().any(|byte| *byte != 0));
    }
}

/// The entry of a bitmap in the directory; where its table is, is said later if that is new.
fn entry(container: &Edge, wanted: &NewBitmap) -> Result<Vec<u8>> {
    let Bitmap { name, flags, granularity_bits, table_offset, table_entries, entry, .. } =
        &wanted.bitmap;
    let mut bytes = vec![0; FIXED];
    if wanted.is_new {
        let name_len = u16::try_from(name.len()).map_err(|_| confused())?;
        put(&mut bytes, 16, &[TRACKS, *granularity_bits])?;
        put(&mut bytes, 18, &name_len.to_be_bytes())?;
        bytes.extend(name.as_bytes());
    } else {
        // There may be more in it than is known.
        bytes.resize(usize::try_from(entry.len).map_err(|_| confused())?, 0);
        container.read(&mut bytes, entry.offset)?;
    }
    put(&mut bytes, 0, &table_offset.to_be_bytes())?;
    put(&mut bytes, 8, &table_entries.to_be_bytes())?;
    put(&mut bytes, 12, &flags.to_be_bytes())?;
    bytes.resize(bytes.len().next_multiple_of(8), 0);
    Ok(bytes)
}

pub(super) fn put(bytes: &mut [u8], at: usize, value: &[u8]) -> Result<()> {
    let room = bytes.get_mut(at..).and_then(|rest| rest.get_mut(..value.len()));
    room.ok_or_else(confused)?.copy_from_slice(value);
    Ok(())
}

impl Writer {
    /// New bits, tables and a new directory, to which nothing refers yet. Returns where it is.
    async fn add_bitmaps(
        &self,
        wanted: &[NewBitmap],
        mut entries: Vec<Vec<u8>>,
        rows: &mut Vec<Range<u64>>,
    ) -> Result<Region> {
        let (bits, cluster) = (self.geometry.cluster_bits, self.geometry.cluster());
        for (one, entry) in wanted.iter().zip(&mut entries) {
            let Some(set) = &one.bits else { continue };
            let mut table = vec![0; usize::try_from(one.bitmap.table_entries).unwrap_or(0) * 8];
            let mut set = set.clone();
            let most = u64::from(one.bitmap.table_entries) * cluster * 8;
            set.cut(one.count.min(most), cluster);
            for (n, bytes) in set.0 {
                let row = self.add_row(&bytes).await?;
                rows.push(row.clone());
                let at = usize::try_from(n * 8).map_err(|_| confused())?;
                put(&mut table, at, &(row.start << bits).to_be_bytes())?;
                self.save_much().await?;
            }
            let row = self.add_row(&table).await?;
            rows.push(row.clone());
            put(entry, 0, &(row.start << bits).to_be_bytes())?;
        }
        let directory = entries.concat();
        let row = self.add_row(&directory).await?;
        rows.push(row.clone());
        Ok(Region { offset: row.start << bits, len: directory.len() as u64 })
    }

    /// The tables of bitmaps of a disk that gets another size, and a directory, to which nothing
    /// refers yet. Returns where that is, and all that was taken.
    pub(super) async fn add_resized(
        &self,
        bitmaps: &ResizedBitmaps,
    ) -> Result<(Region, Vec<Range<u64>>)> {
        let mut rows = Vec::new();
        match self.add_tables(bitmaps, &mut rows).await {
            Ok(directory) => Ok((directory, rows)),
            Err(e) => Err(self.without(rows, e).await),
        }
    }

    async fn add_tables(
        &self,
        bitmaps: &ResizedBitmaps,
        rows: &mut Vec<Range<u64>>,
    ) -> Result<Region> {
        let (mut entries, bits) = (bitmaps.entries.clone(), self.geometry.cluster_bits);
        for (index, table) in &bitmaps.tables {
            let row = self.add_row(table).await?;
            rows.push(row.clone());
            let entry = entries.get_mut(*index).ok_or_else(confused)?;
            put(entry, 0, &(row.start << bits).to_be_bytes())?;
            self.save_much().await?;
        }
        let directory = entries.concat();
        let row = self.add_row(&directory).await?;
        rows.push(row.clone());
        Ok(Region { offset: row.start << bits, len: directory.len() as u64 })
    }
}
