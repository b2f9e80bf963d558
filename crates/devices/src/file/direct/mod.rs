//! A file or block device without the page cache: direct I/O, with all requests in flight at once.
//!
//! Whole blocks go to the disk as they are, by io_uring, or, where that is forbidden, by the
//! threads of the pool. Parts of blocks are read and written together with the rest of the block,
//! each such write alone. If a file ends within its last block, that is written through the page
//! cache, which alone can write a part; the next direct read finds it, because the system writes
//! back what is dirty before it reads past the cache. Memory that is not aligned is copied.
//! Everything but reading and writing is the file's own affair, below.
//!
//! Nothing has a place here: the page cache is not consulted. Some filesystems read through it all
//! the same (btrfs, where the memory of a request is not present yet): such pages are dropped.

mod queue;
mod ring;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use device::{
    Buffer, Device, Done, Error, Extent, Info, Lane, Now, Operation, Outcome, Result, Session,
    Simple, Slice, ZeroFlags, below, copy_overlap,
};
use runtime::{Context, Gate, promise, to_usize};

use super::cache::windows::Windows;
use super::cache::{ALIGN, BULK, ahead_of, open_direct};
use super::{File, system};
use queue::{Bytes, Queue, Transfer};

/// Longer blocks are not believed.
const LONGEST_BLOCK: u64 = 1 << 20;

/// See the module.
pub(crate) struct Direct(Arc<Inner>);

struct Inner {
    /// The file through the page cache.
    below: Arc<dyn Device>,
    info: Info,
    disk: Arc<Disk>,
    queue: Queue,
    /// Writers of whole blocks pass together; a writer of a part of one is alone.
    gate: Arc<Gate>,
    /// Bytes of a block, a power of two.
    block: u64,
    /// The end of the file's whole blocks.
    whole: u64,
    /// What lies behind the end of the file reads as zeroes: it is being filled.
    fills: bool,
}

/// The file, opened for direct I/O.
struct Disk {
    fd: Arc<OwnedFd>,
    windows: Windows,
    /// What the system reads ahead at most.
    ahead: u64,
}

/// Done by the thread that closes the device: the threads that complete requests might never get to
/// it.
impl Drop for Direct {
    fn drop(&mut self) {
        let Disk { fd, windows, .. } = &*self.0.disk;
        windows.end(fd.as_fd());
    }
}

impl Direct {
    /// The file without the page cache; where that is not possible, with it, and a line in the log.
    pub(crate) fn device(file: File, context: &Context) -> Arc<dyn Device> {
        let write = file.info.abilities.write;
        match open_direct(file.fd(), write)
            .map_err(io::Error::from)
            .and_then(|fd| probe(&fd).map(|()| fd))
        {
            Ok(fd) => Arc::new(Self::over(file, Arc::new(fd), context)),
            Err(e) => {
                context.log.say(format_args!(
                    "{}: direct I/O is not available here ({e}); few pages are left in the page cache instead",
                    file.info.name
                ));
                Simple::device(file.sparing(), &context.pool)
            }
        }
    }

    fn over(file: File, fd: Arc<OwnedFd>, context: &Context) -> Self {
        let block = block_of(&fd);
        let size = file.info.size;
        // A block device has whole blocks only, and what grows gets its length at the end.
        let whole = if file.grows { u64::MAX } else { size - size % block };
        let fills = file.filling.is_some() || file.grows;
        let mut info = Info { flat: None, bulk: BULK, ..file.info.clone() };
        info.abilities.fua = false;
        info.abilities.prefetch = false;
        info.blocks.preferred = info.blocks.preferred.max(u32::try_from(block).unwrap_or(4096));
        let below = Simple::device(file, &context.pool);
        let (queue, gate) = (Queue::new(&context.pool), Arc::default());
        let ahead = ahead_of(fd.as_fd());
        let disk = Arc::new(Disk { fd, windows: Windows::new(false, false), ahead });
        Self(Arc::new(Inner { below, info, disk, queue, gate, block, whole, fills }))
    }
}

/// Reads a block, to see whether the file has direct I/O at all.
fn probe(fd: &OwnedFd) -> io::Result<()> {
    let mut block = Buffer::zeroed(to_usize(block_of(fd)));
    super::transfer::retry(|| rustix::io::pread(fd, &mut *block, 0))
        .map(drop)
        .map_err(io::Error::from)
}

/// The alignment of offsets and lengths; [`ALIGN`] also where less would be enough.
fn block_of(fd: &OwnedFd) -> u64 {
    let least = ALIGN as u64;
    let told = system::direct_alignment(fd.as_fd());
    if told.is_power_of_two() && told <= LONGEST_BLOCK { told.max(least) } else { least }
}

