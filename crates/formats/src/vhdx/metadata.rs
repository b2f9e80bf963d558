//! The metadata of a VHDX image: a table of items, and the items.
//!
//! | table, 64 KiB | at | each item, from 32 on | at |
//! |---|---|---|---|
//! | `metadata` | 0 | identifier | 0 |
//! | items | 10 | offset in the region, length | 16, 20 |
//! | | | bits: of the user, of the disk, must be known | 24 |

use device::{Edge, Result};

use crate::kit::Parent;
use crate::kit::fields::{array, corrupt, foreign, le16, le32, le64, load, new_uuid, put};

use super::header::{Guid, Region, guid};

const TABLE: usize = 64 << 10;
const ITEMS_MAX: u16 = 2047;
/// The longest item that is read: the names of a parent.
const ITEM_MAX: u32 = 1 << 20;

const PARAMETERS: Guid =
    guid(0xcaa1_6737, 0xfa36, 0x4d43, [0xb3, 0xb6, 0x33, 0xf0, 0xaa, 0x44, 0xe7, 0x6b]);
const SIZE: Guid =
    guid(0x2fa5_4224, 0xcd1b, 0x4876, [0xb2, 0x11, 0x5d, 0xbe, 0xd8, 0x3b, 0xf4, 0xb8]);
const IDENTITY: Guid =
    guid(0xbeca_12ab, 0xb2e6, 0x4523, [0x93, 0xef, 0xc3, 0x09, 0xe0, 0x00, 0xc7, 0x46]);
const LOGICAL: Guid =
    guid(0x8141_bf1d, 0xa96f, 0x4709, [0xba, 0x47, 0xf2, 0x33, 0xa8, 0xfa, 0xab, 0x5f]);
const PHYSICAL: Guid =
    guid(0xcda3_48c7, 0x445d, 0x4471, [0x9c, 0xc9, 0xe9, 0x88, 0x52, 0x51, 0xc5, 0x56]);
const PARENT: Guid =
    guid(0xa8d3_5f2d, 0xb30b, 0x454d, [0xab, 0xf7, 0xd3, 0xd8, 0x48, 0x34, 0xab, 0x0c]);

/// The items.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Metadata {
    /// Bytes of the disk.
    pub(super) size: u64,
    /// Bytes of a block; a power of two.
    pub(super) block: u64,
    /// Bytes of a sector: 512 or 4096.
    pub(super) sector: u64,
    /// Whether all blocks are allocated from the start.
    pub(super) fixed: bool,
    /// The parent, if it has one.
    pub(super) parent: Option<Parent>,
}

impl Metadata {
    pub(super) fn read(container: &Edge, region: Region) -> Result<Self> {
        let broken = |why: &str| corrupt(format!("the VHDX image is broken: {why}"));
        let table = load(container, "metadata", region.offset, TABLE)?;
        let count = le16(&table, 10);
        if !table.starts_with(b"metadata") || count > ITEMS_MAX {
            return Err(broken("its metadata have no table"));
        }
        let (mut parameters, mut size, mut sector, mut locator) = (None, None, None, None);
        let entries = table.get(32..).unwrap_or_default().chunks_exact(32);
        for entry in entries.take(count.into()) {
            let (offset, len) = (le32(entry, 16), le32(entry, 20));
            let item = |least: u32| {
                let inside = u64::from(offset) <= region.len
                    && u64::from(len) <= region.len - u64::from(offset);
                if !inside || len < least || len > ITEM_MAX {
                    return Err(broken("an item of its metadata does not lie in them"));
                }
                let at = region.offset + u64::from(offset);
                load(container, "metadata", at, usize::try_from(len).unwrap_or(0))
            };
            match array::<16>(entry, 0) {
                PARAMETERS => parameters = Some(item(8)?),
                SIZE => size = Some(le64(&item(8)?, 0)),
                LOGICAL => sector = Some(u64::from(le32(&item(4)?, 0))),
                PARENT => locator = Some(item(20)?),
                IDENTITY | PHYSICAL => {}
                _ if le32(entry, 24) & 4 != 0 => {
                    return Err(foreign("the VHDX image has required metadata of an unknown kind"));
                }
                _ => {}
            }
        }
        let (Some(parameters), Some(size), Some(sector)) = (parameters, size, sector) else {
            return Err(broken("its metadata do not give the size of its disk"));
        };
        let (block, bits) = (u64::from(le32(&parameters, 0)), le32(&parameters, 4));
        let parent = (bits & 2 != 0).then(|| locator.map(|l| located(&l)).unwrap_or_default());
        let metadata = Self { size, block, sector, fixed: bits & 1 != 0, parent };
        metadata.check().map_err(broken)?;
        Ok(metadata)
    }

