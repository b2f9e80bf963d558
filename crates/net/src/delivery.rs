//! Bytes that were sent and have not been received. Uses `unsafe` because no crate wraps SIOCOUTQ.
#![expect(unsafe_code, reason = "see above")]

use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::net::AddressFamily;
use rustix::net::sockopt::socket_domain;

/// The memory of bytes that were sent and that the peer has not received, in bytes: at least their
/// number, and 0 when all is delivered. `None` where that cannot be known: TCP only says what the
/// other machine has acknowledged, and the bytes may stay in its socket for long; over the loopback
/// interface that socket holds our own pages.
pub(crate) fn undelivered(socket: BorrowedFd<'_>) -> Option<u64> {
    if socket_domain(socket) == Ok(AddressFamily::UNIX) { on_the_way(socket) } else { None }
}

/// What was sent and, as far as the system knows, not received, in bytes of memory or of data: a
/// number that changes when the peer reads, long before there is room for more.
pub(crate) fn on_the_way(socket: BorrowedFd<'_>) -> Option<u64> {
    let mut left: libc::c_int = 0;
    // SAFETY: the descriptor is open; for a socket TIOCOUTQ is SIOCOUTQ, which writes one int.
    let done = unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut left) };
    if done == 0 { u64::try_from(left).ok() } else { None }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_unix_socket_says_when_all_was_received_and_tcp_does_not() {
        let (mut ours, mut theirs) = UnixStream::pair().unwrap();
        assert_eq!(undelivered(ours.as_fd()), Some(0));
        ours.write_all(&[1; 100]).unwrap();
        assert!(undelivered(ours.as_fd()).unwrap() >= 100);
        theirs.read_exact(&mut [0; 99]).unwrap();
        assert!(undelivered(ours.as_fd()).unwrap() >= 1);
        theirs.read_exact(&mut [0]).unwrap();
        assert_eq!(undelivered(ours.as_fd()), Some(0));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut tcp = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        assert_eq!(undelivered(tcp.as_fd()), None);
        let (mut theirs, _) = listener.accept().unwrap();
        tcp.set_nonblocking(true).unwrap();
        while tcp.write(&[1; 65_536]).is_ok() {}
        let before = on_the_way(tcp.as_fd()).unwrap();
        // Bytes that wait here move when the other side has room again.
        theirs.set_read_timeout(Some(std::time::Duration::from_secs(60))).unwrap();
        while on_the_way(tcp.as_fd()).unwrap() == before {
            assert!(theirs.read(&mut vec![0; 65_536]).unwrap() > 0);
        }
    }
}
