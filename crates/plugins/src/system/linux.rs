//! Linux.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

/// Where errno of this thread is.
pub(crate) use libc::__errno_location as errno_location;

/// Where the plugins of this machine's architecture are.
pub(crate) fn directory() -> PathBuf {
    format!("/usr/lib/{}-linux-gnu/nbdkit/plugins", std::env::consts::ARCH).into()
}

/// A file in memory.
pub(crate) fn scratch() -> io::Result<File> {
    let made: OwnedFd = rustix::fs::memfd_create(c"printed", rustix::fs::MemfdFlags::CLOEXEC)?;
    Ok(made.into())
}

/// Opens a file that is open, by its number: another description of it.
pub(crate) fn open_again(number: i32) -> io::Result<File> {
    File::open(format!("/proc/self/fd/{number}"))
}

/// The address of a Unix socket without a name, as in `struct sockaddr`.
pub(crate) fn unnamed_socket() -> Vec<u8> {
    u16::try_from(libc::AF_UNIX).unwrap_or_default().to_ne_bytes().to_vec()
}
