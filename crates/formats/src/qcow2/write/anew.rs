//! The header anew, in its first sector, which is written at once: what is elsewhere is durable
//! before, and nothing refers to it until then.

use device::{Error, Result};

use super::super::header::{Header, LENGTH_V2, LENGTH_V3, REFCOUNT_ORDER_V2, extension};
use super::Writer;
use crate::kit::confused;
use crate::kit::numbers::{be32, be64};

/// What is written as a whole.
const SECTOR: usize = 512;
const VERSION_AT: usize = 4;
const NAME_AT: usize = 8;

/// What a header that is written anew says otherwise.
#[derive(Clone, Copy, Default)]
pub(super) struct HeaderChange<'a> {
    pub(super) data_file: Option<&'a str>,
    /// Of the extension of the bitmaps.
    pub(super) bitmaps: Option<&'a [u8]>,
    /// Where they are, and what they become.
    pub(super) fields: &'a [(u64, &'a [u8])],
}

/// A header as it is to be.
pub(super) struct HeaderAnew {
    sector: Vec<u8>,
    /// The name of the backing image, and where it is durable before, if it has to be elsewhere.
    name: Option<(u64, Vec<u8>)>,
}

impl Writer {
    /// Writes the header [anew](header_anew).
    pub(super) async fn rewrite(
        &self,
        header: &Header,
        version: u32,
        change: HeaderChange<'_>,
    ) -> Result<()> {
        let block = self.blocks.load(0).await?;
        let HeaderAnew { sector, name } = header_anew(&block, header, version, change)?;
        if let Some((place, name)) = name {
            self.set_header(place, &name).await?;
        }
        self.set_header(0, &sector).await
    }
}

/// A header anew, in one sector: of another version, or with other fields. The names of features
/// are left out.
///
/// # Errors
/// It does not get into one sector.
pub(super) fn header_anew(
    block: &[u8],
    header: &Header,
    version: u32,
    change: HeaderChange<'_>,
) -> Result<HeaderAnew> {
    let old_length = usize::try_from(header.length).map_err(|_| confused())?;
    let length = if version == 3 { LENGTH_V3 + 8 } else { LENGTH_V2 };
    let length = usize::try_from(length).map_err(|_| confused())?;
    // A longer header of the same version stays as it is.
    let length = if version == header.version { old_length } else { length };
    let mut new = block.get(..old_length).ok_or_else(too_long)?.to_vec();
    if version != header.version {
        new.truncate(usize::try_from(LENGTH_V2).map_err(|_| confused())?);
        put(&mut new, VERSION_AT, &version.to_be_bytes());
        // No features; the width of refcounts, and the length of the header.
        new.resize(length, 0);
        put(&mut new, 96, &REFCOUNT_ORDER_V2.to_be_bytes());
        put(&mut new, 100, &u32::try_from(length).map_err(|_| confused())?.to_be_bytes());
    }
    let mut rest = block.get(old_length..).ok_or_else(too_long)?;
    loop {
        let (kind, len) = (be32(rest, 0).ok_or_else(too_long)?, be32(rest, 4));
        let len = usize::try_from(len.ok_or_else(too_long)?).map_err(|_| confused())?;
        let at = (block.len() - rest.len()) as u64;
        let is_name = header.backing.is_some() && be64(block, NAME_AT) == Some(at);
        if kind == extension::END || is_name {
            break;
        }
        let data = rest.get(8..).and_then(|rest| rest.get(..len)).ok_or_else(too_long)?;
        let data = match (kind, change) {
            (extension::DATA_FILE, HeaderChange { data_file: Some(name), .. }) => name.as_bytes(),
            (extension::BITMAPS, HeaderChange { bitmaps: Some(directory), .. }) => directory,
            _ => data,
        };
        if kind != extension::FEATURE_NAMES {
            new.extend(kind.to_be_bytes());
            new.extend(u32::try_from(data.len()).map_err(|_| confused())?.to_be_bytes());
            new.extend(data);
            new.resize(new.len().next_multiple_of(8), 0);
        }
        rest = rest.get((len + 8).next_multiple_of(8)..).ok_or_else(too_long)?;
    }
    new.extend([0; 8]);
    for (at, field) in change.fields {
        put(&mut new, usize::try_from(*at).map_err(|_| confused())?, field);
    }
    if new.len() > SECTOR {
        return Err(too_long());
    }
    let name = (be64(block, NAME_AT), be32(block, NAME_AT + 8));
    let mut before = None;
    if let (Some(at @ 1..), Some(len @ 1..)) = name {
        let at = usize::try_from(at).map_err(|_| confused())?;
        let len = usize::try_from(len).map_err(|_| confused())?;
        let name = block.get(at..).and_then(|rest| rest.get(..len)).ok_or_else(too_long)?;
        let place = place_name(&mut new, (at, name), block.len())?;
        if place != at && place >= SECTOR {
            before = Some((place as u64, name.to_vec()));
        }
        put(&mut new, NAME_AT, &(place as u64).to_be_bytes());
    }
    if new.len() > SECTOR {
        return Err(too_long());
    }
    Ok(HeaderAnew { sector: new, name: before })
}

/// Where the name of the backing image is from now on: it stays, or is put into the sector with
/// all else, or is to be behind all that there is.
fn place_name(new: &mut Vec<u8>, (old, name): (usize, &[u8]), room: usize) -> Result<usize> {
    if old >= new.len() {
        return Ok(old);
    }
    let place = new.len();
    if place + name.len() <= SECTOR {
        new.extend(name);
        return Ok(place);
    }
    let place = (old + name.len()).max(SECTOR).next_multiple_of(8);
    if place + name.len() > room {
        return Err(too_long());
    }
    Ok(place)
}

fn put(to: &mut [u8], at: usize, bytes: &[u8]) {
    let room = to.get_mut(at..).and_then(|rest| rest.get_mut(..bytes.len()));
    room.into_iter().for_each(|room| room.copy_from_slice(bytes));
}

fn too_long() -> Error {
    Error::unsupported("change a header with names that do not fit in one sector")
}
