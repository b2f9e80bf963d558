//! A pipe through which payloads go from a socket to their place without entering user space.
//!
//! splice moves the socket's pages into the pipe, and from there the kernel copies them once,
//! into the page cache. Measured against receiving into a buffer and writing it: one copy less,
//! and pages that are written for the first time are neither zeroed nor faulted in. Between two
//! calls the pipe is always empty.

use std::os::fd::{BorrowedFd, OwnedFd};

use device::Place;
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};

/// What the pipe is asked to hold, in bytes; the system may give less.
const CAPACITY: usize = 1 << 20;

/// The pipe of one reactor.
#[derive(Debug)]
pub(crate) struct Channel {
    ends: Option<(OwnedFd, OwnedFd)>,
}

/// What came of moving part of a payload.
#[derive(Debug)]
pub(crate) enum Moved {
    /// So many bytes left the socket; the second number is the error that kept them from their
    /// place, if one did.
    Bytes(usize, Option<Errno>),
    /// The peer hangs up, or the socket is broken.
    End,
    /// The socket is empty.
    Nothing,
}

impl Channel {
    /// A channel; where no pipe can be had it is never used.
    pub(crate) fn new() -> Self {
        let ends = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).ok();
        if let Some((_, writer)) = &ends {
            // A smaller pipe only takes more turns.
            let _ = fcntl_setpipe_size(writer, CAPACITY);
        }
        Self { ends }
    }

    pub(crate) fn works(&self) -> bool {
        self.ends.is_some()
    }

    /// Moves at most `len` bytes that the socket holds to `place`, without waiting for more.
    pub(crate) fn carry(&mut self, socket: BorrowedFd<'_>, place: &Place, len: usize) -> Moved {
        let Some((reader, writer)) = &self.ends else { return Moved::End };
        let flags = SpliceFlags::MOVE | SpliceFlags::NONBLOCK;
        let n = loop {
            match splice(socket, None, writer, None, len.min(CAPACITY), flags) {
                Ok(0) => return Moved::End,
                Ok(n) => break n,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Moved::Nothing,
                Err(_) => return Moved::End,
            }
        };
        let mut offset = place.offset();
        let mut left = n;
        while left > 0 {
            match splice(reader, None, place.fd(), Some(&mut offset), left, SpliceFlags::MOVE) {
                Ok(0) => return self.spoilt(n, Errno::IO),
                Ok(moved) => left -= moved.min(left),
                Err(Errno::INTR) => {}
                Err(e) => return self.spoilt(n, e),
            }
        }
        Moved::Bytes(n, None)
    }

    /// What is left in the pipe belongs to a write that has failed: a new pipe forgets it.
    fn spoilt(&mut self, n: usize, e: Errno) -> Moved {
        *self = Self::new();
        Moved::Bytes(n, Some(e))
    }
}
