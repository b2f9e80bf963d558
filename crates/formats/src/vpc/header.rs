//! The footer of a VHD image, of which a dynamic one has a copy at its beginning, and the header of
//! a dynamic one.
//!
//! | footer | at | dynamic header | at |
//! |---|---|---|---|
//! | `conectix` | 0 | `cxsparse` | 0 |
//! | features, version | 8, 12 | next | 8 |
//! | where the dynamic header is | 16 | where the table is | 16 |
//! | time, creator, its version, its system | 24, 28, 32, 36 | version, entries | 24, 28 |
//! | original size, size | 40, 48 | bytes of a block, checksum | 32, 36 |
//! | cylinders, heads, sectors | 56, 58, 59 | identifier and time of the parent | 40, 56 |
//! | kind, checksum | 60, 64 | its name in UTF-16 | 64 |
//! | identifier | 68 | eight places where its name stands | 576 |
//!
//! The geometry cannot express every size. Virtual PC shows a disk as large as its geometry; others
//! use the size field. So it depends on the creator: Virtual PC, Virtual Server, and QEMU without
//! `force_size` mean the geometry, unless that is the largest there is.

use device::{Edge, Result};

use crate::Head;
use crate::kit::fields::{array, be16, be32, be64, corrupt, foreign, load, put};

pub(super) const SECTOR: u64 = 512;
pub(super) const FOOTER: usize = 512;
pub(super) const DYNAMIC: usize = 1024;
const COOKIE: &[u8] = b"conectix";
const FIXED: u32 = 2;
const DYNAMIC_COOKIE: &[u8] = b"cxsparse";
/// The largest geometry, in sectors, which also stands for all larger disks.
pub(super) const LARGEST_GEOMETRY: u64 = 65535 * 16 * 255;
/// 2040 GiB, in sectors.
pub(super) const SECTORS_MAX: u64 = 0xff00_0000;

/// The layout of the data.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Kind {
    Fixed,
    Dynamic,
    Differencing,
}

#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Footer {
    pub(super) kind: Kind,
    /// Bytes of the disk, as the program that made it means them.
    pub(super) size: u64,
    /// Where the dynamic header is.
    pub(super) next: u64,
    pub(super) geometry: Geometry,
    pub(super) id: [u8; 16],
}

/// Cylinders, heads, sectors of a track.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Geometry(pub(super) u16, pub(super) u8, pub(super) u8);

impl Geometry {
    pub(super) fn sectors(self) -> u64 {
        u64::from(self.0) * u64::from(self.1) * u64::from(self.2)
    }

    /// The geometry by the format's specification for so many sectors: never larger.
    pub(super) fn of(sectors: u64) -> Self {
        let sectors = sectors.min(LARGEST_GEOMETRY);
        let (tracks, heads, track) = if sectors >= 65535 * 16 * 63 {
            (sectors / 255, 16, 255)
        } else {
            let (mut track, mut tracks) = (17, sectors / 17);
            let mut heads = tracks.div_ceil(1024).max(4);
            if tracks >= heads * 1024 || heads > 16 {
                (track, heads, tracks) = (31, 16, sectors / 31);
            }
            if tracks >= heads * 1024 {
                (track, heads, tracks) = (63, 16, sectors / 63);
            }
            (tracks, heads, track)
        };
        let cylinders = u16::try_from(tracks / heads).unwrap_or(u16::MAX);
        Self(cylinders, u8::try_from(heads).unwrap_or(16), track)
    }

    /// The smallest geometry with room for so many sectors, if there is one.
    pub(super) fn around(sectors: u64) -> Self {
        let mut more = 0;
        loop {
            let found = Self::of(sectors + more);
            if found.sectors() >= sectors || found.sectors() == LARGEST_GEOMETRY {
                return found;
            }
            more += 1;
        }
    }
}

/// Whether it looks like one. A fixed image has only a footer, and the end of a raw disk holds
/// whatever its user wrote there: so the footer must be valid in every field.
pub(super) fn recognises(head: &Head) -> bool {
    let last = head.last().len().checked_sub(FOOTER).and_then(|at| head.last().get(at..));
    let ends = last.is_some_and(|last| {
        is_sound(last) && Footer::decode(last).is_ok_and(|footer| footer.kind == Kind::Fixed)
    });
    head.has(0, COOKIE) || ends
}

fn is_sound(footer: &[u8]) -> bool {
    footer.starts_with(COOKIE) && checksum(footer, 64) == be32(footer, 64)
}

fn is_fixed(footer: &[u8]) -> bool {
    be32(footer, 60) == FIXED
}

/// The complement of the sum of all bytes except the four at `at`.
pub(super) fn checksum(bytes: &[u8], at: usize) -> u32 {
    let outside = |(i, _): &(usize, &u8)| !(at..at + 4).contains(i);
    let sum = bytes.iter().enumerate().filter(outside);
    !sum.fold(0, |sum: u32, (_, byte)| sum.wrapping_add((*byte).into()))
}

impl Footer {
    /// Reads the copy at the start, else the footer at the end. Where a fixed disk begins with what
    /// its user wrote there, which may be an image too, the footer at the end counts.
    pub(super) fn read(container: &Edge) -> Result<Self> {
        let size = container.info().size;
        let short = || corrupt("this is not a VHD image: it is too short");
        let last = size.checked_sub(FOOTER as u64).ok_or_else(short)?;
        let first = load(container, "header", 0, FOOTER)?;
        let footer = load(container, "footer", last, FOOTER)?;
        if is_sound(&first) {
            let fixed = Some(&footer).filter(|footer| is_sound(footer) && is_fixed(footer));
            return match fixed {
                None => Self::decode(&first),
                Some(footer) if be64(footer, 48) == last => Self::decode(footer),
                Some(_) => Err(corrupt(
                    "the VHD image is broken: it begins with the header of one disk and ends with the footer of another, of another length",
                )),
            };
        }
        if is_sound(&footer) {
            return Self::decode(&footer);
        }
        let what = if first.starts_with(COOKIE) || footer.starts_with(COOKIE) {
            "the VHD image is broken: the checksum of its footer is wrong"
        } else {
            "this is not a VHD image: it has no footer"
        };
        Err(corrupt(what))
    }

