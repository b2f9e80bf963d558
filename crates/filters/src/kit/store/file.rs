//! A temporary file without a name, which has each block at its own offset.
//!
//! It is created when first needed, in `$TMPDIR` or `/var/tmp`, and is gone when the program ends.
//! Calls that may wait for a disk run in the pool.

use runtime::{Promised, WorkPool, promise};
use std::ffi::OsString;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use device::{Buffer, Error, ErrorKind, Fault, Reach, Result, Slice};
use rustix::io::Errno;

use super::system;

/// The longest read that is done on the spot if it is in the page cache, in bytes.
const AT_ONCE: usize = 64 << 10;

/// The longest write that is nearly always quick, in bytes.
const QUICK: usize = 1 << 20;

/// A small page, in bytes.
const PAGE: usize = 4 << 10;

/// The file.
#[derive(Clone)]
pub(crate) struct TempFile(Arc<Inner>);

struct Inner {
    folder: PathBuf,
    file: OnceLock<File>,
    /// Whether its file system prefers that, once it was asked.
    prefers_pages: OnceLock<bool>,
    pool: WorkPool,
    /// For writes into the page cache: a reactor does them after its turn.
    writers: WorkPool,
    /// Whether the last write found no room.
    full: AtomicBool,
}

impl TempFile {
    /// A file in the usual place for large temporary files.
    pub(crate) fn new(pool: &WorkPool) -> Self {
        Self::within(folder(), pool)
    }

    /// The system resources that a filter with such a file uses.
    pub(crate) fn reach() -> Reach {
        Reach::nameless(folder())
    }

    /// A file in `folder`.
    pub(crate) fn within(folder: PathBuf, pool: &WorkPool) -> Self {
        let (file, full) = (OnceLock::new(), AtomicBool::new(false));
        // Writes of one file exclude each other in the kernel.
        let (pool, writers) = (pool.clone(), pool.at_most(1).for_quick_work());
        let prefers_pages = OnceLock::new();
        Self(Arc::new(Inner { folder, file, prefers_pages, pool, writers, full }))
    }

    /// Creates the file, if there is none yet. May block.
    ///
    /// # Errors
    /// The file cannot be created.
    pub(crate) fn make(&self) -> Result<()> {
        self.0.file().map(drop)
    }

    /// Whether the last write found no room.
    pub(crate) fn is_full(&self) -> bool {
        self.0.full.load(Ordering::Relaxed)
    }

    /// Starts to fill `buffer` with the data at `offset`.
    pub(crate) fn read(&self, offset: u64, mut buffer: Buffer) -> Promised<Result<Buffer>> {
        let (owed, answer) = promise();
        if self.0.read_now(&mut buffer, offset) {
            owed.keep(Ok(buffer));
            return answer;
        }
        let inner = self.0.clone();
        self.0.pool.run(move || {
            let read = inner.read(&mut buffer, offset).map(|()| buffer);
            owed.keep(read);
        });
        answer
    }

    /// Writes `data` at `offset`.
    ///
    /// # Errors
    /// The system's error: no space left, for one.
    pub(crate) async fn write(&self, offset: u64, data: Slice) -> Result<()> {
        self.put(offset, data, false).await
    }

    /// The same, for bytes that are likely to be written again a few at a time: page by page, where
    /// that makes the later writes quicker.
    pub(crate) async fn write_by_page(&self, offset: u64, data: Slice) -> Result<()> {
        self.put(offset, data, true).await
    }

    async fn put(&self, offset: u64, data: Slice, by_page: bool) -> Result<()> {
        let (owed, answer) = promise();
        let inner = self.0.clone();
        let pool = if data.len() <= QUICK { &self.0.writers } else { &self.0.pool };
        pool.run(move || {
            let written = match by_page && inner.prefers_pages() {
                true => inner.write_pages(&data, offset),
                false => inner.write(&data, offset),
            };
            drop(data);
            let no_room = matches!(&written, Err(e) if e.kind() == ErrorKind::NoSpace);
            inner.full.store(no_room, Ordering::Relaxed);
            owed.keep(written);
        });
        answer.await.unwrap_or_else(|| Err(lost()))
    }

    /// Frees the space of a range, if the file system can. Nothing depends on it.
    pub(crate) async fn punch(&self, offset: u64, len: u64) {
        if self.0.file.get().is_none() || len == 0 {
            return;
        }
        let (owed, answer) = promise();
        let inner = self.0.clone();
        self.0.pool.run(move || {
            if let Some(file) = inner.file.get() {
                while system::punch(file, offset, len) == Err(Errno::INTR) {}
                inner.full.store(false, Ordering::Relaxed);
            }
            owed.keep(());
        });
        answer.await;
    }
}

/// A read that `read` has started.
pub(crate) async fn ended(answer: Promised<Result<Buffer>>) -> Result<Buffer> {
    answer.await.unwrap_or_else(|| Err(lost()))
}

fn lost() -> Error {
    Error::new(ErrorKind::Io, Fault::Us, "a temporary file did not answer; this is a defect")
}

impl Inner {
    fn file(&self) -> Result<&File> {
        if let Some(file) = self.file.get() {
            return Ok(file);
        }
        let made = programs::names::nameless_in(&self.folder)
            .map_err(|e| Error::os("make a temporary file", e).on(self.folder.display()))?;
        Ok(self.file.get_or_init(|| made.into()))
    }

    /// Reads what is in the page cache; returns whether that was all.
    fn read_now(&self, buf: &mut [u8], offset: u64) -> bool {
        let Some(file) = self.file.get().filter(|_| buf.len() <= AT_ONCE) else { return false };
        let n = buf.len();
        system::read_now(file, buf, offset) == Ok(n)
    }

    fn read(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        // Only written data is read; the rest of a last block is a hole at the end of the file.
        let read = self.file()?.read_exact_at(buf, offset);
        read.map_err(|e| self.error("read", buf.len(), offset, e))
    }

    fn write(&self, data: &[u8], offset: u64) -> Result<()> {
        let written = self.file()?.write_all_at(data, offset);
        written.map_err(|e| self.error("write", data.len(), offset, e))
    }

    fn prefers_pages(&self) -> bool {
        let asked = |file| *self.prefers_pages.get_or_init(|| system::prefers_pages(file));
        self.file.get().is_some_and(asked)
    }

    fn write_pages(&self, data: &[u8], mut offset: u64) -> Result<()> {
        for part in data.chunks(PAGE) {
            self.write(part, offset)?;
            offset += part.len() as u64;
        }
        Ok(())
    }

    fn error(&self, what: &str, len: usize, offset: u64, e: std::io::Error) -> Error {
        let action = format!("{what} {len} bytes of a temporary file");
        Error::os(action, e).on(self.folder.display()).at(offset)
    }
}

/// Where such files go.
fn folder() -> PathBuf {
    let set = std::env::var_os("TMPDIR").filter(|dir| !dir.is_empty());
    set.unwrap_or_else(|| OsString::from("/var/tmp")).into()
}
