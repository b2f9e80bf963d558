//! The first MiB of a VHDX image: its creator, two headers (the newer one is valid), and two copies
//! of the region table.
//!
//! | header, 4 KiB at 64 KiB and 128 KiB | at | region table, 64 KiB at 192 KiB and 256 KiB | at |
//! |---|---|---|---|
//! | `head`, checksum, number | 0, 4, 8 | `regi`, checksum | 0, 4 |
//! | identifiers: file, data, log | 16, 32, 48 | entries | 8 |
//! | versions of log and format | 64, 66 | each, from 16 on: identifier, offset | 0, 16 |
//! | log: length, offset | 68, 72 | length, whether it must be known | 24, 28 |

use device::{Edge, Result};

use crate::kit::fields::{
    array, corrupt, foreign, le16, le32, le64, lies_inside, load, new_uuid, put,
};

use super::crc::crc;

pub(super) const MIB: u64 = 1 << 20;
pub(super) const COOKIE: &[u8] = b"vhdxfile";
const HEADERS: [u64; 2] = [64 << 10, 128 << 10];
/// Where the headers end.
pub(super) const HEADERS_END: u64 = 192 << 10;
const REGIONS: [u64; 2] = [192 << 10, 256 << 10];
const HEADER: usize = 4096;
const REGION_TABLE: usize = 64 << 10;
const ENTRIES_MAX: u32 = 2047;

/// An identifier, in the order of its bytes on the disk.
pub(super) type Guid = [u8; 16];

/// An identifier as people write it: the first three parts are numbers, little end first.
pub(super) const fn guid(a: u32, b: u16, c: u16, rest: [u8; 8]) -> Guid {
    let ([a0, a1, a2, a3], [b0, b1], [c0, c1]) =
        (a.to_le_bytes(), b.to_le_bytes(), c.to_le_bytes());
    let [r0, r1, r2, r3, r4, r5, r6, r7] = rest;
    [a0, a1, a2, a3, b0, b1, c0, c1, r0, r1, r2, r3, r4, r5, r6, r7]
}

const BAT: Guid = guid(0x2dc2_7766, 0xf623, 0x4200, [0x9d, 0x64, 0x11, 0x5e, 0x9b, 0xfd, 0x4a, 8]);
const METADATA: Guid =
    guid(0x8b7c_a206, 0x4790, 0x4b9a, [0xb8, 0xfe, 0x57, 0x5f, 5, 0x0f, 0x88, 0x6e]);

/// A range of the container.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Region {
    pub(super) offset: u64,
    pub(super) len: u64,
}

impl Region {
    pub(super) fn overlaps(self, offset: u64, len: u64) -> bool {
        self.offset < offset.saturating_add(len) && offset < self.offset.saturating_add(self.len)
    }
}

/// The valid header.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Header {
    /// In which of the two places it is.
    slot: usize,
    sequence: u64,
    /// Changes whenever the file does, once for each time that it is opened.
    file: Guid,
    /// Changes whenever the disk in it does; by it an image over this one knows it.
    pub(super) data: Guid,
    /// Of the log, if anything is in it.
    pub(super) log_id: Option<Guid>,
    pub(super) log: Region,
}

impl Header {
    pub(super) fn read(container: &Edge) -> Result<Self> {
        let cookie = load(container, "identifier", 0, COOKIE.len())?;
        if !cookie.starts_with(COOKIE) {
            return Err(corrupt("this is not a VHDX image: it has no identifier"));
        }
        let mut newest: Option<Self> = None;
        for (slot, at) in HEADERS.into_iter().enumerate() {
            let bytes = load(container, "header", at, HEADER)?;
            if !bytes.starts_with(b"head") || crc(&bytes, 4) != le32(&bytes, 4) {
                continue;
            }
            let header = Self::decode(&bytes, slot)?;
            let same = newest.filter(|newest| header.sequence == newest.sequence);
            if same.is_some_and(|newest| newest != Self { slot: newest.slot, ..header }) {
                let why = "its two headers have the same number, and say different things";
                return Err(corrupt(format!("the VHDX image is broken: {why}")));
            }
            if newest.is_none_or(|newest| header.sequence > newest.sequence) {
                newest = Some(header);
            }
        }
        newest.ok_or_else(|| corrupt("the VHDX image is broken: none of its headers is sound"))
    }

    fn decode(bytes: &[u8], slot: usize) -> Result<Self> {
        let (log_version, version) = (le16(bytes, 64), le16(bytes, 66));
        if version != 1 || log_version != 0 {
            let action =
                format!("VHDX version {version} with a log of version {log_version} is not known");
            return Err(foreign(action));
        }
        let log = Region { offset: le64(bytes, 72), len: le32(bytes, 68).into() };
        let id: Guid = array(bytes, 48);
        let log_id = (id != [0; 16]).then_some(id);
        let (sequence, file, data) = (le64(bytes, 8), array(bytes, 16), array(bytes, 32));
        Ok(Self { slot, sequence, file, data, log_id, log })
    }

    /// That of a new image.
    fn new(log: Region) -> Self {
        let (file, data) = (new_uuid(), new_uuid());
        Self { slot: 0, sequence: 1, file, data, log_id: None, log }
    }

    /// The one that is to replace it, in the other place: this one stays valid until that is
    /// written.
    ///
    /// # Errors
    /// There is no higher number.
    pub(super) fn next(self) -> Result<Self> {
        let none = || corrupt("the VHDX image is broken: its header has the highest number");
        let sequence = self.sequence.checked_add(1).ok_or_else(none)?;
        Ok(Self { slot: 1 - self.slot.min(1), sequence, ..self })
    }

