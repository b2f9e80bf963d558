//! A bell where there is no eventfd: a pipe that is readable while a byte is in it.

use std::io::{self, PipeReader, PipeWriter};
use std::os::fd::{AsFd, BorrowedFd};

use rustix::io::{Errno, ioctl_fionbio};

#[derive(Debug)]
pub(super) struct Clapper {
    reader: PipeReader,
    writer: PipeWriter,
}

impl Clapper {
    pub(super) fn new() -> io::Result<Self> {
        let (reader, writer) = io::pipe()?;
        ioctl_fionbio(&reader, true)?;
        ioctl_fionbio(&writer, true)?;
        Ok(Self { reader, writer })
    }

    pub(super) fn ring(&self) {
        // It fails only when the pipe is full, and then the bell rings anyway.
        let _ = rustix::io::write(&self.writer, &[1]);
    }

    pub(super) fn silence(&self) {
        // Until it is empty: each ring has left a byte.
        let mut bytes = [0; 512];
        loop {
            match rustix::io::read(&self.reader, &mut bytes) {
                Ok(n) if n == bytes.len() => {}
                Err(Errno::INTR) => {}
                _ => return,
            }
        }
    }
}

impl AsFd for Clapper {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.reader.as_fd()
    }
}
