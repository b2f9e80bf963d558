//! Mounts on which a rule for a file does not hold.
//!
//! A landlock rule is for an inode. Without its cache, 9p makes a new inode at every lookup of a
//! file, so the rule would never match and the file could not be opened. Only the inode of a
//! mount's root stays the same.

use std::cell::OnceCell;
use std::path::{Path, PathBuf};

use device::text;
use rustix::fs::{AtFlags, CWD, StatxFlags, statx};

/// The file systems whose files have a new inode each time.
const FLEETING: [&[u8]; 1] = [b"9p"];

/// The mounts of this process, read when they are first asked for, and once: there may be
/// thousands, and each takes the kernel long to describe. Where it has no such file system, none is
/// mounted.
#[derive(Default)]
pub(crate) struct Mounts(OnceCell<Vec<u8>>);

impl Mounts {
    /// The mount point of `path`, if only that can have a rule. (For 9p, statfs reports the file
    /// system of the host.)
    pub(crate) fn only_rule(&self, path: &Path) -> Option<PathBuf> {
        let table = self.0.get_or_init(table);
        if table.is_empty() {
            return None;
        }
        let found = statx(CWD, path, AtFlags::empty(), StatxFlags::MNT_ID).ok()?;
        fleeting(table, found.stx_mnt_id)
    }
}

/// The table of mounts; empty if none of them matters.
fn table() -> Vec<u8> {
    // Mounting one loads it. Where this cannot be read, the table decides.
    let known = std::fs::read("/proc/filesystems");
    match known.is_ok_and(|list| !has_fleeting(&list)) {
        true => Vec::new(),
        false => std::fs::read("/proc/self/mountinfo").unwrap_or_default(),
    }
}

/// Whether the list of the kernel's file systems has one of them.
fn has_fleeting(list: &[u8]) -> bool {
    let mut kinds = list.split(u8::is_ascii_whitespace);
    kinds.any(|kind| FLEETING.contains(&kind))
}

/// The mount point of the mount with that number, if it is such a mount.
fn fleeting(table: &[u8], number: u64) -> Option<PathBuf> {
    let number = number.to_string();
    let line = table.split(|byte| *byte == b'\n').find(|line| {
        line.split(|byte| *byte == b' ').next().is_some_and(|word| word == number.as_bytes())
    })?;
    let mut words = line.split(|byte| *byte == b' ');
    let point = words.nth(4)?;
    // Optional fields, then a dash.
    let kind = words.skip_while(|word| *word != b"-").nth(1)?;
    FLEETING.contains(&kind).then(|| text::unescaped(point).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_files_keep_their_inodes_each_has_its_own_rule() {
        let table = b"22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n\
            31 22 0:27 / /mnt/a\\040b rw,relatime - 9p share rw,trans=virtio\n\
            3 22 0:28 / /mnt/c rw,relatime shared:2 master:1 - 9p c rw\n\
            40 22 0:29 / /mnt/9p rw - virtiofs 9p rw\n";
        assert_eq!(fleeting(table, 31), Some("/mnt/a b".into()));
        assert_eq!(fleeting(table, 3), Some("/mnt/c".into()));
        for number in [22, 40, 1, 2] {
            assert_eq!(fleeting(table, number), None);
        }
        assert_eq!(fleeting(b"3\n3 2 0:1 /\n", 3), None);
        assert!(has_fleeting(b"nodev\tsysfs\n\text4\nnodev\t9p\n"));
        assert!(!has_fleeting(b"nodev\tsysfs\n\text4\nnodev\t9pfs\n"));
        assert_eq!(Mounts::default().only_rule(Path::new("/proc")), None);
    }
}
