//! Generic netlink, as far as nbd needs it: include/uapi/linux/{netlink,genetlink,nbd-netlink}.h.
//!
//! A request is answered before this returns. Attributes are a length, a kind and bytes, padded to
//! four.

use std::os::fd::{AsRawFd, OwnedFd};

use device::{Error, Result};
use rustix::io::Errno;
use rustix::net::netlink::GENERIC;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with,
};
use wire::Negotiated;

const REQUEST: u16 = 1;
const ACK: u16 = 4;
const ERROR: u16 = 2;
const NESTED: u16 = 0x8000;

/// Of the controller: its number, CTRL_CMD_GETFAMILY, and the attributes of a family.
const CONTROLLER: u16 = 16;
const GET_FAMILY: u8 = 3;
const FAMILY_ID: u16 = 1;
const FAMILY_NAME: u16 = 2;

/// Of nbd: commands and attributes.
const CONNECT: u8 = 1;
const DISCONNECT: u8 = 2;
const RECONFIGURE: u8 = 3;
const INDEX: u16 = 1;
const SIZE_BYTES: u16 = 2;
const BLOCK_SIZE_BYTES: u16 = 3;
const SERVER_FLAGS: u16 = 5;
const SOCKETS: u16 = 7;
const SOCKET: u16 = 1;
const SOCKET_FD: u16 = 1;
const BACKEND_IDENTIFIER: u16 = 10;

/// What the kernel takes at most as a name (it has no limit of its own but that of a message).
const LONGEST_NAME: usize = 1000;

/// A socket to the kernel, and the number under which nbd answers there.
#[derive(Debug)]
pub(super) struct Netlink {
    socket: OwnedFd,
    family: u16,
}

impl Netlink {
    pub(super) fn open() -> Result<Self> {
        let socket = socket_with(
            AddressFamily::NETLINK,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            Some(GENERIC),
        );
        let socket = socket.map_err(|e| Error::os("ask the kernel for its NBD client", e))?;
        let name = attribute(FAMILY_NAME, b"nbd\0");
        let reply = ask(&socket, CONTROLLER, GET_FAMILY, &name).map_err(|e| match e {
            Errno::NOENT => Error::os("the kernel has no NBD client; `modprobe nbd` loads it", e),
            e => Error::os("ask the kernel for its NBD client", e),
        })?;
        let id = attributes(&reply).find(|(kind, _)| *kind == FAMILY_ID);
        let family = id.and_then(|(_, bytes)| Some(u16::from_ne_bytes(bytes.try_into().ok()?)));
        let family =
            family.ok_or_else(|| Error::os("ask for the kernel's NBD client", Errno::PROTO))?;
        Ok(Self { socket, family })
    }

    /// Gives these connections to the device.
    pub(super) fn connect(
        &self,
        index: u32,
        session: &Negotiated,
        sockets: &[OwnedFd],
        backend: &str,
    ) -> Result<()> {
        let mut all = attribute(INDEX, &index.to_ne_bytes());
        all.extend(attribute(SIZE_BYTES, &session.size.to_ne_bytes()));
        let block = block_of(session);
        all.extend(attribute(BLOCK_SIZE_BYTES, &block.to_ne_bytes()));
        all.extend(attribute(SERVER_FLAGS, &u64::from(session.flags.0).to_ne_bytes()));
        let mut list = Vec::new();
        for socket in sockets {
            let Ok(fd) = u32::try_from(socket.as_raw_fd()) else { continue };
            let one = attribute(SOCKET_FD, &fd.to_ne_bytes());
            list.extend(attribute(SOCKET | NESTED, &one));
        }
        all.extend(attribute(SOCKETS | NESTED, &list));
        all.extend(identifier(backend));
        self.tell(CONNECT, &all, "attach")
    }

    /// The device has another size. The kernel wants to hear whose it is, as it was told.
    pub(super) fn resize(&self, index: u32, size: u64, backend: &str) -> Result<()> {
        let mut all = attribute(INDEX, &index.to_ne_bytes());
        all.extend(attribute(SIZE_BYTES, &size.to_ne_bytes()));
        all.extend(identifier(backend));
        self.tell(RECONFIGURE, &all, "announce the new size to the kernel")
    }

    pub(super) fn disconnect(&self, index: u32) -> Result<()> {
        self.tell(DISCONNECT, &attribute(INDEX, &index.to_ne_bytes()), "detach")
    }

    fn tell(&self, command: u8, attributes: &[u8], what: &str) -> Result<()> {
        let done = ask(&self.socket, self.family, command, attributes);
        done.map(drop).map_err(|e| match e {
            Errno::PERM => Error::os(format!("{what}: only root may"), e),
            e => Error::os(what, e),
        })
    }
}

