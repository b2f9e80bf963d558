//! qcow, the first version, read-only: a table of tables of clusters. Compressed clusters and
//! encrypted images are refused: qemu-img reads those.
//!
//! | at | what, big end first |
//! |---|---|
//! | 0, 4 | `QFI` and 0xfb, version 1 |
//! | 8, 16 | where the name of the backing image is, and its bytes |
//! | 24 | bytes of the disk |
//! | 32, 33 | bits of a cluster, and of the entries of a table |
//! | 36, 40 | how it is encrypted, where the first table is |

use std::sync::Arc;

use device::{Device, Edge, Error, ErrorKind, Fault, Result};
use runtime::Context;

use crate::kit::fields::{array, be32, be64, corrupt, foreign, lies_inside, load};
use crate::kit::numbers::text;
use crate::kit::{Atlas, Lies, Run, Runs, Scattered, Table, disk_info};
use crate::{Description, Format, NamedFile, Opening, Reference, Role, Upkeep};

pub(crate) const FORMAT: Format = Format {
    word: "qcow",
    summary: "the first version of qcow; read-only",
    is_plain: false,
    packing: None,
    params: &[],
    recognises: |head| head.has(0, MAGIC) && head.has(4, &[0, 0, 0, 1]),
    open,
    describe,
    write: None,
    create: None,
    check: None,
    upkeep: Upkeep::NONE,
};

const MAGIC: &[u8] = b"QFI\xfb";
const HEADER: usize = 48;
const NAME_MAX: u32 = 1023;
/// Entries of the first table.
const FIRST_MAX: u64 = 1 << 26;
const COMPRESSED: u64 = 1 << 63;
/// Bytes.
const SECTOR: u64 = 512;

struct Header {
    size: u64,
    cluster_bits: u8,
    table_bits: u8,
    first: u64,
    encrypted: bool,
    backing: Option<String>,
}

impl Header {
    fn read(container: &Edge) -> Result<Self> {
        let bytes = load(container, "header", 0, HEADER)?;
        if !bytes.starts_with(MAGIC) || be32(&bytes, 4) != 1 {
            return Err(corrupt("this is not a qcow image of version 1"));
        }
        let broken = |why: &str| corrupt(format!("the qcow image is broken: {why}"));
        let [cluster_bits, table_bits] = array(&bytes, 32);
        if !(9..=16).contains(&cluster_bits) || !(6..=13).contains(&table_bits) {
            return Err(broken("its clusters or tables have an unknown size"));
        }
        // QEMU counts whole sectors.
        let (size, first) = (be64(&bytes, 24) & !511, be64(&bytes, 40));
        if size > 1 << 62 || size.div_ceil(1 << (cluster_bits + table_bits)) > FIRST_MAX {
            return Err(broken("its disk is too large"));
        }
        let (at, n) = (be64(&bytes, 8), be32(&bytes, 16));
        let backing = match (at, n) {
            (0, _) | (_, 0) => None,
            (_, n) if n > NAME_MAX => {
                return Err(broken("the name of its backing image is too long"));
            }
            (at, n) => {
                let n = usize::try_from(n).unwrap_or(0);
                Some(text(&load(container, "name of its backing image", at, n)?))
            }
        };
        let encrypted = be32(&bytes, 36) != 0;
        Ok(Self { size, cluster_bits, table_bits, first, encrypted, backing })
    }
}

struct Map {
    header: Header,
    first: Table,
    container: Edge,
}

fn open(container: Edge, opening: &Opening<'_>) -> Result<Arc<dyn Device>> {
    let header = Header::read(&container)?;
    if header.encrypted {
        let action = "the qcow image is encrypted; qemu-img convert reads it";
        return Err(Error::new(ErrorKind::NeedsKey, Fault::File, action));
    }
    let backing = match &header.backing {
        Some(name) => {
            let reference = Reference { name, role: Role::Backing, format: None };
            Some(opening.files.open(&reference)?)
        }
        None => None,
    };
    let entries = header.size.div_ceil(1 << (header.cluster_bits + header.table_bits));
    let first =
        Table::new((&container, opening.context), "first table", header.first, (entries, 8), be64)?;
    if entries > 0 && header.first < HEADER as u64 {
        return Err(corrupt("the qcow image is broken: its first table lies in its header"));
    }
    let info = disk_info(&container, header.size);
    Ok(Scattered::device(info, opening.context, backing, Map { header, first, container }))
}

fn describe(container: &Edge, _: &Context) -> Result<Description> {
    let header = Header::read(container)?;
    Ok(Description {
        virtual_size: header.size,
        cluster_size: Some(1 << header.cluster_bits),
        encrypted: header.encrypted,
        backing: header.backing.map(|name| NamedFile { name, format: None }),
        ..Description::default()
    })
}

impl Runs for Map {
    async fn run(&self, at: u64, len: u64, may_wait: bool) -> Result<Option<Run>> {
        let (bits, size) = (self.header.cluster_bits, 1_u64 << self.header.cluster_bits);
        let (cluster, within) = (at >> bits, at & (size - 1));
        let (asked, len) = (len, len.min(size - within));
        let index = cluster >> self.header.table_bits;
        let Some(table) = self.first.entry(index, may_wait).await? else { return Ok(None) };
        if table == 0 {
            // Nothing that the table covers is allocated.
            let all = size << self.header.table_bits;
            let len = asked.min(all - at % all);
            return Ok(Some(Run { len, lies: Lies::Beneath }));
        }
        let range = (table, 8 << self.header.table_bits);
        lies_inside(&self.container, "table", range.0, range.1)?;
        let index = cluster & ((1 << self.header.table_bits) - 1);
        let Some(entry) = self.first.elsewhere(range, index, may_wait).await? else {
            return Ok(None);
        };
        if entry & COMPRESSED != 0 {
            let action = "a cluster of the qcow image is compressed; qemu-img convert reads it";
            return Err(foreign(action).at(at));
        }
        if entry == 0 {
            return Ok(Some(Run { len, lies: Lies::Beneath }));
        }
        if entry < HEADER as u64 {
            return Err(corrupt("a cluster of the qcow image overlaps its header").at(at));
        }
        if entry % SECTOR != 0 {
            // As in QEMU: its writer appends whole clusters.
            return Err(corrupt("a cluster of the qcow image begins within a sector").at(at));
        }
        lies_inside(&self.container, "cluster", entry, within + len)?;
        Ok(Some(Run { len, lies: Lies::At(entry + within) }))
    }
}

impl Atlas for Map {
    fn file(&self, _: u64) -> Option<(u16, &Edge)> {
        Some((0, &self.container))
    }
}
