//! Transfers to and from a disk: by io_uring where it is allowed, otherwise by threads of the pool.
//!
//! Both do the same: all of a transfer is moved, however the system cuts it, up to the end of the
//! file.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use device::{Buffer, Slice};
use runtime::{WorkPool, contained};
use rustix::io::{Errno, pread, pwrite};

use super::ring::Ring;
use crate::file::cache::ALIGN;

/// Bytes that are read into, or written.
#[derive(Debug)]
pub(super) enum Bytes {
    In(Buffer),
    Out(Slice),
}

impl Bytes {
    pub(super) fn len(&self) -> usize {
        match self {
            Self::In(buffer) => buffer.len(),
            Self::Out(data) => data.len(),
        }
    }

    /// A buffer, shortened.
    pub(super) fn truncated(mut self, len: usize) -> Self {
        if let Self::In(buffer) = &mut self {
            buffer.truncate(len);
        }
        self
    }
}

/// Takes the bytes back, and how many of them were moved: fewer only at the end of the file.
pub(super) type Moved = Box<dyn FnOnce(io::Result<(Bytes, usize)>) + Send>;

/// Bytes to be moved.
pub(super) struct Transfer {
    pub(super) fd: Arc<OwnedFd>,
    pub(super) bytes: Bytes,
    pub(super) offset: u64,
    /// How many were moved.
    pub(super) moved: usize,
    done: Moved,
}

/// What to do with a transfer after the system moved a part of it.
pub(super) enum Next {
    /// Continue with the rest.
    GoOn,
    /// It has ended.
    Ended(io::Result<()>),
}

impl Transfer {
    pub(super) fn new(fd: Arc<OwnedFd>, bytes: Bytes, offset: u64, done: Moved) -> Self {
        Self { fd, bytes, offset, moved: 0, done }
    }

    /// The system has moved this many bytes more.
    pub(super) fn went(&mut self, answer: io::Result<usize>) -> Next {
        match answer {
            Ok(n) => {
                self.moved = self.moved.saturating_add(n);
                let rest = self.moved % ALIGN;
                if n == 0 || self.moved >= self.bytes.len() {
                    return Next::Ended(Ok(()));
                }
                // If only a part of a block was moved, the request for the rest returns the reason.
                // Reads begin with that block again; if there is no more of it, the file ends
                // there.
                if rest > 0 && matches!(self.bytes, Bytes::In(_)) {
                    if n == rest {
                        return Next::Ended(Ok(()));
                    }
                    self.moved -= rest;
                }
                Next::GoOn
            }
            Err(e) => match e.raw_os_error() {
                Some(libc::EINTR | libc::EAGAIN) => Next::GoOn,
                _ => Next::Ended(Err(e)),
            },
        }
    }

    /// Gives the bytes back. A panic there is not ours.
    pub(super) fn end(self, result: io::Result<()>) {
        let Self { fd, bytes, moved, done, .. } = self;
        drop(fd);
        let _ = contained("an answer", || done(result.map(|()| (bytes, moved))));
    }

    /// Runs it here, and waits.
    fn run(mut self) {
        loop {
            let at = self.offset.saturating_add(self.moved as u64);
            let answer = match &mut self.bytes {
                Bytes::In(buffer) => {
                    pread(&self.fd, buffer.get_mut(self.moved..).unwrap_or_default(), at)
                }
                Bytes::Out(data) => {
                    pwrite(&self.fd, data.get(self.moved..).unwrap_or_default(), at)
                }
            };
            if let Next::Ended(result) = self.went(answer.map_err(Errno::into)) {
                return self.end(result);
            }
        }
    }
}

/// Where transfers go.
pub(super) enum Queue {
    Ring(Ring),
    Threads(WorkPool),
}

impl Queue {
    /// By io_uring if that may be.
    pub(super) fn new(pool: &WorkPool) -> Self {
        Ring::new().map_or_else(|_| Self::threads(pool), Self::Ring)
    }

    pub(super) fn threads(pool: &WorkPool) -> Self {
        Self::Threads(pool.for_disk())
    }

