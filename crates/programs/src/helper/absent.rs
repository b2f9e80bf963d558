//! Where there is no sandbox there is no helper: none can be had, and nothing is asked of one.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::process::{Pid, Signal};

use crate::names::{Act, Grant};
use crate::{Program, Running, StandardStreams};

/// There is none of these.
#[derive(Debug)]
pub(crate) enum Helper {}

/// Never.
pub(crate) fn asked() -> Option<&'static Helper> {
    None
}

/// Fails: a process that has no sandbox starts programs, and changes directories, itself.
///
/// # Errors
/// Always.
pub fn hand_over(_: Vec<Program>, _: Vec<Grant>) -> io::Result<()> {
    Err(io::Error::new(io::ErrorKind::Unsupported, "there is no sandbox on this system"))
}

impl Helper {
    pub(crate) fn start(
        &self,
        _: &Program,
        _: &[Option<&str>],
        _: &StandardStreams,
    ) -> io::Result<Running> {
        match *self {}
    }

    pub(crate) fn signal(&self, _: Pid, _: Signal) -> io::Result<()> {
        match *self {}
    }

    pub(crate) fn kill_group(&self, _: Pid) -> io::Result<()> {
        match *self {}
    }

    pub(crate) fn grants(&self) -> &[Grant] {
        match *self {}
    }

    pub(crate) fn act(&self, _: u32, _: Act, _: Option<BorrowedFd<'_>>) -> io::Result<()> {
        match *self {}
    }

    pub(crate) fn open(&self, _: u32, _: Act, _: Option<BorrowedFd<'_>>) -> io::Result<OwnedFd> {
        match *self {}
    }
}
