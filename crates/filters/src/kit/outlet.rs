//! A file that a filter writes on the side: a log, a report.
//!
//! It may be a file, a pipe or a terminal; `/dev/stderr` and `/dev/fd/N` are what the program was
//! started with. It is opened once, before anybody is served.

use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::os::fd::AsFd;

use device::{Error, ErrorKind, Fault, Result};

/// A file to be written.
#[derive(Debug)]
pub(crate) struct Outlet {
    file: File,
    name: String,
    /// What it holds is ours to replace: a file of its own that was not to be kept.
    replaceable: bool,
}

impl Outlet {
    /// Opens `name`, making it if need be; empties it first unless `append`.
    ///
    /// # Errors
    /// What the system says.
    pub(crate) fn open(name: &str, append: bool) -> Result<Self> {
        // What is shared with others (a terminal, another program's output) is never emptied.
        let shared = name.starts_with("/dev/") || name.starts_with("/proc/");
        let file = open_file(name).map_err(|e| Error::os("open for writing", e).on(name))?;
        let replaceable = !append && !shared && file.metadata().is_ok_and(|m| m.is_file());
        if replaceable {
            file.set_len(0).map_err(|e| Error::os("empty", e).on(name))?;
        }
        Ok(Self { file, name: name.to_owned(), replaceable })
    }

    /// Writes `bytes` after what is there.
    ///
    /// # Errors
    /// What the system says.
    pub(crate) fn append(&self, bytes: &[u8]) -> Result<()> {
        (&self.file).write_all(bytes).map_err(|e| Error::os("write", e).on(&self.name))
    }

    /// Writes `bytes` in the place of what was written before; where that cannot be taken back (a
    /// pipe, a terminal, a file that is to be kept), after it.
    ///
    /// # Errors
    /// What the system says.
    pub(crate) fn replace(&self, bytes: &[u8]) -> Result<()> {
        if self.replaceable {
            let emptied = self.file.set_len(0).and_then(|()| (&self.file).seek(SeekFrom::Start(0)));
            emptied.map_err(|e| Error::os("empty", e).on(&self.name))?;
        }
        self.append(bytes)
    }
}

fn open_file(name: &str) -> std::io::Result<File> {
    // These may be sockets, which cannot be opened by name.
    match name {
        "/dev/stderr" => std::io::stderr().as_fd().try_clone_to_owned().map(File::from),
        "/dev/stdout" => std::io::stdout().as_fd().try_clone_to_owned().map(File::from),
        _ => File::options().append(true).create(true).open(name),
    }
}

/// What waited on behalf of a client that has left ends with this, and was not done.
pub(crate) fn left() -> Error {
    Error::new(ErrorKind::Cancelled, Fault::Peer, "the client left before it was its turn")
}
