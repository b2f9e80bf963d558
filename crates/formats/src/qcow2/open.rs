//! Opening the disk in an image, for reading.

use std::sync::Arc;

use device::{Abilities, BlockSizes, Device, Edge, Error, Info, Result};

use super::corrupt;
use super::dirty::Dirty;
use super::header::{Encryption, Header, incompatible};
use super::map::Map;
use super::region::Region;
use super::snapshot::{self, SnapshotEntry};
use super::tables::Tables;
use super::{SNAPSHOT, bitmap};
use crate::kit::cache::Cache;
use crate::kit::numbers::be64;
use crate::kit::{DEPTH, Scattered};
use crate::{Opening, Reference, Role};

/// The most bitmaps that become contexts.
const CONTEXTS_MAX: usize = 256;

/// Opens it.
pub(super) fn open(container: Edge, opening: &Opening<'_>) -> Result<Arc<dyn Device>> {
    let header = Header::read(&container)?;
    header.check_features()?;
    match header.encryption {
        Encryption::None => {}
        Encryption::Aes => return Err(encrypted("AES")),
        Encryption::Luks => return Err(encrypted("LUKS")),
    }
    let snapshot = match opening.params.get(SNAPSHOT) {
        Some(wanted) => Some(snapshot::find(snapshot::read(&container, &header)?.0, wanted)?),
        None => None,
    };
    let bitmaps = if snapshot.is_some() { Vec::new() } else { contexts(&container, &header)? };
    let size = snapshot.as_ref().map_or(header.size, |snapshot| snapshot.known.virtual_size);
    let data = data_file(&header, opening)?.unwrap_or_else(|| container.clone());
    let tables = Tables {
        geometry: header.geometry(),
        taken: taken(&header, snapshot.as_ref(), container.info().size)?,
        slices: Cache::of(opening.context).shelf(),
        container: container.clone(),
    };
    let l1 = l1(&container, &header, snapshot.as_ref(), size)?;
    let info = info(&container, &header, size, &bitmaps);
    let pool = opening.context.pool.for_computing();
    let map = Map { l1, tables, data, compression: header.compression, bitmaps, pool };
    Ok(Scattered::device(info, opening.context, backing(&header, opening)?, map))
}

fn encrypted(how: &str) -> Error {
    Error::unsupported(format!(
        "the image is encrypted ({how}); encrypted images cannot be read yet"
    ))
}

fn info(container: &Edge, header: &Header, size: u64, bitmaps: &[Dirty]) -> Info {
    let below = container.info();
    let preferred = u32::try_from(header.geometry().cluster()).unwrap_or(4096).max(4096);
    let contexts = bitmaps.iter().map(|dirty| dirty.context.clone());
    Info {
        blocks: BlockSizes { preferred, ..BlockSizes::ANY },
        abilities: Abilities {
            extents: true,
            rotational: below.abilities.rotational,
            ..Abilities::READ
        },
        contexts: std::iter::once(DEPTH.into()).chain(contexts).collect(),
        ..Info::new(&below.name, size)
    }
}

/// The intact bitmaps of an image.
fn contexts(container: &Edge, header: &Header) -> Result<Vec<Dirty>> {
    let bitmaps = bitmap::read(container, header)?;
    Ok(bitmaps.into_iter().filter(|b| b.is_sound()).take(CONTEXTS_MAX).map(Dirty::new).collect())
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
) -> Result<Box<[u64]>> {
    let (offset, entries) = match snapshot {
        Some(snapshot) => (snapshot.l1_offset, snapshot.l1_entries),
        None => (header.l1_offset, header.l1_entries),
    };
    let wanted = header.geometry().l1_entries(size);
    if wanted > u64::from(entries) || size > i64::MAX.unsigned_abs() {
        return Err(corrupt("the L1 table is too short for the disk"));
    }
    // It was checked to be in the container, and not too long.
    let mut bytes = vec![0; usize::try_from(wanted * 8).unwrap_or(0)];
    container.read(&mut bytes, offset)?;
    Ok(bytes.chunks_exact(8).map(|entry| be64(entry, 0).unwrap_or(0)).collect())
}

/// The data file, if there is one.
fn data_file(header: &Header, opening: &Opening<'_>) -> Result<Option<Edge>> {
    if !header.has(incompatible::DATA_FILE) {
        return Ok(None);
    }
    let name = header.data_file.as_deref().filter(|name| !name.is_empty());
    let name = name.ok_or_else(|| corrupt("it does not say what its data file is called"))?;
    let reference = Reference { name, role: Role::DataFile, format: Some("raw") };
    opening.files.open(&reference).map(Some)
}

/// The backing disk, for unallocated ranges.
fn backing(header: &Header, opening: &Opening<'_>) -> Result<Option<Edge>> {
    let Some(name) = &header.backing else { return Ok(None) };
    let format = header.backing_format.as_deref();
    opening.files.open(&Reference { name, role: Role::Backing, format }).map(Some)
}
