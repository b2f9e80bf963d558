//! Elsewhere (macOS): a socket is made first and told the rest after that. A program that another
//! thread starts in between inherits it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::{Errno, FdFlags, Result, fcntl_setfd, ioctl_fionbio};
use rustix::net::{
    AddressFamily, SendFlags, SocketAddrUnix, SocketType, getpeername, getsockname, socket, sockopt,
};

/// No call says so: the socket does ([`without_signal`]).
pub(crate) const NO_SIGNAL: SendFlags = SendFlags::empty();
/// There is no such hint.
pub(crate) const MORE: SendFlags = SendFlags::empty();

/// A stream socket.
pub(crate) fn blocking(family: AddressFamily) -> Result<OwnedFd> {
    let socket = socket(family, SocketType::STREAM, None)?;
    fcntl_setfd(&socket, FdFlags::CLOEXEC)?;
    without_signal(&socket);
    Ok(socket)
}

/// One that does not block.
pub(crate) fn nonblocking(family: AddressFamily) -> Result<OwnedFd> {
    let socket = blocking(family)?;
    ioctl_fionbio(&socket, true)?;
    Ok(socket)
}

/// The next connection of a listener; it does not block.
pub(crate) fn accept(listener: impl AsFd) -> Result<OwnedFd> {
    let socket = rustix::net::accept(listener)?;
    fcntl_setfd(&socket, FdFlags::CLOEXEC)?;
    ioctl_fionbio(&socket, true)?;
    Ok(socket)
}

/// Sending on it makes no signal where the peer is gone.
pub(crate) fn without_signal(socket: &OwnedFd) {
    // It fails only for what is no socket, or is broken already; and the signal is ignored by
    // every program whose runtime is Rust's.
    let _ = sockopt::set_socket_nosigpipe(socket, true);
}

/// Whether a stream socket listens: as far as can be told, where it is not connected.
pub(crate) fn is_listening(socket: impl AsFd) -> Result<bool> {
    match getpeername(&socket) {
        Err(Errno::NOTCONN) => Ok(sockopt::socket_type(socket)? == SocketType::STREAM),
        Ok(_) => Ok(false),
        Err(e) => Err(e),
    }
}

/// The family of its addresses.
pub(crate) fn family(socket: impl AsFd) -> Result<AddressFamily> {
    Ok(getsockname(socket)?.address_family())
}

/// TCP has no such limit that a program may set.
pub(crate) fn set_tcp_user_timeout(_: impl AsFd, _: u32) -> Result<()> {
    Err(Errno::NOPROTOOPT)
}

/// Bytes are read and sent.
pub(crate) fn sendfile(
    _: impl AsFd,
    _: BorrowedFd<'_>,
    _: Option<&mut u64>,
    _: usize,
) -> Result<usize> {
    Err(Errno::NOSYS)
}

/// There is no abstract namespace.
pub(crate) fn abstract_name(_: &[u8]) -> Result<SocketAddrUnix> {
    Err(Errno::AFNOSUPPORT)
}