    /// The same of a file that is changed, and of a disk that is, from now on.
    pub(super) fn changed(self, is_disk: bool) -> Self {
        Self { file: new_uuid(), data: if is_disk { new_uuid() } else { self.data }, ..self }
    }

    /// The same with this log, or with none to be replayed.
    pub(super) fn logged(self, log_id: Option<Guid>) -> Self {
        Self { log_id, ..self }
    }

    /// Where it is, and its bytes.
    pub(super) fn encode(&self) -> (u64, Vec<u8>) {
        let mut bytes = vec![0; HEADER];
        put(&mut bytes, 0, b"head");
        put(&mut bytes, 8, &self.sequence.to_le_bytes());
        put(&mut bytes, 16, &self.file);
        put(&mut bytes, 32, &self.data);
        put(&mut bytes, 48, &self.log_id.unwrap_or_default());
        put(&mut bytes, 66, &1_u16.to_le_bytes());
        put(&mut bytes, 68, &u32::try_from(self.log.len).unwrap_or(0).to_le_bytes());
        put(&mut bytes, 72, &self.log.offset.to_le_bytes());
        let sum = crc(&bytes, 4);
        put(&mut bytes, 4, &sum.to_le_bytes());
        let [first, second] = HEADERS;
        (if self.slot == 0 { first } else { second }, bytes)
    }
}

/// The places of the table of blocks and of the metadata.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Regions {
    pub(super) bat: Region,
    pub(super) metadata: Region,
    pub(super) log: Region,
}

impl Regions {
    /// Where the last of them ends.
    pub(super) fn end(&self) -> u64 {
        let ends = [self.bat, self.metadata, self.log].map(|region| region.offset + region.len);
        ends.into_iter().fold(MIB, u64::max)
    }

    /// From a container whose log was replayed.
    pub(super) fn read(container: &Edge, log: Region) -> Result<Self> {
        for at in REGIONS {
            let bytes = load(container, "region table", at, REGION_TABLE)?;
            if bytes.starts_with(b"regi") && crc(&bytes, 4) == le32(&bytes, 4) {
                let regions = Self::decode(&bytes, log)?;
                lies_inside(container, "table of blocks", regions.bat.offset, regions.bat.len)?;
                let Region { offset, len } = regions.metadata;
                lies_inside(container, "metadata", offset, len)?;
                return Ok(regions);
            }
        }
        Err(corrupt("the VHDX image is broken: neither of its region tables is sound"))
    }

    fn decode(bytes: &[u8], log: Region) -> Result<Self> {
        let broken = |why: &str| corrupt(format!("the VHDX image is broken: {why}"));
        let count = le32(bytes, 8);
        if count > ENTRIES_MAX {
            return Err(broken("its region table is too long"));
        }
        let (mut bat, mut metadata) = (None, None);
        let entries = bytes.get(16..).unwrap_or_default().chunks_exact(32);
        for entry in entries.take(usize::try_from(count).unwrap_or(0)) {
            let id: Guid = array(entry, 0);
            let region = Region { offset: le64(entry, 16), len: le32(entry, 24).into() };
            let slot = match id {
                BAT => &mut bat,
                METADATA => &mut metadata,
                _ if le32(entry, 28) & 1 == 1 => {
                    return Err(foreign("the VHDX image has a required region of an unknown kind"));
                }
                _ => continue,
            };
            if slot.replace(region).is_some() {
                return Err(broken("it has a region twice"));
            }
        }
        let (Some(bat), Some(metadata)) = (bat, metadata) else {
            return Err(broken("it has no table of blocks, or no metadata"));
        };
        for (i, one) in [bat, metadata, log].iter().enumerate() {
            let good = one.offset >= MIB && one.offset % MIB == 0 && one.len % MIB == 0;
            let others = [bat, metadata, log];
            let mut before = others.iter().take(i);
            // An image without a log has one of length 0.
            let empty = one.len == 0 && i == 2;
            if !empty && (!good || before.any(|other| other.overlaps(one.offset, one.len))) {
                return Err(broken("its regions overlap, or not on whole MiB"));
            }
        }
        Ok(Self { bat, metadata, log })
    }

    /// Writes the first MiB, and last the part that makes it valid.
    pub(super) fn write(
        &self,
        container: &Edge,
        settle: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let mut bytes = vec![0; REGION_TABLE];
        put(&mut bytes, 0, b"regi");
        put(&mut bytes, 8, &2_u32.to_le_bytes());
        for (at, id, region) in [(16, BAT, self.bat), (48, METADATA, self.metadata)] {
            put(&mut bytes, at, &id);
            put(&mut bytes, at + 16, &region.offset.to_le_bytes());
            put(&mut bytes, at + 24, &u32::try_from(region.len).unwrap_or(0).to_le_bytes());
            put(&mut bytes, at + 28, &1_u32.to_le_bytes());
        }
        let sum = crc(&bytes, 4);
        put(&mut bytes, 4, &sum.to_le_bytes());
        for at in REGIONS {
            container.write(&bytes, at, false)?;
        }
        let first = Header::new(self.log);
        for header in [first, first.next()?] {
            let (at, bytes) = header.encode();
            container.write(&bytes, at, false)?;
        }
        settle()?;
        let mut identifier = vec![0; 512];
        put(&mut identifier, 0, COOKIE);
        let creator = "diskferry".encode_utf16().flat_map(u16::to_le_bytes).collect::<Vec<_>>();
        put(&mut identifier, 8, &creator);
        container.write(&identifier, 0, false)
    }
}
