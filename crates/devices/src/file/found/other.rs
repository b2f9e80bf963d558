//! Systems without such descriptors: macOS. To look a file up is to open it for reading. So first
//! it is looked at, and only a regular file is opened, in a way that would not wait for a pipe that
//! has taken its name meanwhile; what was opened is looked at again by the callers. Links are
//! followed only where a user has named the path.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};

use programs::names::numbers;
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, RawMode, getpath, openat, statat};
use rustix::io::{Errno, Result};

const LOOK: OFlags = OFlags::RDONLY.union(OFlags::NONBLOCK).union(OFlags::CLOEXEC);

/// Where a descriptor is found by its number.
pub(in crate::file) fn of_number(number: impl std::fmt::Display) -> PathBuf {
    format!("/dev/fd/{number}").into()
}

/// The type of a file, of what `stat` calls its mode.
pub(in crate::file) fn kind(mode: u32) -> FileType {
    RawMode::try_from(mode).map_or(FileType::Unknown, FileType::from_raw_mode)
}

/// No descriptor was.
pub(in crate::file) fn only_stands_for_one(_: OFlags) -> bool {
    false
}

/// The name of a file that was looked up, which may be another's by now: see [`is_it`].
pub(in crate::file) fn place_of(found: &OwnedFd) -> io::Result<PathBuf> {
    let name = getpath(found)?.into_bytes();
    Ok(std::ffi::OsString::from_vec(name).into())
}

/// Whether what was opened there is that file. In doubt, no.
pub(in crate::file) fn is_it(found: &OwnedFd, opened: impl AsFd) -> bool {
    numbers(found).is_ok_and(|numbers_of| numbers(opened).is_ok_and(|other| other == numbers_of))
}

/// No file is without a name.
pub(in crate::file) fn can_appear(_: &OwnedFd) -> bool {
    false
}

/// The regular file of that name, also by way of links.
pub(in crate::file) fn anywhere(path: &Path) -> Result<OwnedFd> {
    open_regular(CWD, path, AtFlags::empty(), OFlags::empty())
}

/// A directory, beneath which files are looked up.
pub(in crate::file) fn directory(path: &Path) -> Result<OwnedFd> {
    openat(CWD, path, LOOK | OFlags::DIRECTORY, Mode::empty())
}

/// The entry of that name: a regular file, and no link.
pub(in crate::file) fn entry(directory: &OwnedFd, name: &Path) -> Result<OwnedFd> {
    open_regular(directory.as_fd(), name, AtFlags::SYMLINK_NOFOLLOW, OFlags::NOFOLLOW)
}

/// The regular file at a path beneath a directory, one directory after the other, without following
/// any link.
///
/// # Errors
/// `XDEV`: it is outside, or may be; `LOOP`: there is a link.
pub(in crate::file) fn beneath(directory: &OwnedFd, path: &Path) -> Result<OwnedFd> {
    let mut names = Vec::new();
    for part in path.components() {
        match part {
            Component::Normal(name) => names.push(Path::new(name)),
            Component::CurDir => {}
            _ => return Err(Errno::XDEV),
        }
    }
    let last = names.pop().ok_or(Errno::ISDIR)?;
    let mut held: Option<OwnedFd> = None;
    for name in names {
        let above = held.as_ref().unwrap_or(directory);
        let stat = statat(above, name, AtFlags::SYMLINK_NOFOLLOW)?;
        if FileType::from_raw_mode(stat.st_mode) == FileType::Symlink {
            return Err(Errno::LOOP);
        }
        let flags = LOOK | OFlags::DIRECTORY | OFlags::NOFOLLOW;
        held = Some(openat(above, name, flags, Mode::empty())?);
    }
    entry(held.as_ref().unwrap_or(directory), last)
}

fn open_regular(
    directory: BorrowedFd<'_>,
    name: &Path,
    how_looked_at: AtFlags,
    how_opened: OFlags,
) -> Result<OwnedFd> {
    let stat = statat(directory, name, how_looked_at)?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => {}
        FileType::Symlink => return Err(Errno::LOOP),
        FileType::Directory => return Err(Errno::ISDIR),
        _ => return Err(Errno::OPNOTSUPP),
    }
    openat(directory, name, LOOK | how_opened, Mode::empty())
}

/// Shows all names in a directory.
pub(in crate::file) fn names(directory: OwnedFd, mut show: impl FnMut(&CStr)) -> Result<()> {
    for entry in Dir::new(directory)? {
        show(entry?.file_name());
    }
    Ok(())
}
