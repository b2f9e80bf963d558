//! The ring of a queue, and the requests that the kernel puts beside it. The ring can only send
//! commands to its own device and wait for its own bell, since a sandbox cannot see what is sent
//! there.
//!
//! Uses `unsafe` because what is put into a ring may name memory, which an entry here does not.
#![expect(unsafe_code, reason = "see above")]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use device::{Error, Result};
use io_uring::register::Restriction;
use io_uring::squeue::{Entry, Flags};
use io_uring::{IoUring, opcode, types::Fixed};
use rustix::param::page_size;

use super::abi::{self, COMMIT_AND_FETCH, FETCH, UblkRequest};
use crate::mapping::SharedMapping;

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
    /// The requests, as the kernel shares them.
    requests: SharedMapping,
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
        let say = |e| Error::os("attach: create the ring of a queue", e);
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
        let page = page_size();
        let len = (usize::from(depth) * UblkRequest::LEN).next_multiple_of(page);
        let range = (abi::requests_at(queue, page), len);
        let requests = SharedMapping::new(file, range, libc::PROT_READ, libc::MAP_POPULATE)
            .and_then(SharedMapping::not_forked);
        let requests = requests.map_err(say)?;
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
        let mut bytes = [0; UblkRequest::LEN];
        self.requests.read(usize::from(tag) * bytes.len(), &mut bytes)?;
        UblkRequest::decode(&bytes)
    }
}