    fn check(&self) -> std::result::Result<(), &'static str> {
        if !self.block.is_power_of_two() || !(1 << 20..=1 << 28).contains(&self.block) {
            return Err("its blocks are not of 1 MiB to 256 MiB");
        }
        if self.sector != 512 && self.sector != 4096 {
            return Err("its sectors have neither 512 nor 4096 bytes");
        }
        if !self.size.is_multiple_of(self.sector) || self.size > super::SIZE_MAX {
            return Err("its disk is not a whole number of sectors, or larger than 64 TiB");
        }
        Ok(())
    }

    /// Blocks of the disk.
    pub(super) fn blocks(&self) -> u64 {
        self.size.div_ceil(self.block)
    }

    /// Blocks whose sectors one bitmap has bits for.
    pub(super) fn ratio(&self) -> u64 {
        (self.sector << 23) / self.block
    }

    /// Entries of the table of blocks: after each chunk of blocks comes one for their bitmap.
    pub(super) fn entries(&self) -> u64 {
        let (blocks, ratio) = (self.blocks(), self.ratio());
        match self.parent {
            Some(_) => blocks.div_ceil(ratio) * (ratio + 1),
            None => blocks + blocks.saturating_sub(1) / ratio,
        }
    }

    /// All of the region, or as much of it as is not zeroes.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![0; TABLE + 64];
        let short = |n: u64| u32::try_from(n).unwrap_or(0).to_le_bytes();
        put(&mut bytes, 0, b"metadata");
        put(&mut bytes, 10, &5_u16.to_le_bytes());
        put(&mut bytes, TABLE, &short(self.block));
        put(&mut bytes, TABLE + 4, &u32::from(self.fixed).to_le_bytes());
        put(&mut bytes, TABLE + 8, &self.size.to_le_bytes());
        put(&mut bytes, TABLE + 16, &new_uuid());
        put(&mut bytes, TABLE + 32, &short(self.sector));
        put(&mut bytes, TABLE + 36, &short(self.sector));
        let items = [
            (PARAMETERS, 0, 8, 4),
            (SIZE, 8, 8, 6),
            (IDENTITY, 16, 16, 6),
            (LOGICAL, 32, 4, 6),
            (PHYSICAL, 36, 4, 6),
        ];
        for (at, (id, offset, len, bits)) in (32..).step_by(32).zip(items) {
            put(&mut bytes, at, &id);
            put(&mut bytes, at + 16, &short(TABLE as u64 + offset));
            put(&mut bytes, at + 20, &short(len));
            put(&mut bytes, at + 24, &short(bits));
        }
        bytes
    }
}

/// What a parent locator says: the names, relative to the image, then absolute; and the identifiers
/// that the parent's data may have.
fn located(locator: &[u8]) -> Parent {
    let count = usize::from(le16(locator, 18)).min(64);
    let text = |offset: u32, len: u16| {
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        let bytes = start.checked_add(len.into()).and_then(|end| locator.get(start..end));
        let units = bytes.unwrap_or_default().chunks_exact(2).map(|unit| le16(unit, 0));
        String::from_utf16_lossy(&units.collect::<Vec<_>>())
    };
    let entries = locator.get(20..).unwrap_or_default().chunks_exact(12).take(count);
    let (mut found, mut ids) = (Vec::new(), Vec::new());
    for entry in entries {
        let key = text(le32(entry, 0), le16(entry, 8));
        let rank = match key.as_str() {
            "relative_path" => 0,
            "absolute_win32_path" => 1,
            "volume_path" => 2,
            "parent_linkage" | "parent_linkage2" => {
                ids.extend(guid_of(&text(le32(entry, 4), le16(entry, 10))));
                continue;
            }
            _ => continue,
        };
        let name = text(le32(entry, 4), le16(entry, 10)).replace('\\', "/");
        found.push((rank, name.strip_prefix("./").unwrap_or(&name).to_owned()));
    }
    found.sort();
    let names = found.into_iter().map(|(_, name)| name).filter(|name| !name.is_empty());
    Parent { names: names.collect(), ids }
}

/// An identifier as people write it: `{deadbeef-…}`.
fn guid_of(text: &str) -> Option<Guid> {
    let text = text.trim_end_matches('\0');
    let digits: Vec<_> = text.strip_prefix('{')?.strip_suffix('}')?.split('-').collect();
    let number = |i: usize, len: usize| {
        let part = digits.get(i).filter(|part| part.len() == len)?;
        u64::from_str_radix(part, 16).ok()
    };
    let short = |i: usize| u16::try_from(number(i, 4)?).ok();
    let rest = number(3, 4)? << 48 | number(4, 12)?;
    let first = u32::try_from(number(0, 8)?).ok()?;
    (digits.len() == 5).then_some(guid(first, short(1)?, short(2)?, rest.to_be_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identifier_is_read_as_people_write_it() {
        assert_eq!(guid_of("{a8d35f2d-b30b-454d-ABF7-d3d84834ab0c}"), Some(PARENT));
        for bad in [
            "a8d35f2d-b30b-454d-abf7-d3d84834ab0c",
            "{}",
            "{a8d35f2d-b30b-454d-abf7}",
            "{a8d35f2d-b30b-454d-abf7-d3d84834ab0c-}",
        ] {
            assert_eq!(guid_of(bad), None, "{bad}");
        }
    }
}
