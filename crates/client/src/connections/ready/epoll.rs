//! Linux: epoll.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use device::Interest;
use rustix::event::epoll;
use rustix::io::Result;

/// See the module above.
#[derive(Debug)]
pub(crate) struct ReadySet(OwnedFd);

/// What was found ready at once.
pub(crate) type Ready = Vec<epoll::Event>;

impl ReadySet {
    pub(crate) fn new() -> Result<Self> {
        epoll::create(epoll::CreateFlags::CLOEXEC).map(Self)
    }

    /// Waits for `wanted` at a socket, at which it waited for `watched` before. It is reported by
    /// its token.
    pub(crate) fn watch(
        &self,
        (socket, token): (impl AsFd, u64),
        watched: Option<Interest>,
        wanted: Option<Interest>,
    ) -> Result<()> {
        let data = epoll::EventData::new_u64(token);
        match (watched, wanted) {
            (None, None) => Ok(()),
            (None, Some(wanted)) => epoll::add(&self.0, socket, data, flags(wanted)),
            (Some(_), Some(wanted)) => epoll::modify(&self.0, socket, data, flags(wanted)),
            (Some(_), None) => epoll::delete(&self.0, socket),
        }
    }

    /// Waits until something is ready, and puts that in the place of what was in `into`.
    pub(crate) fn wait(&self, into: &mut Ready) -> Result<()> {
        into.clear();
        epoll::wait(&self.0, rustix::buffer::spare_capacity(into), None).map(drop)
    }

    /// The tokens of what was found ready.
    pub(crate) fn tokens(ready: &Ready) -> impl Iterator<Item = u64> {
        ready.iter().map(|event| event.data.u64())
    }
}

fn flags(wanted: Interest) -> epoll::EventFlags {
    let mut flags = epoll::EventFlags::empty();
    flags.set(epoll::EventFlags::IN, wanted.read);
    flags.set(epoll::EventFlags::OUT, wanted.write);
    flags
}

impl AsFd for ReadySet {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
