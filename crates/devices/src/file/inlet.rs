//! A pipe as the source of a copy: standard input, or a pipe that has a name. Its bytes come once,
//! in order.
//!
//! Standard input that is a file at its beginning, or a block device, is a disk like any other, not
//! a pipe. Where a pipe is not enough, all of it goes into a nameless temporary file first.

use std::io::{self, IsTerminal};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use device::{Error, Result, is_zero};
use runtime::Context;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{CWD, FileType, Mode, OFlags, fstat, ftruncate, openat, tell};
use rustix::io::{Errno, fcntl_dupfd_cloexec};

use super::descriptor::describe;
use super::{File, FileOptions, Lock, pipe, system, transfer};
use crate::stream::ByteStream;

/// The name of standard input.
const STANDARD: &str = "/dev/stdin";
/// The capacity to ask for in a pipe, in bytes.
const ROOM: usize = 1 << 20;
/// Bytes that go into a temporary file at once.
const PIECE: usize = 64 << 10;

/// A source of bytes in order.
#[derive(Debug)]
pub(super) struct Inlet {
    name: String,
    fd: OwnedFd,
}

/// Whether `path` is that of standard input, which is open already.
pub(super) fn is_standard(path: &Path) -> bool {
    path.as_os_str() == STANDARD
}

/// Whether opening `path` for reading would give a stream. Nothing is opened.
pub(super) fn is_inlet(path: &Path) -> bool {
    if is_standard(path) {
        return !is_disk(io::stdin());
    }
    std::fs::metadata(path)
        .is_ok_and(|found| std::os::unix::fs::FileTypeExt::is_fifo(&found.file_type()))
}

/// Whether all of it can be read in any order: a file of which nothing was read yet, or a block
/// device.
fn is_disk(fd: impl AsFd) -> bool {
    let kind = fstat(&fd).map(|found| FileType::from_raw_mode(found.st_mode));
    match kind {
        Ok(FileType::RegularFile) => tell(&fd) == Ok(0),
        Ok(FileType::BlockDevice) => true,
        _ => false,
    }
}

impl Inlet {
    /// The one that `path` is, if it is one. One that has a name is opened, which waits for a
    /// writer.
    pub(super) fn at(path: &Path) -> Result<Option<Self>> {
        if !is_inlet(path) {
            return Ok(None);
        }
        let (name, opened) = if is_standard(path) {
            let name = "standard input".to_owned();
            if io::stdin().is_terminal() {
                let action = "is a terminal; a disk comes from a pipe or a file";
                return Err(Error::unfit(action).on(name));
            }
            (name, fcntl_dupfd_cloexec(io::stdin().as_fd(), 0))
        } else {
            let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOCTTY;
            (path.display().to_string(), openat(CWD, path, flags, Mode::empty()))
        };
        let fd = opened.map_err(|e| Error::os("open", e).on(&name))?;
        // A hint: fewer switches between the writer and the reader. It fails for other things than
        // pipes.
        system::widen_pipe(&fd, ROOM);
        Ok(Some(Self { name, fd }))
    }

    /// As [`ByteStream::read`].
    fn read(&self, buffer: &mut [u8], wait: Duration) -> Result<Option<usize>> {
        let failed = |e: Errno| Error::os("read", e).on(&self.name);
        let limit = Timespec {
            tv_sec: i64::try_from(wait.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: wait.subsec_nanos().into(),
        };
        match poll(&mut [PollFd::from_borrowed_fd(self.fd.as_fd(), PollFlags::IN)], Some(&limit)) {
            Ok(0) | Err(Errno::INTR) => return Ok(None),
            Ok(_) => {}
            Err(e) => return Err(failed(e)),
        }
        match rustix::io::read(&self.fd, buffer) {
            Ok(n) => Ok(Some(n)),
            Err(Errno::INTR | Errno::AGAIN) => Ok(None),
            Err(e) => Err(failed(e)),
        }
    }

    /// As a stream.
    pub(super) fn stream(self) -> ByteStream {
        ByteStream::new(self.name.clone(), move |buffer, wait| self.read(buffer, wait))
    }

    /// All of it, in a nameless temporary file.
    pub(super) fn kept(self, context: &Context) -> Result<File> {
        let (file, folder) = pipe::nameless()?;
        let name = self.name.clone();
        context.log.say(format_args!(
            "{name}: must be read out of order here; saving it to an unnamed temporary file in {} \
             first",
            folder.display()
        ));
        let length = self.pour(&file)?;
        let sized = transfer::retry(|| ftruncate(&file, length));
        sized.map_err(|e| Error::os("write the temporary file", e).on(&name))?;
        let options = FileOptions { lock: Lock::Off, ..FileOptions::default() };
        describe(Path::new(&name), file, false, options)
    }

    /// Writes all of it to an empty file. Returns how many bytes.
    fn pour(&self, file: &OwnedFd) -> Result<u64> {
        let (mut buffer, mut at) = (vec![0; PIECE], 0);
        loop {
            let Some(n) = self.read(&mut buffer, Duration::from_secs(1))? else { continue };
            if n == 0 {
                return Ok(at);
            }
            let piece = buffer.get(..n).unwrap_or_default();
            if !is_zero(piece) {
                let written = transfer::write_all(file.as_fd(), piece, at);
                let action = "write the temporary file";
                written.map_err(|e| Error::os(action, e).on(&self.name).at(at))?;
            }
            at += n as u64;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn pipe() -> (Inlet, std::fs::File) {
        let (read, write) = rustix::pipe::pipe().unwrap();
        (Inlet { name: "it".into(), fd: read }, write.into())
    }

    #[test]
    fn nothing_for_now_is_not_the_end() {
        let (inlet, mut writer) = pipe();
        let mut buffer = [0; 8];
        assert_eq!(inlet.read(&mut buffer, Duration::ZERO).unwrap(), None);
        writer.write_all(b"abc").unwrap();
        assert_eq!(inlet.read(&mut buffer, Duration::ZERO).unwrap(), Some(3));
        drop(writer);
        assert_eq!(inlet.read(&mut buffer, Duration::ZERO).unwrap(), Some(0));
    }

    #[test]
    fn all_of_it_is_kept_as_a_disk_with_holes_where_it_is_zero() {
        let (inlet, mut writer) = pipe();
        let mut bytes = vec![0; 300_001];
        bytes[5] = 1;
        bytes[299_000] = 2;
        let written = bytes.clone();
        let writing = std::thread::spawn(move || writer.write_all(&written).unwrap());
        let file = inlet.kept(&Context::default()).unwrap();
        writing.join().unwrap();
        let mut read = vec![9; bytes.len()];
        device::Blocking::read_at(&file, &mut read, 0).unwrap();
        assert!(read == bytes);
        assert_eq!(device::Blocking::info(&file).size, 300_001);
    }
}
