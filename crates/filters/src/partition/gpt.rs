//! GUID partition tables: a header and entries, both with checksums, at the start of the disk,
//! and again at its end in case the first is damaged.

use device::{Error, Result};

use runtime::to_usize;

use super::{Disk, missing, u32_at, u64_at};

const SIGNATURE: &[u8] = b"EFI PART";
/// The shortest header, in bytes.
const HEADER: usize = 92;
/// The shortest entry, in bytes; others are longer by powers of two.
const ENTRY: usize = 128;
/// The longest entry, in bytes.
const LONGEST_ENTRY: usize = 4096;
/// The longest list of entries, in bytes: 64 times what is usual.
const LONGEST_LIST: usize = 1 << 20;

/// The fields of a header that are needed.
#[derive(Debug)]
struct Header {
    first_usable: u64,
    last_usable: u64,
    list: u64,
    count: usize,
    entry: usize,
    list_crc: u32,
}

/// The partition `number`: start and length in bytes.
pub(super) fn find(disk: &Disk<'_>, number: u64) -> Result<(u64, u64)> {
    let last = disk.sectors().saturating_sub(1);
    let (header, list) = read(disk, 1).or_else(|first| read(disk, last).map_err(|_| first))?;
    let used = |i: &usize| list.get(i * header.entry..).is_some_and(is_used);
    let index = to_usize(number - 1);
    if index >= header.count || !used(&index) {
        let numbers: Vec<_> = (0..header.count).filter(used).map(|i| i as u64 + 1).collect();
        return Err(missing(number, &numbers));
    }
    let at = index * header.entry;
    let (first, last) = (u64_at(&list, at + 32), u64_at(&list, at + 40));
    if first > last || first < header.first_usable || last > header.last_usable {
        let action = format!(
            "partition {number} is from sector {first} to {last}, outside what the table allows \
             ({} to {})",
            header.first_usable, header.last_usable
        );
        return Err(Error::unfit(action));
    }
    // It cannot overflow: it is at most `last_usable`, which is inside the disk.
    disk.range(first, last - first + 1)
}

/// Whether an entry is in use: its type is not all zero.
fn is_used(entry: &[u8]) -> bool {
    entry.get(..16).is_some_and(|kind| kind.iter().any(|b| *b != 0))
}

/// The header in the sector `at`, and its entries, both checked.
fn read(disk: &Disk<'_>, at: u64) -> Result<(Header, Vec<u8>)> {
    let (start, len) = disk.range(at, 1).map_err(|_| broken("has no room on this disk"))?;
    let header = Header::parse(&disk.read("GPT header", start, to_usize(len))?, at)?;
    let sectors = disk.sectors();
    if header.last_usable >= sectors || header.list >= sectors {
        return Err(broken("describes a larger disk"));
    }
    let list = disk.read("GPT entries", header.list * disk.sector, header.count * header.entry)?;
    if crc32(&list) != header.list_crc {
        return Err(broken("has entries with a wrong checksum"));
    }
    Ok((header, list))
}

impl Header {
    fn parse(sector: &[u8], at: u64) -> Result<Self> {
        if !sector.starts_with(SIGNATURE) {
            return Err(broken("has no signature"));
        }
        let header = sector.get(..u32_at(sector, 12) as usize).filter(|h| h.len() >= HEADER);
        let mut header = header.ok_or_else(|| broken("has a wrong length"))?.to_vec();
        let crc = u32_at(&header, 16);
        if let Some(field) = header.get_mut(16..20) {
            field.fill(0);
        }
        if crc32(&header) != crc {
            return Err(broken("has a wrong checksum"));
        }
        if u64_at(&header, 24) != at {
            return Err(broken("belongs elsewhere"));
        }
        let [count, entry] = [80, 84].map(|at| u32_at(&header, at) as usize);
        let plausible = entry.is_power_of_two() && (ENTRY..=LONGEST_ENTRY).contains(&entry);
        if !plausible || count > LONGEST_LIST / entry {
            return Err(broken("has an implausible list of entries"));
        }
        Ok(Self {
            first_usable: u64_at(&header, 40),
            last_usable: u64_at(&header, 48),
            list: u64_at(&header, 72),
            count,
            entry,
            list_crc: u32_at(&header, 88),
        })
    }
}

fn broken(what: &str) -> Error {
    Error::unfit(format!("the GPT {what}"))
}

/// The checksum of the format, bit by bit: it is computed over a few KiB, once.
pub(super) fn crc32(bytes: &[u8]) -> u32 {
    let step = |crc: u32, byte: &u8| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            (crc >> 1) ^ (0xedb8_8320 & (crc & 1).wrapping_neg())
        })
    };
    !bytes.iter().fold(!0, step)
}
