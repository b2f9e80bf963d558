//! Loop devices over files of a test, detached when dropped.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::peers::{peer, skip_environment};

/// A block device that shows a file, or a part of it.
#[derive(Debug)]
pub struct Loop(PathBuf);

impl Loop {
    /// Shows all of `file`; `None`, after saying so, where that cannot be done.
    pub fn over(file: &Path) -> Option<Self> {
        Self::with(file, &[] as &[&str])
    }

    /// The same with options of losetup(8).
    pub fn with(file: &Path, options: &[impl AsRef<OsStr>]) -> Option<Self> {
        let losetup = peer("losetup")?;
        let mut command = Command::new(losetup);
        let made = command.args(["-f", "--show"]).args(options).arg(file).output().unwrap();
        if !made.status.success() {
            skip_environment("needs root and a loop device");
            return None;
        }
        Some(Self(String::from_utf8(made.stdout).unwrap().trim().into()))
    }

    /// The device's node.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        if let Some(losetup) = peer("losetup") {
            let _ = Command::new(losetup).arg("-d").arg(&self.0).status();
        }
    }
}