/// The kernel takes powers of two from 512 bytes to a page, and sends no other requests.
pub(super) fn block_of(session: &Negotiated) -> u64 {
    let sizes = [512, 1024, 2048, 4096];
    let minimum = u64::from(session.blocks.minimum);
    let mut fitting = sizes.into_iter().filter(|size| *size >= minimum);
    let whole = |size: &u64| session.size.is_multiple_of(*size);
    fitting.clone().rev().find(whole).or_else(|| fitting.next()).unwrap_or(4096)
}

/// Sends a request and waits for its end: what came before it.
fn ask(
    socket: &OwnedFd,
    family: u16,
    command: u8,
    attributes: &[u8],
) -> rustix::io::Result<Vec<u8>> {
    let len = u32::try_from(20 + attributes.len()).map_err(|_| Errno::TOOBIG)?;
    let mut message = Vec::with_capacity(20 + attributes.len());
    message.extend(len.to_ne_bytes());
    message.extend(family.to_ne_bytes());
    message.extend((REQUEST | ACK).to_ne_bytes());
    // A number of ours, and no port: one request is in flight at a time.
    message.extend([0; 8]);
    message.extend([command, 1, 0, 0]);
    message.extend(attributes);
    send(socket, &message, SendFlags::empty())?;
    let (mut reply, mut data) = (Vec::new(), vec![0; 64 << 10]);
    loop {
        let (n, _) = recv(socket, data.as_mut_slice(), RecvFlags::empty())?;
        let mut rest = data.get(..n).unwrap_or_default();
        while let Some((kind, body, after)) = message_of(rest) {
            rest = after;
            if kind == ERROR {
                let code = body.first_chunk().map_or(0, |code| i32::from_ne_bytes(*code));
                return match code {
                    0 => Ok(reply),
                    code => Err(Errno::from_raw_os_error(code.saturating_neg())),
                };
            }
            reply = body.get(4..).unwrap_or_default().to_vec();
        }
    }
}

/// The kind of the first message and its body, and what follows it.
fn message_of(bytes: &[u8]) -> Option<(u16, &[u8], &[u8])> {
    let len = usize::try_from(u32::from_ne_bytes(*bytes.first_chunk()?)).ok()?;
    let kind = u16::from_ne_bytes(*bytes.get(4..)?.first_chunk()?);
    let body = bytes.get(16..len)?;
    Some((kind, body, bytes.get(len.next_multiple_of(4)..).unwrap_or_default()))
}

fn identifier(backend: &str) -> Vec<u8> {
    let mut name: Vec<u8> = backend.bytes().take(LONGEST_NAME).collect();
    name.push(0);
    attribute(BACKEND_IDENTIFIER, &name)
}

fn attribute(kind: u16, data: &[u8]) -> Vec<u8> {
    let len = u16::try_from(4 + data.len()).unwrap_or(u16::MAX);
    let mut bytes = Vec::with_capacity(data.len() + 8);
    bytes.extend(len.to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(data);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let len = usize::from(u16::from_ne_bytes(*bytes.first_chunk()?));
        let kind = u16::from_ne_bytes(*bytes.get(2..)?.first_chunk()?);
        let data = bytes.get(4..len)?;
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some((kind & !NESTED, data))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_padded_and_read_back_and_end_where_the_bytes_end() {
        let mut all = attribute(1, b"abc");
        all.extend(attribute(7 | NESTED, b"defgh"));
        assert_eq!(all.len(), 8 + 12);
        let found: Vec<_> = attributes(&all).collect();
        assert_eq!(found, [(1, &b"abc"[..]), (7, &b"defgh"[..])]);
        assert_eq!(attributes(&all[..10]).count(), 1);
        assert_eq!(attributes(&[3, 0, 1, 0]).count(), 0, "shorter than its header");
        assert!(message_of(&[200, 0, 0, 0, 2, 0]).is_none());
    }

    #[test]
    fn a_block_is_as_large_as_the_disk_allows_and_not_smaller_than_the_server_wants() {
        let session = |size, minimum| {
            let mut session = Negotiated { size, ..Negotiated::default() };
            session.blocks.minimum = minimum;
            session
        };
        assert_eq!(block_of(&session(1 << 20, 1)), 4096);
        assert_eq!(block_of(&session((1 << 20) + 512, 1)), 512);
        assert_eq!(block_of(&session(1 << 20, 2048)), 4096);
        assert_eq!(block_of(&session(4096 + 2048, 2048)), 2048);
        assert_eq!(block_of(&session(1000, 1)), 512);
    }
}
