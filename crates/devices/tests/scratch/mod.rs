//! What tests share: a directory of a test's own, a device without zeroing, being alone.
#![allow(dead_code, reason = "each test uses some of it")]

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use device::{Blocking, Buffer, Device, Info, Operation, Outcome, Result};

/// For tests that start programs: one at a time. A lock lives until the last copy of its
/// descriptor is closed, and the child of another thread has one between fork and exec.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A directory that is removed with all that is in it when it is dropped.
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    /// A new directory in `parent`.
    pub(crate) fn new(parent: impl AsRef<Path>) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("diskferry-test-{}-{number}", std::process::id());
        let path = parent.as_ref().join(name);
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A device of which only reading, writing and flushing are left.
pub(crate) struct NoZero(pub(crate) Arc<dyn Device>);

impl Blocking for NoZero {
    fn info(&self) -> &Info {
        self.0.info()
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        let buffer = Buffer::zeroed(buf.len());
        let Outcome::Read(read) = self.0.run(Operation::Read { offset, buffer })? else {
            panic!("not what was asked for")
        };
        buf.copy_from_slice(&read);
        Ok(())
    }

    fn write_at(&self, data: &[u8], offset: u64, fua: bool) -> Result<()> {
        let data = Buffer::copy_of(data).into();
        self.0.run(Operation::Write { offset, data, fua }).map(drop)
    }

    fn flush(&self) -> Result<()> {
        self.0.run(Operation::Flush).map(drop)
    }
}
