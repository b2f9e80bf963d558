//! The table of internal snapshots.

use device::{Edge, Error, Result};

use super::header::{Header, corrupt};
use super::stream::ContainerReader;
use crate::kit::numbers::{be16, be32, be64, text};

/// Bytes of an entry without its names and extra data.
pub(super) const FIXED: u8 = 40;
/// The most bytes of the table.
const TABLE_MAX: u64 = 64 << 20;
/// The most extra data of an entry, in bytes.
const EXTRA_MAX: u32 = 1024;
/// The most bytes of all names together.
const NAMES_MAX: usize = 16 << 20;

/// A snapshot.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(super) struct SnapshotEntry {
    pub(super) l1_offset: u64,
    /// Entries of its L1 table.
    pub(super) l1_entries: u32,
    pub(super) known: crate::Snapshot,
}

/// The snapshots, and the length of the table.
///
/// # Errors
/// The table is broken, or cannot be read.
pub(super) fn read(container: &Edge, header: &Header) -> Result<(Vec<SnapshotEntry>, u64)> {
    let mut found = Vec::new();
    if header.snapshot_count == 0 {
        return Ok((found, 0));
    }
    let start = header.snapshots_offset;
    let (mut table, mut names) =
        (ContainerReader::new(container, "snapshot table", start, TABLE_MAX), 0);
    for _ in 0..header.snapshot_count {
        let snapshot = read_one(&mut table, header.size)?;
        names += snapshot.known.id.len() + snapshot.known.name.len();
        if names > NAMES_MAX {
            return Err(corrupt("the names of the snapshots are too long"));
        }
        found.push(snapshot);
    }
    Ok((found, table.position() - start))
}

fn read_one(table: &mut ContainerReader<'_>, size: u64) -> Result<SnapshotEntry> {
    let at = table.position();
    let broken = || corrupt("the snapshot table is broken").at(at);
    let fixed = table.take(FIXED.into())?;
    let (mut snapshot, [id, name], extra) = decode_fixed(fixed).ok_or_else(broken)?;
    if extra > EXTRA_MAX {
        return Err(broken());
    }
    let extra = table.take(usize::try_from(extra).map_err(|_| broken())?)?;
    let known = &mut snapshot.known;
    known.vm_state_size = be64(extra, 0).unwrap_or(known.vm_state_size);
    known.virtual_size = be64(extra, 8).unwrap_or(size);
    known.icount = be64(extra, 16).filter(|icount| *icount != u64::MAX);
    known.id = text(table.take(usize::from(id))?);
    known.name = text(table.take(usize::from(name))?);
    table.align()?;
    Ok(snapshot)
}

/// The fixed part: the snapshot, and the lengths of its two names and extra data.
fn decode_fixed(fixed: &[u8]) -> Option<(SnapshotEntry, [u16; 2], u32)> {
    let known = crate::Snapshot {
        date: (be32(fixed, 16)?.into(), be32(fixed, 20)?),
        vm_clock: be64(fixed, 24)?,
        vm_state_size: be32(fixed, 32)?.into(),
        ..crate::Snapshot::default()
    };
    let snapshot = SnapshotEntry { l1_offset: be64(fixed, 0)?, l1_entries: be32(fixed, 8)?, known };
    Some((snapshot, [be16(fixed, 12)?, be16(fixed, 14)?], be32(fixed, 36)?))
}

/// The snapshot with this number, or else with this name.
///
/// # Errors
/// There is none.
pub(super) fn find(snapshots: Vec<SnapshotEntry>, wanted: &str) -> Result<SnapshotEntry> {
    let place = |of: fn(&SnapshotEntry) -> &String| snapshots.iter().position(|s| of(s) == wanted);
    let at = place(|s| &s.known.id).or_else(|| place(|s| &s.known.name));
    let found = at.and_then(|at| snapshots.into_iter().nth(at));
    found.ok_or_else(|| Error::unfit(format!("there is no snapshot `{wanted}` in the image")))
}
