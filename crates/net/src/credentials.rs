//! The process at the other end of a Unix socket, as the kernel knows it.
//!
//! Uses `unsafe` because the safe calls take process number 0 for a failure. That is the number of
//! a process in a namespace that we cannot see: a client outside of the container that a server is
//! in. Its user is known all the same.
#![expect(unsafe_code, reason = "see above")]

use std::mem::size_of;
use std::os::fd::{AsRawFd, BorrowedFd};

use device::Credentials;

/// The process that connected, or was connected to, and its user and group then. `None` if it is
/// not a Unix socket.
#[cfg(target_os = "linux")]
pub(crate) fn of(socket: BorrowedFd<'_>) -> Option<Credentials> {
    let mut peer = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut len = libc::socklen_t::try_from(size_of::<libc::ucred>()).ok()?;
    // SAFETY: the descriptor is open, and the kernel writes no more than `len` bytes, which `peer`
    // has.
    let done = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut peer).cast(),
            &raw mut len,
        )
    };
    let whole = usize::try_from(len) == Ok(size_of::<libc::ucred>());
    let known = done == 0 && whole && peer.uid != u32::MAX;
    known.then(|| Credentials { pid: peer.pid.unsigned_abs(), uid: peer.uid, gid: peer.gid })
}

/// The same where the system tells the user and the process by two calls.
#[cfg(not(target_os = "linux"))]
pub(crate) fn of(socket: BorrowedFd<'_>) -> Option<Credentials> {
    let (mut uid, mut gid) = (u32::MAX, u32::MAX);
    // SAFETY: the descriptor is open, and the system writes one number to each place.
    let done = unsafe { libc::getpeereid(socket.as_raw_fd(), &raw mut uid, &raw mut gid) };
    if done != 0 || uid == u32::MAX {
        return None;
    }
    let mut pid: libc::pid_t = 0;
    let mut len = libc::socklen_t::try_from(size_of::<libc::pid_t>()).ok()?;
    // SAFETY: the descriptor is open, and the system writes no more than `len` bytes, which `pid`
    // has. Where it fails the number stays 0: a process that we cannot see.
    unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_LOCAL,
            libc::LOCAL_PEERPID,
            (&raw mut pid).cast(),
            &raw mut len,
        )
    };
    Some(Credentials { pid: pid.unsigned_abs(), uid, gid })
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_unix_socket_has_a_user_and_tcp_has_none() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let found = of(ours.as_fd()).unwrap();
        assert_eq!(found.pid, std::process::id());
        assert_eq!(found.uid, rustix::process::geteuid().as_raw());
        assert_eq!(found.gid, rustix::process::getegid().as_raw());
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let tcp = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        assert_eq!(of(tcp.as_fd()), None);
    }
}
