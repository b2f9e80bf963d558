//! Where clients connect: TCP, Unix sockets, vsock, and sockets that systemd opened for us.
//!
//! Uses `unsafe` once, to take over the descriptors that systemd names in the environment.
#![expect(unsafe_code, reason = "see above")]

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};

use device::{Error, ErrorKind, Fault, Result};
use rustix::io::Errno;

use crate::socket_name::{SocketName, SocketRights};
use crate::{Stream, socket, vsock};

/// First descriptor of socket activation (sd_listen_fds(3)).
const FIRST_ACTIVATED: RawFd = 3;

/// A listening socket.
#[derive(Debug)]
pub struct Listener {
    fd: OwnedFd,
    place: ListenAddress,
    name: Option<SocketName>,
}

/// The address of a listener.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum ListenAddress {
    /// Chosen by the service manager.
    Activated,
    /// A TCP address.
    Tcp(SocketAddr),
    /// A path.
    Unix(PathBuf),
    /// A vsock port, on any CID.
    Vsock(u32),
}

/// Which families of Internet addresses to listen on.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Family {
    /// Both families.
    #[default]
    Any,
    /// IPv4 alone.
    V4,
    /// IPv6 alone.
    V6,
}

impl Family {
    fn has(self, address: IpAddr) -> bool {
        match self {
            Self::Any => true,
            Self::V4 => address.is_ipv4(),
            Self::V6 => address.is_ipv6(),
        }
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Activated => f.write_str("a socket of the service manager"),
            Self::Tcp(address) => write!(f, "{address}"),
            Self::Unix(path) => write!(f, "{}", path.display()),
            Self::Vsock(port) => write!(f, "vsock port {port}"),
        }
    }
}

/// The addresses of a host in a family, each once. In a sandbox names are not looked up: a server
/// does it before.
///
/// # Errors
/// The name does not resolve, or has no address of that family.
pub fn look_up(host: &str, family: Family) -> Result<Vec<IpAddr>> {
    let unknown = || Error::new(ErrorKind::NotFound, Fault::User, "look up").on(host);
    let found = (host, 0).to_socket_addrs().map_err(|e| unknown().with_source(e))?;
    let mut addresses: Vec<IpAddr> = found.map(|a| a.ip()).filter(|a| family.has(*a)).collect();
    if addresses.is_empty() {
        let what = if family == Family::V4 { "IPv4" } else { "IPv6" };
        return Err(unknown().with_source(std::io::Error::other(format!("no {what} address"))));
    }
    addresses.sort();
    addresses.dedup();
    Ok(addresses)
}

impl Listener {
    /// Listens on `host` (all addresses if none is given) and `port` (0: any free one), on
    /// addresses of `family`.
    ///
    /// # Errors
    /// The name does not resolve, has no address of that family, or cannot be bound.
    pub fn tcp(host: Option<&str>, port: u16, family: Family) -> Result<Vec<Self>> {
        match host {
            Some(host) => Self::tcp_at(&look_up(host, family)?, port),
            None => Self::tcp_everywhere(port, family),
        }
    }

    /// Listens on all addresses of `family`, on `port` (0: any free one).
    ///
    /// # Errors
    /// It cannot be bound.
    fn tcp_everywhere(port: u16, family: Family) -> Result<Vec<Self>> {
        let any = match family {
            // One socket for both families where the system has IPv6.
            Family::Any => {
                TcpListener::bind(("::", port)).or_else(|_| TcpListener::bind(("0.0.0.0", port)))
            }
            Family::V4 => TcpListener::bind(("0.0.0.0", port)),
            Family::V6 => only_ipv6(port),
        };
        let any = any.map_err(|e| refused(e, port).on(format!("*:{port}")))?;
        Ok(vec![Self::from_tcp(any)?])
    }

    /// Listens on these addresses and `port` (0: any free one, the same for all).
    ///
    /// # Errors
    /// None can be bound.
    pub fn tcp_at(addresses: &[IpAddr], mut port: u16) -> Result<Vec<Self>> {
        let (mut listeners, mut failed) = (Vec::new(), None);
        for address in addresses {
            let address = SocketAddr::new(*address, port);
            match TcpListener::bind(address) {
                Ok(listener) => {
                    let listener = Self::from_tcp(listener)?;
                    if let ListenAddress::Tcp(bound) = &listener.place {
                        // A free port that was chosen for one address is used for all.
                        port = bound.port();
                    }
                    listeners.push(listener);
                }
                Err(e) => failed = Some(refused(e, address.port()).on(address)),
            }
        }
        // A name may have addresses that this machine does not have (::1 without IPv6).
        match failed {
            Some(e) if listeners.is_empty() => Err(e),
            _ => Ok(listeners),
        }
    }

    fn from_tcp(listener: TcpListener) -> Result<Self> {
        let address = listener.local_addr().map_err(|e| Error::os("listen", e))?;
        Ok(Self { fd: listener.into(), place: ListenAddress::Tcp(address), name: None })
    }

