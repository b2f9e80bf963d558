//! QED, read-only: QEMU's format from before qcow2 was fast. A table of tables of clusters.
//!
//! | at | what, little end first |
//! |---|---|
//! | 0 | `QED` and a zero |
//! | 4, 8, 12 | bytes of a cluster, clusters of a table, clusters of the header |
//! | 16, 24, 32 | features that must be known, that may be, that are cleared |
//! | 40, 48 | where the first table is, bytes of the disk |
//! | 56, 60 | where the name of the backing image is, and its bytes |

mod check;

use std::sync::Arc;

use device::{Device, Edge, Result};
use runtime::Context;

use crate::kit::fields::{corrupt, foreign, le32, le64, lies_inside, load};
use crate::kit::numbers::text;
use crate::kit::{Atlas, Lies, Run, Scattered, Table, disk_info};
use crate::{Description, Format, NamedFile, Opening, Reference, Role};

pub(crate) const FORMAT: Format = Format {
    word: "qed",
    summary: "QED; read-only",
    is_plain: false,
    is_packing: false,
    params: &[],
    recognises: |head| head.has(0, MAGIC),
    open,
    describe,
    create: None,
    check: Some(check::check),
};

const MAGIC: &[u8] = b"QED\0";
const HEADER: usize = 64;
const BACKED: u64 = 1;
const NEEDS_CHECK: u64 = 2;
const BACKING_IS_RAW: u64 = 4;
const NAME_MAX: u32 = 1023;
/// A cluster that reads as zeroes.
const ZERO: u64 = 1;

struct Header {
    cluster: u64,
    /// Bytes of a table.
    table: u64,
    first: u64,
    size: u64,
    dirty: bool,
    /// Bytes of the header's clusters.
    len: u64,
    backing: Option<NamedFile>,
}

impl Header {
    fn read(container: &Edge) -> Result<Self> {
        let bytes = load(container, "header", 0, HEADER)?;
        if !bytes.starts_with(MAGIC) {
            return Err(corrupt("this is not a QED image: it has no header"));
        }
        let (cluster, tables) = (u64::from(le32(&bytes, 4)), u64::from(le32(&bytes, 8)));
        let features = le64(&bytes, 16);
        if features > (BACKED | NEEDS_CHECK | BACKING_IS_RAW) {
            return Err(foreign(format!("the QED image has unknown features: {features:#x}")));
        }
        let broken = |why: &str| corrupt(format!("the QED image is broken: {why}"));
        if !cluster.is_power_of_two() || !(4096..=64 << 20).contains(&cluster) {
            return Err(broken("its clusters are not of 4 KiB to 64 MiB"));
        }
        if !tables.is_power_of_two() || tables > 16 {
            return Err(broken("its tables do not have 1 to 16 clusters"));
        }
        let (table, size, len) = (tables * cluster, le64(&bytes, 48), u64::from(le32(&bytes, 12)));
        let (first, len) = (le64(&bytes, 40), len.saturating_mul(cluster));
        let entries = table / 8;
        let most = entries.saturating_mul(entries).saturating_mul(cluster);
        if size > most.min(1 << 62) || !size.is_multiple_of(512) {
            return Err(broken("its disk is larger than its tables"));
        }
        if !first.is_multiple_of(cluster) || first < len || len == 0 {
            return Err(broken("its first table lies in its header"));
        }
        let backing = match features & BACKED {
            0 => None,
            _ => {
                let (at, n) = (le32(&bytes, 56), le32(&bytes, 60));
                if n > NAME_MAX || u64::from(at) + u64::from(n) > len {
                    return Err(broken("the name of its backing image is not in its header"));
                }
                let n = usize::try_from(n).unwrap_or(0);
                let name = text(&load(container, "name of its backing image", at.into(), n)?);
                let raw = features & BACKING_IS_RAW != 0;
                Some(NamedFile { name, format: raw.then(|| "raw".into()) })
            }
        };
        let dirty = features & NEEDS_CHECK != 0;
        Ok(Self { cluster, table, first, size, dirty, len, backing })
    }
}

struct Map {
    header: Header,
    first: Table,
    container: Edge,
}

fn open(container: Edge, opening: &Opening<'_>) -> Result<Arc<dyn Device>> {
    let header = Header::read(&container)?;
    let backing = match &header.backing {
        Some(NamedFile { name, format }) => {
            let (role, format) = (Role::Backing, format.as_deref());
            Some(opening.files.open(&Reference { name, role, format })?)
        }
        None => None,
    };
    let shape = (header.table / 8, 8);
    let first =
        Table::new((&container, opening.context), "first table", header.first, shape, le64)?;
    let info = disk_info(&container, header.size);
    Ok(Scattered::device(info, opening.context, backing, Map { header, first, container }))
}

fn describe(container: &Edge, _: &Context) -> Result<Description> {
    let header = Header::read(container)?;
    Ok(Description {
        virtual_size: header.size,
        cluster_size: Some(header.cluster),
        backing: header.backing,
        dirty: header.dirty,
        ..Description::default()
    })
}

impl Map {
    fn sound(&self, what: &str, offset: u64, len: u64) -> Result<()> {
        if offset < self.header.len || !offset.is_multiple_of(self.header.cluster) {
            return Err(corrupt(format!("its {what} lies over its header")).at(offset));
        }
        lies_inside(&self.container, what, offset, len)
    }
}

impl Atlas for Map {
    async fn run(&self, at: u64, len: u64, may_wait: bool) -> Result<Option<Run>> {
        let (cluster, within) = (at / self.header.cluster, at % self.header.cluster);
        let (entries, asked) = (self.header.table / 8, len);
        let len = len.min(self.header.cluster - within);
        let first = self.first.entry(cluster / entries, may_wait).await?;
        let Some(first) = first else { return Ok(None) };
        if first == 0 {
            let left = entries - cluster % entries;
            let len = asked.min(left * self.header.cluster - within);
            return Ok(Some(Run { len, lies: Lies::Beneath }));
        }
        self.sound("table", first, self.header.table)?;
        let range = (first, self.header.table);
        let Some(entry) = self.first.elsewhere(range, cluster % entries, may_wait).await? else {
            return Ok(None);
        };
        let lies = match entry {
            0 => Lies::Beneath,
            ZERO => Lies::Hole,
            start => {
                self.sound("cluster", start, within + len)?;
                Lies::At(start + within)
            }
        };
        Ok(Some(Run { len, lies }))
    }

    fn file(&self, _: u64) -> Option<(u16, &Edge)> {
        Some((0, &self.container))
    }
}
