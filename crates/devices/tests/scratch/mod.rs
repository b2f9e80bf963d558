//! What tests share: a directory of a test's own, being alone.
#![allow(dead_code, reason = "each test uses some of it")]

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

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