    /// Listens on a Unix socket at `path`.
    ///
    /// # Errors
    /// Another program listens there already, the path is not a socket, or it cannot be made.
    pub fn unix(path: &Path) -> Result<Self> {
        Self::unix_with(path, &SocketRights::default())
    }

    /// The same; its file has these rights before a client can connect.
    ///
    /// # Errors
    /// Those of [`unix`](Self::unix); or the system does not let us set these rights.
    pub fn unix_with(path: &Path, rights: &SocketRights) -> Result<Self> {
        SocketName::listen(path, rights).map(Self::named)
    }

    /// Listens on a Unix socket in a new directory that only we may enter.
    ///
    /// # Errors
    /// It cannot be made; then nothing is left behind.
    pub fn private() -> Result<Self> {
        SocketName::private().map(Self::named)
    }

    fn named((fd, name): (OwnedFd, SocketName)) -> Self {
        Self { fd, place: ListenAddress::Unix(name.path().to_owned()), name: Some(name) }
    }

    /// Listens on a vsock port.
    ///
    /// # Errors
    /// The system has no vsock, or the port is taken.
    pub fn vsock(port: u32) -> Result<Self> {
        let fd = vsock::listen(port)
            .map_err(|e| Error::os("listen", e).on(format!("vsock port {port}")))?;
        Ok(Self { fd, place: ListenAddress::Vsock(port), name: None })
    }

    /// The sockets that systemd passed to this process (sd_listen_fds(3)); none if it passed
    /// none. Call at most once, before anything else opens descriptors.
    ///
    /// # Errors
    /// LISTEN_FDS is not a number that makes sense.
    pub fn activated() -> Result<Vec<Self>> {
        let Ok(count) = std::env::var("LISTEN_FDS") else { return Ok(Vec::new()) };
        let ours = std::env::var("LISTEN_PID").ok().and_then(|p| p.parse::<u32>().ok());
        if ours != Some(std::process::id()) {
            return Ok(Vec::new());
        }
        let count: RawFd = count
            .parse()
            .ok()
            .filter(|n| (1..=64).contains(n))
            .ok_or_else(|| Error::invalid(format!("LISTEN_FDS={count}: expected 1 to 64")))?;
        (FIRST_ACTIVATED..FIRST_ACTIVATED + count).map(Self::take_over).collect()
    }

    fn take_over(fd: RawFd) -> Result<Self> {
        let say = |e: std::io::Error| Error::os("socket activation", e).on(format!("fd {fd}"));
        // SAFETY: LISTEN_PID names this process, so systemd gave the descriptor to us, and
        // `activated` is called once, before anything else owns descriptors.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let listens = socket::is_listening(&fd).map_err(|e| say(e.into()))?;
        if !listens {
            return Err(Error::invalid(
                "socket activation: the descriptor is not a listening socket",
            ));
        }
        rustix::io::fcntl_setfd(&fd, rustix::io::FdFlags::CLOEXEC).map_err(|e| say(e.into()))?;
        Ok(Self { fd, place: ListenAddress::Activated, name: None })
    }

    /// The name of its socket in the file system, if it has made one.
    #[must_use]
    pub fn name(&self) -> Option<&SocketName> {
        self.name.as_ref()
    }

    /// Its address.
    #[must_use]
    pub fn place(&self) -> &ListenAddress {
        &self.place
    }

    /// Makes `accept` nonblocking.
    ///
    /// # Errors
    /// The system's error.
    pub fn set_nonblocking(&self) -> rustix::io::Result<()> {
        rustix::io::ioctl_fionbio(&self.fd, true)
    }

    /// The next client; `None` when none waits.
    ///
    /// # Errors
    /// There are no descriptors left, most likely. Clients go on waiting.
    pub fn accept(&self) -> rustix::io::Result<Option<Stream>> {
        loop {
            return match socket::accept(&self.fd) {
                Ok(socket) => Ok(Some(Stream::ready(socket))),
                Err(Errno::INTR | Errno::CONNABORTED) => continue,
                Err(Errno::AGAIN) => Ok(None),
                Err(e) => Err(e),
            };
        }
    }
}

/// The descriptor, to be polled.
impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Why a TCP port cannot be listened on, with what helps.
fn refused(e: std::io::Error, port: u16) -> Error {
    let action = match e.kind() {
        std::io::ErrorKind::AddrInUse => {
            "listen: another program has the port; choose another, or 0"
        }
        std::io::ErrorKind::PermissionDenied if port < 1024 => {
            "listen: ports below 1024 are for root"
        }
        _ => "listen",
    };
    Error::os(action, e)
}

/// All IPv6 addresses, without IPv4 addresses mapped into IPv6.
fn only_ipv6(port: u16) -> std::io::Result<TcpListener> {
    use rustix::net::{AddressFamily, bind, listen, sockopt};
    let socket = socket::blocking(AddressFamily::INET6)?;
    sockopt::set_ipv6_v6only(&socket, true)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    bind(&socket, &SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)))?;
    listen(&socket, 128)?;
    Ok(socket.into())
}
