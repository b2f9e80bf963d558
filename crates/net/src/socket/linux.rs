//! Linux: one call for each.

use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Result;
use rustix::net::{
    AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with, socket_with,
};

pub(crate) use rustix::fs::sendfile;
pub(crate) use rustix::net::sockopt::{
    set_tcp_user_timeout, socket_acceptconn as is_listening, socket_domain as family,
};

/// Sends without a signal where the peer is gone.
pub(crate) const NO_SIGNAL: SendFlags = SendFlags::NOSIGNAL;
/// More follows at once.
pub(crate) const MORE: SendFlags = SendFlags::MORE;

/// A stream socket.
#[inline]
pub(crate) fn blocking(family: AddressFamily) -> Result<OwnedFd> {
    socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)
}

/// One that does not block.
#[inline]
pub(crate) fn nonblocking(family: AddressFamily) -> Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(family, SocketType::STREAM, flags, None)
}

/// The next connection of a listener; it does not block.
#[inline]
pub(crate) fn accept(listener: impl AsFd) -> Result<OwnedFd> {
    accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)
}

/// Nothing to do: each call says [`NO_SIGNAL`].
#[inline]
pub(crate) fn without_signal(_: &OwnedFd) {}

/// The address of a name in the abstract namespace.
pub(crate) fn abstract_name(name: &[u8]) -> Result<SocketAddrUnix> {
    SocketAddrUnix::new_abstract_name(name)
}
