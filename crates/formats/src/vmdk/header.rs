//! The headers of sparse extents: `KDMV` (hosted, in one piece, split or streamed), `COWD` (ESX
//! redo logs) and seSparse; and what they yield: the place of the grain directory, and the meaning
//! of its tables' entries.
//!
//! Everything is checked before use: sizes have caps, and the directory must lie in the container.

use device::{Edge, Error, ErrorKind, Fault, Result};

use super::descriptor::SECTOR;
use crate::kit::fields::{foreign, le16, le32, le64};

pub(super) const KDMV: &[u8] = b"KDMV";
pub(super) const COWD: &[u8] = b"COWD";
const SESPARSE: u64 = 0x0000_0000_cafe_babe;
const SESPARSE_VOLATILE: u64 = 0x0000_0000_cafe_cafe;
const SESPARSE_VERSION: u64 = 0x0000_0002_0000_0001;

/// Bytes of a header.
pub(super) const HEADER: usize = 512;
/// The directory is at the end: in a footer.
pub(super) const AT_END: u64 = u64::MAX;

pub(super) const NEWLINES: u32 = 1;
pub(super) const REDUNDANT: u32 = 1 << 1;
pub(super) const ZERO_GRAINS: u32 = 1 << 2;
pub(super) const COMPRESSED: u32 = 1 << 16;
pub(super) const MARKERS: u32 = 1 << 17;

/// The types of markers that are not a grain's.
pub(super) const END_OF_STREAM: u32 = 0;
pub(super) const GRAIN_TABLE: u32 = 1;
pub(super) const GRAIN_DIRECTORY: u32 = 2;
pub(super) const FOOTER: u32 = 3;
/// Entries of a grain table of `KDMV`.
pub(super) const GRAIN_TABLE_ENTRIES: u64 = 512;

/// The longest grains in bytes, plain and compressed.
const LONGEST_GRAIN: u64 = 1 << 30;
const LONGEST_PACKED: u64 = 2 << 20;
/// Entries of a table of `COWD`.
const COWD_ENTRIES: u64 = 4096;

/// The layout of a sparse extent.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Layout {
    /// Bytes of the disk.
    pub(super) capacity: u64,
    /// Bytes of a grain: a power of two, 512 or more.
    pub(super) grain: u64,
    /// Entries of a grain table.
    pub(super) entries: u64,
    /// Where the grain directory begins, in bytes.
    pub(super) directory: u64,
    /// The kind of its entries.
    pub(super) entry: Entry,
    /// Grains are compressed.
    pub(super) packed: bool,
    /// A compressed grain has a marker in front, with its length.
    pub(super) markers: bool,
    /// An entry of 1 is a grain of zeroes.
    pub(super) zero_grains: bool,
    /// Offset and length of the descriptor in bytes, if there is one.
    pub(super) descriptor: Option<(u64, u64)>,
    /// It was not closed properly.
    pub(super) dirty: bool,
    /// The version of the format.
    pub(super) version: u32,
}

/// The entries of the directory and of the tables.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Entry {
    /// Sectors, 32 bits.
    Sector,
    /// 64 bits with a kind in the top four; they count tables and grains from the byte offsets
    /// below.
    Numbered {
        /// Where the tables begin.
        tables: u64,
        /// Where the grains begin.
        grains: u64,
    },
}

impl Entry {
    /// Bytes of one.
    pub(super) fn width(self) -> u64 {
        match self {
            Self::Sector => 4,
            Self::Numbered { .. } => 8,
        }
    }
}

/// The contents of a container's first bytes.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum FirstBytes {
    /// A sparse extent.
    Sparse(Layout),
    /// Only a descriptor with a header before it: its offset and length.
    Only((u64, u64)),
}

/// A number of sectors, in bytes.
fn bytes(header: &[u8], at: usize, what: &str) -> Result<u64> {
    sectors(le64(header, at), what)
}

fn sectors(n: u64, what: &str) -> Result<u64> {
    let bytes = n.checked_mul(SECTOR).filter(|n| i64::try_from(*n).is_ok());
    bytes.ok_or_else(|| broken(format!("{what} of {n} sectors")))
}

