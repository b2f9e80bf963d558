//! Which bytes of which files and disks a file or block device is: a partition is a part of its
//! disk, a loop device a part of its file, which may be a disk again.

use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use device::Params;

use super::block;
use super::open::path_of;
use crate::storage::{Node, Storage, StoredRange};

/// Most devices upon devices to follow.
const DEEPEST: usize = 16;

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
    if !found.file_type().is_block_device() {
        let node = Node::File(found.dev(), found.ino());
        return vec![StoredRange { node, start: 0, end: u64::MAX }];
    }
    let mut spans = vec![StoredRange { node: Node::Disk(found.rdev()), start: 0, end: u64::MAX }];
    let mut path = Some(path.to_owned());
    while let Some(last) = spans.last().copied().filter(|_| spans.len() < DEEPEST) {
        let Node::Disk(number) = last.node else { break };
        let below = part_of_disk(number).or_else(|| part_of_file(path.as_deref()?));
        let Some(below) = below else { break };
        let start = below.start.saturating_add(last.start);
        let end = below.start.saturating_add(last.end).min(below.end);
        spans.push(StoredRange { node: below.node, start, end });
        path = match below.node {
            Node::Disk(number) => device_path(number),
            Node::File(..) => None,
        };
    }
    spans
}

/// Of a partition, the part of its disk.
fn part_of_disk(number: u64) -> Option<StoredRange> {
    let about = about(number);
    let sectors = |name: &str| -> Option<u64> {
        let text = fs::read_to_string(about.join(name)).ok()?;
        text.trim().parse::<u64>().ok()?.checked_mul(512)
    };
    about.join("partition").exists().then_some(())?;
    let (start, len) = (sectors("start")?, sectors("size")?);
    let disk = fs::read_to_string(about.join("../dev")).ok()?;
    let (major, minor) = disk.trim().split_once(':')?;
    let disk = rustix::fs::makedev(major.parse().ok()?, minor.parse().ok()?);
    Some(StoredRange { node: Node::Disk(disk), start, end: start.saturating_add(len) })
}

/// Of a loop device, the part of what it shows.
fn part_of_file(path: &Path) -> Option<StoredRange> {
    let device = fs::File::open(path).ok()?;
    let status = block::loop_status(device.as_fd())?;
    let node = match status.disk {
        0 => Node::File(status.device, status.inode),
        disk => Node::Disk(disk),
    };
    let end = match status.limit {
        0 => u64::MAX,
        limit => status.offset.saturating_add(limit),
    };
    Some(StoredRange { node, start: status.offset, end })
}

/// Where the kernel describes a block device.
fn about(number: u64) -> PathBuf {
    let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
    format!("/sys/dev/block/{major}:{minor}").into()
}

/// A node by which a block device can be opened.
fn device_path(number: u64) -> Option<PathBuf> {
    let about = fs::read_to_string(about(number).join("uevent")).ok()?;
    let name = about.lines().find_map(|line| line.strip_prefix("DEVNAME="))?;
    let path = Path::new("/dev").join(name);
    (fs::metadata(&path).ok()?.rdev() == number).then_some(path)
}
