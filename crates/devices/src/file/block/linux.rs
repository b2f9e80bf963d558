//! Facts of block devices, and the requests that only they take.
//!
//! Uses `unsafe` for ioctls with a number or a range, which rustix does not offer.
#![expect(unsafe_code, reason = "see above")]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::{Path, PathBuf};

use device::{BlockSizes, Granules};
use rustix::fs::{FileType, ioctl_blksszget};

use super::Geometry;

// <linux/fs.h>: _IO(0x12, n).
const BLKROGET: libc::Ioctl = 0x125e;
const BLKRRPART: libc::Ioctl = 0x125f;
const BLKDISCARD: libc::Ioctl = 0x1277;
const BLKIOMIN: libc::Ioctl = 0x1278;
const BLKIOOPT: libc::Ioctl = 0x1279;
const BLKROTATIONAL: libc::Ioctl = 0x127e;
const BLKZEROOUT: libc::Ioctl = 0x127f;

// <linux/loop.h>.
const LOOP_GET_STATUS64: libc::Ioctl = 0x4c05;
/// `struct loop_info64` in 64-bit words; all that matters here is in the first five.
const LOOP_INFO: usize = 29;

/// Blocks of thin pools are longer.
const SMALL_ROOM: u64 = 32 << 10;

/// The file range behind a loop device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LoopStatus {
    /// The device that the file lies on, and the file's inode number there.
    pub(crate) device: u64,
    pub(crate) inode: u64,
    /// The number of the block device, if it is one that is shown; or 0.
    pub(crate) disk: u64,
    /// The first byte that is shown.
    pub(crate) offset: u64,
    /// How many bytes are shown at most; 0: all.
    pub(crate) limit: u64,
}

/// Whether block devices can be disks here.
#[inline]
pub(crate) fn allowed() -> device::Result<()> {
    Ok(())
}

/// Asks the device. Missing answers have the usual value.
pub(crate) fn geometry(fd: BorrowedFd<'_>) -> Geometry {
    let sector = ioctl_blksszget(fd).ok().filter(|s| s.is_power_of_two()).unwrap_or(512);
    let smallest = number(fd, BLKIOMIN).unwrap_or(0);
    let best = number(fd, BLKIOOPT).unwrap_or(0);
    let fits = |n: &u32| n.is_power_of_two() && (512..=32 << 20).contains(n);
    let preferred = [best, smallest].into_iter().find(fits).unwrap_or(4096).max(4096);
    Geometry {
        sector: u64::from(sector),
        // Through the page cache any byte can be written.
        blocks: BlockSizes { preferred, ..BlockSizes::ANY },
        granules: granules(fd),
        serial: serial(fd),
        rotational: short(fd, BLKROTATIONAL).is_some_and(|n| n != 0),
        room: room(fd),
    }
}

/// Those that the kernel tells of: of zeroes it tells none.
fn granules(fd: BorrowedFd<'_>) -> Granules {
    let size = |name| {
        let told = queue_limit(fd, name).and_then(|bytes| u32::try_from(bytes).ok());
        told.filter(|bytes| bytes.is_power_of_two()).unwrap_or(0)
    };
    let (physical, trim) = (size("physical_block_size"), size("discard_granularity"));
    Granules { physical, trim, zero: 0 }
}

/// The serial number of a disk; a partition is no disk of its own, and has none.
fn serial(fd: BorrowedFd<'_>) -> Option<String> {
    let about = about(rustix::fs::fstat(fd).ok()?.st_rdev);
    // virtio's is its own, that of NVMe and others the bus'.
    let found = ["serial", "device/serial"].iter().find_map(|name| {
        let text = std::fs::read_to_string(about.join(name)).ok()?;
        Some(text.trim().to_owned())
    });
    found.filter(|serial| !serial.is_empty() && !serial.chars().any(char::is_control))
}

/// A thin pool without zeroing gives a volume blocks with stale bytes, and only blocks that it
/// never got read as zeroes. The kernel does not tell whether a volume is in such a pool, so all
/// device mapper volumes with large blocks count.
fn room(fd: BorrowedFd<'_>) -> u64 {
    let Ok(stat) = rustix::fs::fstat(fd) else { return 0 };
    if !about(stat.st_rdev).join("dm").exists() {
        return 0;
    }
    queue_limit(fd, "discard_granularity").filter(|room| *room > SMALL_ROOM).unwrap_or(0)
}

