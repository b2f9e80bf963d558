//! Linux: descriptors are opened by way of /proc, and processes have descriptors.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;

use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// The read end of a pipe once more, in a way that does not wait.
pub(in crate::exitwhen) fn open_again(number: u32) -> io::Result<File> {
    let flags = libc::O_NONBLOCK | libc::O_CLOEXEC;
    File::options().read(true).custom_flags(flags).open(format!("/proc/self/fd/{number}"))
}

/// A process, as a descriptor that is readable when it has ended.
pub(in crate::exitwhen) fn process(pid: Pid) -> io::Result<OwnedFd> {
    Ok(pidfd_open(pid, PidfdFlags::empty())?)
}
