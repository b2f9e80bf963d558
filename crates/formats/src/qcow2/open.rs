//! Opening the disk in an image, to read it or to write into it.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use device::{
    Abilities, BlockSizes, Device, Edge, Error, ErrorKind, Fault, Granules, Info, Result,
};
use runtime::RwLock;

use super::bitmap::Bitmap;
use super::corrupt;
use super::create::CompressionLevel;
use super::dirty::Dirty;
use super::header::{Encryption, Header, incompatible};
use super::map::Map;
use super::region::Region;
use super::repair;
use super::snapshot::{self, SnapshotEntry};
use super::stream::ContainerReader;
use super::tables::{DataStore, Tables, Written};
use super::tracked::Tracked;
use super::write::{self, Sharing, Writer, WrittenImage};
use super::{SNAPSHOT, bitmap};
use crate::kit::blocks::Blocks;
use crate::kit::cache::Cache;
use crate::kit::container::Container;
use crate::kit::numbers::be64;
use crate::kit::{DEPTH, Layered, Scattered, confused};
use crate::luks::inside;
use crate::{Opening, Reference, Repair, Role};

/// The most bitmaps that become contexts.
const CONTEXTS_MAX: usize = 256;

/// Opens it for reading.
pub(super) fn open(container: Edge, opening: &Opening<'_>) -> Result<Arc<dyn Device>> {
    let header = header(&container)?;
    disk(&container, &header, opening, None).map(|(disk, _)| Layered::device(disk))
}

/// Opens it for writing, too.
pub(super) fn open_to_write(container: Edge, opening: &Opening<'_>) -> Result<Arc<dyn Device>> {
    let image = opened(&container, opening)?;
    Ok(Layered::saved_at_the_end(image, opening.context))
}

/// The same, and what is made zero stays so whatever will lie below.
pub(super) fn open_to_rebase(container: Edge, opening: &Opening<'_>) -> Result<Arc<dyn Device>> {
    let image = WrittenImage { is_over: true, ..opened(&container, opening)? };
    Ok(Layered::saved_at_the_end(image, opening.context))
}

/// The same, and clusters that are written as a whole are compressed.
pub(super) fn open_to_pack(container: Edge, opening: &Opening<'_>) -> Result<Arc<dyn Device>> {
    let header = header(&container)?;
    let refused = |why: &str| Err(Error::unsupported(format!("compress what is written: {why}")));
    if header.geometry().data_file {
        return refused("the image has a data file, which holds no compressed clusters");
    }
    if header.encryption != Encryption::None {
        return refused("the image is encrypted");
    }
    let WrittenImage { mut disk, map, writer, .. } = opened(&container, opening)?;
    Arc::get_mut(&mut disk).ok_or_else(confused)?.keep_no_unpacked();
    let writer = writer.packing(CompressionLevel::usual(header.compression));
    let image = WrittenImage { disk, map, writer, is_over: true };
    Ok(Layered::saved_at_the_end(image, opening.context))
}

fn opened(container: &Edge, opening: &Opening<'_>) -> Result<WrittenImage> {
    let (header, container) = to_change(container, opening)?;
    let bitmaps = bitmap::read(&container, &header)?;
    write::check_bitmaps(&bitmaps)?;
    let enabled = bitmaps.into_iter().filter(Bitmap::is_enabled);
    written(&container, &header, opening, (header.size, enabled.collect()))
}

/// The image to be written, with the first `size` bytes of its disk, which may have fewer:
/// `bitmaps` say what is written.
pub(super) fn written(
    container: &Edge,
    header: &Header,
    opening: &Opening<'_>,
    (size, bitmaps): (u64, Vec<Bitmap>),
) -> Result<WrittenImage> {
    write::check(header, opening.params.get(SNAPSHOT))?;
    write::check_closed(header)?;
    write::check_container(container)?;
    let (growing, whole) = Container::open(container.clone());
    let unit = header.geometry().slice();
    let blocks = Arc::new(Blocks::new(whole.clone(), unit, Cache::of(opening.context).shelf()));
    let (file, edge) = match data_file(header, opening, true)? {
        Some(file) => Container::open(file),
        None => (growing.clone(), whole.clone()),
    };
    let edge = decrypted(edge, container, header, opening)?;
    let data = DataStore { container: file, edge };
    let tracked = bitmaps.into_iter().map(|bitmap| Arc::new(Tracked::new(bitmap, unit))).collect();
    let written = Written { container: growing, edge: whole, blocks, data, tracked };
    let (disk, map) = disk(container, header, opening, Some((written.clone(), size)))?;
    let taken = map.tables.taken.clone();
    let writer = Writer::open(container, header, written, taken, Sharing::Refused)?;
    // All that can be refused has been.
    write::clear_features(container, header)?;
    Ok(WrittenImage { is_over: disk.backing.is_some(), disk: Arc::new(disk), map, writer })
}

