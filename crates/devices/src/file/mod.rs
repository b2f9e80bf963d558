//! `file`: a regular file or block device, byte for byte.
//!
//! Reads use the page cache; all of it is one place, so bytes can be sent by sendfile. Zeroes
//! become holes, and a failure of the disk is reported, each time, and never turned into zeroes.
//! Other programs are kept out by the locks that QEMU uses. What stays in the page cache of what is
//! read and written is chosen by `cache=`.

pub(crate) mod beside;
mod block;
mod cache;
mod descriptor;
mod direct;
mod directory;
mod durable;
mod filling;
mod found;
mod handed;
pub(crate) mod in_use;
mod inlet;
mod lock;
pub(crate) mod long_punch;
mod made;
pub(crate) mod map;
mod open;
mod outlet;
mod pipe;
pub(crate) mod prealloc;
mod proof;
pub(crate) mod resizing;
mod storage;
pub(crate) mod system;
mod taking;
pub(crate) mod transfer;
mod uri;
mod write_back;
mod zero;

use std::io;
use std::num::NonZeroU64;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use device::{Abilities, Blocking, Error, Extent, ExtentKind, Info, Now, Place, Result, ZeroFlags};
use runtime::OperatorLog;

pub use cache::PageCaching;
pub use descriptor::FileOptions;
pub use lock::Lock;
pub use open::{FileTarget, create, open_path};
pub(crate) use open::{create_named, open_any, stream};
pub(crate) use pipe::reaches;
pub(crate) use storage::storage;
pub(crate) use uri::of_uri;

use cache::{Sparing, allowance};
use durable::Durability;
use filling::Filling;
use long_punch::LongPunches;
use map::Map;
use outlet::Outlet;
use taking::Taking;
use zero::{Grain, Ladder};

/// A file or block device.
pub struct File {
    fd: Arc<OwnedFd>,
    info: Info,
    /// It lies in memory (tmpfs): nothing waits for a disk.
    in_memory: bool,
    /// If it lies in memory: the long zeroes and trims that other work has to wait for.
    long: LongPunches,
    map: Map,
    ladder: Ladder,
    durability: Durability,
    taking: Taking,
    cache: PageCaching,
    /// If few of its pages are to stay in memory.
    sparing: Option<Arc<Sparing>>,
    /// Reads that do not wait are not supported here.
    no_nowait: AtomicBool,
    /// A read has found the end early.
    shortened: AtomicBool,
    /// Its size in bytes when it was opened, or when that was last asked.
    seen: AtomicU64,
    /// If it is the target of a copy.
    filling: Option<Filling>,
    /// It has no final length yet: it is a container that grows as it is written.
    grows: bool,
    /// Zeroes that must not be a hole are written.
    writes_zeroes: bool,
    /// Where it goes when it is complete: it is a temporary file.
    outlet: Option<Outlet>,
    /// The log, for what is no reason to fail.
    log: Option<OperatorLog>,
}

runtime::debug_as!(File, |file| "File({})", file.info.name);