impl Inner {
    fn is_whole(&self, offset: u64, len: u64) -> bool {
        offset.is_multiple_of(self.block) && len.is_multiple_of(self.block)
    }

    fn error(&self, what: &str, len: u64, offset: u64, e: io::Error) -> Error {
        Error::os(format!("{what} {len} bytes"), e).on(&self.info.name).at(offset)
    }

    /// Asks the file below.
    async fn ask(&self, operation: Operation) -> Result<Outcome> {
        let (promise, answer) = promise();
        self.below.submit(operation, Box::new(move |result| promise.keep(result)));
        answer.await.unwrap_or_else(|| Err(Error::unanswered().on(&self.info.name)))
    }

    /// Moves whole blocks; returns the bytes, and how many of them were moved.
    async fn transfer(&self, bytes: Bytes, offset: u64) -> io::Result<(Bytes, usize)> {
        let (promise, answer) = promise();
        self.start(bytes, offset, Box::new(move |moved| promise.keep(moved)));
        answer.await.unwrap_or_else(|| Err(io::Error::other("it was not answered")))
    }

    fn start(&self, bytes: Bytes, offset: u64, done: queue::Moved) {
        let (disk, len) = (self.disk.clone(), bytes.len() as u64);
        disk.windows.begin_direct(disk.fd.as_fd(), offset, len, disk.ahead);
        let fd = disk.fd.clone();
        let done: queue::Moved = Box::new(move |moved| {
            disk.windows.end_direct(disk.fd.as_fd(), offset, len, disk.ahead);
            drop(disk);
            done(moved);
        });
        self.queue.start(Transfer::new(fd, bytes, offset, done));
    }

    /// A read of which `moved` bytes came.
    fn is_read(
        &self,
        moved: io::Result<(Bytes, usize)>,
        offset: u64,
        len: usize,
    ) -> Result<Buffer> {
        let failed = |e| self.error("read", len as u64, offset, e);
        let (bytes, came) = moved.map_err(failed)?;
        let Bytes::In(mut buffer) = bytes else {
            return Err(failed(io::Error::other("no buffer")));
        };
        match buffer.get_mut(came..) {
            Some(rest) if !rest.is_empty() && self.fills => rest.fill(0),
            Some([]) => {}
            _ => {
                let text = "the file ends here; it is shorter than when it was opened";
                return Err(failed(io::Error::new(io::ErrorKind::UnexpectedEof, text)));
            }
        }
        Ok(buffer)
    }

    /// Reads `len` bytes, of whole blocks or up to the end of the file.
    async fn read_blocks(&self, offset: u64, len: u64, wanted: u64) -> Result<Buffer> {
        let bounce = Buffer::zeroed(to_usize(len));
        let moved = self.transfer(Bytes::In(bounce), offset).await;
        // Only the wanted part has to be there.
        let enough = moved
            .map(|(bytes, came)| (bytes.truncated(to_usize(wanted)), came.min(to_usize(wanted))));
        self.is_read(enough, offset, to_usize(wanted))
    }

    /// Reads any bytes.
    async fn read(&self, offset: u64, mut buffer: Buffer) -> Result<Buffer> {
        let end = offset.saturating_add(buffer.len() as u64);
        let start = offset - offset % self.block;
        let stop = end.next_multiple_of(self.block);
        let blocks = self.read_blocks(start, stop - start, end - start).await?;
        let skip = to_usize(offset - start);
        match blocks.get(skip..) {
            Some(wanted) if wanted.len() == buffer.len() => buffer.copy_from_slice(wanted),
            _ => return Err(Error::unanswered().on(&self.info.name)),
        }
        Ok(buffer)
    }

    /// Writes whole blocks.
    async fn write_blocks(&self, offset: u64, data: Slice) -> Result<()> {
        let len = data.len();
        // A part of a buffer may begin anywhere.
        let aligned = data.as_ptr().addr().is_multiple_of(ALIGN);
        let data = if aligned { data } else { Buffer::copy_of(&data).into() };
        let failed = |e| self.error("write", len as u64, offset, e);
        match self.transfer(Bytes::Out(data), offset).await.map_err(failed)? {
            (_, moved) if moved == len => Ok(()),
            _ => Err(failed(io::ErrorKind::WriteZero.into())),
        }
    }

    /// Writes any bytes, with no other write beside it unless they are whole blocks.
    async fn write(&self, offset: u64, mut data: Slice) -> Result<()> {
        let len = data.len() as u64;
        if self.is_whole(offset, len) {
            let _together = self.gate.together().await;
            return self.write_blocks(offset, data).await;
        }
        let _alone = self.gate.alone().await;
        let cut = to_usize(self.whole.saturating_sub(offset).min(len));
        if let Some(tail) = data.share(cut, data.len() - cut).filter(|tail| !tail.is_empty()) {
            let offset = offset + cut as u64;
            self.ask(Operation::Write { offset, data: tail, fua: false }).await?;
        }
        match data.share(0, cut) {
            Some(head) if !head.is_empty() => self.rewrite(offset, head).await,
            _ => Ok(()),
        }
    }

