//! Files that are made by name before a sandbox shuts, or through what it leaves open: an empty one
//! where an image is to be that is opened once more when it is made, and the mark beside a target.

use std::io::{ErrorKind, Read, Result as Answered, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use device::{Error, Result, text};
use disk::Made;
use programs::names;

use super::CopyJob;
use super::made::MadeTarget;

/// Bytes of a mark that are read.
const MARKED: u64 = 64 << 10;

/// A file that was made.
#[derive(Debug)]
struct PlacedFile {
    path: PathBuf,
    /// Its device and inode number.
    numbers: (u64, u64),
    kept: std::sync::atomic::AtomicBool,
}

impl Made for PlacedFile {
    fn keep(&self) {
        self.kept.store(true, std::sync::atomic::Ordering::SeqCst);
    }

    fn remove(&self) -> bool {
        let kept = self.kept.swap(true, std::sync::atomic::Ordering::SeqCst);
        !kept && names::remove(&self.path, self.numbers).is_ok()
    }

    fn sync_name(&self) -> Answered<()> {
        names::sync(&self.path)
    }
}

/// Makes an empty file where the image of a job that can go on is to be. `None`: there is one, or
/// the target is none. It starts no thread.
pub(super) fn place(job: &CopyJob) -> Result<Option<MadeTarget>> {
    let path = job.target.path().filter(|_| job.target_stack.image().format().is_some());
    let Some(path) = path.filter(|_| !job.is_there()).map(text::path) else { return Ok(None) };
    let failed = |e| Error::os("create", e).on(path.display());
    let file = match names::make(&path, 0o666) {
        Ok(file) => file,
        Err(e) if e.kind() == ErrorKind::AlreadyExists => return Ok(None),
        Err(e) => return Err(failed(e)),
    };
    let numbers = names::numbers(&file).map_err(failed)?;
    names::own(&path);
    let placed = PlacedFile { path, numbers, kept: false.into() };
    Ok(Some(MadeTarget::of(Some(Box::new(placed)))))
}

/// Makes a file with this text, unless there is one.
pub(crate) fn write(path: &Path, text: &str) -> Result<()> {
    let written = match names::make(path, 0o666) {
        Ok(file) => std::fs::File::from(file).write_all(text.as_bytes()),
        Err(e) if e.kind() == ErrorKind::AlreadyExists => Ok(()),
        Err(e) => Err(e),
    };
    written.map_err(|e| Error::os("write", e).on(path.display()))
}

/// A file that an earlier run has left is this one's: it begins with this, or was cut off before.
pub(super) fn adopt(path: &Path, begins: &str) {
    let is_ours = || {
        let mut head = Vec::new();
        let file = std::fs::File::open(path)?;
        file.take(begins.len() as u64).read_to_end(&mut head)?;
        Ok::<_, std::io::Error>(begins.as_bytes().starts_with(&head))
    };
    if path.is_file() && is_ours().unwrap_or(false) {
        names::own(path);
    }
}

/// The mark beside a file, if that is the target of a copy with a journal which has not ended.
#[must_use]
pub fn unfinished(target: &Path) -> Option<PathBuf> {
    let mut mark = target.as_os_str().to_owned();
    mark.push(super::resuming::MARK);
    // A pipe of that name would be waited for.
    let mark = Some(PathBuf::from(mark)).filter(|mark| mark.is_file())?;
    let mut text = String::new();
    let file = std::fs::File::open(&mark).ok()?;
    file.take(MARKED).read_to_string(&mut text).ok()?;
    text.contains(super::resuming::UNFINISHED).then_some(mark)
}

/// Removes a file, if it is there.
pub(crate) fn remove(path: &Path) -> Result<()> {
    let found = std::fs::symlink_metadata(path);
    let removed = found.and_then(|found| names::remove(path, (found.dev(), found.ino())));
    match removed {
        Err(e) if e.kind() != ErrorKind::NotFound => Err(Error::os("remove", e).on(path.display())),
        _ => Ok(()),
    }
}
