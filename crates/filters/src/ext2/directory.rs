//! Finding a file by its path.

use std::os::unix::ffi::OsStrExt;

use device::{Error, Result, text};
use formats::crc32c;

use super::volume::{Inode, ROOT, Volume, le16, le32};
use super::{blocks, broken};

const DIRECTORY: u16 = 0x4000;
const FILE: u16 = 0x8000;
const LINK: u16 = 0xa000;
/// The directory has an index, whose blocks look like those without entries.
const INDEXED: u32 = 0x1000;
/// Directories that lead to the file, and bytes that are read of them all.
const NAMES_MAX: usize = 256;
const BYTES_MAX: u64 = 256 << 20;

/// The file at this path.
pub(super) fn find(volume: &Volume<'_>, path: &str) -> Result<Inode> {
    let path = text::path(path);
    let parts = path.as_os_str().as_bytes().split(|b| *b == b'/').filter(|part| !part.is_empty());
    let (mut inode, mut left) = (volume.inode(ROOT)?, BYTES_MAX);
    for (depth, part) in parts.enumerate() {
        if depth >= NAMES_MAX {
            return Err(Error::invalid(format!("the path has more than {NAMES_MAX} names")));
        }
        let found = match inode.kind() {
            DIRECTORY => look(volume, &inode, part, &mut left)?,
            _ => None,
        };
        let number = found.ok_or_else(|| {
            let shown = String::from_utf8_lossy(part).into_owned();
            Error::unfit(format!("the path does not exist: there is no `{}`", text::shown(&shown)))
        })?;
        inode = volume.inode(number)?;
        if inode.kind() == LINK {
            return Err(Error::unfit("the path leads over a link to another file; name that one"));
        }
    }
    match inode.kind() {
        FILE => Ok(inode),
        _ => Err(Error::unfit("the path is not a file's")),
    }
}

/// The inode of a name in a directory.
fn look(
    volume: &Volume<'_>,
    directory: &Inode,
    name: &[u8],
    left: &mut u64,
) -> Result<Option<u32>> {
    for run in blocks::of(volume, directory)? {
        // Directories consist of whole blocks.
        let first = run.place / volume.block;
        for n in 0..run.len.div_ceil(volume.block) {
            *left = left.checked_sub(volume.block).ok_or_else(|| {
                broken(&format!(
                    "has directories of more than {BYTES_MAX} bytes on the way to the file"
                ))
            })?;
            let block = volume.load(first + n)?;
            if let Some(seed) = volume.seed {
                check(&block, directory, seed)?;
            }
            if let Some(number) = entry(&block, name)? {
                return Ok(Some(number));
            }
        }
    }
    Ok(None)
}

/// The checksum behind the entries. Blocks of an index have theirs elsewhere, and no entries.
fn check(block: &[u8], directory: &Inode, seed: u32) -> Result<()> {
    let (entries, tail) = block.split_at(block.len().saturating_sub(12));
    let has_sum = le32(tail, 0) == 0 && le32(tail, 4) == 0xde00_000c;
    let is_right = match has_sum {
        true => crc32c(directory.seed(seed), entries) == le32(tail, 8),
        false => directory.flags() & INDEXED != 0,
    };
    is_right.then_some(()).ok_or_else(|| broken("has a wrong checksum in a directory"))
}

/// The inode of a name in one block of a directory.
fn entry(block: &[u8], name: &[u8]) -> Result<Option<u32>> {
    let mut rest = block;
    while rest.len() >= 8 {
        let len = match le16(rest, 4) {
            // What the number cannot say.
            0 | u16::MAX if block.len() == 1 << 16 => 1 << 16,
            len => usize::from(len),
        };
        // The upper half of the length of a name is its type since version 1.
        let own = rest.get(6).map_or(0, |len| usize::from(*len));
        if len < 8 || len % 4 != 0 || len > rest.len() || own > len - 8 {
            return Err(broken("has a directory with an entry of a wrong length"));
        }
        let inode = le32(rest, 0);
        if inode != 0 && rest.get(8..8 + own) == Some(name) {
            return Ok(Some(inode));
        }
        rest = rest.get(len..).unwrap_or_default();
    }
    Ok(None)
}
