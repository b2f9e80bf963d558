//! The ring of a queue, and the requests that the kernel puts beside it. The ring can only send
//! commands to its own device and wait for its own bell, since a sandbox cannot see what is sent
//! there.
//!
//! Uses `unsafe` because both ends of a ring and the requests are memory that the kernel shares. An
//! entry here names no memory, and a request is copied when the kernel has said that it is there.
#![expect(unsafe_code, reason = "see above")]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ptr::NonNull;

use device::{Error, Result};
use io_uring::register::Restriction;
use io_uring::squeue::{Entry, Flags};
use io_uring::{IoUring, opcode, types::Fixed};
use rustix::param::page_size;

use super::abi::{self, COMMIT_AND_FETCH, FETCH, UblkRequest};

/// The ticket of the entry that waits for the bell.
const BELL: u64 = u64::MAX;

/// What has happened.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum RingEvent {
    /// A request is there, by its tag.
    Request(u16),
    /// The kernel asks for no more with this tag.
    Ended,
    /// The bell rings.
    Bell,
}

/// The ring of one queue. One thread uses it.
pub(super) struct UblkRing {
    ring: IoUring,
    requests: MappedRequests,
    queue: u16,
}

runtime::debug_as!(UblkRing, |it| "UblkRing({})", it.queue);

impl UblkRing {
    /// The ring of a queue of the device behind `file`, with `depth` tags; `bell` wakes it.
    ///
    /// # Errors
    /// io_uring is forbidden here, or there is no room.
    pub(super) fn new(
        file: BorrowedFd<'_>,
        bell: BorrowedFd<'_>,
        queue: u16,
        depth: u16,
    ) -> Result<Self> {
        let say = |e| Error::os("attach: make the ring of a queue", e);
        // One for each tag, and the bell.
        let entries = (u32::from(depth) + 1).next_power_of_two();
        let mut builder = IoUring::builder();
        // A process that is forked from this one would keep the ring, and with it the device.
        builder.dontfork().setup_r_disabled().setup_single_issuer().setup_defer_taskrun();
        let ring = builder.build(entries).map_err(say)?;
        let submitter = ring.submitter();
        submitter.register_files(&[file.as_raw_fd(), bell.as_raw_fd()]).map_err(say)?;
        let mut allowed = [
            Restriction::sqe_op(opcode::UringCmd16::CODE),
            Restriction::sqe_op(opcode::PollAdd::CODE),
            Restriction::sqe_flags_required(Flags::FIXED_FILE.bits()),
        ];
        submitter.register_restrictions(&mut allowed).map_err(say)?;
        let requests = MappedRequests::new(file, queue, depth).map_err(say)?;
        Ok(Self { ring, requests, queue })
    }

    /// Begins: asks for as many requests as there are tags. By the thread that uses it from now on.
    ///
    /// # Errors
    /// The kernel does not let this thread.
    pub(super) fn begin(&mut self, depth: u16) -> io::Result<()> {
        self.ring.submitter().register_enable_rings()?;
        (0..depth).try_for_each(|tag| self.send(FETCH, tag, 0))?;
        self.await_bell()?;
        self.ring.submit().map(drop)
    }

    /// Ends a request, and asks for the next one with its tag.
    ///
    /// # Errors
    /// The ring is full: never, as there is room for each tag.
    pub(super) fn end(&mut self, tag: u16, result: i32) -> io::Result<()> {
        self.send(COMMIT_AND_FETCH, tag, result)
    }

    /// Waits for the bell again, which has been silenced.
    ///
    /// # Errors
    /// As for `end`.
    pub(super) fn await_bell(&mut self) -> io::Result<()> {
        let readable = u32::from(libc::POLLIN.cast_unsigned());
        self.push(&opcode::PollAdd::new(Fixed(1), readable).build().user_data(BELL))
    }

    fn send(&mut self, command: u32, tag: u16, result: i32) -> io::Result<()> {
        let words = abi::answer(self.queue, tag, result);
        let entry = opcode::UringCmd16::new(Fixed(0), command).cmd(words).build();
        self.push(&entry.user_data(tag.into()))
    }

    fn push(&mut self, entry: &Entry) -> io::Result<()> {
        // SAFETY: the entry names no memory.
        unsafe { self.ring.submission().push(entry) }.map_err(io::Error::other)
    }

    /// Hands over what was pushed, and waits until something has happened; what.
    ///
    /// # Errors
    /// The kernel takes no more.
    pub(super) fn wait(&mut self, events: &mut Vec<RingEvent>) -> io::Result<()> {
        match self.ring.submit_and_wait(1) {
            Ok(_) => {}
            Err(e)
                if matches!(e.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::EBUSY)) => {}
            Err(e) => return Err(e),
        }
        events.extend(self.ring.completion().map(|one| match (one.user_data(), one.result()) {
            (BELL, _) => RingEvent::Bell,
            (tag, 0) => u16::try_from(tag).map_or(RingEvent::Ended, RingEvent::Request),
            _ => RingEvent::Ended,
        }));
        Ok(())
    }

    /// The request that is there with this tag; `None`: it is of a kind that was not offered.
    pub(super) fn request(&self, tag: u16) -> Option<UblkRequest> {
        UblkRequest::decode(&self.requests.read(tag)?)
    }
}

/// The requests of a queue, as the kernel shares them.
struct MappedRequests {
    start: NonNull<u8>,
    len: usize,
    depth: u16,
}

// SAFETY: the mapping belongs to no thread; only its owner reads it, and unmaps it.
unsafe impl Send for MappedRequests {}

impl MappedRequests {
    fn new(file: BorrowedFd<'_>, queue: u16, depth: u16) -> io::Result<Self> {
        let page = page_size();
        let len = (usize::from(depth) * UblkRequest::LEN).next_multiple_of(page);
        let offset = abi::requests_at(queue, page);
        let offset = libc::off_t::try_from(offset).map_err(io::Error::other)?;
        let (fd, flags) = (file.as_fd().as_raw_fd(), libc::MAP_SHARED | libc::MAP_POPULATE);
        // SAFETY: a new mapping at an address of the kernel's choice disturbs nothing.
        let start =
            unsafe { libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ, flags, fd, offset) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast());
        let start = start.ok_or_else(|| io::Error::other("mapped at 0"))?;
        let own = Self { start, len, depth };
        // As for the ring.
        // SAFETY: this is the mapping that was just made, of which nothing is changed here.
        let kept = unsafe { libc::madvise(own.start.as_ptr().cast(), len, libc::MADV_DONTFORK) };
        if kept == 0 { Ok(own) } else { Err(io::Error::last_os_error()) }
    }

    fn read(&self, tag: u16) -> Option<[u8; UblkRequest::LEN]> {
        if tag >= self.depth {
            return None;
        }
        let mut bytes = [0; UblkRequest::LEN];
        // SAFETY: the tag is one of those that were mapped, and the kernel writes a request only
        // before it says that it is there; were it to write now, the bytes would be a mixture.
        unsafe {
            let from = self.start.as_ptr().add(usize::from(tag) * UblkRequest::LEN);
            std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), bytes.len());
        }
        Some(bytes)
    }
}

impl Drop for MappedRequests {
    fn drop(&mut self) {
        // SAFETY: this is the mapping that `new` made.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}
