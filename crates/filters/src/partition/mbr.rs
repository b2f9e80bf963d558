//! The table in the first sector, and the chain of tables for logical partitions.

use std::collections::HashSet;

use device::{Error, Result};

use runtime::to_usize;

use super::{Disk, missing, u32_at};

/// Bytes of a table, whatever the sector size.
const LEN: usize = 512;
/// The most links of the chain to follow. Linux gives up earlier.
const LINKS: usize = 256;
/// The number of the first logical partition.
const FIRST_LOGICAL: u64 = 5;

/// A partition as a table has it.
#[derive(Clone, Copy, Debug)]
struct Entry {
    kind: u8,
    /// In sectors, from a base that depends on the table.
    start: u64,
    /// In sectors.
    count: u64,
}

impl Entry {
    fn is_empty(self) -> bool {
        self.kind == 0 || self.count == 0
    }

    fn is_extended(self) -> bool {
        !self.is_empty() && matches!(self.kind, 0x05 | 0x0f | 0x85)
    }
}

/// Four entries.
#[derive(Debug)]
pub(super) struct Table([Entry; 4]);

/// The table of the disk, if there is one.
pub(super) fn read(disk: &Disk<'_>) -> Result<Option<Table>> {
    if disk.below.info().size < LEN as u64 {
        return Ok(None);
    }
    Ok(Table::parse(&disk.read("partition table", 0, LEN)?))
}

impl Table {
    /// A boot sector without a table also ends with the signature, but its code hardly looks
    /// like four flags that are all on or off.
    fn parse(bytes: &[u8]) -> Option<Self> {
        let entries = bytes.get(446..510)?;
        let flags_are_flags = entries.chunks(16).all(|e| e.first().is_some_and(|f| f & 0x7f == 0));
        let signed = bytes.get(510..512) == Some(&[0x55, 0xaa]);
        (signed && flags_are_flags).then(|| {
            Self([0, 16, 32, 48].map(|at| Entry {
                kind: entries.get(at + 4).copied().unwrap_or(0),
                start: u64::from(u32_at(entries, at + 8)),
                count: u64::from(u32_at(entries, at + 12)),
            }))
        })
    }

    /// Whether it only protects a GPT.
    pub(super) fn is_protective(&self) -> bool {
        self.0.iter().any(|e| e.kind == 0xee)
    }

    /// The partition `number`: start and length in bytes.
    pub(super) fn find(&self, disk: &Disk<'_>, number: u64) -> Result<(u64, u64)> {
        match self.0.get(to_usize(number - 1)) {
            Some(e) if e.is_extended() => {
                let action =
                    format!("partition {number} is extended: it only holds others, from 5");
                Err(Error::unfit(action))
            }
            Some(e) if !e.is_empty() => disk.range(e.start, e.count),
            _ => {
                let there = (1..).zip(&self.0).filter(|(_, e)| !e.is_empty());
                let mut numbers: Vec<u64> = there.map(|(n, _)| n).collect();
                match self.logical(disk, number, &mut numbers)? {
                    Some((start, count)) => disk.range(start, count),
                    None => Err(missing(number, &numbers)),
                }
            }
        }
    }

    /// Follows the chains up to the partition `number`; in sectors.
    fn logical(
        &self,
        disk: &Disk<'_>,
        number: u64,
        numbers: &mut Vec<u64>,
    ) -> Result<Option<(u64, u64)>> {
        let mut next = FIRST_LOGICAL;
        let mut seen = HashSet::new();
        for extended in self.0.iter().filter(|e| e.is_extended()) {
            let mut link = Some(0);
            while let Some(at) = link {
                // Every table is inside the extended partition, and is read once.
                if at >= extended.count {
                    return Err(chain("leads outside", number));
                }
                let here = extended.start + at;
                if seen.len() >= LINKS || !seen.insert(here) {
                    return Err(chain("does not end", number));
                }
                let (start, _) = disk.range(here, 1)?;
                let bytes = disk.read("table of a logical partition", start, LEN)?;
                let table = Self::parse(&bytes).ok_or_else(|| chain("is broken", number))?;
                let [data, onwards, ..] = table.0;
                if !data.is_empty() && !data.is_extended() {
                    if next == number {
                        let room = extended.count - at;
                        if data.start > room || data.count > room - data.start {
                            return Err(chain("has a partition that lies outside", number));
                        }
                        return Ok(Some((here + data.start, data.count)));
                    }
                    numbers.push(next);
                    next += 1;
                }
                link = onwards.is_extended().then_some(onwards.start);
            }
        }
        Ok(None)
    }
}

fn chain(what: &str, number: u64) -> Error {
    let action = format!("look for partition {number}: the chain of logical partitions {what}");
    Error::unfit(action)
}
