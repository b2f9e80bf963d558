//! Zeroes that can be sent from a place, for holes in replies that must be one piece.

use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock};

use device::Place;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

/// As long as the longest read.
const LEN: u64 = 32 << 20;

/// A place of `len` zeroes; `None` if there is none so long. They take no memory: all of it is a
/// hole that cannot be filled.
pub(super) fn zeroes(len: u64) -> Option<Place> {
    static FILE: OnceLock<Option<Arc<OwnedFd>>> = OnceLock::new();
    let file = FILE.get_or_init(|| make().ok().map(Arc::new)).as_ref()?;
    (len <= LEN).then(|| Place::new(file.clone(), 0).in_memory())
}

fn make() -> rustix::io::Result<OwnedFd> {
    let file = memfd_create("diskferry-zeroes", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&file, LEN)?;
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE | SealFlags::SEAL;
    fcntl_add_seals(&file, seals)?;
    Ok(file)
}