    fn decode(bytes: &[u8]) -> Result<Self> {
        let kind = match be32(bytes, 60) {
            FIXED => Kind::Fixed,
            3 => Kind::Dynamic,
            4 => Kind::Differencing,
            other => return Err(foreign(format!("a VHD image of kind {other} is not known"))),
        };
        let version = be32(bytes, 12);
        if version >> 16 != 1 {
            return Err(foreign(format!("VHD version {} is not known, only 1", version >> 16)));
        }
        let geometry =
            Geometry(be16(bytes, 56), array::<1>(bytes, 58)[0], array::<1>(bytes, 59)[0]);
        let size = be64(bytes, 48);
        let by_geometry = matches!(&array::<4>(bytes, 28), b"vpc " | b"vs  " | b"qemu");
        let sectors = geometry.sectors();
        let size = if by_geometry && sectors != LARGEST_GEOMETRY && sectors != 0 {
            sectors * SECTOR
        } else {
            size
        };
        if size / SECTOR > SECTORS_MAX.max(LARGEST_GEOMETRY) || size % SECTOR != 0 {
            return Err(corrupt(format!("the VHD image is broken: its disk has {size} bytes")));
        }
        Ok(Self { kind, size, next: be64(bytes, 16), geometry, id: array(bytes, 68) })
    }

    /// With this `creator`.
    pub(super) fn encode(&self, creator: [u8; 4], seconds: u32) -> Vec<u8> {
        let mut bytes = vec![0; FOOTER];
        put(&mut bytes, 0, COOKIE);
        put(&mut bytes, 8, &2_u32.to_be_bytes());
        put(&mut bytes, 12, &0x0001_0000_u32.to_be_bytes());
        put(&mut bytes, 16, &self.next.to_be_bytes());
        put(&mut bytes, 24, &seconds.to_be_bytes());
        put(&mut bytes, 28, &creator);
        put(&mut bytes, 32, &0x0005_0003_u32.to_be_bytes());
        put(&mut bytes, 36, b"Wi2k");
        put(&mut bytes, 40, &self.size.to_be_bytes());
        put(&mut bytes, 48, &self.size.to_be_bytes());
        let Geometry(cylinders, heads, track) = self.geometry;
        put(&mut bytes, 56, &cylinders.to_be_bytes());
        put(&mut bytes, 58, &[heads, track]);
        let kind: u32 = match self.kind {
            Kind::Fixed => FIXED,
            Kind::Dynamic => 3,
            Kind::Differencing => 4,
        };
        put(&mut bytes, 60, &kind.to_be_bytes());
        put(&mut bytes, 68, &self.id);
        let sum = checksum(&bytes, 64);
        put(&mut bytes, 64, &sum.to_be_bytes());
        bytes
    }
}

#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Dynamic {
    /// Where this header is.
    pub(super) at: u64,
    /// Where the table is, and how many entries it has.
    pub(super) table: u64,
    pub(super) entries: u64,
    /// Bytes of a block; a power of two.
    pub(super) block: u64,
    /// All of the header, for the names in it.
    pub(super) bytes: Vec<u8>,
}

impl Dynamic {
    pub(super) fn read(container: &Edge, footer: &Footer) -> Result<Self> {
        let bytes = load(container, "dynamic header", footer.next, DYNAMIC)?.to_vec();
        let broken = |why: &str| corrupt(format!("the VHD image is broken: {why}")).at(footer.next);
        if !bytes.starts_with(DYNAMIC_COOKIE) {
            return Err(broken("it has no dynamic header"));
        }
        if checksum(&bytes, 36) != be32(&bytes, 36) {
            return Err(broken("the checksum of its dynamic header is wrong"));
        }
        let (table, entries) = (be64(&bytes, 16), u64::from(be32(&bytes, 28)));
        let block = u64::from(be32(&bytes, 32));
        if !block.is_power_of_two() || !(SECTOR..=1 << 28).contains(&block) {
            return Err(broken("its blocks are not of 512 bytes to 256 MiB"));
        }
        if footer.size > entries * block {
            return Err(broken("its table is shorter than its disk"));
        }
        // Entries beyond the disk's end are ignored.
        let entries = footer.size.div_ceil(block);
        Ok(Self { at: footer.next, table, entries, block, bytes })
    }

    /// Its place: offset and length.
    pub(super) fn range(&self) -> (u64, u64) {
        (self.at, DYNAMIC as u64)
    }

    /// Bytes of the bitmap in front of each block.
    pub(super) fn bitmap(&self) -> u64 {
        (self.block / SECTOR).div_ceil(8).next_multiple_of(SECTOR)
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![0; DYNAMIC];
        put(&mut bytes, 0, DYNAMIC_COOKIE);
        put(&mut bytes, 8, &u64::MAX.to_be_bytes());
        put(&mut bytes, 16, &self.table.to_be_bytes());
        put(&mut bytes, 24, &0x0001_0000_u32.to_be_bytes());
        let short = |n: u64| u32::try_from(n).unwrap_or(u32::MAX).to_be_bytes();
        put(&mut bytes, 28, &short(self.entries));
        put(&mut bytes, 32, &short(self.block));
        let sum = checksum(&bytes, 36);
        put(&mut bytes, 36, &sum.to_be_bytes());
        bytes
    }
}
