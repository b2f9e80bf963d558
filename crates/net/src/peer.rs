//! The address of the other end of a socket.

use std::net::SocketAddr;
use std::os::fd::BorrowedFd;

use device::Peer;
use rustix::net::{AddressFamily, SocketAddrAny, getpeername};

use crate::credentials;

/// The address of the client of `socket`; `Other` if the system does not tell.
pub(crate) fn of(socket: BorrowedFd<'_>) -> Peer {
    let Ok(Some(address)) = getpeername(socket) else { return Peer::Other };
    match address.address_family() {
        AddressFamily::UNIX => Peer::Unix { credentials: credentials::of(socket) },
        AddressFamily::INET | AddressFamily::INET6 => ip(address).map_or(Peer::Other, Peer::Ip),
        _ => crate::vsock::peer(socket).unwrap_or(Peer::Other),
    }
}

/// An IPv4 client of an IPv6 socket has its IPv4 address here.
fn ip(address: SocketAddrAny) -> Option<SocketAddr> {
    let address = SocketAddr::try_from(address).ok()?;
    Some(SocketAddr::new(address.ip().to_canonical(), address.port()))
}
