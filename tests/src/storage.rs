//! Loop devices, and file systems on them or in memory. All of it needs root.
//!
//! What was made is taken apart when dropped.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::peers::{peer, skip_environment};
use crate::temp::TempDir;

/// A file as a block device.
#[derive(Debug)]
pub struct Loop(PathBuf);

impl Loop {
    /// Attaches `file`, with further options of losetup; `None`, after saying so, where that is
    /// not to be had.
    pub fn over(file: &Path, options: &[&str]) -> Option<Self> {
        let mut losetup = Command::new("losetup");
        losetup.args(options).args(["-f", "--show"]).arg(file);
        match losetup.output() {
            Ok(output) if output.status.success() => {
                let path = String::from_utf8(output.stdout).unwrap();
                Some(Self(path.trim().into()))
            }
            _ => {
                skip_environment("attaching a loop device needs root");
                None
            }
        }
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("-d").arg(&self.0).status();
    }
}

/// A file system, mounted.
#[derive(Debug)]
pub struct Mounted {
    path: PathBuf,
    device: Option<Loop>,
    _temp: TempDir,
}

impl Mounted {
    /// A new file system of `size` bytes, `kind` (`ext4`, `xfs`, `btrfs`) on a loop device, or
    /// `tmpfs`, or `ramfs`, which has no holes to be made and no limit; `None`, after saying so,
    /// where that is not to be had.
    pub fn new(kind: &str, size: u64) -> Option<Self> {
        let temp = TempDir::new();
        let path = temp.join("mnt");
        fs::create_dir(&path).unwrap();
        let mut mount = Command::new("mount");
        let device = if kind == "tmpfs" {
            mount.args(["-t", "tmpfs", "-o", &format!("size={size}"), "none"]);
            None
        } else if kind == "ramfs" {
            mount.args(["-t", "ramfs", "none"]);
            None
        } else {
            let image = temp.sparse_file("image", size);
            let made = Command::new(peer(&format!("mkfs.{kind}"))?).arg("-q").arg(&image).output();
            assert!(made.unwrap().status.success(), "mkfs.{kind}");
            let device = Loop::over(&image, &[])?;
            mount.arg(device.path());
            Some(device)
        };
        if !mount.arg(&path).output().is_ok_and(|o| o.status.success()) {
            skip_environment(&format!("mounting {kind} needs root, and a kernel that has it"));
            return None;
        }
        Some(Self { path, device, _temp: temp })
    }

    /// Where it is mounted.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The path of an entry in it.
    pub fn join(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// The block device it lies on.
    pub fn device(&self) -> &Path {
        self.device.as_ref().expect("on a block device").path()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.path).status();
    }
}
