//! Who is at the other end of a socket.

use std::net::SocketAddr;
use std::os::fd::BorrowedFd;

use device::{Credentials, Peer};
use rustix::net::{AddressFamily, SocketAddrAny, getpeername, sockopt};

/// Where the client of `socket` comes from; `Other` when the system does not say.
pub(crate) fn of(socket: BorrowedFd<'_>) -> Peer {
    let Ok(Some(address)) = getpeername(socket) else { return Peer::Other };
    match address.address_family() {
        AddressFamily::UNIX => Peer::Unix { credentials: credentials(socket) },
        AddressFamily::INET | AddressFamily::INET6 => ip(address).map_or(Peer::Other, Peer::Ip),
        _ => crate::vsock::peer(socket).unwrap_or(Peer::Other),
    }
}

/// An IPv4 client of an IPv6 socket is told by its IPv4 address.
fn ip(address: SocketAddrAny) -> Option<SocketAddr> {
    let address = SocketAddr::try_from(address).ok()?;
    Some(SocketAddr::new(address.ip().to_canonical(), address.port()))
}

fn credentials(socket: BorrowedFd<'_>) -> Option<Credentials> {
    let who = sockopt::socket_peercred(socket).ok()?;
    Some(Credentials {
        pid: who.pid.as_raw_nonzero().get().unsigned_abs(),
        uid: who.uid.as_raw(),
        gid: who.gid.as_raw(),
    })
}
