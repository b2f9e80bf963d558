//! File systems of our own, each in an image on a loop device (or a tmpfs), and loop devices over
//! files. They are put away when dropped.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::MIB;
use crate::peers::{find, skip, skip_environment};
use crate::temp::TempDir;

/// A kind of file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "their own names")]
pub enum Kind {
    Tmpfs,
    Ext4,
    Xfs,
    Btrfs,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Tmpfs, Self::Ext4, Self::Xfs, Self::Btrfs];

    /// As `mount` knows it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tmpfs => "tmpfs",
            Self::Ext4 => "ext4",
            Self::Xfs => "xfs",
            Self::Btrfs => "btrfs",
        }
    }
}

/// A mounted file system, empty at first.
#[derive(Debug)]
pub struct Mounted {
    path: PathBuf,
    _temp: TempDir,
}

impl Mounted {
    /// Makes and mounts one of at least `mib` MiB. `None`, after saying so, without root or mkfs.
    pub fn new(kind: Kind, mib: u64) -> Option<Self> {
        let temp = TempDir::new();
        let path = temp.join("mnt");
        std::fs::create_dir(&path).unwrap();
        let mut mount = Command::new("mount");
        if kind == Kind::Tmpfs {
            mount.args(["-t", "tmpfs", "-o", &format!("size={mib}M"), "tmpfs"]);
        } else {
            let name = format!("mkfs.{}", kind.name());
            let Some(mkfs) = find(&name) else {
                skip(&format!("needs {name}"));
                return None;
            };
            // xfs takes no less than 300 MiB, btrfs no less than 110.
            let least = if kind == Kind::Xfs { 320 } else { 128 };
            let image = temp.sparse_file("image", mib.max(least) * MIB);
            let made = Command::new(mkfs).arg("-q").arg(&image).output().unwrap();
            assert!(made.status.success(), "{name}: {made:?}");
            mount.args(["-o", "loop"]).arg(&image);
        }
        let mounted = mount.arg(&path).output();
        if !mounted.is_ok_and(|o| o.status.success()) {
            skip_environment(&format!("mounting a {} needs root and loop devices", kind.name()));
            return None;
        }
        Some(Self { path, _temp: temp })
    }

    /// Where it is mounted.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The path of an entry in it.
    pub fn join(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let unmounted = Command::new("umount").arg(&self.path).output();
        if !unmounted.is_ok_and(|o| o.status.success()) {
            let _ = Command::new("umount").arg("-l").arg(&self.path).output();
        }
    }
}

/// A loop device over a file.
#[derive(Debug)]
pub struct Loop(PathBuf);

impl Loop {
    /// Sets one up. `None`, after saying so, where that is not allowed.
    pub fn over(file: &Path) -> Option<Self> {
        let losetup = find("losetup")?;
        let output = Command::new(losetup).args(["-f", "--show"]).arg(file).output().unwrap();
        if !output.status.success() {
            skip_environment("a loop device needs root");
            return None;
        }
        Some(Self(PathBuf::from(String::from_utf8(output.stdout).unwrap().trim())))
    }

    /// The device.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        if let Some(losetup) = find("losetup") {
            let _ = Command::new(losetup).arg("-d").arg(&self.0).output();
        }
    }
}
