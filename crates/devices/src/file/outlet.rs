//! Where the bytes of a pipe go: standard output, or a pipe that has a name. The latter is opened
//! by the thread that writes first, since that waits for a reader.

use std::io::{self, IsTerminal};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use device::{Error, ErrorKind, Fault, Result};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::{Errno, fcntl_dupfd_cloexec};

use super::system;

/// The name of standard output.
const STANDARD: &str = "-";
const STANDARD_PATH: &str = "/dev/stdout";
/// The capacity to ask for in a pipe, in bytes.
const ROOM: usize = 1 << 20;

/// A sink for bytes in order.
#[derive(Debug)]
pub(super) struct Outlet {
    name: String,
    /// What to open.
    path: Option<PathBuf>,
    fd: OnceLock<OwnedFd>,
}

/// Whether `path` is that of standard output, which is open already.
pub(super) fn is_standard(path: &Path) -> bool {
    [STANDARD, STANDARD_PATH].iter().any(|name| path.as_os_str() == *name)
}

/// Whether `path` names one. Standard output is one even if it is a file: it is written from where
/// it is, or appended to. By its path it may be a block device, and is a disk then.
pub(super) fn is_outlet(path: &Path) -> bool {
    if path.as_os_str() == STANDARD {
        return true;
    }
    let kind = std::fs::metadata(path).map(|found| found.file_type());
    kind.is_ok_and(|kind| {
        kind.is_fifo() || path.as_os_str() == STANDARD_PATH && !kind.is_block_device()
    })
}

impl Outlet {
    /// The one that `path` is, if it is one.
    pub(super) fn at(path: &Path) -> Result<Option<Self>> {
        if !is_outlet(path) {
            return Ok(None);
        }
        if !is_standard(path) {
            let (name, fd) = (path.display().to_string(), OnceLock::new());
            return Ok(Some(Self { name, path: Some(path.to_owned()), fd }));
        }
        let name = "standard output".to_owned();
        if io::stdout().is_terminal() {
            let action = "is a terminal; redirect it to a file or a pipe";
            return Err(Error::unfit(action).on(name));
        }
        let opened = fcntl_dupfd_cloexec(io::stdout().as_fd(), 0);
        let fd = opened.map_err(|e| Error::os("open for writing", e).on(&name))?;
        Ok(Some(Self { name, path: None, fd: fd.into() }))
    }

    /// Its name, for people.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// The file behind standard output, if it is one.
    pub(super) fn file(&self) -> Option<BorrowedFd<'_>> {
        let fd = self.fd.get()?;
        let stat = rustix::fs::fstat(fd).ok()?;
        let kind = rustix::fs::FileType::from_raw_mode(stat.st_mode);
        (kind == rustix::fs::FileType::RegularFile).then_some(fd.as_fd())
    }

    /// Writes all of `bytes`. Blocks until they are read.
    pub(super) fn write(&self, bytes: &[u8]) -> Result<()> {
        let fd = self.open()?;
        let mut rest = bytes;
        while !rest.is_empty() {
            match rustix::io::write(fd, rest) {
                Ok(n) => rest = rest.get(n..).unwrap_or_default(),
                Err(Errno::INTR) => {}
                // Another program may have made it nonblocking.
                Err(Errno::AGAIN) => wait(fd).map_err(|e| self.error(e))?,
                Err(e) => return Err(self.error(e)),
            }
        }
        Ok(())
    }

    fn open(&self) -> Result<BorrowedFd<'_>> {
        if let (None, Some(path)) = (self.fd.get(), &self.path) {
            let flags = OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOCTTY;
            let opened = openat(CWD, path, flags, Mode::empty());
            let fd = opened.map_err(|e| Error::os("open", e).on(&self.name))?;
            // A hint: fewer turns between the writer and the reader.
            system::widen_pipe(&fd, ROOM);
            let _ = self.fd.set(fd);
        }
        let none = || Error::new(ErrorKind::Io, Fault::Us, "is not open").on(&self.name);
        self.fd.get().map(AsFd::as_fd).ok_or_else(none)
    }

    fn error(&self, e: Errno) -> Error {
        let error = match e {
            Errno::PIPE => {
                let action = "write: the reader has closed it; what it read is incomplete";
                Error::new(ErrorKind::Io, Fault::File, action)
            }
            e => Error::os("write", e),
        };
        error.on(&self.name)
    }
}

fn wait(fd: BorrowedFd<'_>) -> std::result::Result<(), Errno> {
    match poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::OUT)], None) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(e) => Err(e),
    }
}
