//! The log of a VHDX image: changes to its structures, made durable here before they were made in
//! place. The log of an image that was not closed is replayed in memory; the file is not changed,
//! unless it is opened to be written. What is logged then is in `journal.rs`.
//!
//! | entry, on 4 KiB | at | descriptor, 32 bytes from 64 on | at |
//! |---|---|---|---|
//! | `loge`, checksum | 0, 4 | `zero`: length, offset | 8, 16 |
//! | length, where the oldest entry begins | 8, 12 | `desc`: last 4 bytes, first 8, offset | 4, 8, 16 |
//! | number | 16 | number | 24 |
//! | descriptors | 24 | | |
//! | identifier of the log | 32 | data sector, 4 KiB: `data`, high half of the number | 0, 4 |
//! | how long the file was, and is | 48, 56 | the bytes between, low half of the number | 8, 4092 |

use std::collections::BTreeMap;

use device::{Buffer, Edge, Error, ErrorKind, Fault, Result};
use runtime::RangeSet;

use crate::kit::fields::{array, corrupt, le32, le64, load, put};

use super::crc::crc;
use super::header::{Guid, Header};

pub(super) const SECTOR: u64 = 4096;
/// The longest log to replay: it and its changes are held in memory.
pub(super) const LOG_MAX: u64 = 16 << 20;
/// How often, on average, a byte of the log may be read.
const LOOKS: u64 = 8;

/// The changes in the log.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(super) struct Changes {
    /// Sectors of 4 KiB, by offset.
    pub(super) data: BTreeMap<u64, Vec<u8>>,
    /// Zeroes, apart from the data.
    pub(super) zeroes: RangeSet,
    /// How long the file is at least.
    pub(super) len: u64,
    /// How long it was for certain when the newest change was written.
    was: u64,
}

impl Changes {
    fn forget(&mut self, start: u64, end: u64) {
        let data: Vec<_> = self.data.range(start..end).map(|(at, _)| *at).collect();
        data.iter().for_each(|at| drop(self.data.remove(at)));
        self.zeroes.remove(start..end);
    }

    fn zero(&mut self, start: u64, end: u64) {
        self.forget(start, end);
        self.zeroes.add(start..end);
    }

    fn write(&mut self, at: u64, bytes: Vec<u8>) {
        self.forget(at, at + SECTOR);
        self.data.insert(at, bytes);
    }
}

/// A valid entry.
#[derive(Clone, Copy, Debug)]
struct Entry {
    len: u64,
    tail: u64,
    sequence: u64,
}

/// What an entry says besides its sectors.
#[derive(Clone, Copy, Debug)]
pub(super) struct EntryHead {
    /// Where it begins in the log. It refers to none before it.
    pub(super) at: u64,
    pub(super) sequence: u64,
    pub(super) id: Guid,
    /// How long the file is for certain, and how long it is.
    pub(super) flushed: u64,
    pub(super) len: u64,
}

/// Sectors that an entry of `len` bytes has room for.
pub(super) fn sectors_in(len: u64) -> usize {
    let all = len / SECTOR;
    // Each sector takes itself and a descriptor.
    let fits = |n: &u64| n + (64 + 32 * n).div_ceil(SECTOR) <= all;
    let most = (0..=all).rev().find(fits).unwrap_or(0);
    usize::try_from(most).unwrap_or(0)
}

/// An entry that changes these sectors, by their offsets in the file.
pub(super) fn encode(head: EntryHead, sectors: &[(u64, &[u8])]) -> Vec<u8> {
    let narrow = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
    let sector = usize::try_from(SECTOR).unwrap_or(4096);
    let mut bytes = vec![0; (64 + 32 * sectors.len()).next_multiple_of(sector)];
    let sequence = head.sequence.to_le_bytes();
    let [low @ .., h0, h1, h2, h3] = sequence;
    for (at, (offset, new)) in (64..).step_by(32).zip(sectors) {
        if new.iter().all(|byte| *byte == 0) {
            put(&mut bytes, at, b"zero");
            put(&mut bytes, at + 8, &SECTOR.to_le_bytes());
        } else {
            put(&mut bytes, at, b"desc");
            put(&mut bytes, at + 4, &array::<4>(new, sector - 4));
            put(&mut bytes, at + 8, &array::<8>(new, 0));
            let start = bytes.len();
            bytes.extend_from_slice(new);
            bytes.resize(start + sector, 0);
            put(&mut bytes, start, b"data");
            put(&mut bytes, start + 4, &[h0, h1, h2, h3]);
            put(&mut bytes, start + sector - 4, &low);
        }
        put(&mut bytes, at + 16, &offset.to_le_bytes());
        put(&mut bytes, at + 24, &sequence);
    }
    put(&mut bytes, 0, b"loge");
    let len = bytes.len() as u64;
    put(&mut bytes, 8, &narrow(len).to_le_bytes());
    put(&mut bytes, 12, &narrow(head.at).to_le_bytes());
    put(&mut bytes, 16, &sequence);
    put(&mut bytes, 24, &narrow(sectors.len() as u64).to_le_bytes());
    put(&mut bytes, 32, &head.id);
    put(&mut bytes, 48, &head.flushed.to_le_bytes());
    put(&mut bytes, 56, &head.len.to_le_bytes());
    let sum = crc(&bytes, 4);
    put(&mut bytes, 4, &sum.to_le_bytes());
    bytes
}

