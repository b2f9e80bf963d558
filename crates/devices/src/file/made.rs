//! A file that was made for a copy: kept, or removed if it is still the file of that name, and its
//! name made durable. One that was made without a name gets it when it is complete; until then
//! there is nothing to remove: it disappears with its last descriptor, even if this process is
//! killed.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use runtime::Mutex;

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use programs::names;

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

    /// One that has no name yet.
    pub(crate) fn nameless(path: &Path, numbers: (u64, u64), file: OwnedFd) -> Self {
        Self { nameless: Mutex::new(Some(file)), ..Self::new(path, numbers) }
    }
}

impl Made for MadeFile {
    fn appear(&self) -> io::Result<()> {
        let mut nameless = self.nameless.lock();
        if let Some(file) = &*nameless {
            names::link(file, &self.path)?;
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
        if self.nameless.lock().take().is_some() {
            return true;
        }
        names::remove(&self.path, self.numbers).is_ok()
    }

    fn sync_name(&self) -> io::Result<()> {
        names::sync(&self.path)
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::fstat;

    use super::*;

    /// A file without a name, where there can be one.
    fn nameless(path: &Path) -> Option<MadeFile> {
        let fd = names::nameless_for(path, 0o600).ok()?;
        let stat = fstat(&fd).unwrap();
        Some(MadeFile::nameless(path, (stat.st_dev, stat.st_ino), fd))
    }

    #[test]
    fn what_has_no_name_is_removed_at_once_and_what_got_one_by_its_name() {
        let scratch = trial::Scratch::new("/tmp");
        let path = scratch.path("made");
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
    }
}