/// The header of an image that is about to be changed, and its container, which may be longer than
/// before: one that was not closed is repaired first.
///
/// # Errors
/// It cannot be written as it is, or not be repaired.
pub(super) fn to_change(container: &Edge, opening: &Opening<'_>) -> Result<(Header, Edge)> {
    let header = header(container)?;
    write::check(&header, opening.params.get(SNAPSHOT))?;
    write::check_container(container)?;
    if !header.has(incompatible::DIRTY) {
        return Ok((header, container.clone()));
    }
    let container = closed(container, opening)?;
    Ok((self::header(&container)?, container))
}

/// The container of an image that was not closed, with its refcounts put right.
fn closed(container: &Edge, opening: &Opening<'_>) -> Result<Edge> {
    let (repaired, container) = repair::repaired(container, Repair::All, opening)?;
    if repaired.now.corruption_count == 0 {
        return Ok(container);
    }
    let action =
        "cannot be written: it was not closed, and is corrupt; `diskferry check` shows where";
    Err(Error::new(ErrorKind::ReadOnly, Fault::File, action))
}

pub(super) fn header(container: &Edge) -> Result<Header> {
    let header = Header::read(container)?;
    header.check_features()?;
    Ok(header)
}

fn disk(
    container: &Edge,
    header: &Header,
    opening: &Opening<'_>,
    written: Option<(Written, u64)>,
) -> Result<(Scattered, Arc<Map>)> {
    let (written, other_size) = written.unzip();
    let snapshot = match opening.params.get(SNAPSHOT) {
        Some(wanted) => Some(snapshot::find(snapshot::read(container, header)?.0, wanted)?),
        None => None,
    };
    let tracked = written.as_ref().map_or(&[][..], |written| &written.tracked);
    let bitmaps =
        if snapshot.is_some() { Vec::new() } else { contexts(container, header, tracked)? };
    let size = snapshot.as_ref().map(|snapshot| snapshot.known.virtual_size);
    let size = size.or(other_size).unwrap_or(header.size);
    let whole = written.as_ref().map_or(container, |written| &written.edge).clone();
    let data = match &written {
        Some(written) => written.data.edge.clone(),
        None => {
            let file = data_file(header, opening, false)?;
            decrypted(file.unwrap_or_else(|| whole.clone()), container, header, opening)?
        }
    };
    let info = info(container, header, size, &bitmaps);
    let info = if written.is_some() { written_info(info, header, &data) } else { info };
    let taken = taken(header, snapshot.as_ref(), container.info().size)?;
    let compression = Some(header.compression).filter(|_| header.encryption == Encryption::None);
    let tables = Tables {
        geometry: header.geometry(),
        taken: Arc::new(RwLock::new(taken)),
        slices: Cache::of(opening.context).shelf(),
        container: whole,
        written,
    };
    let l1 = match other_size {
        Some(size) if size != header.size => whole_l1(container, header, size)?,
        _ => l1(container, header, snapshot.as_ref(), size)?,
    };
    let pool = opening.context.pool.for_computing();
    let map = Arc::new(Map { l1, tables, data, compression, bitmaps, pool });
    let backing = backing(header, opening)?;
    Ok((Scattered::new(info, opening.context, backing, map.clone()), map))
}

/// The file of the clusters without its encryption: as QEMU has it, a sector is encrypted by its
/// place in the file.
pub(super) fn decrypted(
    data: Edge,
    container: &Edge,
    header: &Header,
    opening: &Opening<'_>,
) -> Result<Edge> {
    match header.encryption {
        Encryption::None => Ok(data),
        Encryption::Aes => {
            let action = "the image is encrypted in qcow2's old way (AES), which is not read";
            Err(Error::unsupported(action))
        }
        Encryption::Luks => {
            let none = || corrupt("it is encrypted (LUKS), and does not locate the key");
            let Region { offset, len } = header.encryption_header.ok_or_else(none)?;
            inside::decrypted(data, container, (offset, len), opening)
        }
    }
}

fn info(container: &Edge, header: &Header, size: u64, bitmaps: &[Dirty]) -> Info {
    let below = container.info();
    let preferred = u32::try_from(header.geometry().cluster()).unwrap_or(4096).max(4096);
    let contexts = bitmaps.iter().map(|dirty| dirty.context.clone());
    Info {
        blocks: BlockSizes { preferred, ..BlockSizes::ANY },
        granules: Granules { physical: 0, ..Granules::all(header.geometry().cluster()) },
        abilities: Abilities {
            extents: true,
            rotational: below.abilities.rotational,
            ..Abilities::READ
        },
        contexts: std::iter::once(DEPTH.into()).chain(contexts).collect(),
        ..Info::new(&below.name, size)
    }
}