/// The changes in the log of an image; none, if it was closed.
pub(super) fn read(container: &Edge, header: &Header) -> Result<Option<Changes>> {
    let (Some(id), log) = (header.log_id, header.log) else { return Ok(None) };
    if log.len > LOG_MAX {
        let action =
            format!("the VHDX image was not closed, and its log of {} bytes is too long", log.len);
        return Err(Error::new(ErrorKind::Limit, Fault::File, action));
    }
    if !log.len.is_multiple_of(SECTOR) || log.len == 0 {
        return Err(broken("it is not a whole number of sectors"));
    }
    let len = usize::try_from(log.len).unwrap_or(0);
    let bytes = Ring(load(container, "log", log.offset, len)?);
    let changes = replay(&bytes, id)?;
    // A file that was cut off lacks bytes that nothing in the log brings back.
    let size = container.info().size;
    if size < changes.was {
        let action = format!("the file was cut off: it has {size} bytes, and had {}", changes.was);
        return Err(broken(&action));
    }
    Ok(Some(changes))
}

fn broken(why: &str) -> Error {
    corrupt(format!("the VHDX image was not closed, and its log cannot be replayed: {why}"))
}

/// The log, which goes on at its beginning.
struct Ring(Buffer);

impl Ring {
    fn len(&self) -> u64 {
        self.0.len() as u64
    }

    /// `len` bytes from `at` on, in the ring.
    fn get(&self, at: u64, len: u64) -> Vec<u8> {
        let start = usize::try_from(at % self.len().max(1)).unwrap_or(0);
        let len = usize::try_from(len.min(self.len())).unwrap_or(0);
        let (before, after) = self.0.split_at(start.min(self.0.len()));
        after.iter().chain(before).take(len).copied().collect()
    }

    /// The entry at `at`, if it is valid; `looks` limits the bytes still to read.
    fn entry(&self, at: u64, id: Guid, looks: &mut u64) -> Result<Option<Entry>> {
        let head = self.get(at, 64);
        let len = u64::from(le32(&head, 8));
        let good = head.starts_with(b"loge")
            && array::<16>(&head, 32) == id
            && len >= SECTOR
            && len <= self.len()
            && len.is_multiple_of(SECTOR);
        if !good {
            return Ok(None);
        }
        *looks = looks.checked_sub(len).ok_or_else(|| broken("its entries overlap"))?;
        if crc(&self.get(at, len), 4) != le32(&head, 4) {
            return Ok(None);
        }
        let tail = u64::from(le32(&head, 12));
        Ok(Some(Entry { len, tail, sequence: le64(&head, 16) }))
    }
}

fn replay(log: &Ring, id: Guid) -> Result<Changes> {
    let mut looks = log.len() * LOOKS;
    let mut entries = BTreeMap::new();
    for at in (0..log.len()).step_by(usize::try_from(SECTOR).unwrap_or(4096)) {
        if let Some(entry) = log.entry(at, id, &mut looks)? {
            entries.insert(at, entry);
        }
    }
    // The newest entry whose predecessors all exist.
    let mut heads: Vec<_> = entries.iter().map(|(at, entry)| (entry.sequence, *at)).collect();
    heads.sort_unstable_by(|a, b| b.cmp(a));
    let mut steps = entries.len() * 4;
    for (_, head) in heads {
        if let Some(chain) = chain(log, &entries, head, &mut steps) {
            let mut changes = Changes::default();
            for at in chain {
                apply(log, at, &entries, &mut changes)?;
            }
            return Ok(changes);
        }
    }
    Err(broken("no entry of it is complete"))
}

/// The entries from the oldest one that `head` refers to, up to `head`.
fn chain(
    log: &Ring,
    entries: &BTreeMap<u64, Entry>,
    head: u64,
    steps: &mut usize,
) -> Option<Vec<u64>> {
    let last = entries.get(&head)?;
    let (mut at, mut found) = (last.tail, Vec::new());
    let mut expected = None;
    loop {
        *steps = steps.checked_sub(1)?;
        let entry = entries.get(&at)?;
        if expected.is_some_and(|expected| expected != entry.sequence) {
            return None;
        }
        found.push(at);
        if at == head {
            return Some(found);
        }
        expected = entry.sequence.checked_add(1);
        at = (at + entry.len) % log.len();
    }
}

