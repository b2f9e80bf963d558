//! The system calls for vsock that no safe library here wraps.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use device::Peer;

/// A socket that listens on `port`, on any CID (vsock(7)).
pub(crate) fn listen(port: u32) -> io::Result<OwnedFd> {
    // SAFETY: plain system call; the result is checked before it is owned.
    let fd = unsafe { libc::socket(libc::AF_VSOCK, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a new descriptor that nobody else owns.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: sockaddr_vm is plain numbers, for which all zeroes is a value.
    let mut address: libc::sockaddr_vm = unsafe { std::mem::zeroed() };
    address.svm_family = libc::sa_family_t::try_from(libc::AF_VSOCK).unwrap_or_default();
    address.svm_port = port;
    address.svm_cid = libc::VMADDR_CID_ANY;
    let len = libc::socklen_t::try_from(size_of_val(&address)).unwrap_or_default();
    // SAFETY: the pointer and the length describe `address`, which outlives the call.
    let bound = unsafe { libc::bind(fd.as_raw_fd(), (&raw const address).cast(), len) };
    // SAFETY: plain system call on a descriptor we own.
    if bound < 0 || unsafe { libc::listen(fd.as_raw_fd(), 128) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(fd)
}

/// Who is at the other end of a vsock socket; `None` when it is not one.
pub(crate) fn peer(socket: BorrowedFd<'_>) -> Option<Peer> {
    // SAFETY: sockaddr_vm is plain numbers, for which all zeroes is a value.
    let mut address: libc::sockaddr_vm = unsafe { std::mem::zeroed() };
    let mut len = libc::socklen_t::try_from(size_of_val(&address)).unwrap_or_default();
    // SAFETY: the pointer and the length describe `address`, which outlives the call; the system
    // writes no more than the length says.
    let got =
        unsafe { libc::getpeername(socket.as_raw_fd(), (&raw mut address).cast(), &raw mut len) };
    let is_vsock = i32::from(address.svm_family) == libc::AF_VSOCK;
    (got == 0 && is_vsock).then_some(Peer::Vsock { cid: address.svm_cid, port: address.svm_port })
}