    /// Reads the blocks at both ends that are covered only in part, copies `data` over them, and
    /// writes all.
    async fn rewrite(&self, offset: u64, data: Slice) -> Result<()> {
        let end = offset.saturating_add(data.len() as u64);
        let start = offset - offset % self.block;
        let stop = end.next_multiple_of(self.block);
        let last = stop - self.block;
        let mut whole = Buffer::zeroed(to_usize(stop - start));
        for at in [start, last].into_iter().take(if start == last { 1 } else { 2 }) {
            if at < offset || end < at + self.block {
                let block = self.read_blocks(at, self.block, self.block).await?;
                copy_overlap(&mut whole, start, &block, at);
            }
        }
        copy_overlap(&mut whole, start, &data, offset);
        self.write_blocks(start, whole.into()).await
    }

    /// Changes a range by other means than writing: never beside a rewrite of its blocks.
    async fn change(&self, operation: Operation) -> Result<Outcome> {
        let (offset, len) = operation.range().unwrap_or((0, 0));
        let _pass = match self.is_whole(offset, len) {
            true => self.gate.together().await,
            false => self.gate.alone().await,
        };
        self.ask(operation).await
    }

    async fn run(&self, operation: Operation) -> Result<Outcome> {
        match operation {
            Operation::Read { offset, buffer } => {
                self.read(offset, buffer).await.map(Outcome::Read)
            }
            Operation::Write { offset, data, fua } => {
                self.write(offset, data).await?;
                if fua { self.ask(Operation::Flush).await } else { Ok(Outcome::Done) }
            }
            Operation::Resolve { .. } => match self.ask(operation).await? {
                Outcome::Extents(mut extents) => {
                    unplace(&mut extents);
                    Ok(Outcome::Extents(extents))
                }
                other => Ok(other),
            },
            Operation::Zero { offset, len, flags: flags @ ZeroFlags { fua: true, .. } } => {
                let flags = ZeroFlags { fua: false, ..flags };
                self.change(Operation::Zero { offset, len, flags }).await?;
                self.ask(Operation::Flush).await
            }
            Operation::Zero { .. } | Operation::Trim { .. } | Operation::Take { .. } => {
                self.change(operation).await
            }
            Operation::Flush | Operation::Prefetch { .. } | Operation::Status { .. } => {
                self.ask(operation).await
            }
        }
    }
}

fn unplace(extents: &mut [Extent]) {
    for extent in extents {
        extent.place = None;
    }
}

impl Device for Direct {
    fn info(&self) -> &Info {
        &self.0.info
    }

    fn submit(&self, operation: Operation, done: Done) {
        let inner = self.0.clone();
        match operation {
            Operation::Read { offset, buffer } if inner.is_whole(offset, buffer.len() as u64) => {
                let (me, len) = (inner.clone(), buffer.len());
                let then = move |moved| {
                    let read = me.is_read(moved, offset, len).map(Outcome::Read);
                    drop(me);
                    done(read);
                };
                inner.start(Bytes::In(buffer), offset, Box::new(then));
            }
            Operation::Flush => inner.below.submit(operation, done),
            operation => below::complete(done, async move { inner.run(operation).await }),
        }
    }

    fn now(&self, now: Now<'_>) -> Result<bool> {
        match now {
            Now::Resolve { offset, len, max, out } => {
                let before = out.len();
                let known = self.0.below.now(Now::Resolve { offset, len, max, out })?;
                unplace(out.get_mut(before..).unwrap_or_default());
                Ok(known)
            }
            Now::Read { .. } | Now::Write { .. } => Ok(false),
        }
    }

    fn lane(&self) -> Result<Option<Box<dyn Lane>>> {
        self.0.below.lane()
    }

    fn session(&self) -> Option<&dyn Session> {
        self.0.below.session()
    }

    fn resize(&self, size: u64) -> Result<()> {
        self.0.below.resize(size)
    }

    /// Where it ends with a block: the rest of one is kept apart.
    fn grows(&self) -> bool {
        self.0.below.grows() && self.0.whole == self.0.info.size
    }

    /// As for `grows`.
    fn size_now(&self) -> Option<u64> {
        let now = self.0.below.size_now()?;
        let is_whole = self.0.whole == self.0.info.size && now.is_multiple_of(self.0.block);
        is_whole.then_some(now)
    }

    fn finish(&self) -> Result<()> {
        self.0.below.finish()
    }
}
