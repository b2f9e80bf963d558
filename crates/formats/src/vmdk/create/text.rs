//! The descriptor and the header of a new image.

use std::hash::{BuildHasher, RandomState};
use std::os::unix::ffi::OsStrExt;

use device::{Error, Result};

use super::{GRAIN, Settings};
use crate::vmdk::descriptor::{NO_PARENT, SECTOR};
use crate::vmdk::header::{
    AT_END, COMPRESSED, GRAIN_TABLE_ENTRIES, HEADER, KDMV, MARKERS, NEWLINES, REDUNDANT,
    ZERO_GRAINS,
};

/// Sectors of an embedded descriptor, and where it begins.
pub(super) const DESCRIPTOR_AT: u64 = 1;
pub(super) const DESCRIPTOR: u64 = 20;

/// A descriptor.
pub(super) struct Text<'a> {
    pub(super) settings: &'a Settings,
    /// Bytes of the disk.
    pub(super) size: u64,
    /// The number of the parent's content, if there is one.
    pub(super) parent_cid: Option<u32>,
}

impl Text<'_> {
    /// The bytes of it, with extents of this kind: how many bytes of the disk are in each, and the
    /// name of its file.
    ///
    /// # Errors
    /// A name cannot be written in it.
    pub(super) fn bytes(&self, kind: &str, extents: &[(u64, String)]) -> Result<Vec<u8>> {
        let settings = self.settings;
        let sectors = self.size.div_ceil(SECTOR);
        let mut out = format!(
            "# Disk DescriptorFile\nversion=1\nCID={:08x}\nparentCID={:08x}\ncreateType=\"{}\"\n",
            new_cid(),
            self.parent_cid.unwrap_or(NO_PARENT),
            settings.kind.word(),
        )
        .into_bytes();
        if let Some(parent) = &settings.backing {
            out.extend(b"parentFileNameHint=\"");
            out.extend(quotable(parent)?);
            out.extend(b"\"\n");
        }
        out.extend(b"\n# Extent description\n");
        for (size, name) in extents {
            out.extend(format!("RW {} {kind} \"", size.div_ceil(SECTOR)).bytes());
            out.extend(quotable(name)?);
            out.extend(if kind == "FLAT" { &b"\" 0\n"[..] } else { b"\"\n" });
        }
        let heads = if settings.adapter == "ide" { 16 } else { 255 };
        let cylinders = sectors / (63 * heads);
        out.extend(
            format!(
                "\n# The Disk Data Base\n#DDB\n\nddb.virtualHWVersion = \"{}\"\n\
                 ddb.geometry.cylinders = \"{cylinders}\"\nddb.geometry.heads = \"{heads}\"\n\
                 ddb.geometry.sectors = \"63\"\nddb.adapterType = \"{}\"\nddb.toolsVersion = \"{}\"\n",
                settings.hardware, settings.adapter, settings.tools
            )
            .bytes(),
        );
        Ok(out)
    }

    /// The same, of one sparse extent of this name, padded to the space in it.
    pub(super) fn embedded(&self, name: String) -> Result<Vec<u8>> {
        let mut bytes = self.bytes("SPARSE", &[(self.size, name)])?;
        let room = usize::try_from(DESCRIPTOR * SECTOR).unwrap_or(0);
        if bytes.len() > room {
            return Err(Error::invalid("the name of the parent is too long for the descriptor"));
        }
        bytes.resize(room, 0);
        Ok(bytes)
    }
}

/// The bytes of a name, which goes between quotes on one line.
fn quotable(name: &str) -> Result<Vec<u8>> {
    let bytes = device::text::path(name).as_os_str().as_bytes().to_vec();
    if bytes.iter().any(|b| b.is_ascii_control() || *b == b'"') {
        let action = "a name with quotes or control characters cannot stand in a descriptor";
        return Err(Error::invalid(action).on(name));
    }
    Ok(bytes)
}

/// The last part of the image's name, for lines that nothing follows.
pub(super) fn own_name(name: Option<String>) -> String {
    let last = name.as_deref().and_then(|name| name.rsplit('/').next()).map(str::to_owned);
    last.filter(|name| !name.is_empty() && quotable(name).is_ok())
        .unwrap_or_else(|| "disk.vmdk".to_owned())
}

/// A random content ID.
fn new_cid() -> u32 {
    let random = RandomState::new().hash_one(std::process::id()).to_le_bytes();
    let cid = random.first_chunk().map_or(1, |bytes| u32::from_le_bytes(*bytes));
    // The last two have a meaning.
    if cid >= NO_PARENT - 1 { 1 } else { cid }
}

/// The header of a file of grains.
#[derive(Clone, Copy, Debug)]
pub(super) struct Header {
    /// Bytes of the disk.
    pub(super) size: u64,
    /// A stream of compressed grains.
    pub(super) stream: bool,
    /// It has the descriptor.
    pub(super) described: bool,
    pub(super) zeroed_grain: bool,
    /// In sectors: the second directory, the directory, and where grains begin.
    pub(super) redundant: u64,
    pub(super) directory: u64,
    pub(super) grains: u64,
}

impl Header {
    /// The bytes of it.
    pub(super) fn bytes(self) -> [u8; HEADER] {
        let version: u32 = if self.stream { 3 } else { 1 + u32::from(self.zeroed_grain) };
        let mut flags = NEWLINES;
        flags |= if self.stream { COMPRESSED | MARKERS } else { REDUNDANT };
        flags |= if self.zeroed_grain { ZERO_GRAINS } else { 0 };
        let mut bytes = [0; HEADER];
        let mut at = 0;
        let mut put = |field: &[u8]| {
            if let Some(room) = bytes.get_mut(at..at + field.len()) {
                room.copy_from_slice(field);
            }
            at += field.len();
        };
        put(KDMV);
        put(&version.to_le_bytes());
        put(&flags.to_le_bytes());
        put(&self.size.div_ceil(SECTOR).to_le_bytes());
        put(&(GRAIN / SECTOR).to_le_bytes());
        let described = |sectors: u64| if self.described { sectors } else { 0 };
        put(&described(DESCRIPTOR_AT).to_le_bytes());
        put(&described(DESCRIPTOR).to_le_bytes());
        put(&u32::try_from(GRAIN_TABLE_ENTRIES).unwrap_or(512).to_le_bytes());
        put(&self.redundant.to_le_bytes());
        put(&self.directory.to_le_bytes());
        put(&self.grains.to_le_bytes());
        // It is clean, and newlines are intact.
        put(b"\0\n \r\n");
        put(&u16::from(self.stream).to_le_bytes());
        bytes
    }

    /// The same, before the directory has a place.
    pub(super) fn before_the_footer(self) -> [u8; HEADER] {
        Self { directory: AT_END, ..self }.bytes()
    }
}
