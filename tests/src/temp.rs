//! Private temporary directories, removed when dropped.
//!
//! Their paths are short, because the path of a Unix socket holds about a hundred bytes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};

static NEXT: AtomicU32 = AtomicU32::new(0);

/// A directory that only this test uses.
#[derive(Debug)]
pub struct TempDir(PathBuf);

impl TempDir {
    /// A new, empty directory below the system's temporary directory.
    pub fn new() -> Self {
        Self::below(&std::env::temp_dir())
    }

    /// A new, empty directory below `parent`.
    pub fn below(parent: &Path) -> Self {
        loop {
            let n = NEXT.fetch_add(1, Ordering::Relaxed);
            let path = parent.join(format!("df-{}-{n}", process::id()));
            match fs::create_dir(&path) {
                Ok(()) => return Self(path),
                Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(e) => panic!("mkdir {}: {e}", path.display()),
            }
        }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The path of an entry in it.
    pub fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Writes a file in it.
    pub fn file(&self, name: &str, content: &[u8]) -> PathBuf {
        let path = self.join(name);
        fs::write(&path, content).unwrap();
        path
    }

    /// Makes an empty sparse file of `size` bytes in it.
    pub fn sparse_file(&self, name: &str, size: u64) -> PathBuf {
        let path = self.join(name);
        fs::File::create(&path).unwrap().set_len(size).unwrap();
        path
    }
}

impl Default for TempDir {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Bytes that differ from place to place and are never zero, so that a hole, a shift or a
/// stale block shows. `offset` is where in the disk the buffer begins.
pub fn pattern(offset: u64, size: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(size);
    let mut at = offset;
    // A block at a time, by its index: a byte by an iterator takes a call or more where little is
    // optimised, and gigabytes are made.
    let mut block = [0; 512];
    while bytes.len() < size {
        // Each 512 bytes have a number of their own, mixed into each of their bytes.
        let mixed = (at >> 9).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes()[2];
        let count = usize::try_from(512 - at % 512).unwrap().min(size - bytes.len());
        let mut byte = at.wrapping_mul(7).to_le_bytes()[0];
        let mut i = 0;
        while i < count {
            block[i] = (byte ^ mixed) | 1;
            byte = byte.wrapping_add(7);
            i += 1;
        }
        bytes.extend_from_slice(&block[..count]);
        at = at.wrapping_add(512 - at % 512);
    }
    bytes
}
