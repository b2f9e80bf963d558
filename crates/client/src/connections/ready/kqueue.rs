//! macOS: kqueue, with a filter for each direction.
//!
//! Uses `unsafe` because a descriptor is named by its number in a change, and could be another one
//! by then; here it is borrowed for as long as the call takes. The system takes it out of the set
//! when it is closed.
#![expect(unsafe_code, reason = "see above")]

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::without_provenance_mut;

use device::Interest;
use rustix::event::kqueue::{Event, EventFilter, EventFlags, kevent, kqueue};
use rustix::io::{FdFlags, Result, fcntl_setfd};

/// See the module above.
#[derive(Debug)]
pub(crate) struct ReadySet(OwnedFd);

/// What was found ready at once.
pub(crate) type Ready = Vec<Event>;

impl ReadySet {
    pub(crate) fn new() -> Result<Self> {
        let set = kqueue()?;
        fcntl_setfd(&set, FdFlags::CLOEXEC)?;
        Ok(Self(set))
    }

    /// Waits for `wanted` at a socket, at which it waited for `watched` before. It is reported by
    /// its token, once for each direction.
    pub(crate) fn watch(
        &self,
        (socket, token): (impl AsFd, u64),
        watched: Option<Interest>,
        wanted: Option<Interest>,
    ) -> Result<()> {
        let (was, is) = (watched.unwrap_or_default(), wanted.unwrap_or_default());
        let number = socket.as_fd().as_raw_fd();
        let directions = [
            (EventFilter::Read(number), was.read, is.read),
            (EventFilter::Write(number), was.write, is.write),
        ];
        // A token fits: all systems that this is for have pointers of 64 bits.
        let token = without_provenance_mut(usize::try_from(token).unwrap_or(usize::MAX));
        let changes: Vec<_> = directions
            .into_iter()
            .filter(|(_, was, is)| was != is)
            .map(|(filter, _, is)| {
                Event::new(filter, if is { EventFlags::ADD } else { EventFlags::DELETE }, token)
            })
            .collect();
        if changes.is_empty() {
            return Ok(());
        }
        let mut none: [Event; 0] = [];
        // SAFETY: the descriptor in the changes is open, and borrowed until the call has returned.
        unsafe { kevent(&self.0, &changes, &mut none, None) }.map(drop)
    }

    /// Waits until something is ready, and puts that in the place of what was in `into`.
    pub(crate) fn wait(&self, into: &mut Ready) -> Result<()> {
        into.clear();
        // SAFETY: nothing is changed.
        unsafe { kevent(&self.0, &[], rustix::buffer::spare_capacity(into), None) }.map(drop)
    }

    /// The tokens of what was found ready.
    pub(crate) fn tokens(ready: &Ready) -> impl Iterator<Item = u64> {
        ready.iter().map(|event| event.udata().addr() as u64)
    }
}

impl AsFd for ReadySet {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
