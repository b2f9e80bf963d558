//! Linux: descriptors that only stand for a file (`O_PATH`), which can be opened by way of /proc,
//! and openat2, which keeps to a directory.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, OFlags, RawDir, ResolveFlags, openat, openat2};
use rustix::io::Result;

/// Bytes of entries that the kernel gives at once.
const ENTRIES: usize = 32 << 10;

/// Where a descriptor is found by its number.
pub(in crate::file) fn of_number(number: impl std::fmt::Display) -> PathBuf {
    format!("/proc/self/fd/{number}").into()
}

/// The type of a file, of what `stat` calls its mode.
pub(in crate::file) fn kind(mode: u32) -> FileType {
    FileType::from_raw_mode(mode)
}

/// Whether a descriptor with these flags was opened only to stand for a file.
pub(in crate::file) fn only_stands_for_one(flags: OFlags) -> bool {
    flags.contains(OFlags::PATH)
}

/// Where a file that was looked up is opened, whatever has its name by now.
pub(in crate::file) fn place_of(found: &OwnedFd) -> io::Result<PathBuf> {
    Ok(of_number(found.as_raw_fd()))
}

/// Whether what was opened there is that file: it is.
#[inline]
pub(in crate::file) fn is_it(_found: &OwnedFd, _opened: impl AsFd) -> bool {
    true
}

/// Whether an open file without a name can be given one here: that needs /proc.
pub(in crate::file) fn can_appear(file: &OwnedFd) -> bool {
    std::fs::symlink_metadata(of_number(file.as_raw_fd())).is_ok()
}

/// The file of that name; it may be anything.
pub(in crate::file) fn anywhere(path: &Path) -> Result<OwnedFd> {
    openat(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
}

/// A directory, beneath which files are looked up.
pub(in crate::file) fn directory(path: &Path) -> Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    openat(CWD, path, flags, Mode::empty())
}

/// The entry of that name, also by a link that stays in the directory; it may be anything.
pub(in crate::file) fn entry(directory: &OwnedFd, name: &Path) -> Result<OwnedFd> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    openat2(directory, name, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), resolve)
}

/// What lies at a path beneath a directory, without following any link; it may be anything.
///
/// # Errors
/// `XDEV`: it is outside; `LOOP`: there is a link.
pub(in crate::file) fn beneath(directory: &OwnedFd, path: &Path) -> Result<OwnedFd> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    openat2(directory, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), resolve)
}

/// Shows all names in a directory.
pub(in crate::file) fn names(directory: OwnedFd, mut show: impl FnMut(&CStr)) -> Result<()> {
    let mut buffer = Vec::with_capacity(ENTRIES);
    let mut entries = RawDir::new(directory, buffer.spare_capacity_mut());
    while let Some(entry) = entries.next() {
        show(entry?.file_name());
    }
    Ok(())
}
