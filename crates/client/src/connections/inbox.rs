//! A lane's inbox for operations that another thread completed, and what the lane's thread polls:
//! the sockets that it drives, and a bell for the inbox.

use std::os::fd::{AsFd, BorrowedFd};

use device::{Completed, Error, Interest, Result};
use runtime::{Bell, Mutex};
use rustix::io::Errno;

use super::ready::{RECEIVE, ReadySet};

/// Shared by a lane and all that work for it.
#[derive(Debug)]
pub(crate) struct Inbox {
    set: ReadySet,
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
        let set = ReadySet::new().map_err(say)?;
        let bell = Bell::new().map_err(|e| Error::os("make a lane", e))?;
        set.watch((&bell, 0), None, Some(RECEIVE)).map_err(say)?;
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
        watched: Option<Interest>,
        wanted: Option<Interest>,
    ) -> rustix::io::Result<()> {
        self.set.watch((socket, 1), watched, wanted)
    }
}
