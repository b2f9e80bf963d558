//! What a file leaves in the page cache.
//!
//! | `cache=` | what becomes of its pages |
//! |---|---|
//! | `default` | the system decides |
//! | `none` | few stay: pages that are there only because of us are dropped again, see [`windows`] |
//! | `auto` | the same once a part of the free memory is taken, see [`allowance`] |
//! | `direct` | the page cache is bypassed, see [`super::direct`] |
//!
//! What was in memory before is read from there, served from there, and left there. Long requests
//! for other ranges use direct I/O where the file has it: they leave nothing, cost less processor
//! time, and nothing is read ahead in vain. Shorter ones go through the page cache, so that the
//! system reads ahead and joins them.

pub(crate) mod allowance;
mod memory;
pub(crate) mod windows;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use device::Keeper;
use device::residency::{is_cached, pages};
use runtime::RwLock;
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::param::page_size;

use super::{system, transfer};
use windows::{PageUse, Windows};

/// Reads and writes of fewer bytes go through the page cache: the system reads ahead of many short
/// reads faster than it answers them one by one.
const DIRECT: usize = 512 << 10;
/// Except for reads of this and more while others are in flight: a program that asks for several at
/// a time reads ahead itself.
const DIRECT_BESIDE_OTHERS: usize = 64 << 10;
/// Requests of this many bytes are best where much is read or written.
pub(crate) const BULK: u64 = 2 << 20;
/// Writes in flight at a time: direct ones wait for the disk side by side.
pub(crate) const WRITERS: usize = 4;
/// Direct I/O in multiples of this, at addresses that are, is taken by all devices.
pub(crate) const ALIGN: usize = 4096;
/// The system's longest read-ahead, where it is not known, and the most that is believed.
const AHEAD: u64 = 16 << 20;

/// What happens to the pages of a file.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum PageCaching {
    /// The system decides.
    #[default]
    Default,
    /// Few stay.
    None,
    /// The page cache is bypassed.
    Direct,
    /// Pages stay while memory is free.
    Auto,
}

/// A file of which few pages stay in memory.
#[derive(Debug)]
pub(crate) struct Sparing {
    fd: Arc<OwnedFd>,
    windows: Windows,
    /// What the system reads ahead at most.
    ahead: u64,
    /// An opening for direct I/O; `None` if there cannot be one.
    direct: OnceLock<Option<OwnedFd>>,
    write: bool,
    no_direct: AtomicBool,
    /// Direct writes together, or a write through the page cache alone: it may rewrite all of a
    /// page of which it changes a part.
    apart: RwLock<()>,
    /// Reads that are in flight.
    reading: AtomicUsize,
}

impl Sparing {
    /// `write`: the file was opened for that; `spares`: pages may stay while memory is free;
    /// `early`: what is written is sent to the disk at once, also where it stays in memory.
    pub(crate) fn new(fd: &Arc<OwnedFd>, write: bool, spares: bool, early: bool) -> Self {
        system::keep_few_pages(fd.as_fd());
        Self {
            fd: fd.clone(),
            windows: Windows::new(spares, early),
            ahead: ahead_of(fd.as_fd()),
            direct: OnceLock::new(),
            write,
            no_direct: AtomicBool::new(false),
            apart: RwLock::default(),
            reading: AtomicUsize::new(0),
        }
    }

    fn range(&self, offset: u64, len: usize) -> (u64, u64, u64) {
        (offset, len as u64, self.ahead)
    }

    /// Fills all of `buf`; `read` does so through the page cache.
    pub(crate) fn read(
        &self,
        buf: &mut [u8],
        offset: u64,
        read: impl FnOnce(BorrowedFd<'_>, &mut [u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        let (fd, (_, len, ahead)) = (self.fd.as_fd(), self.range(offset, buf.len()));
        let turn = Turn::begin(&self.reading);
        let least = if turn.is_alone { DIRECT } else { DIRECT_BESIDE_OTHERS };
        let wanted = buf.len() >= least && !self.lies_in_memory(offset, len);
        if let Some(direct) = self.direct(buf, offset).filter(|_| wanted) {
            let work = || transfer::read_exact(direct, buf, offset);
            match self.windows.during(fd, (offset, len, ahead), PageUse::Direct, work) {
                // At the end of a file, the read through the cache finds the error, if it is one.
                Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => {}
                Err(e) if self.is_refused(&e) => {}
                other => return other,
            }
        }
        self.windows.during(fd, (offset, len, ahead), PageUse::Read, || read(fd, buf))
    }

    /// The opening for direct I/O, if these bytes may go that way.
    fn direct(&self, bytes: &[u8], offset: u64) -> Option<BorrowedFd<'_>> {
        let aligned = bytes.len().is_multiple_of(ALIGN)
            && offset.is_multiple_of(ALIGN as u64)
            && bytes.as_ptr().addr().is_multiple_of(ALIGN);
        if !aligned || self.no_direct.load(Ordering::Relaxed) {
            return None;
        }
        let open = || open_direct(self.fd.as_fd(), self.write).ok();
        self.direct.get_or_init(open).as_ref().map(AsFd::as_fd)
    }

    /// Whether direct I/O was refused; it is not tried again.
    fn is_refused(&self, e: &io::Error) -> bool {
        let refused = e.raw_os_error() == Some(libc::EINVAL);
        if refused {
            self.no_direct.store(true, Ordering::Relaxed);
        }
        refused
    }