impl File {
    fn new(fd: OwnedFd, info: Info, grain: Grain, in_memory: bool, options: FileOptions) -> Self {
        let FileOptions { cache, early, writes_zeroes, .. } = options;
        let ladder = Ladder::new(fd.as_fd(), grain, in_memory);
        let long = if in_memory { LongPunches::of(fd.as_fd()) } else { LongPunches::default() };
        let fd = Arc::new(fd);
        let spares = cache == PageCaching::Auto && allowance::fits(info.size);
        let sparing = (!in_memory && matches!(cache, PageCaching::None | PageCaching::Auto))
            .then(|| Arc::new(Sparing::new(&fd, info.abilities.write, spares, early)));
        let map = match &sparing {
            _ if in_memory => Map::in_memory(),
            Some(keeper) => Map::kept_by(keeper.clone()),
            None => Map::new(),
        };
        let place = map.place(&fd, 0);
        // Long writes take long folios of the page cache, too, where that is on a disk.
        let bulk = if in_memory { info.bulk } else { cache::BULK };
        Self {
            fd,
            info: Info { flat: Some(place), bulk, ..info },
            in_memory,
            long,
            map,
            cache,
            sparing,
            ladder,
            durability: Durability::default(),
            taking: Taking::default(),
            no_nowait: AtomicBool::new(false),
            shortened: AtomicBool::new(false),
            seen: AtomicU64::new(info.size),
            filling: None,
            grows: false,
            writes_zeroes,
            outlet: None,
            log: None,
        }
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// The same, of which few pages stay in memory.
    fn sparing(mut self) -> Self {
        let sparing = Arc::new(Sparing::new(&self.fd, self.info.abilities.write, false, true));
        self.map = Map::kept_by(sparing.clone());
        self.info.flat = Some(self.map.place(&self.fd, 0));
        self.info.bulk = cache::BULK;
        self.sparing = Some(sparing);
        self
    }

    /// After another program has shortened the file, a write beyond its end would make it longer
    /// again, with a hole where data was.
    fn refuse_beyond(&self, offset: u64, len: u64) -> io::Result<()> {
        if !self.shortened.load(Ordering::Relaxed) {
            return Ok(());
        }
        let now = u64::try_from(rustix::fs::fstat(self.fd())?.st_size).unwrap_or(0);
        if now >= self.seen.load(Ordering::Relaxed) {
            self.shortened.store(false, Ordering::Relaxed);
        } else if len > now.saturating_sub(offset) {
            let text = "the file ends before this; it is shorter than when it was opened";
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, text));
        }
        Ok(())
    }

    fn read_now(&self, buf: &mut [u8], offset: u64) -> bool {
        if self.no_nowait.load(Ordering::Relaxed) {
            return false;
        }
        // A read of missing pages would make the system read ahead.
        if self.sparing.as_ref().is_some_and(|sparing| !sparing.may_read_now(offset, buf.len())) {
            return false;
        }
        // The read that waits will report the error.
        transfer::read_now(self.fd(), buf, offset).unwrap_or_else(|e| {
            if e.raw_os_error() == Some(libc::EOPNOTSUPP) {
                self.no_nowait.store(true, Ordering::Relaxed);
            }
            false
        })
    }

    /// A block device may have a new partition table. If the kernel keeps the old one, nothing is
    /// lost, but users should know.
    fn reread_partitions(&self) {
        let name = &self.info.name;
        if let (Err(e), Some(log)) = (block::reread_partitions(self.fd()), &self.log) {
            log.say(format_args!("{name}: the kernel did not read the partition table again: {e}"));
        }
    }

    /// Begins write-back of a write through the page cache, if wanted.
    fn wrote(&self, offset: u64, len: u64) {
        if let Some(filling) = self.filling.as_ref().filter(|_| len > 0 && self.sparing.is_none()) {
            filling.wrote(self.fd(), offset, len);
        }
    }

    fn error(&self, action: String, offset: u64, e: io::Error) -> Error {
        Error::os(action, e).on(&self.info.name).at(offset)
    }
}

