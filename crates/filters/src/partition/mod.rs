//! `partition`: shows one partition of a disk as a disk.
//!
//! The filter reads the table once, when it is opened, and checks everything before using it:
//! checksums, sizes, and that every range lies in the disk. Partitions may overlap, as they do on
//! disks that are bootable in several ways; whatever the table says, nothing outside the chosen
//! range is ever reached.

mod gpt;
mod mbr;

use std::ops::Range;

use device::{Edge, Error, Params, Result, param, values};

use crate::FilterKind;

pub(crate) const KIND: FilterKind = FilterKind {
    word: "partition",
    summary: "exposes one partition of the disk (MBR or GPT) as a disk",
    params: &[
        param("partition", "N", "which partition, from 1; logical ones of an MBR from 5"),
        param(
            "partition-sectorsize",
            "512|4096",
            "the unit of the table (default: the block of the disk if it is 4096, else 512)",
        ),
    ],
    example: "serve --filter=partition file disk.img partition=1 --run 'nbdinfo \"$uri\"'",
    open: |params, below, _| {
        let (start, len) = find(params, &below)?;
        device::part(below, start, len)
    },
    ..FilterKind::PLAIN
};

/// The disk that both kinds of table are read from.
struct Disk<'a> {
    below: &'a Edge,
    /// Bytes of a sector: 512 or 4096.
    sector: u64,
}

impl Disk<'_> {
    /// `len` bytes from `offset`.
    fn read(&self, what: &str, offset: u64, len: usize) -> Result<Vec<u8>> {
        let mut bytes = vec![0; len];
        let read = self.below.read(&mut bytes, offset);
        read.map_err(|e| Error::unfit(format!("read the {what}")).at(offset).with_source(e))?;
        Ok(bytes)
    }

    /// How many whole sectors there are.
    fn sectors(&self) -> u64 {
        self.below.info().size / self.sector
    }

    /// `count` sectors from `first` as bytes: start and length.
    fn range(&self, first: u64, count: u64) -> Result<(u64, u64)> {
        let sectors = self.sectors();
        if count == 0 || first > sectors || count > sectors - first {
            let action = format!(
                "the partition ({count} sectors from {first}) does not lie in the disk \
                 ({sectors} sectors)"
            );
            return Err(Error::unfit(action));
        }
        Ok((first * self.sector, count * self.sector))
    }
}

fn find(params: &Params, below: &Edge) -> Result<(u64, u64)> {
    let number = values::number(params, "partition")?.filter(|n| *n > 0).ok_or_else(|| {
        Error::invalid(
            "`partition` is missing; partitions are counted from 1, for example partition=1",
        )
    })?;
    let sector = match values::size(params, "partition-sectorsize")? {
        Some(n @ (512 | 4096)) => n,
        Some(n) => {
            return Err(values::wrong("partition-sectorsize", format!("{n} is not 512 or 4096")));
        }
        None if below.info().blocks.minimum == 4096 => 4096,
        None => 512,
    };
    let disk = Disk { below, sector };
    match mbr::read(&disk)? {
        Some(table) if !table.is_protective() => table.find(&disk, number),
        // Without a table in the first sector this may still be a GPT: its checksums tell.
        other => gpt::find(&disk, number).map_err(|e| match other {
            Some(_) => e,
            None => Error::unfit("there is no partition table").with_source(e),
        }),
    }
}

/// There is no partition with that number.
fn missing(number: u64, there_are: &[u64]) -> Error {
    let list: Vec<_> = there_are.iter().map(u64::to_string).collect();
    let hint = match &*list {
        [] => "there are none".to_owned(),
        some => format!("there are {}", some.join(", ")),
    };
    Error::unfit(format!("there is no partition {number}; {hint}"))
}

/// The bytes of `range`, as many as wanted; zeroes where `bytes` is too short.
fn field<const N: usize>(bytes: &[u8], range: Range<usize>) -> [u8; N] {
    let found = bytes.get(range).and_then(|b| b.try_into().ok());
    found.unwrap_or([0; N])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(field(bytes, at..at + 4))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(field(bytes, at..at + 8))
}

#[cfg(test)]
mod tests;
