//! The client's side of a handshake, on a socket that the kernel gets afterwards. It wants what the
//! kernel's client speaks: simple replies, no contexts.

use std::os::fd::OwnedFd;

use device::{Error, ErrorKind, Fault, Result};
use rustix::io::{read, write};
use wire::{ClientHandshake, ClientPolicy, ClientStep, Negotiated};

/// Chooses the export on a fresh connection.
///
/// # Errors
/// The server refuses, or ends the connection.
pub(super) fn negotiate(socket: &OwnedFd, export: &str) -> Result<Negotiated> {
    let policy = ClientPolicy {
        export: export.to_owned(),
        structured: false,
        extended: false,
        ..ClientPolicy::default()
    };
    let mut handshake = ClientHandshake::new(policy);
    let refused = |why: String| {
        let action = format!("attach: connect to our own server: {why}");
        Error::new(ErrorKind::Protocol, Fault::User, action)
    };
    // One byte too many would be the kernel's, so no more is read than is asked for: a byte.
    let (mut byte, mut out) = ([0], Vec::new());
    loop {
        let n = read(socket, &mut byte).map_err(|e| Error::os("attach: negotiate", e))?;
        if n == 0 {
            return Err(refused(handshake.closed().to_string()));
        }
        let (_, step) = handshake.advance(&byte, &mut out);
        let mut rest = out.as_slice();
        while !rest.is_empty() {
            let n = write(socket, rest).map_err(|e| Error::os("attach: negotiate", e))?;
            rest = rest.get(n..).unwrap_or_default();
        }
        out.clear();
        match step {
            ClientStep::NeedMore => {}
            ClientStep::Ready(session) => return Ok(*session),
            ClientStep::Failed(e) => return Err(refused(e.to_string())),
            ClientStep::Listed(_) | ClientStep::StartTls => {
                return Err(refused("a reply to another request".to_owned()));
            }
        }
    }
}