impl Blocking for File {
    fn info(&self) -> &Info {
        &self.info
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        let n = buf.len();
        let read = |fd: BorrowedFd<'_>, buf: &mut [u8]| match self.grows {
            true => transfer::read_growing(fd, buf, offset),
            false => transfer::read_exact(fd, buf, offset),
        };
        let done = match &self.sparing {
            Some(sparing) => sparing.read(buf, offset, read),
            None => read(self.fd(), buf),
        };
        done.map_err(|e| {
            let ended = e.kind() == io::ErrorKind::UnexpectedEof;
            if ended && self.filling.is_none() && !self.grows {
                self.shortened.store(true, Ordering::Relaxed);
            }
            self.error(format!("read {n} bytes"), offset, e)
        })
    }

    fn waits(&self) -> bool {
        !self.in_memory || self.long.any()
    }

    fn writers(&self) -> usize {
        if self.sparing.is_some() { cache::WRITERS } else { 1 }
    }

    /// What few pages are to be kept of is dropped by those that write.
    fn is_quick(&self) -> bool {
        self.sparing.is_none()
    }

    /// Nothing keeps a write to a disk from waiting: pwritev2 with RWF_NOWAIT still waits for a
    /// frozen filesystem (the kernel takes its freeze lock before it looks at the flag), ext4 does
    /// not have it, and btrfs and xfs refuse it most of the time.
    fn now(&self, now: Now<'_>) -> Result<bool> {
        match now {
            Now::Read { offset, buffer } => Ok(self.read_now(buffer, offset)),
            Now::Resolve { offset, len, max, out } if !self.info.abilities.extents => {
                self.resolve(offset, len, max, out).map(|()| true)
            }
            Now::Resolve { offset, len, out, .. } => {
                Ok(self.map.resolve_known(&self.fd, offset, len, out))
            }
            Now::Write { .. } => Ok(false),
        }
    }

    fn write_at(&self, data: &[u8], offset: u64, fua: bool) -> Result<()> {
        self.refuse_beyond(offset, data.len() as u64)
            .map_err(|e| self.error(format!("write {} bytes", data.len()), offset, e))?;
        let write = || match fua {
            true => self.durability.write(self.fd(), data, offset),
            false => transfer::write_all(self.fd(), data, offset),
        };
        let done = match &self.sparing {
            Some(sparing) if fua => sparing.write_through(offset, data.len() as u64, write),
            Some(sparing) => sparing.write(data, offset, write),
            None => write(),
        };
        done.map_err(|e| self.error(format!("write {} bytes", data.len()), offset, e))?;
        if !fua {
            self.wrote(offset, data.len() as u64);
        }
        Ok(())
    }

    fn zero(&self, offset: u64, len: u64, flags: ZeroFlags) -> Result<()> {
        if len > 0 {
            let _in_flight = self.long.begin(len);
            self.refuse_beyond(offset, len)
                .map_err(|e| self.error(format!("zero {len} bytes"), offset, e))?;
            let written = flags.written || (self.writes_zeroes && !flags.may_unmap);
            let flags = ZeroFlags { written, ..flags };
            let zero = || self.ladder.zero(self.fd(), offset, len, flags);
            let done = match &self.sparing {
                Some(sparing) => sparing.zero(offset, len, zero),
                None => zero(),
            };
            self.map.forget(offset, len);
            done.map_err(|e| e.on(&self.info.name).at(offset))?;
        }
        if flags.fua { self.flush() } else { Ok(()) }
    }

    fn trim(&self, offset: u64, len: u64, fua: bool) -> Result<()> {
        if len > 0 {
            let _in_flight = self.long.begin(len);
            let trim = || self.ladder.trim(self.fd(), offset, len);
            let done = match &self.sparing {
                Some(sparing) => sparing.zero(offset, len, trim),
                None => trim(),
            };
            self.map.forget(offset, len);
            done.map_err(|e| e.on(&self.info.name).at(offset))?;
        }
        if fua { self.flush() } else { Ok(()) }
    }

    fn flush(&self) -> Result<()> {
        if self.outlet.is_some() {
            // It is only a temporary file; its destination is flushed later.
            return Ok(());
        }
        let flush = || self.durability.flush(self.fd());
        let flushed = match &self.sparing {
            Some(sparing) => sparing.flush(|| self.durability.lost(), flush),
            None => flush(),
        };
        flushed.map_err(|e| Error::os("flush", e).on(&self.info.name))
    }

    fn resize(&self, size: u64) -> Result<()> {
        match &self.filling {
            Some(filling) if size <= self.info.size && filling.resize(size) => Ok(()),
            _ => self.info.keep_size(size),
        }
    }

    /// A regular file does, unless it is filled from end to end, and has its length then.
    fn grows(&self) -> bool {
        let Abilities { write, take, .. } = self.info.abilities;
        write && take && self.filling.is_none() && !self.grows
    }

    /// One that was opened as it is may be a volume that is extended, say.
    fn size_now(&self) -> Option<u64> {
        let is_fixed = self.filling.is_some() || self.grows || self.outlet.is_some();
        if is_fixed {
            return None;
        }
        // The end of a block device, too.
        let end = rustix::fs::seek(self.fd(), rustix::fs::SeekFrom::End(0)).ok()?;
        self.seen.store(end, Ordering::Relaxed);
        Some(end)
    }

    fn finish(&self) -> Result<()> {
        let say = |action: &str, e| Error::os(action, e).on(&self.info.name);
        if let Some(filling) = &self.filling {
            filling.finish(self.fd()).map_err(|e| say("set the length of the file", e))?;
        }
        if let (Some(outlet), Some(filling)) = (&self.outlet, &self.filling) {
            return pipe::pour(&self.fd, filling.length().unwrap_or(0), outlet);
        }
        self.reread_partitions();
        filling::ask_by_closing(self.fd()).map_err(|e| say("close", e))
    }

    fn prefetch(&self, offset: u64, len: u64) -> Result<()> {
        if let Some(len) = NonZeroU64::new(len).filter(|_| self.info.abilities.prefetch) {
            // A hint: a file that cannot is read when it is read.
            let _ = system::will_need(self.fd(), offset, len);
        }
        Ok(())
    }

    fn resolve(&self, offset: u64, len: u64, max: usize, out: &mut Vec<Extent>) -> Result<()> {
        if !self.info.abilities.extents {
            let place = self.map.place(&self.fd, offset);
            out.push(Extent::new(offset, len, ExtentKind::Data).at(Some(place)));
            return Ok(());
        }
        self.map
            .resolve(&self.fd, self.info.size.max(offset + len), offset, len, max, out)
            .map_err(|(at, e)| self.error("query the map".into(), at, e))
    }

    fn take(&self, offset: u64, len: u64, from: &Place, share_only: bool) -> Result<u64> {
        self.refuse_beyond(offset, len)
            .map_err(|e| self.error(format!("copy {len} bytes from a file"), offset, e))?;
        let mut taken = self.taking.share(self.fd(), offset, len, from);
        // A copy by the system would go through both page caches.
        if taken == 0 && !share_only && !from.is_kept() && self.sparing.is_none() {
            taken = self.taking.copy(self.fd(), offset, len, from);
            self.wrote(offset, taken);
        }
        self.map.forget(offset, taken);
        Ok(taken)
    }
}

#[cfg(test)]
mod tests;