fn apply(log: &Ring, at: u64, entries: &BTreeMap<u64, Entry>, changes: &mut Changes) -> Result<()> {
    let Some(entry) = entries.get(&at) else { return Ok(()) };
    let bytes = log.get(at, entry.len);
    let count = u64::from(le32(&bytes, 24));
    let heads = (64 + count * 32).next_multiple_of(SECTOR);
    if heads > entry.len {
        return Err(broken("an entry has more descriptors than there is room"));
    }
    let sector = usize::try_from(SECTOR).unwrap_or(4096);
    let mut sectors =
        bytes.get(usize::try_from(heads).unwrap_or(0)..).unwrap_or_default().chunks_exact(sector);
    let descriptors = bytes.get(64..).unwrap_or_default().chunks_exact(32);
    for descriptor in descriptors.take(usize::try_from(count).unwrap_or(0)) {
        let (offset, len) = (le64(descriptor, 16), le64(descriptor, 8));
        if le64(descriptor, 24) != entry.sequence
            || !offset.is_multiple_of(SECTOR)
            || offset > super::CONTAINER_MAX
        {
            return Err(broken("a descriptor is not of its entry"));
        }
        match &array::<4>(descriptor, 0) {
            b"zero" if len.is_multiple_of(SECTOR) && len <= super::CONTAINER_MAX => {
                if len > 0 {
                    changes.zero(offset, offset + len);
                }
            }
            b"desc" => {
                let data = sectors.next().ok_or_else(|| broken("a descriptor has no data"))?;
                changes.write(offset, restored(descriptor, data, entry.sequence)?);
            }
            _ => return Err(broken("there is a descriptor of no known kind")),
        }
    }
    let (was, len) = (le64(&bytes, 48), le64(&bytes, 56));
    if len > super::CONTAINER_MAX {
        return Err(broken("it makes the file longer than a file can be"));
    }
    // They are applied in order. A file may be made shorter later.
    changes.was = was;
    changes.len = changes.len.max(len);
    Ok(())
}

/// A data sector, with the bytes that its descriptor keeps for it.
fn restored(descriptor: &[u8], data: &[u8], sequence: u64) -> Result<Vec<u8>> {
    let number = u64::from(le32(data, 4)) << 32 | u64::from(le32(data, 4092));
    if !data.starts_with(b"data") || number != sequence {
        return Err(broken("the data of a descriptor is missing"));
    }
    let mut bytes = data.to_vec();
    put(&mut bytes, 0, &array::<8>(descriptor, 8));
    put(&mut bytes, 4092, &array::<4>(descriptor, 4));
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_logged_is_replayed_and_the_newest_entry_stands_alone() {
        let (id, half) = ([7; 16], 16384);
        let mut log = vec![0; 32768];
        let sectors: Vec<Vec<u8>> = (0..5).map(|n| vec![n * 50; 4096]).collect();
        for (sequence, at) in [(1 << 40, 0), ((1 << 40) + 1, half), ((1 << 40) + 2, 0)] {
            let head = EntryHead { at, sequence, id, flushed: 1 << 20, len: 2 << 20 };
            let first = usize::try_from(sequence % 3).unwrap();
            let new = [(0x10_0000, &sectors[first][..]), (0x20_0000, &sectors[first + 2][..])];
            let entry = encode(head, &new);
            assert!(entry.len() <= 16384);
            put(&mut log, usize::try_from(at).unwrap(), &entry);
        }
        let first = usize::try_from(((1_u64 << 40) + 2) % 3).unwrap();
        let changes = replay(&Ring(Buffer::copy_of(&log)), id).unwrap();
        let mut expected = Changes { len: 2 << 20, was: 1 << 20, ..Changes::default() };
        for (at, n) in [(0x10_0000, first), (0x20_0000, first + 2)] {
            if n == 0 {
                expected.zero(at, at + SECTOR);
            } else {
                expected.write(at, sectors[n].clone());
            }
        }
        assert_eq!(changes, expected);
    }

    #[test]
    fn an_entry_holds_as_many_sectors_as_there_is_room_for() {
        for len in [4096, 8192, 12288, 512 << 10, 8 << 20] {
            let most = sectors_in(len);
            let sector = vec![1; 4096];
            let head = EntryHead { at: 0, sequence: 1, id: [1; 16], flushed: 0, len: 0 };
            let of = |n: usize| encode(head, &vec![(0, &sector[..]); n]).len() as u64;
            assert!(of(most) <= len && of(most + 1) > len, "{len}: {most}");
        }
    }
}
