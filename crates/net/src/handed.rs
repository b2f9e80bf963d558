//! What the parent of this process has opened, known by the number of its descriptor: a connection,
//! or a file.
//!
//! Uses `unsafe` once, to copy a descriptor that is known only by its number. In a sandbox no other
//! call does that for a socket.
#![expect(unsafe_code, reason = "see above")]

use std::os::fd::{FromRawFd, OwnedFd, RawFd};

use rustix::io::{Errno, Result};

use crate::Stream;

/// The first number that the copy may have: those below are standard input, output and error.
const FIRST: libc::c_int = 3;

impl Stream {
    /// Takes a copy of the connected stream socket with this number. The number stays open: its
    /// owner may close it.
    ///
    /// # Errors
    /// It is not open, or is something else.
    pub fn handed(number: RawFd) -> Result<Self> {
        Self::new(copy_of(number)?)
    }
}

/// A copy of the descriptor with this number, which stays open.
///
/// # Errors
/// It is not open.
pub fn copy_of(number: RawFd) -> Result<OwnedFd> {
    // SAFETY: the call takes numbers, no memory, and changes no existing descriptor.
    let copy = unsafe { libc::fcntl(number, libc::F_DUPFD_CLOEXEC, FIRST) };
    if copy < 0 {
        return Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO));
    }
    // SAFETY: the kernel has just made it for us.
    Ok(unsafe { OwnedFd::from_raw_fd(copy) })
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::Received;

    #[test]
    fn a_copy_is_taken_and_what_is_no_connection_is_refused() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let stream = Stream::handed(ours.as_raw_fd()).unwrap();
        drop(ours);
        assert_eq!(Stream::new(theirs.into()).unwrap().send(b"abc"), Ok(3));
        assert_eq!(stream.receive(&mut [0; 8]), Ok(Received::Bytes(3)));
        let file = std::fs::File::open("/dev/null").unwrap();
        assert_eq!(Stream::handed(file.as_raw_fd()).unwrap_err(), Errno::NOTSOCK);
        assert_eq!(Stream::handed(i32::MAX).unwrap_err(), Errno::BADF);
    }
}