/// Reads the header of a sparse extent; `None` if it is none.
///
/// # Errors
/// It is broken, needs unknown features, or cannot be read.
pub(super) fn read(container: &Edge) -> Result<Option<FirstBytes>> {
    let size = container.info().size;
    let mut first = [0; HEADER];
    let there = usize::try_from(size).unwrap_or(HEADER).min(HEADER);
    container.read(first.get_mut(..there).unwrap_or_default(), 0)?;
    if there == HEADER && first.starts_with(KDMV) {
        return kdmv(container, &first).map(Some);
    }
    let layout = if there == HEADER && first.starts_with(COWD) {
        cowd(&first)?
    } else if there == HEADER && le64(&first, 0) == SESPARSE {
        sesparse(container, &first)?
    } else {
        return Ok(None);
    };
    layout.check(size)?;
    Ok(Some(FirstBytes::Sparse(layout)))
}

fn kdmv(container: &Edge, fields: &[u8]) -> Result<FirstBytes> {
    let size = container.info().size;
    let descriptor = |fields: &[u8]| -> Result<Option<(u64, u64)>> {
        let at = bytes(fields, 28, "a descriptor at the end")?;
        let len = bytes(fields, 36, "a descriptor")?;
        Ok((at > 0 && len > 0).then_some((at, len)))
    };
    if le64(fields, 12) == 0
        && let Some(found) = descriptor(fields)?
    {
        return Ok(FirstBytes::Only(found));
    }
    let layout = if le64(fields, 56) == AT_END {
        let footer = footer(container)?;
        if [12, 20].iter().any(|at| le64(&footer, *at) != le64(fields, *at)) {
            return Err(broken("the footer does not belong to the header"));
        }
        // The descriptor of a stream comes first.
        Layout { descriptor: descriptor(fields)?, ..hosted(&footer)? }
    } else {
        Layout { descriptor: descriptor(fields)?, ..hosted(fields)? }
    };
    layout.check(size)?;
    Ok(FirstBytes::Sparse(layout))
}

/// The header at the end of a stream.
fn footer(container: &Edge) -> Result<[u8; HEADER]> {
    const END: usize = 3 * HEADER;
    let size = container.info().size;
    let at = size.checked_sub(END as u64).filter(|at| *at >= HEADER as u64);
    let at = at.ok_or_else(|| broken("it has no footer: it was not written to its end"))?;
    let mut end = [0; END];
    container.read(&mut end, at)?;
    let (marker, rest) = end.split_at(HEADER);
    let (footer, last) = rest.split_at(HEADER);
    let marks = |bytes: &[u8], kind| le32(bytes, 8) == 0 && le32(bytes, 12) == kind;
    let ends = marks(last, END_OF_STREAM) && le64(last, 0) == 0;
    if !footer.starts_with(KDMV) || !marks(marker, FOOTER) || !ends {
        return Err(broken("it has no footer: it was not written to its end"));
    }
    if le64(footer, 56) == AT_END {
        return Err(broken("the footer does not say where the grain directory is"));
    }
    footer.try_into().map_err(|_| broken("the footer"))
}

fn hosted(fields: &[u8]) -> Result<Layout> {
    let (version, flags) = (le32(fields, 4), le32(fields, 8));
    if !(1..=3).contains(&version) {
        return Err(Error::unfit(format!("version {version} of the format is not known")));
    }
    if flags & NEWLINES != 0 && fields.get(73..77) != Some(b"\n \r\n") {
        return Err(broken("its bytes were changed on the way, as text (ftp without `binary`?)"));
    }
    let packed = match le16(fields, 77) {
        0 if flags & COMPRESSED == 0 => false,
        1 => true,
        other => return Err(Error::unfit(format!("compression {other} is not known"))),
    };
    let entries = u64::from(le32(fields, 44));
    if !(1..=512).contains(&entries) {
        return Err(broken(format!("grain tables of {entries} entries")));
    }
    Ok(Layout {
        capacity: bytes(fields, 12, "a disk")?,
        grain: bytes(fields, 20, "a grain")?,
        entries,
        directory: bytes(fields, 56, "a grain directory at the end")?,
        entry: Entry::Sector,
        packed,
        markers: flags & MARKERS != 0,
        zero_grains: flags & ZERO_GRAINS != 0,
        descriptor: None,
        dirty: fields.get(72).is_some_and(|unclean| *unclean != 0),
        version,
    })
}

