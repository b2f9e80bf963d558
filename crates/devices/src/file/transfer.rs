//! Whole reads and writes at offsets: they continue after short counts and interruptions, and the
//! end of the file is an error, never zeroes.

use std::io;
use std::os::fd::BorrowedFd;

use rustix::io::{Errno, pread, pwrite};

use super::system;

/// Fills all of `buf` from `offset`.
pub(crate) fn read_exact(fd: BorrowedFd<'_>, buf: &mut [u8], offset: u64) -> io::Result<()> {
    let text = "the file ends here; it is shorter than when it was opened";
    match read_to_end(fd, buf, offset)? {
        [] => Ok(()),
        _ => Err(io::Error::new(io::ErrorKind::UnexpectedEof, text)),
    }
}

/// The same of a file that grows as it is written: what lies behind its end reads as zeroes, as it
/// will when the file has its length.
pub(crate) fn read_growing(fd: BorrowedFd<'_>, buf: &mut [u8], offset: u64) -> io::Result<()> {
    read_to_end(fd, buf, offset).map(|rest| rest.fill(0))
}

/// Fills `buf` from `offset` up to the end of the file; what is left of it.
fn read_to_end<'a>(fd: BorrowedFd<'_>, buf: &'a mut [u8], offset: u64) -> io::Result<&'a mut [u8]> {
    let (mut rest, mut at) = (buf, offset);
    while !rest.is_empty() {
        match pread(fd, &mut *rest, at) {
            Ok(0) => break,
            Ok(n) => {
                rest = rest.get_mut(n..).unwrap_or_default();
                at += n as u64;
            }
            Err(Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(rest)
}

/// Fills all of `buf` if that needs no waiting; returns whether it did. `Unsupported` if the file
/// cannot do that.
pub(crate) fn read_now(fd: BorrowedFd<'_>, buf: &mut [u8], offset: u64) -> io::Result<bool> {
    let n = buf.len();
    loop {
        return match system::read_now(fd, buf, offset) {
            // A short count: what is missing is on the disk, or beyond the end, where the
            // waiting read finds the error.
            Ok(got) => Ok(got == n),
            Err(Errno::AGAIN) => Ok(false),
            Err(Errno::INTR) => continue,
            Err(e) => Err(e.into()),
        };
    }
}

/// Writes all of `data` at `offset`.
pub(crate) fn write_all(fd: BorrowedFd<'_>, data: &[u8], offset: u64) -> io::Result<()> {
    carry_on(data, offset, |rest, at| pwrite(fd, rest, at))
}

/// Writes all of `data` at `offset` and makes it durable.
pub(crate) fn write_all_durably(fd: BorrowedFd<'_>, data: &[u8], offset: u64) -> io::Result<()> {
    carry_on(data, offset, |rest, at| system::write_durably(fd, rest, at))
}

fn carry_on(
    data: &[u8],
    offset: u64,
    write: impl Fn(&[u8], u64) -> rustix::io::Result<usize>,
) -> io::Result<()> {
    let (mut rest, mut at) = (data, offset);
    while !rest.is_empty() {
        match write(rest, at) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(n) => {
                rest = rest.get(n..).unwrap_or_default();
                at += n as u64;
            }
            Err(Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(())
}

/// Repeats it as long as signals interrupt it.
pub(crate) fn retry<T>(mut call: impl FnMut() -> rustix::io::Result<T>) -> rustix::io::Result<T> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            other => return other,
        }
    }
}