/// Asks a loop device for its file range; `None` if it is not one.
pub(crate) fn loop_status(fd: BorrowedFd<'_>) -> Option<LoopStatus> {
    let mut words = [0u64; LOOP_INFO];
    // SAFETY: the descriptor is open; to a loop device the request writes one `loop_info64`, which
    // is as long as the array, and to any other one that knows the number nothing longer.
    answer(unsafe { libc::ioctl(fd.as_raw_fd(), LOOP_GET_STATUS64, words.as_mut_ptr()) }).ok()?;
    let [device, inode, disk, offset, limit, ..] = words;
    Some(LoopStatus { device, inode, disk, offset, limit })
}

/// Whether it refuses writes, although it may be opened for them.
pub(crate) fn is_read_only(fd: BorrowedFd<'_>) -> bool {
    number(fd, BLKROGET).is_some_and(|n| n != 0)
}

/// Whether the device reports no request that zeroes without writing: the kernel would refuse
/// `FALLOC_FL_PUNCH_HOLE`.
pub(crate) fn has_no_zeroes(fd: BorrowedFd<'_>) -> bool {
    queue_limit(fd, "write_zeroes_max_bytes") == Some(0)
}

/// A limit of the queue of a block device, or of the one that a file lies on; `None` where the
/// kernel has no such limit, or the file system is on no single device.
pub(crate) fn queue_limit(fd: BorrowedFd<'_>, name: &str) -> Option<u64> {
    let stat = rustix::fs::fstat(fd).ok()?;
    let is_device = FileType::from_raw_mode(stat.st_mode) == FileType::BlockDevice;
    queue_text(if is_device { stat.st_rdev } else { stat.st_dev }, name)?.parse().ok()
}

/// Where the kernel describes the block device with this number.
pub(crate) fn about(device: u64) -> PathBuf {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    format!("/sys/dev/block/{major}:{minor}").into()
}

/// The number of the block device that the kernel describes there.
pub(crate) fn number_of(about: &Path) -> Option<u64> {
    let text = std::fs::read_to_string(about.join("dev")).ok()?;
    let (major, minor) = text.trim().split_once(':')?;
    Some(rustix::fs::makedev(major.parse().ok()?, minor.parse().ok()?))
}

/// A limit of the queue of the block device with this number.
pub(crate) fn queue_text(device: u64, name: &str) -> Option<String> {
    // A partition has its disk's.
    ["queue", "../queue"].iter().find_map(|queue| {
        let text = std::fs::read_to_string(about(device).join(queue).join(name)).ok()?;
        Some(text.trim().to_owned())
    })
}

/// Zeroes whole sectors; the kernel may write zeroes to do it.
pub(crate) fn zero_out(fd: BorrowedFd<'_>, offset: u64, len: u64) -> io::Result<()> {
    range(fd, BLKZEROOUT, offset, len)
}

/// Discards whole sectors; what they read as afterwards is undefined.
pub(crate) fn discard(fd: BorrowedFd<'_>, offset: u64, len: u64) -> io::Result<()> {
    range(fd, BLKDISCARD, offset, len)
}

/// Makes the kernel look for partitions again. Files and devices without partitions are left alone,
/// and so are all if we lack the right.
pub(crate) fn reread_partitions(fd: BorrowedFd<'_>) -> io::Result<()> {
    let is_device = rustix::fs::fstat(fd)
        .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::BlockDevice);
    if !is_device {
        return Ok(());
    }
    // SAFETY: the descriptor is open and the request takes nothing.
    let answer = answer(unsafe { libc::ioctl(fd.as_raw_fd(), BLKRRPART) });
    answer.or_else(|e| match e.raw_os_error() {
        Some(libc::EINVAL | libc::ENOTTY | libc::EACCES | libc::EPERM | libc::ENXIO) => Ok(()),
        _ => Err(e),
    })
}

fn range(fd: BorrowedFd<'_>, request: libc::Ioctl, offset: u64, len: u64) -> io::Result<()> {
    let range = [offset, len];
    // SAFETY: the descriptor is open and both requests read two u64 from the pointer.
    answer(unsafe { libc::ioctl(fd.as_raw_fd(), request, range.as_ptr()) })
}

fn number(fd: BorrowedFd<'_>, request: libc::Ioctl) -> Option<u32> {
    let mut n = 0u32;
    // SAFETY: the descriptor is open and all requests of this kind write one (unsigned) int.
    answer(unsafe { libc::ioctl(fd.as_raw_fd(), request, &raw mut n) }).ok().map(|()| n)
}

fn short(fd: BorrowedFd<'_>, request: libc::Ioctl) -> Option<u16> {
    let mut n = 0u16;
    // SAFETY: the descriptor is open and the request writes one unsigned short.
    answer(unsafe { libc::ioctl(fd.as_raw_fd(), request, &raw mut n) }).ok().map(|()| n)
}

fn answer(code: i32) -> io::Result<()> {
    if code == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
