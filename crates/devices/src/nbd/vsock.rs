//! The one system call for vsock that no safe library here wraps.
//!
//! Uses `unsafe` for socket(2) and connect(2) with a `sockaddr_vm`.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Begins to connect to `port` of the machine `cid` (vsock(7)). The socket does not block; it is
/// connected, or has failed, when it can be written.
///
/// # Errors
/// What the system says.
pub(crate) fn start(cid: u32, port: u32) -> io::Result<OwnedFd> {
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: plain system call; the result is checked before it is owned.
    let fd = unsafe { libc::socket(libc::AF_VSOCK, kind, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a new descriptor that nobody else owns.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: sockaddr_vm is plain numbers, for which all zeroes is a value.
    let mut address: libc::sockaddr_vm = unsafe { std::mem::zeroed() };
    address.svm_family = libc::sa_family_t::try_from(libc::AF_VSOCK).unwrap_or_default();
    address.svm_port = port;
    address.svm_cid = cid;
    let len = libc::socklen_t::try_from(size_of_val(&address)).unwrap_or_default();
    // SAFETY: the pointer and the length describe `address`, which outlives the call.
    let done = unsafe { libc::connect(fd.as_raw_fd(), (&raw const address).cast(), len) };
    match io::Error::last_os_error() {
        e if done < 0 && e.raw_os_error() != Some(libc::EINPROGRESS) => Err(e),
        _ => Ok(fd),
    }
}
