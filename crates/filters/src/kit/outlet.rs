//! A file that a filter writes: a log or a report.
//!
//! It may be a file, a pipe or a terminal; `/dev/stderr` and `/dev/fd/N` are what the program was
//! started with. It is opened once, before the first client is served.

use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::os::fd::AsFd;

use device::{Error, ErrorKind, Fault, Result};

/// A file to be written.
#[derive(Debug)]
pub(crate) struct Outlet {
    file: File,
    name: String,
    /// Whether its contents may be replaced: it is a regular file that need not be kept.
    replaceable: bool,
}

impl Outlet {
    /// Opens `name`, and creates it if need be; empties it first unless `append`.
    pub(crate) fn open(name: &str, append: bool) -> Result<Self> {
        // A file that others share (a terminal, another program's output) is never emptied.
        let shared = name.starts_with("/dev/") || name.starts_with("/proc/");
        let file = open_file(name).map_err(|e| Error::os("open for writing", e).on(name))?;
        let replaceable = !append && !shared && file.metadata().is_ok_and(|m| m.is_file());
        if replaceable {
            file.set_len(0).map_err(|e| Error::os("empty", e).on(name))?;
        }
        Ok(Self { file, name: name.to_owned(), replaceable })
    }

    /// Appends `bytes`.
    pub(crate) fn append(&self, bytes: &[u8]) -> Result<()> {
        (&self.file).write_all(bytes).map_err(|e| Error::os("write", e).on(&self.name))
    }

    /// Replaces the earlier contents with `bytes`; appends instead if they cannot be replaced (a
    /// pipe, a terminal, a file to keep).
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
        _ => programs::names::append(name.as_ref()).map(File::from),
    }
}

/// The error of requests that were still waiting when their client left; they were not carried out.
pub(crate) fn left() -> Error {
    Error::new(ErrorKind::Cancelled, Fault::Peer, "the client left before its turn")
}
