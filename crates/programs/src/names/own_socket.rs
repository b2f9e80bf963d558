//! The name of a socket that this process has bound.

use std::io;
use std::path::{Path, PathBuf};

use super::remove;
use crate::system::BoundSocket;

/// A socket that was bound here, by its name. While this lives no other file has its numbers.
#[derive(Debug)]
pub struct OwnSocket {
    path: PathBuf,
    file: BoundSocket,
}

impl OwnSocket {
    /// The socket that was just bound at `path`, absolute.
    pub fn bound(path: &Path) -> io::Result<Self> {
        Ok(Self { path: path.to_owned(), file: BoundSocket::at(path)? })
    }

    /// Its name.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Sets the mode and the owner of the socket's file: of this one, whatever has its name by now.
    ///
    /// # Errors
    /// The system does not let us, or has no call that is sure to mean this file.
    pub fn set_rights(
        &self,
        mode: Option<u32>,
        user: Option<u32>,
        group: Option<u32>,
    ) -> io::Result<()> {
        self.file.set_rights(mode, user, group)
    }

    /// Removes the name if it is still this socket's.
    pub fn remove(&self) {
        // Another program may have removed it, or taken the name; then it is not removed.
        let _ = self.file.numbers().and_then(|numbers| remove(&self.path, numbers));
    }
}
