//! The directory of persistent dirty bitmaps.

use device::{Edge, Result};

use super::corrupt;
use super::header::{BitmapDirectory, Header};
use super::region::Region;
use super::stream::ContainerReader;
use crate::kit::numbers::{be16, be32, be64, text};

/// Bytes of an entry without its name and extra data.
pub(super) const FIXED: usize = 24;
/// The longest name, in bytes.
pub(super) const NAME_MAX: u16 = 1023;
/// The most extra data of an entry, in bytes.
const EXTRA_MAX: u32 = 1024;
/// A bit stands for 2^9 to 2^31 bytes.
pub(super) const GRANULARITY_BITS: std::ops::RangeInclusive<u8> = 9..=31;
/// Bytes of the bits of a bitmap.
pub(super) const BITS_MAX: u64 = 512 << 20;
/// It tracks dirty data: the only kind there is.
pub(super) const TRACKS: u8 = 1;

/// Flags of a bitmap.
pub(super) mod flags {
    /// It was in use, so its contents are not reliable.
    pub(in super::super) const IN_USE: u32 = 1 << 0;
    /// A program that opens the image for writing must keep it up to date.
    pub(in super::super) const AUTO: u32 = 1 << 1;
    /// Unknown extra data may be ignored.
    pub(in super::super) const EXTRA_COMPATIBLE: u32 = 1 << 2;
}

/// A bitmap.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(super) struct Bitmap {
    /// Bytes.
    pub(super) name: String,
    pub(super) flags: u32,
    /// Where the directory has the flags, as an offset into the container.
    pub(super) flags_at: u64,
    /// A bit covers 2^this bytes.
    pub(super) granularity_bits: u8,
    /// The table of the clusters with its bits.
    pub(super) table_offset: u64,
    pub(super) table_entries: u32,
    /// Where its entry is in the container.
    pub(super) entry: Region,
    /// It has extra data that must be understood and is unknown here.
    pub(super) is_strange: bool,
}

impl Bitmap {
    /// Whether it has to be kept true while the image is written.
    pub(super) fn is_enabled(&self) -> bool {
        self.flags & (flags::AUTO | flags::IN_USE) == flags::AUTO
    }

    /// Whether its bits are reliable.
    pub(super) fn is_sound(&self) -> bool {
        self.flags & flags::IN_USE == 0 && !self.is_strange
    }
}

/// All bitmaps of an image, intact or not.
///
/// # Errors
/// The directory is broken, or cannot be read.
pub(super) fn read(container: &Edge, header: &Header) -> Result<Vec<Bitmap>> {
    let Some(BitmapDirectory { count, len, offset }) = header.usable_bitmaps() else {
        return Ok(Vec::new());
    };
    let mut directory = ContainerReader::new(container, "bitmap directory", offset, len);
    let size = container.info().size;
    (0..count).map(|_| read_one(&mut directory, header, size)).collect()
}

/// The names that several of them have, so that they mean none of them.
pub(super) fn ambiguous(bitmaps: &[Bitmap]) -> Vec<&str> {
    let mut names: Vec<&str> = bitmaps.iter().map(|bitmap| &*bitmap.name).collect();
    names.sort_unstable();
    let twice = names.iter().zip(names.iter().skip(1)).filter(|(one, next)| one == next);
    let mut found: Vec<_> = twice.map(|(name, _)| *name).collect();
    found.dedup();
    found
}

fn read_one(directory: &mut ContainerReader<'_>, header: &Header, size: u64) -> Result<Bitmap> {
    let at = directory.position();
    let broken = || corrupt("the directory of the bitmaps is broken").at(at);
    let fixed = directory.take(FIXED)?;
    let (mut bitmap, kind, name, extra) = decode_fixed(fixed).ok_or_else(broken)?;
    let cluster = header.geometry().cluster();
    if kind != TRACKS
        || !GRANULARITY_BITS.contains(&bitmap.granularity_bits)
        || name > NAME_MAX
        || extra > EXTRA_MAX
        || u64::from(bitmap.table_entries).saturating_mul(cluster) > BITS_MAX.max(cluster)
    {
        return Err(broken());
    }
    bitmap.flags_at = at.saturating_add(12);
    bitmap.is_strange = extra > 0 && bitmap.flags & flags::EXTRA_COMPATIBLE == 0;
    directory.take(usize::try_from(extra).map_err(|_| broken())?)?;
    bitmap.name = text(directory.take(usize::from(name))?);
    bitmap.entry = Region { offset: at, len: directory.position() - at };
    directory.align()?;
    let table = Region { offset: bitmap.table_offset, len: u64::from(bitmap.table_entries) * 8 };
    table.check("table of a bitmap", size, cluster, u64::MAX)?;
    let bits = header.size.div_ceil(1 << bitmap.granularity_bits);
    if bits.div_ceil(8).div_ceil(cluster) > u64::from(bitmap.table_entries) && bitmap.is_sound() {
        return Err(broken());
    }
    Ok(bitmap)
}

/// Bytes of the entry of a bitmap with this name, without extra data.
pub(super) fn entry_len(name: &str) -> u64 {
    (FIXED as u64).saturating_add(name.len() as u64).next_multiple_of(8)
}

fn decode_fixed(fixed: &[u8]) -> Option<(Bitmap, u8, u16, u32)> {
    let bitmap = Bitmap {
        table_offset: be64(fixed, 0)?,
        table_entries: be32(fixed, 8)?,
        flags: be32(fixed, 12)?,
        granularity_bits: *fixed.get(17)?,
        ..Bitmap::default()
    };
    Some((bitmap, *fixed.get(16)?, be16(fixed, 18)?, be32(fixed, 20)?))
}