    /// Whether all of a range is in memory, as far as is known. Where it is not true any more, a
    /// read waits for the disk, or is refused where it may not wait.
    fn lies_in_memory(&self, offset: u64, len: u64) -> bool {
        self.windows.are_believed(offset, len) || is_cached(self.fd.as_fd(), offset, len)
    }

    /// Whether all of a range may be read at once, because it is in memory.
    pub(crate) fn may_read_now(&self, offset: u64, len: usize) -> bool {
        self.lies_in_memory(offset, len as u64)
            && self.windows.passes(self.fd.as_fd(), self.range(offset, len))
    }

    /// Writes all of `data`; `write` does so through the page cache.
    pub(crate) fn write(
        &self,
        data: &[u8],
        offset: u64,
        write: impl FnOnce() -> io::Result<()>,
    ) -> io::Result<()> {
        let (fd, len) = (self.fd.as_fd(), data.len() as u64);
        // Pages in memory stay there, and are written there.
        let is_absent = || pages::count(fd, offset, len).is_ok_and(|pages| pages.cached == 0);
        let wanted = data.len() >= DIRECT && is_absent();
        if let Some(direct) = self.direct(data, offset).filter(|_| wanted) {
            let _together = self.apart.read();
            let work = || transfer::write_all(direct, data, offset);
            match self.windows.during(fd, (offset, len, 0), PageUse::Direct, work) {
                Err(e) if self.is_refused(&e) => {}
                other => return other,
            }
        }
        self.write_through(offset, len, write)
    }

    /// Runs `write`, which writes `len` bytes at `offset` through the page cache.
    pub(crate) fn write_through<T>(&self, offset: u64, len: u64, write: impl FnOnce() -> T) -> T {
        let write = || {
            let _alone = self.apart.write();
            write()
        };
        self.windows.during(self.fd.as_fd(), (offset, len, 0), PageUse::Write, write)
    }

    /// Runs `work`, which zeroes or trims a range by other means than [`Self::write`]. If it may
    /// rewrite a part of a page, it runs alone: a long write beside it could lose its bytes in the
    /// rest of that page.
    pub(crate) fn zero<T>(&self, offset: u64, len: u64, work: impl FnOnce() -> T) -> T {
        let page = page_size() as u64;
        if offset.is_multiple_of(page) && len.is_multiple_of(page) {
            return work();
        }
        let _alone = self.apart.write();
        work()
    }

    /// Makes writes durable by `flush`, and drops their pages. A failure to write back that was
    /// reported earlier is passed to `lost`, which has to make `flush` fail.
    pub(crate) fn flush(
        &self,
        lost: impl Fn(),
        flush: impl FnOnce() -> io::Result<()>,
    ) -> io::Result<()> {
        let then = self.windows.now();
        if let Some(loss) = self.windows.take_loss() {
            lost();
            return Err(loss);
        }
        let done = flush();
        // Failures that were reported while others flushed.
        if let Some(loss) = self.windows.take_loss() {
            lost();
            return done.and(Err(loss));
        }
        if done.is_ok() {
            self.windows.flushed(self.fd.as_fd(), then);
        }
        done
    }
}

/// A read that is in flight.
struct Turn<'a> {
    reading: &'a AtomicUsize,
    /// No other was when it began.
    is_alone: bool,
}

impl<'a> Turn<'a> {
    fn begin(reading: &'a AtomicUsize) -> Self {
        let is_alone = reading.fetch_add(1, Ordering::Relaxed) == 0;
        Self { reading, is_alone }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.reading.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Keeper for Sparing {
    fn passes(&self, offset: u64, len: u64) -> bool {
        self.windows.passes(self.fd.as_fd(), (offset, len, self.ahead))
    }
}

impl Drop for Sparing {
    fn drop(&mut self) {
        self.windows.end(self.fd.as_fd());
    }
}

/// The same file, opened once more for direct I/O.
///
/// # Errors
/// `EINVAL`: it has none.
pub(crate) fn open_direct(fd: BorrowedFd<'_>, write: bool) -> rustix::io::Result<OwnedFd> {
    let mode = if write { OFlags::RDWR } else { OFlags::RDONLY };
    let opened = system::open_direct(fd, mode);
    opened.map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO))
}

/// How much the system reads ahead of a sequential reader at most; twice as much if it was told to
/// expect one.
pub(crate) fn ahead_of(fd: BorrowedFd<'_>) -> u64 {
    system::ahead_of(fd).unwrap_or(AHEAD).min(AHEAD)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use super::*;

    #[test]
    fn parts_of_pages_are_zeroed_alone_and_whole_ones_beside_direct_writes() {
        let memory = rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let sparing = Sparing::new(&Arc::new(memory), true, false, true);
        let page = page_size() as u64;
        let (tell, told) = channel();
        std::thread::scope(|scope| {
            let direct = sparing.apart.read();
            sparing.zero(page, 3 * page, || ());
            for (offset, len) in [(0, 100), (page, page + 1), (1, page)] {
                let (tell, sparing) = (tell.clone(), &sparing);
                scope.spawn(move || sparing.zero(offset, len, || tell.send(offset).unwrap()));
            }
            assert!(told.recv_timeout(Duration::from_millis(20)).is_err());
            drop(direct);
            assert_eq!(told.iter().take(3).count(), 3);
        });
    }
}
