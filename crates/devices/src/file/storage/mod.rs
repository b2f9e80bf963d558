//! Which bytes of which files and disks a file or block device is: a partition is a part of its
//! disk, a loop device a part of its file, which may be a disk again; and whether no other node
//! leads to them.

#[cfg(target_os = "linux")]
mod linux;
#[cfg(not(target_os = "linux"))]
mod other;

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use device::Params;

use super::descriptor::path_of;
use crate::storage::{Node, Storage, StoredRange};
#[cfg(target_os = "linux")]
use linux::{is_local, of_disk};
#[cfg(not(target_os = "linux"))]
use other::{is_local, of_disk};

/// What the parameters of `file` name.
pub(crate) fn storage(params: &Params) -> Storage {
    let Ok(path) = path_of(params) else { return Storage::Unknown };
    let path = if path.as_os_str() == "-" { PathBuf::from("/dev/stdout") } else { path };
    // If it cannot be examined, opening it will fail with the reason.
    fs::metadata(&path).map_or(Storage::Unknown, |found| {
        let kind = found.file_type();
        // Bytes in a pipe are stored nowhere.
        let is_disk = kind.is_file() || kind.is_block_device() || kind.is_dir();
        if is_disk { Storage::Spans(spans(&path, &found)) } else { Storage::Own }
    })
}

/// The ranges through which its bytes can be reached, itself first.
fn spans(path: &Path, found: &fs::Metadata) -> Vec<StoredRange> {
    if found.file_type().is_block_device() {
        return of_disk(path, found);
    }
    let node = Node::File(found.dev(), found.ino());
    vec![StoredRange { node, start: 0, end: u64::MAX, alone: is_local(path) }]
}
