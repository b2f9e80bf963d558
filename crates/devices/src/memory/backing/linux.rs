//! Linux: a memfd.

use std::os::fd::OwnedFd;

use device::{Error, Result};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

use crate::file::map::Map;

pub(in crate::memory) use crate::file::system::punch as free;

/// Whether bytes may be received into it through a mapping.
pub(in crate::memory) const CAN_BE_MAPPED: bool = true;

/// Makes one of `size` bytes.
pub(in crate::memory) fn make(size: u64) -> Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let made = memfd_create("diskferry-memory", flags)
        .map_err(|e| Error::os("make a file in memory", e))?;
    ftruncate(&made, size).map_err(|e| Error::os(format!("make {size} bytes in memory"), e))?;
    // Others of the same user can open it through /proc. They can neither shorten it nor seal it
    // against us.
    fcntl_add_seals(&made, SealFlags::SHRINK | SealFlags::SEAL)
        .map_err(|e| Error::os("seal a file in memory", e))?;
    Ok(made)
}

/// Its map.
pub(in crate::memory) fn map() -> Map {
    Map::in_memory()
}