    /// Starts a transfer. Never blocks.
    pub(super) fn start(&self, transfer: Transfer) {
        match self {
            Self::Ring(ring) => ring.start(transfer),
            Self::Threads(pool) => pool.run(move || transfer.run()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use rustix::fs::{CWD, Mode, OFlags, openat};

    use super::*;

    /// Writes and reads through a queue, many at a time.
    fn moves(queue: &Queue) {
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::DIRECT | OFlags::CLOEXEC;
        let file = openat(CWD, "/tmp", flags, Mode::RUSR | Mode::WUSR);
        let Ok(file) = file.map(Arc::new) else { return };
        let transfer = |bytes: Bytes, offset: u64| {
            let (tx, rx) = channel();
            let done: Moved = Box::new(move |moved| tx.send(moved).unwrap());
            queue.start(Transfer::new(file.clone(), bytes, offset, done));
            rx
        };
        let block = |n: u64| {
            let mut buffer = Buffer::zeroed(ALIGN);
            buffer.fill(u8::try_from(n % 251).unwrap() + 1);
            buffer
        };
        let written: Vec<_> =
            (0..300).map(|n| transfer(Bytes::Out(block(n).into()), n * ALIGN as u64)).collect();
        for moved in written {
            assert_eq!(moved.recv().unwrap().unwrap().1, ALIGN);
        }
        let read: Vec<_> = (0..300)
            .map(|n| transfer(Bytes::In(Buffer::zeroed(ALIGN)), n * ALIGN as u64))
            .collect();
        for (n, moved) in (0..).zip(read) {
            let (bytes, moved) = moved.recv().unwrap().unwrap();
            let Bytes::In(buffer) = bytes else { panic!("another buffer") };
            assert!(moved == ALIGN && buffer[..] == block(n)[..], "block {n}");
        }
        // Bytes after the end do not exist.
        rustix::fs::ftruncate(&file, 5000).unwrap();
        let end = transfer(Bytes::In(Buffer::zeroed(3 * ALIGN)), 0).recv().unwrap().unwrap();
        assert_eq!(end.1, 5000);
        // A refusal of the system is an error.
        assert!(transfer(Bytes::In(Buffer::zeroed(ALIGN)), 1).recv().unwrap().is_err());
    }

    #[test]
    fn all_bytes_are_moved_by_threads_and_by_a_ring_where_that_may_be() {
        let pool = WorkPool::new(4);
        moves(&Queue::threads(&pool));
        moves(&Queue::new(&pool));
    }

    #[test]
    fn a_write_that_was_cut_off_within_a_block_is_carried_on_until_the_system_says_why() {
        let memory = rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let memory = Arc::new(memory);
        let transfer = |bytes| Transfer::new(memory.clone(), bytes, 0, Box::new(|_| ()));
        let mut written = transfer(Bytes::Out(Buffer::zeroed(8192).into()));
        assert!(matches!(written.went(Ok(5120)), Next::GoOn));
        let full = written.went(Err(Errno::NOSPC.into()));
        let Next::Ended(Err(e)) = full else { panic!("it goes on") };
        assert_eq!(e.raw_os_error(), Some(libc::ENOSPC));
        assert!(matches!(written.went(Ok(0)), Next::Ended(Ok(()))), "nothing more is written");
    }

    #[test]
    fn a_read_that_was_cut_off_within_a_block_is_at_the_end_only_if_that_block_is() {
        let memory = rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let memory = Arc::new(memory);
        let transfer = || {
            let bytes = Bytes::In(Buffer::zeroed(16384));
            Transfer::new(memory.clone(), bytes, 0, Box::new(|_| ()))
        };
        let mut read = transfer();
        assert!(matches!(read.went(Ok(5120)), Next::GoOn) && read.moved == 4096);
        assert!(matches!(read.went(Ok(1024)), Next::Ended(Ok(()))) && read.moved == 5120);
        let mut read = transfer();
        assert!(matches!(read.went(Ok(5120)), Next::GoOn));
        let failed = read.went(Err(Errno::IO.into()));
        assert!(matches!(failed, Next::Ended(Err(_))), "no end, but a sector that cannot be read");
        let mut read = transfer();
        assert!(matches!(read.went(Ok(5120)), Next::GoOn));
        assert!(matches!(read.went(Ok(12288)), Next::Ended(Ok(()))) && read.moved == 16384);
    }

    #[test]
    fn transfers_in_flight_when_a_ring_is_dropped_are_completed() {
        let Ok(ring) = Ring::new() else { return };
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        let file = Arc::new(openat(CWD, "/tmp", flags, Mode::RUSR | Mode::WUSR).unwrap());
        let (tx, rx) = channel();
        for n in 0..200u64 {
            let tx = tx.clone();
            let done: Moved = Box::new(move |moved| tx.send(moved.unwrap().1).unwrap());
            let bytes = Bytes::Out(Buffer::zeroed(1 << 16).into());
            ring.start(Transfer::new(file.clone(), bytes, n << 16, done));
        }
        drop((ring, tx));
        assert_eq!(rx.into_iter().filter(|moved| *moved == 1 << 16).count(), 200);
    }
}
