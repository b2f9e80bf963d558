//! Linux: from /sys, from the type of the file system, and from loop devices.

use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::file::block;
use crate::storage::{Node, StoredRange};

/// Most devices upon devices to follow.
const DEEPEST: usize = 16;
/// The file systems of this kernel in which each file has one inode (`f_type`): ext2 to ext4, XFS,
/// Btrfs, tmpfs, F2FS, bcachefs, ZFS. Not overlayfs, FUSE, or what comes over a network: there two
/// inodes may be one file.
const LOCAL: [u64; 7] =
    [0xef53, 0x5846_5342, 0x9123_683e, 0x0102_1994, 0xf2f5_2010, 0xca45_1a4e, 0x2fc1_2fc1];
/// Where the kernel lists devices that are hardware to it, below /sys/devices,
const HARDWARE: [&str; 4] = ["pci", "platform", "vbd-", "pseudo_"];
/// and what they are named where their bytes may come from this machine all the same: iSCSI, Fibre
/// Channel, SCSI and USB in software.
const REMOTE: [&str; 5] = ["session", "rport-", "tcm_loop", "dummy_hcd", "vhci_hcd"];

/// The ranges through which the bytes of a block device can be reached, itself first.
pub(super) fn of_disk(path: &Path, found: &fs::Metadata) -> Vec<StoredRange> {
    let (node, alone) = (Node::Disk(found.rdev()), is_known(found.rdev()));
    let mut spans = vec![StoredRange { node, start: 0, end: u64::MAX, alone }];
    let mut path = Some(path.to_owned());
    while let Some(last) = spans.last().copied().filter(|_| spans.len() < DEEPEST) {
        let Node::Disk(number) = last.node else { break };
        let below = part_of_disk(number).or_else(|| part_of_file(path.as_deref()?));
        let Some(below) = below else { break };
        let start = below.start.saturating_add(last.start);
        let end = below.start.saturating_add(last.end).min(below.end);
        spans.push(StoredRange { start, end, ..below });
        path = match below.node {
            Node::Disk(number) => device_path(number),
            Node::File(..) => None,
        };
    }
    // A loop device whose file was not found may show any.
    if let Some(StoredRange { node: Node::Disk(number), alone, .. }) = spans.last_mut() {
        *alone = *alone && is_hardware(*number, DEEPEST);
    }
    spans
}

/// Of a partition, the part of its disk.
fn part_of_disk(number: u64) -> Option<StoredRange> {
    let about = block::about(number);
    let sectors = |name: &str| -> Option<u64> {
        let text = fs::read_to_string(about.join(name)).ok()?;
        text.trim().parse::<u64>().ok()?.checked_mul(512)
    };
    about.join("partition").exists().then_some(())?;
    let (start, len) = (sectors("start")?, sectors("size")?);
    let disk = block::number_of(&about.join(".."))?;
    let (end, alone) = (start.saturating_add(len), is_known(disk));
    Some(StoredRange { node: Node::Disk(disk), start, end, alone })
}

/// Of a loop device, the part of what it shows.
fn part_of_file(path: &Path) -> Option<StoredRange> {
    let device = fs::File::open(path).ok()?;
    let status = block::loop_status(device.as_fd())?;
    let (node, alone) = match status.disk {
        0 => (Node::File(status.device, status.inode), is_local_inode(path, &status)),
        disk => (Node::Disk(disk), is_known(disk)),
    };
    let end = match status.limit {
        0 => u64::MAX,
        limit => status.offset.saturating_add(limit),
    };
    Some(StoredRange { node, start: status.offset, end, alone })
}

/// Whether a file lies in a file system of this kernel in which no other inode has its bytes.
pub(super) fn is_local(path: &Path) -> bool {
    let found = fs::metadata(path).is_ok_and(|found| found.file_type().is_file());
    let kind = rustix::fs::statfs(path).ok().and_then(|fs| u64::try_from(fs.f_type).ok());
    found && kind.is_some_and(|kind| LOCAL.contains(&kind))
}

/// The same for the file below a loop device.
fn is_local_inode(device: &Path, status: &block::LoopStatus) -> bool {
    let about = fs::metadata(device).map(|found| block::about(found.rdev()));
    let file = about.and_then(|about| fs::read_to_string(about.join("loop/backing_file")));
    let Ok(file) = file else { return false };
    let file = Path::new(file.strip_suffix('\n').unwrap_or(&file));
    let is_it = |found: fs::Metadata| (found.dev(), found.ino()) == (status.device, status.inode);
    fs::metadata(file).is_ok_and(is_it) && is_local(file)
}

/// Whether the bytes of a block device are where the kernel says: in local hardware, in memory, in
/// a file that is found by [`part_of_file`], or in such devices.
fn is_known(number: u64) -> bool {
    let name = fs::canonicalize(block::about(number)).ok();
    let name = name.as_ref().and_then(|path| path.file_name()).and_then(|name| name.to_str());
    name.is_some_and(|name| name.starts_with("loop")) || is_hardware(number, DEEPEST)
}

fn is_hardware(number: u64, depth: usize) -> bool {
    let Some(path) = fs::canonicalize(block::about(number)).ok().filter(|_| depth > 0) else {
        return false;
    };
    let Ok(below) = path.strip_prefix("/sys/devices") else { return false };
    let names: Vec<&str> = below.iter().filter_map(|name| name.to_str()).collect();
    match names[..] {
        ["virtual", "block", name, ..] if name.starts_with("zram") || name.starts_with("ram") => {
            true
        }
        ["virtual", "block", _, ..] => are_hardware(&path, depth - 1),
        [first, ref rest @ ..] => is_local_path(first, rest),
        [] => false,
    }
}

/// Whether a device stands on others, and all of these are.
fn are_hardware(device: &Path, depth: usize) -> bool {
    let Ok(slaves) = fs::read_dir(device.join("slaves")) else { return false };
    let numbers: Option<Vec<u64>> =
        slaves.map(|slave| block::number_of(&slave.ok()?.path())).collect();
    numbers.is_some_and(|all| !all.is_empty() && all.iter().all(|one| is_hardware(*one, depth)))
}

fn is_local_path(first: &str, rest: &[&str]) -> bool {
    let begins = |name: &str, with: &[&str]| with.iter().any(|with| name.starts_with(with));
    begins(first, &HARDWARE) && !rest.iter().any(|name| begins(name, &REMOTE))
}

/// A node by which a block device can be opened.
fn device_path(number: u64) -> Option<PathBuf> {
    let about = fs::read_to_string(block::about(number).join("uevent")).ok()?;
    let name = about.lines().find_map(|line| line.strip_prefix("DEVNAME="))?;
    let path = Path::new("/dev").join(name);
    (fs::metadata(&path).ok()?.rdev() == number).then_some(path)
}
