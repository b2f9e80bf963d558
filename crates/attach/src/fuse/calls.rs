//! Reading a request and writing a reply, each by one system call.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::OwnedFd;

use device::Buffer;
use rustix::io::{Errno, readv, writev};

use super::abi::{HEAD, out_header};

/// A request as it came: up to [`HEAD`] bytes, and what follows them. A write has its data in the
/// second part, which begins on a page.
pub(super) struct ReceivedRequest {
    pub(super) head: [u8; HEAD],
    /// Bytes of it in `head` and in the buffer.
    pub(super) len: (usize, usize),
}

/// Reads the next request; `None` when the file system is not mounted any more.
pub(super) fn receive(
    connection: &OwnedFd,
    payload: &mut Buffer,
) -> Result<Option<ReceivedRequest>, Errno> {
    let mut head = [0; HEAD];
    loop {
        let mut parts = [IoSliceMut::new(&mut head), IoSliceMut::new(payload)];
        match readv(connection, &mut parts) {
            Ok(0) => return Ok(None),
            Ok(n) => {
                let in_head = n.min(HEAD);
                return Ok(Some(ReceivedRequest { head, len: (in_head, n - in_head) }));
            }
            Err(Errno::NODEV) => return Ok(None),
            // The program that asked has gone; or a signal.
            Err(Errno::NOENT | Errno::INTR | Errno::AGAIN) => {}
            Err(e) => return Err(e),
        }
    }
}

/// Sends a reply. One that nobody waits for any more is lost, as it should be.
pub(super) fn reply(connection: &OwnedFd, unique: u64, errno: i32, data: &[u8]) {
    let header = out_header(unique, errno, data.len());
    let _ = writev(connection, &[IoSlice::new(&header), IoSlice::new(data)]);
}
