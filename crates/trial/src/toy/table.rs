//! The start of the first file: the size, the cluster size, and the place of each cluster.

use device::{Error, ErrorKind, Fault, Result};

use super::room::{Slot, UNIT};

const MAGIC: &[u8; 8] = b"TOYIMAGE";
const HEADER: usize = 32;
const ENTRY: usize = 16;

/// Where a cluster is.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) enum Entry {
    /// In the backing disk, or all zero without one.
    #[default]
    Absent,
    /// All zero, whatever the backing disk has.
    Zero,
    /// As it is.
    Plain(Slot),
    /// In runs, of so many bytes.
    Packed(Slot, u32),
}

impl Entry {
    pub(super) fn slot(self) -> Option<Slot> {
        match self {
            Self::Absent | Self::Zero => None,
            Self::Plain(slot) | Self::Packed(slot, _) => Some(slot),
        }
    }
}

/// Bytes that header and table take.
pub(super) fn room_for(clusters: usize) -> u64 {
    ((HEADER + clusters * ENTRY) as u64).next_multiple_of(UNIT)
}

pub(super) fn encode(size: u64, cluster: u32, table: &[Entry]) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend(size.to_le_bytes());
    bytes.extend(u64::from(cluster).to_le_bytes());
    bytes.resize(HEADER, 0);
    for entry in table {
        let (kind, len) = match *entry {
            Entry::Absent => (0, 0),
            Entry::Zero => (1, 0),
            Entry::Plain(_) => (2, cluster),
            Entry::Packed(_, len) => (3, len),
        };
        let slot = entry.slot().unwrap_or(Slot { file: 0, offset: 0, len: 0, born: 0 });
        bytes.extend([kind, slot.file, 0, 0]);
        bytes.extend(len.to_le_bytes());
        bytes.extend(slot.offset.to_le_bytes());
    }
    bytes
}

/// Size and cluster size, from the first [`UNIT`] bytes.
pub(super) fn decode_header(bytes: &[u8]) -> Result<(u64, u32)> {
    let number = |at: usize| bytes[at..at + 8].try_into().map_or(0, u64::from_le_bytes);
    let (size, cluster) = (number(8), u32::try_from(number(16)).unwrap_or(0));
    let good = (512..=1 << 20).contains(&cluster) && cluster.is_power_of_two() && size < 1 << 40;
    if bytes.starts_with(MAGIC) && good { Ok((size, cluster)) } else { Err(corrupt("header")) }
}

/// The table, from all of the room for it; each slot lies in the files of these sizes.
pub(super) fn decode(
    bytes: &[u8],
    (cluster, clusters): (u32, usize),
    sizes: [u64; 2],
) -> Result<Vec<Entry>> {
    let entries = bytes[HEADER..].chunks_exact(ENTRY).take(clusters);
    entries.map(|entry| decode_entry(entry, cluster, sizes)).collect()
}

fn decode_entry(entry: &[u8], cluster: u32, sizes: [u64; 2]) -> Result<Entry> {
    let file = entry[1];
    let len = entry[4..8].try_into().map_or(0, u32::from_le_bytes);
    let offset = entry[8..].try_into().map_or(0, u64::from_le_bytes);
    let slot = Slot { file, offset, len: u64::from(len).next_multiple_of(UNIT), born: 0 };
    let lies = |size: u64| offset <= size && slot.len <= size - offset;
    let good = len <= cluster && sizes.get(usize::from(file)).is_some_and(|size| lies(*size));
    match entry[0] {
        0 => Ok(Entry::Absent),
        1 => Ok(Entry::Zero),
        2 if good && len == cluster => Ok(Entry::Plain(slot)),
        3 if good => Ok(Entry::Packed(slot, len)),
        _ => Err(corrupt("table")),
    }
}

pub(super) fn corrupt(what: &str) -> Error {
    Error::new(ErrorKind::Corrupt, Fault::File, format!("the {what} of the toy image is broken"))
}
