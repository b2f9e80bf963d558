//! A file that was made for a copy: kept, or removed if it is still the file of that name, and its name made
//! durable. One that was made without a name gets it when it is complete; until then there is nothing to remove:
//! it disappears with its last descriptor, even if this process is killed.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use rustix::fs::{AtFlags, CWD, linkat};
use rustix::io::Errno;

use crate::Made;

/// A file by its name, and what it was when it was made.
#[derive(Debug)]
pub(crate) struct MadeFile {
    path: PathBuf,
    /// Its device and inode number.
    numbers: (u64, u64),
    settled: AtomicBool,
    /// It, as long as it has no name.
    nameless: Mutex<Option<OwnedFd>>,
}

impl MadeFile {
    pub(crate) fn new(path: &Path, numbers: (u64, u64)) -> Self {
        let settled = AtomicBool::new(false);
        Self { path: path.to_owned(), numbers, settled, nameless: Mutex::default() }
    }

    /// Whether an open file without a name can be given one here: that needs /proc.
    pub(crate) fn can_appear(file: &OwnedFd) -> bool {
        std::fs::symlink_metadata(link(file)).is_ok()
    }

    /// One that has no name yet.
    pub(crate) fn nameless(path: &Path, numbers: (u64, u64), file: OwnedFd) -> Self {
        Self { nameless: Mutex::new(Some(file)), ..Self::new(path, numbers) }
    }
}

impl Made for MadeFile {
    fn appear(&self) -> io::Result<()> {
        let mut nameless = self.nameless.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(file) = &*nameless {
            linkat(CWD, link(file), CWD, &self.path, AtFlags::SYMLINK_FOLLOW)?;
        }
        *nameless = None;
        Ok(())
    }

    fn keep(&self) {
        self.settled.store(true, SeqCst);
    }

    fn remove(&self) -> bool {
        if self.settled.swap(true, SeqCst) {
            return false;
        }
        if self.nameless.lock().unwrap_or_else(PoisonError::into_inner).take().is_some() {
            return true;
        }
        let same = std::fs::symlink_metadata(&self.path)
            .is_ok_and(|found| (found.dev(), found.ino()) == self.numbers);
        same && std::fs::remove_file(&self.path).is_ok()
    }

    fn sync_name(&self) -> io::Result<()> {
        let parent = self.path.parent().filter(|p| !p.as_os_str().is_empty());
        let directory = File::open(parent.unwrap_or(Path::new(".")));
        let synced = directory.and_then(|directory| directory.sync_all());
        match synced.as_ref().err().and_then(Errno::from_io_error) {
            // If the directory cannot be synced, syncs the whole file system.
            Some(Errno::ACCESS | Errno::INVAL | Errno::OPNOTSUPP | Errno::NOSYS) => {
                Ok(rustix::fs::syncfs(File::open(&self.path)?)?)
            }
            _ => synced,
        }
    }
}

/// The path in /proc to an open file.
fn link(file: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", file.as_raw_fd())
}

#[cfg(test)]
mod tests {
    use rustix::fs::{Mode, OFlags, fstat, openat};

    use super::*;

    /// A file without a name, where there can be one.
    fn nameless(path: &Path) -> Option<MadeFile> {
        let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
        let fd = openat(CWD, path.parent()?, flags, Mode::from_raw_mode(0o600)).ok()?;
        let stat = fstat(&fd).unwrap();
        Some(MadeFile::nameless(path, (stat.st_dev, stat.st_ino), fd))
    }

    #[test]
    fn what_has_no_name_is_removed_at_once_and_what_got_one_by_its_name() {
        let path = std::env::temp_dir().join(format!("diskferry-made-{}", std::process::id()));
        let Some(made) = nameless(&path) else { return println!("skipped: no nameless files") };
        assert!(made.remove(), "nothing is left of it");
        assert!(!made.remove() && !path.exists());
        let made = nameless(&path).unwrap();
        made.appear().unwrap();
        assert!(path.exists());
        assert!(made.remove() && !path.exists());
        let made = nameless(&path).unwrap();
        made.appear().unwrap();
        made.keep();
        assert!(!made.remove() && path.exists());
        std::fs::remove_file(&path).unwrap();
    }
}
