//! Which disks are attached, as the kernel's table of mounts and its block devices say.

use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use device::{Error, Result};

use crate::disk::{AttachedDisk, OF_DEVICES, OF_FILES};
use crate::fuse::TYPE;
use crate::kernel::{BACKEND, index_of};
use crate::ublk;

/// The disks that are attached, as far as this process sees their mounts.
///
/// # Errors
/// The table of mounts cannot be read.
pub fn attached() -> Result<Vec<AttachedDisk>> {
    let table = std::fs::read("/proc/self/mountinfo");
    let table = table.map_err(|e| Error::os("read the table of mounts", e))?;
    let files = table.split(|b| *b == b'\n').filter_map(of_line);
    Ok(files.chain(devices()).chain(ublk::devices()).collect())
}

/// Devices of the kernel's NBD client that bear our mark.
fn devices() -> Vec<AttachedDisk> {
    let entries = std::fs::read_dir("/sys/block").into_iter().flatten().flatten();
    let found = entries.filter_map(|entry| {
        let path = PathBuf::from("/dev").join(entry.file_name());
        index_of(&path)?;
        let backend = std::fs::read_to_string(entry.path().join("backend")).ok()?;
        let disk = backend.trim_end().strip_prefix(BACKEND)?.to_owned();
        let is_read_only = std::fs::read(entry.path().join("ro")).is_ok_and(|ro| ro == b"1\n");
        Some(AttachedDisk { path, disk, is_read_only, kind: OF_DEVICES, is_waiting: false })
    });
    let mut found: Vec<_> = found.collect();
    found.sort_by_key(|disk| index_of(&disk.path));
    found
}

/// A line of proc_pid_mountinfo(5), if it is one of ours.
fn of_line(line: &[u8]) -> Option<AttachedDisk> {
    let mut words = line.split(|b| *b == b' ');
    let path = words.nth(4)?;
    let options = words.next()?;
    let mut rest = words.skip_while(|word| *word != b"-").skip(1);
    if rest.next()? != TYPE.as_bytes() {
        return None;
    }
    let disk = String::from_utf8_lossy(&unescaped(rest.next()?)).into_owned();
    let path = PathBuf::from(std::ffi::OsString::from_vec(unescaped(path)));
    let is_read_only = options.split(|b| *b == b',').any(|word| word == b"ro");
    Some(AttachedDisk { path, disk, is_read_only, kind: OF_FILES, is_waiting: false })
}

/// The kernel writes blanks, line ends and backslashes as `\` and three octal digits.
fn unescaped(word: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(word.len());
    let mut rest = word;
    while let [first, after @ ..] = rest {
        let octal = after.get(..3).filter(|_| *first == b'\\');
        let octal = octal.and_then(|digits| std::str::from_utf8(digits).ok());
        match octal.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = after.get(3..).unwrap_or_default();
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_table_is_read_with_optional_fields_and_odd_names() {
        let line = br"61 28 0:53 / /mnt/a\040b\134c ro,nosuid shared:7 - fuse.diskferry memory:1G\040x rw,user_id=0";
        let found = of_line(line).unwrap();
        assert_eq!(found.path, PathBuf::from(r"/mnt/a b\c"));
        assert_eq!((found.disk.as_str(), found.is_read_only), ("memory:1G x", true));
        assert_eq!(of_line(b"61 28 0:53 / /mnt rw - tmpfs tmpfs rw"), None);
        assert_eq!(of_line(b"61 28"), None);
        assert_eq!(unescaped(br"\04"), br"\04");
    }
}
