//! LUKS1 inside of an image of another format, which keeps the header and encrypts its clusters:
//! that of qcow2. Sectors have the numbers of where they lie in their file.

use device::{Edge, Param, Result};
use serde_json::{Map, Value};

use super::disk::Decrypted;
use super::volume::Segment;
use super::{MAGIC, derive, describe, header1, secret};
use crate::Opening;
use crate::kit::Layered;
use crate::kit::fields::{array, corrupt, foreign, load};

/// The parameters that name the key, for the table entry of the other format.
pub(crate) const PARAMS: [Param; 4] = secret::PARAMS;

/// All of `file` decrypted, with the key in the header in the `len` bytes at `start` of
/// `container`. It reads as noise where nothing was written.
///
/// # Errors
/// That is no header of LUKS1, or the parameters name no key that opens it.
pub(crate) fn decrypted(
    file: Edge,
    container: &Edge,
    (start, len): (u64, u64),
    opening: &Opening<'_>,
) -> Result<Edge> {
    let mut volume = header(container, start)?.volume()?;
    for slot in volume.slots.iter_mut().flatten() {
        let end = slot.offset.checked_add(slot.area_len() as u64);
        let place = end.filter(|end| *end <= len).and(slot.offset.checked_add(start));
        slot.offset = place.ok_or_else(|| {
            corrupt("a keyslot lies outside of the room for them").at(slot.offset)
        })?;
    }
    let segment = Segment { offset: 0, len: None, ..volume.segment };
    let size = segment.size_in(file.info().size)?;
    let key = volume.key(container, &secret::of(opening.params)?, derive::MEMORY)?;
    let disk = Layered::device(Decrypted::new(file, segment, size, &key)?);
    Ok(Edge::new(disk, opening.context.pool.clone()))
}

/// What `qemu-img info` tells of the header at `start`, for which no key is needed.
///
/// # Errors
/// There is none.
pub(crate) fn described(container: &Edge, start: u64) -> Result<Map<String, Value>> {
    header(container, start).map(|header| describe::first(&header, Some("luks")))
}

fn header(container: &Edge, start: u64) -> Result<header1::Header> {
    let first = load(container, "header of the encryption", start, 8)?;
    if !first.starts_with(MAGIC) || array(&first, 6) != [0, 1] {
        return Err(foreign("the header of its encryption is not one of LUKS1").at(start));
    }
    header1::Header::read(container, start)
}