/// The same for an image that is written.
fn written_info(info: Info, header: &Header, data: &Edge) -> Info {
    let below = data.info().abilities;
    let (zero, fast_zero) = match header.is_data_file_raw() {
        true => (below.zero, below.fast_zero),
        false => (header.geometry().zeroes, header.geometry().zeroes),
    };
    let abilities =
        Abilities { write: true, flush: true, trim: true, zero, fast_zero, ..info.abilities };
    // Of what is encrypted only whole sectors are written.
    let minimum = match header.encryption {
        Encryption::None => info.blocks.minimum,
        Encryption::Aes | Encryption::Luks => data.info().blocks.minimum,
    };
    let blocks = BlockSizes { minimum, ..info.blocks };
    Info { abilities, blocks, ..info }
}

/// The intact bitmaps of an image, each by a name that no other has.
fn contexts(container: &Edge, header: &Header, tracked: &[Arc<Tracked>]) -> Result<Vec<Dirty>> {
    let bitmaps = bitmap::read(container, header)?;
    let ambiguous = bitmap::ambiguous(&bitmaps);
    let is_one = |bitmap: &&Bitmap| ambiguous.binary_search(&&*bitmap.name).is_err();
    let sound = bitmaps.iter().filter(|bitmap| bitmap.is_sound()).filter(is_one);
    Ok(sound.take(CONTEXTS_MAX).map(|bitmap| Dirty::new(bitmap.clone(), tracked)).collect())
}

/// The regions where neither tables nor data can be.
fn taken(
    header: &Header,
    snapshot: Option<&SnapshotEntry>,
    size: u64,
) -> Result<Vec<(&'static str, Region)>> {
    let mut taken = header.regions(size)?;
    if let Some(snapshot) = snapshot {
        let region = Region { offset: snapshot.l1_offset, len: u64::from(snapshot.l1_entries) * 8 };
        let cluster = header.geometry().cluster();
        region.check("L1 table of the snapshot", size, cluster, super::header::L1_MAX)?;
        taken.push(("L1 table of the snapshot", region));
        super::region::disjoint(&taken, cluster)?;
    }
    Ok(taken)
}

/// The L1 table up to the end of the disk. Entries after it belong to a machine's saved state.
fn l1(
    container: &Edge,
    header: &Header,
    snapshot: Option<&SnapshotEntry>,
    size: u64,
) -> Result<Box<[AtomicU64]>> {
    let (offset, entries) = match snapshot {
        Some(snapshot) => (snapshot.l1_offset, snapshot.l1_entries),
        None => (header.l1_offset, header.l1_entries),
    };
    let wanted = header.geometry().l1_entries(size);
    if wanted > u64::from(entries) || size > i64::MAX.unsigned_abs() {
        return Err(corrupt("the L1 table is too short for the disk"));
    }
    l1_at(container, offset, wanted)
}

/// The whole L1 table, with entries for a disk of `size` bytes.
fn whole_l1(container: &Edge, header: &Header, size: u64) -> Result<Box<[AtomicU64]>> {
    let entries = header.l1_entries.into();
    let there = l1_at(container, header.l1_offset, entries)?.into_iter();
    let more = header.geometry().l1_entries(size).saturating_sub(entries);
    Ok(there.chain((0..more).map(|_| AtomicU64::new(0))).collect())
}

/// Entries of an L1 table, which was checked to be in the container, and not too long.
fn l1_at(container: &Edge, offset: u64, entries: u64) -> Result<Box<[AtomicU64]>> {
    let mut table = ContainerReader::new(container, "L1 table", offset, entries * 8);
    let mut l1 = Vec::with_capacity(usize::try_from(entries).unwrap_or(0));
    for _ in 0..entries {
        l1.push(AtomicU64::new(be64(table.take(8)?, 0).unwrap_or(0)));
    }
    Ok(l1.into_boxed_slice())
}

/// The data file, if there is one.
fn data_file(header: &Header, opening: &Opening<'_>, is_written: bool) -> Result<Option<Edge>> {
    if !header.has(incompatible::DATA_FILE) {
        return Ok(None);
    }
    let name = header.data_file.as_deref().filter(|name| !name.is_empty());
    let name = name.ok_or_else(|| corrupt("it does not name its data file"))?;
    let reference = Reference { name, role: Role::DataFile, format: Some("raw") };
    if !is_written {
        return opening.files.open(&reference).map(Some);
    }
    let opened = opening.files.open_to_write(&reference);
    let opened = opened.map_err(|e| match e.kind() {
        ErrorKind::PermissionDenied | ErrorKind::ReadOnly => {
            let action = "cannot be written: its data file cannot";
            Error::new(ErrorKind::ReadOnly, Fault::User, action).with_source(e)
        }
        _ => e,
    });
    opened.map(Some)
}

/// The backing disk, for unallocated ranges.
fn backing(header: &Header, opening: &Opening<'_>) -> Result<Option<Edge>> {
    let Some(name) = &header.backing else { return Ok(None) };
    let format = header.backing_format.as_deref();
    opening.files.open(&Reference { name, role: Role::Backing, format }).map(Some)
}
