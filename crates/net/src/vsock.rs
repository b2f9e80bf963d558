//! The system calls for vsock(7) that no safe library here wraps.
//!
//! Uses `unsafe` for socket(2), connect(2), bind(2) and getpeername(2) with a `sockaddr_vm`.
#![expect(unsafe_code, reason = "see above")]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use device::Peer;
use rustix::net::listen as start_listening;

/// Begins to connect to `port` of the machine `cid`. The socket does not block; it is connected,
/// or has failed, when it can be written.
pub(crate) fn start(cid: u32, port: u32) -> io::Result<OwnedFd> {
    let socket = socket(libc::SOCK_NONBLOCK)?;
    let (address, len) = address(cid, port);
    // SAFETY: the pointer and the length describe `address`, which outlives the call.
    let done = unsafe { libc::connect(socket.as_raw_fd(), (&raw const address).cast(), len) };
    match io::Error::last_os_error() {
        e if done < 0 && e.raw_os_error() != Some(libc::EINPROGRESS) => Err(e),
        _ => Ok(socket),
    }
}

/// A socket that listens on `port`, on any CID.
pub(crate) fn listen(port: u32) -> io::Result<OwnedFd> {
    let socket = socket(0)?;
    let (address, len) = address(libc::VMADDR_CID_ANY, port);
    // SAFETY: the pointer and the length describe `address`, which outlives the call.
    let bound = unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), len) };
    if bound < 0 {
        return Err(io::Error::last_os_error());
    }
    start_listening(&socket, 128)?;
    Ok(socket)
}

/// The address of the other end of a vsock socket; `None` if it is not one.
pub(crate) fn peer(socket: BorrowedFd<'_>) -> Option<Peer> {
    let (mut address, mut len) = address(0, 0);
    // SAFETY: the pointer and the length describe `address`, which outlives the call; the system
    // writes no more than the length says.
    let got =
        unsafe { libc::getpeername(socket.as_raw_fd(), (&raw mut address).cast(), &raw mut len) };
    let is_vsock = i32::from(address.svm_family) == libc::AF_VSOCK;
    (got == 0 && is_vsock).then_some(Peer::Vsock { cid: address.svm_cid, port: address.svm_port })
}

fn socket(flags: libc::c_int) -> io::Result<OwnedFd> {
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | flags;
    // SAFETY: plain system call; the result is checked before it is owned.
    let fd = unsafe { libc::socket(libc::AF_VSOCK, kind, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a new descriptor without another owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn address(cid: u32, port: u32) -> (libc::sockaddr_vm, libc::socklen_t) {
    // SAFETY: sockaddr_vm is plain numbers, for which all zeroes is a value.
    let mut address: libc::sockaddr_vm = unsafe { std::mem::zeroed() };
    address.svm_family = libc::sa_family_t::try_from(libc::AF_VSOCK).unwrap_or_default();
    (address.svm_cid, address.svm_port) = (cid, port);
    let len = libc::socklen_t::try_from(size_of_val(&address)).unwrap_or_default();
    (address, len)
}
