//! Parallels' expanding disks, read-only: a header of 64 bytes, a table of blocks, and the blocks.
//!
//! | at | what, little end first |
//! |---|---|
//! | 0 | `WithoutFreeSpace`, or `WithouFreSpacExt`, whose table counts in blocks and not in sectors |
//! | 16, 28, 32 | version, sectors of a block, entries |
//! | 36 | sectors of the disk: 64 bits, in the older kind 32 |
//! | 44 | whether it is open |
//! | 48 | the sector where blocks begin |
//! | 64 | the table: 32 bits for each block, 0 for one that is not there |

mod check;

use std::sync::Arc;

use device::{Device, Edge, Result};
use runtime::Context;

use crate::kit::fields::{corrupt, foreign, le32, le64, lies_inside, load};
use crate::kit::{Atlas, Lies, Run, Scattered, Table, disk_info};
use crate::{Description, Format, Opening};

pub(crate) const FORMAT: Format = Format {
    word: "parallels",
    summary: "Parallels' expanding disk; read-only",
    is_plain: false,
    is_packing: false,
    params: &[],
    recognises: |head| head.has(0, OLD) || head.has(0, NEW),
    open,
    describe,
    create: None,
    check: Some(check::check),
};

const OLD: &[u8] = b"WithoutFreeSpace";
const NEW: &[u8] = b"WithouFreSpacExt";
const HEADER: usize = 64;
const SECTOR: u64 = 512;
const IN_USE: u32 = 0x746f_6e59;

struct Header {
    size: u64,
    block: u64,
    entries: u64,
    /// Bytes that a number in the table counts in.
    unit: u64,
    in_use: bool,
    /// Where the room for blocks begins, as the image says: bytes.
    data: u64,
}

impl Header {
    fn read(container: &Edge) -> Result<Self> {
        let bytes = load(container, "header", 0, HEADER)?;
        let newer = bytes.starts_with(NEW);
        if !newer && !bytes.starts_with(OLD) {
            return Err(corrupt("this is not a Parallels image: it has no header"));
        }
        if le32(&bytes, 16) != 2 {
            return Err(foreign(format!(
                "Parallels version {} is not known, only 2",
                le32(&bytes, 16)
            )));
        }
        let block = u64::from(le32(&bytes, 28)) * SECTOR;
        let sectors = if newer { le64(&bytes, 36) } else { le32(&bytes, 36).into() };
        let entries = u64::from(le32(&bytes, 32));
        let broken = |why: &str| corrupt(format!("the Parallels image is broken: {why}"));
        if block == 0 || block > 1 << 30 {
            return Err(broken("its blocks are not of 512 bytes to 1 GiB"));
        }
        let size = sectors.checked_mul(SECTOR).filter(|size| size.div_ceil(block) <= entries);
        let size = size.ok_or_else(|| broken("its table is shorter than its disk"))?;
        let unit = if newer { block } else { SECTOR };
        let (in_use, data) = (le32(&bytes, 44) == IN_USE, u64::from(le32(&bytes, 48)) * SECTOR);
        Ok(Self { size, block, entries, unit, in_use, data })
    }
}

struct Map {
    header: Header,
    table: Table,
    container: Edge,
}

fn open(container: Edge, opening: &Opening<'_>) -> Result<Arc<dyn Device>> {
    let header = Header::read(&container)?;
    let shape = (header.entries, 4);
    let table =
        Table::new((&container, opening.context), "table", HEADER as u64, shape, |b, at| {
            le32(b, at).into()
        })?;
    let info = disk_info(&container, header.size);
    Ok(Scattered::device(info, opening.context, None, Map { header, table, container }))
}

fn describe(container: &Edge, _: &Context) -> Result<Description> {
    let header = Header::read(container)?;
    Ok(Description { virtual_size: header.size, dirty: header.in_use, ..Description::default() })
}

impl Atlas for Map {
    async fn run(&self, at: u64, len: u64, may_wait: bool) -> Result<Option<Run>> {
        let (block, within) = (at / self.header.block, at % self.header.block);
        let len = len.min(self.header.block - within);
        let Some(entry) = self.table.entry(block, may_wait).await? else { return Ok(None) };
        if entry == 0 {
            return Ok(Some(Run { len, lies: Lies::Beneath }));
        }
        let start = entry.saturating_mul(self.header.unit);
        let (table, n) = self.table.range();
        if start < table + n {
            return Err(corrupt(format!("its block {block} lies over its headers")).at(start));
        }
        lies_inside(&self.container, "block", start.saturating_add(within), len)?;
        Ok(Some(Run { len, lies: Lies::At(start + within) }))
    }

    fn file(&self, _: u64) -> Option<(u16, &Edge)> {
        Some((0, &self.container))
    }
}