fn cowd(fields: &[u8]) -> Result<Layout> {
    let version = le32(fields, 4);
    if version != 1 {
        return Err(Error::unfit(format!("version {version} of COWD is not known")));
    }
    let layout = Layout {
        capacity: sectors(u64::from(le32(fields, 12)), "a disk")?,
        grain: sectors(u64::from(le32(fields, 16)), "a grain")?,
        entries: COWD_ENTRIES,
        directory: sectors(u64::from(le32(fields, 20)), "a directory at the end")?,
        entry: Entry::Sector,
        packed: false,
        markers: false,
        zero_grains: false,
        descriptor: None,
        dirty: false,
        version,
    };
    if layout.tables()? > u64::from(le32(fields, 24)) {
        return Err(broken("the grain directory is shorter than the disk needs"));
    }
    Ok(layout)
}

fn sesparse(container: &Edge, fields: &[u8]) -> Result<Layout> {
    let version = le64(fields, 8);
    if version != SESPARSE_VERSION {
        return Err(Error::unfit(format!("version {version:#x} of seSparse is not known")));
    }
    let reserved = fields.get(40..80).into_iter().chain(fields.get(208..));
    if !reserved.flatten().all(|b| *b == 0) {
        return Err(Error::unfit("flags of seSparse that are not known"));
    }
    let (grain, table) = (le64(fields, 24), le64(fields, 32));
    if (grain, table) != (8, 64) {
        let action = format!("grains of {grain} and tables of {table} sectors are not known");
        return Err(Error::unfit(action));
    }
    let layout = Layout {
        capacity: bytes(fields, 16, "a disk")?,
        grain: sectors(grain, "a grain")?,
        entries: table * SECTOR / 8,
        directory: bytes(fields, 128, "a grain directory at the end")?,
        entry: Entry::Numbered {
            tables: bytes(fields, 144, "tables at the end")?,
            grains: bytes(fields, 192, "grains at the end")?,
        },
        packed: false,
        markers: false,
        zero_grains: true,
        descriptor: None,
        dirty: is_dirty(container, bytes(fields, 80, "a volatile header at the end")?)?,
        version: 0,
    };
    if layout.tables()? > bytes(fields, 136, "a directory")? / 8 {
        return Err(broken("the grain directory is shorter than the disk needs"));
    }
    if layout.dirty {
        let action = "its journal must be replayed, which is not supported here: \
                      let the host that wrote it open it once";
        return Err(foreign(action));
    }
    Ok(layout)
}

/// Whether the journal of a seSparse extent has changes that are not in its tables yet.
fn is_dirty(container: &Edge, at: u64) -> Result<bool> {
    let mut volatile = [0; HEADER];
    container.check("read the volatile header", at, HEADER as u64).map_err(truncated)?;
    container.read(&mut volatile, at)?;
    if le64(&volatile, 0) != SESPARSE_VOLATILE {
        return Err(broken("the volatile header is not one"));
    }
    Ok(le64(&volatile, 24) != 0)
}

impl Layout {
    /// Bytes of the disk that one table covers.
    pub(super) fn span(&self) -> Result<u64> {
        let span = self.grain.checked_mul(self.entries).filter(|span| *span > 0);
        span.ok_or_else(|| broken(format!("grains of {} bytes", self.grain)))
    }

    /// How many tables there are.
    pub(super) fn tables(&self) -> Result<u64> {
        Ok(self.capacity.div_ceil(self.span()?))
    }

    /// Checks all of it against a container of `size` bytes.
    fn check(&self, size: u64) -> Result<()> {
        let longest = if self.packed { LONGEST_PACKED } else { LONGEST_GRAIN };
        if !self.grain.is_power_of_two() || !(SECTOR..=longest).contains(&self.grain) {
            return Err(broken(format!("grains of {} bytes", self.grain)));
        }
        let directory = self.tables()?.checked_mul(self.entry.width());
        let directory = directory.ok_or_else(|| broken("the grain directory is too long"))?;
        let after = size.checked_sub(self.directory);
        if self.directory < HEADER as u64 || after.is_none_or(|after| directory > after) {
            let action = format!("the grain directory ({directory} bytes) is not in the file");
            return Err(broken(action).at(self.directory));
        }
        Ok(())
    }
}

fn truncated(e: Error) -> Error {
    broken("it ends before what it says").with_source(e)
}

/// The image is invalid.
pub(super) fn broken(what: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::Corrupt, Fault::File, format!("the image is broken: {what}"))
}
