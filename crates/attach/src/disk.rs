//! A disk that is attached, as it is listed.

use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

// Kinds, which are also the prefixes of the points' names.
pub(crate) const OF_FILES: &str = "fuse";
pub(crate) const OF_DEVICES: &str = "nbd";
pub(crate) const OF_UBLK: &str = "ublk";

/// A disk that is attached somewhere on this machine, by any process.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct AttachedDisk {
    /// Where.
    pub path: PathBuf,
    /// The name of the disk, for people; what could confuse the table of mounts is replaced.
    pub disk: String,
    /// It cannot be written there.
    pub is_read_only: bool,
    /// As what: `fuse`, `nbd` or `ublk`.
    pub kind: &'static str,
    /// Its process was killed, and what uses it waits for another one.
    pub is_waiting: bool,
}

impl AttachedDisk {
    /// Whether it is there when its process has been killed, for another one.
    #[must_use]
    pub fn outlives(&self) -> bool {
        self.kind == OF_UBLK
    }

    /// Whether this is where it is attached.
    #[must_use]
    pub fn is_at(&self, path: &std::path::Path) -> bool {
        self.path.as_os_str().as_bytes() == path.as_os_str().as_bytes()
    }
}
