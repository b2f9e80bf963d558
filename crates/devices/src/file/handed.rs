//! A file that the parent of this process has opened, known by the number of its descriptor.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use device::{Error, ErrorKind, Fault, Result};
use rustix::fs::{OFlags, fcntl_getfl};

use super::descriptor::{FileOptions, describe, kind_of, refuse_kind};
use super::{File, found, lock};
use crate::OpenOptions;

/// A copy of the descriptor that the parameter `key` names. The number stays open.
pub(super) fn take(key: &str, number: &str) -> Result<OwnedFd> {
    let wrong = || device::values::wrong(key, "not the number of a descriptor");
    let number: i32 = number.parse().ok().filter(|n| *n >= 0).ok_or_else(wrong)?;
    net::copy_of(number).map_err(|e| Error::os(format!("{key}={number}: use it"), e))
}

/// A file by its descriptor. It is written only if it was opened for both.
pub(super) fn open(number: &str, file: FileOptions, options: &OpenOptions) -> Result<File> {
    let name = format!("descriptor {number}");
    let fd = take("fd", number).map_err(|e| e.on(&name))?;
    let opened = || {
        refuse_kind(kind_of(&fd)?)?;
        let flags = fcntl_getfl(&fd).map_err(|e| Error::os("get the status of the file", e))?;
        let mode = flags & OFlags::ACCMODE;
        if mode == OFlags::WRONLY || found::only_stands_for_one(flags) {
            return Err(Error::unfit("was not opened for reading"));
        }
        let can_write = mode == OFlags::RDWR;
        if options.write && !can_write && !options.or_read_only {
            let action = "was opened for reading only";
            return Err(Error::new(ErrorKind::ReadOnly, Fault::User, action));
        }
        let write = options.write && can_write;
        lock::take(fd.as_fd(), write, file.lock, Path::new(&name))?;
        Ok(write)
    };
    let write = opened().map_err(|e| e.on(&name))?;
    describe(Path::new(&name), fd, write, file).map_err(|e| e.on(&name))
}
