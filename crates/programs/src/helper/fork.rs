//! Processes made by copying this one, which no safe library offers: what a copy of a process with
//! several threads may do is next to nothing. Here there is always one thread.
//!
//! Uses `unsafe` for fork(2) and clone(2), for the mask of signals around the first, and to close
//! descriptors by their numbers.
#![expect(unsafe_code, reason = "see above")]

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use rustix::io::{FdFlags, fcntl_getfd};
use rustix::process::Pid;

/// The signals that were blocked before, which programs are started with.
pub(super) struct Mask(libc::sigset_t);

impl Mask {
    /// Has them blocked again, and no others.
    pub(super) fn restore(&self) {
        // SAFETY: the set was filled in by the system.
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, std::ptr::null_mut())
        };
    }
}

/// Forks. A mask in the new process, in which no handler of a signal is ever run: an interrupt of
/// the terminal is for its parent, and for what it starts.
pub(super) fn helper() -> io::Result<Option<Mask>> {
    let (mut all, mut before) = (MaybeUninit::uninit(), MaybeUninit::uninit());
    // SAFETY: sigfillset fills in the first set, pthread_sigmask the second one.
    let set = unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_BLOCK, all.as_ptr(), before.as_mut_ptr())
    };
    if set != 0 {
        return Err(io::Error::from_raw_os_error(set));
    }
    // SAFETY: it was filled in by the call above.
    let before = Mask(unsafe { before.assume_init() });
    // SAFETY: there is one thread, which the caller has counted, so the new process may go on as
    // this one would.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        return Ok(Some(before));
    }
    let failed = (pid < 0).then(io::Error::last_os_error);
    before.restore();
    failed.map_or(Ok(None), Err)
}

/// Forks, too, but the new process is a child of our parent. `None` in the new process, which is to
/// become another program at once; here its number, and a descriptor that stands for it.
pub(super) fn sibling() -> io::Result<Option<(Pid, OwnedFd)>> {
    let flags = libc::CLONE_PARENT | libc::CLONE_PIDFD | libc::SIGCHLD;
    let mut process: libc::c_int = -1;
    let none = std::ptr::null_mut::<libc::c_void>();
    // SAFETY: without CLONE_VM and with no stack of its own it is a fork: memory is copied. With
    // CLONE_PIDFD the third argument says where the descriptor goes, and the other two are not
    // looked at. There is one thread.
    let pid = unsafe {
        libc::syscall(
            libc::SYS_clone,
            libc::c_long::from(flags),
            none,
            &raw mut process,
            none,
            none,
        )
    };
    match i32::try_from(pid).ok().and_then(Pid::from_raw) {
        _ if pid == 0 => Ok(None),
        // SAFETY: the kernel has just made it, for us alone.
        Some(pid) if process >= 0 => Ok(Some((pid, unsafe { OwnedFd::from_raw_fd(process) }))),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Ends this process without running what its parent left to be done at the end.
pub(super) fn leave(status: i32) -> ! {
    // SAFETY: it takes a number and does not return.
    unsafe { libc::_exit(status) }
}

/// Closes what a program would not inherit, but for `kept`: sockets that our parent closes are to
/// be closed.
pub(super) fn let_go(kept: BorrowedFd<'_>) -> io::Result<()> {
    let names = std::fs::read_dir("/proc/self/fd")?.map(|entry| Some(entry.ok()?.file_name()));
    // All of them before the first is closed: the directory has one, too, until it has been read.
    let numbers: Vec<Option<RawFd>> = names.map(|name| name?.to_str()?.parse().ok()).collect();
    for number in numbers.into_iter().flatten() {
        // SAFETY: it is used for one question, to which "no such descriptor" is an answer.
        let fd = unsafe { BorrowedFd::borrow_raw(number) };
        let goes = fcntl_getfd(fd).is_ok_and(|flags| flags.contains(FdFlags::CLOEXEC));
        if number > 2 && number != kept.as_raw_fd() && goes {
            // SAFETY: it is open, and what owns it in this process's memory is never used or
            // dropped: the helper does not return.
            drop(unsafe { OwnedFd::from_raw_fd(number) });
        }
    }
    Ok(())
}
