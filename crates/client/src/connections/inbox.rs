//! A lane's inbox for operations that another thread completed, and what the lane's thread polls:
//! the sockets that it drives, and a bell for the inbox.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use device::{Completed, Error, Result};
use runtime::{Bell, Mutex};
use rustix::event::epoll;
use rustix::io::Errno;

/// Shared by a lane and all that work for it.
#[derive(Debug)]
pub(crate) struct Inbox {
    set: OwnedFd,
    bell: Bell,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    list: Vec<Completed>,
    /// The bell has rung, and was not cleared yet.
    rung: bool,
}

impl Inbox {
    pub(crate) fn new() -> Result<Self> {
        let say = |e: Errno| Error::os("make a lane", e);
        let set = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(say)?;
        let bell = Bell::new().map_err(|e| Error::os("make a lane", e))?;
        epoll::add(&set, &bell, epoll::EventData::new_u64(0), epoll::EventFlags::IN)
            .map_err(say)?;
        Ok(Self { set, bell, state: Mutex::default() })
    }

    /// Something has ended.
    pub(crate) fn put(&self, completed: Completed) {
        let mut state = self.state.lock();
        state.list.push(completed);
        if !std::mem::replace(&mut state.rung, true) {
            self.bell.ring();
        }
    }

    /// Appends what has ended to `out`.
    pub(crate) fn take(&self, out: &mut Vec<Completed>) {
        let mut state = self.state.lock();
        if std::mem::take(&mut state.rung) {
            self.bell.silence();
        }
        out.append(&mut state.list);
    }

    /// Readable when there is something to do.
    pub(crate) fn ready(&self) -> BorrowedFd<'_> {
        self.set.as_fd()
    }

    /// Waits for `wanted` at a socket, at which it waited for `watched` before.
    pub(crate) fn watch(
        &self,
        socket: impl AsFd,
        watched: Option<epoll::EventFlags>,
        wanted: Option<epoll::EventFlags>,
    ) -> rustix::io::Result<()> {
        watch(&self.set, (socket, 1), watched, wanted)
    }
}

/// Makes the epoll instance `set` wait for `wanted` at a socket, at which it waited for `watched`
/// before.
pub(crate) fn watch(
    set: impl AsFd,
    (socket, token): (impl AsFd, u64),
    watched: Option<epoll::EventFlags>,
    wanted: Option<epoll::EventFlags>,
) -> rustix::io::Result<()> {
    let data = epoll::EventData::new_u64(token);
    match (watched, wanted) {
        (None, None) => Ok(()),
        (None, Some(flags)) => epoll::add(set, socket, data, flags),
        (Some(_), Some(flags)) => epoll::modify(set, socket, data, flags),
        (Some(_), None) => epoll::delete(set, socket),
    }
}
