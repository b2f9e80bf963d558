//! The table of internal snapshots.

use device::{Edge, Error, Result};

use super::corrupt;
use super::header::Header;
use super::region::Region;
use super::stream::ContainerReader;
use crate::kit::numbers::{be16, be32, be64, text};

/// Bytes of an entry without its names and extra data.
pub(super) const FIXED: u8 = 40;
/// The most bytes of the table.
pub(super) const TABLE_MAX: u64 = 64 << 20;
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
    /// Where its entry is in the container.
    pub(super) entry: Region,
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
    // Whole sectors, as in the header.
    known.virtual_size = be64(extra, 8).unwrap_or(size) & !511;
    known.icount = be64(extra, 16).filter(|icount| *icount != u64::MAX);
    known.id = text(table.take(usize::from(id))?);
    known.name = text(table.take(usize::from(name))?);
    snapshot.entry = Region { offset: at, len: table.position() - at };
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
    let (l1_offset, l1_entries) = (be64(fixed, 0)?, be32(fixed, 8)?);
    let snapshot = SnapshotEntry { l1_offset, l1_entries, known, ..SnapshotEntry::default() };
    Some((snapshot, [be16(fixed, 12)?, be16(fixed, 14)?], be32(fixed, 36)?))
}

/// The snapshot that `wanted` names, in qemu-img's words: a number, or else a name; or
/// `snapshot.id=NUMBER`, `snapshot.name=NAME`, or both with a comma between, where each means only
/// what it says.
///
/// # Errors
/// There is none.
pub(super) fn find(snapshots: Vec<SnapshotEntry>, wanted: &str) -> Result<SnapshotEntry> {
    let place = |is_it: &dyn Fn(&crate::Snapshot) -> bool| {
        snapshots.iter().position(|snapshot| is_it(&snapshot.known))
    };
    let at = if wanted.starts_with("snapshot.") {
        let Exactly { id, name } = Exactly::parse(wanted)?;
        let is = |given: &Option<String>, known: &str| given.as_ref().is_none_or(|g| g == known);
        place(&|known| is(&id, &known.id) && is(&name, &known.name))
    } else {
        place(&|known| known.id == wanted).or_else(|| place(&|known| known.name == wanted))
    };
    let found = at.and_then(|at| snapshots.into_iter().nth(at));
    found.ok_or_else(|| Error::unfit(format!("there is no snapshot `{wanted}` in the image")))
}

/// What `snapshot.id=` and `snapshot.name=` ask for: at least one of them.
#[derive(Debug, Default, Eq, PartialEq)]
struct Exactly {
    id: Option<String>,
    name: Option<String>,
}

impl Exactly {
    /// A comma in a name is written twice.
    fn parse(text: &str) -> Result<Self> {
        let mut found = Self::default();
        let mut rest = Some(text);
        while let Some(pair) = rest {
            let (value, after) = value_of(pair);
            rest = after;
            let (key, value) = value.split_once('=').unwrap_or((&value, ""));
            let field = match key {
                "snapshot.id" => &mut found.id,
                "snapshot.name" => &mut found.name,
                _ => {
                    let action = format!(
                        "`{text}` names no snapshot: write snapshot.id=ID or snapshot.name=NAME"
                    );
                    return Err(Error::invalid(action));
                }
            };
            *field = Some(value.to_owned());
        }
        Ok(found)
    }
}

/// The text up to a single comma, and what is behind that.
fn value_of(text: &str) -> (String, Option<&str>) {
    let (mut value, mut rest) = (String::new(), text);
    while let Some((before, after)) = rest.split_once(',') {
        value.push_str(before);
        let Some(doubled) = after.strip_prefix(',') else { return (value, Some(after)) };
        value.push(',');
        rest = doubled;
    }
    value.push_str(rest);
    (value, None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_is_found_by_what_its_name_says_and_nothing_else() {
        let known = |id: &str, name: &str| SnapshotEntry {
            known: crate::Snapshot {
                id: id.into(),
                name: name.into(),
                ..crate::Snapshot::default()
            },
            ..SnapshotEntry::default()
        };
        let all = || vec![known("1", "2"), known("2", "one"), known("3", "a,b"), known("4", "one")];
        let id = |wanted| find(all(), wanted).map(|found| found.known.id).ok();
        for (wanted, found) in [
            ("2", Some("2")),
            ("one", Some("2")),
            ("a,b", Some("3")),
            ("snapshot.name=2", Some("1")),
            ("snapshot.id=2", Some("2")),
            ("snapshot.id=one", None),
            ("snapshot.name=a,,b", Some("3")),
            ("snapshot.id=4,snapshot.name=one", Some("4")),
            ("snapshot.name=one,snapshot.id=1", None),
            ("snapshot.name=a,b", None),
            ("snapshot.other=1", None),
            ("5", None),
        ] {
            assert_eq!(id(wanted).as_deref(), found, "{wanted}");
        }
    }
}
