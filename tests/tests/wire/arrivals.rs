//! Clients come and go silently: there are no descriptors for new ones, and no DISC of those that
//! went.

use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use blackbox::launch::{Serve, start_on_tcp};
use blackbox::peers::skip_environment;
use blackbox::session::Mode;
use blackbox::temp::TempDir;
use blackbox::wait_for;
use rustix::net::sockopt;
use rustix::process::{
    PidfdFlags, PidfdGetfdFlags, Resource, Rlimit, pidfd_getfd, pidfd_open, prlimit,
};

#[test]
fn without_descriptors_clients_are_served_as_before_and_one_line_is_logged() {
    let temp = TempDir::new();
    let log = temp.join("log");
    let server = Serve::memory("1M").option(format!("--log={}", log.display())).start();
    let mut client = server.session(Mode::Simple, "");
    let room = server.open_descriptors() as u64 + 4;
    let limit = Rlimit { current: Some(room), maximum: Some(room) };
    prlimit(Some(server.pid()), Resource::Nofile, limit).unwrap();
    let connect = || UnixStream::connect(server.socket()).unwrap();
    let waiting: Vec<UnixStream> = (0..30).map(|_| connect()).collect();
    let said = || std::fs::read_to_string(&log).unwrap();
    wait_for("it says that it is full", || {
        client.assert_alive();
        said().contains("no more clients for now")
    });
    // The log would fill while it lasts.
    for _ in 0..10 {
        std::thread::sleep(Duration::from_millis(100));
        client.assert_alive();
    }
    assert_eq!(said().lines().count(), 1, "{}", said());
    drop(waiting);
    server.session(Mode::Simple, "").assert_alive();
}

#[test]
fn a_client_whose_machine_has_gone_is_noticed_within_minutes() {
    let (job, address) = start_on_tcp(&[]);
    let client = TcpStream::connect(address).unwrap();
    // The greeting: the server has made the connection its own.
    std::io::Read::read_exact(&mut &client, &mut [0; 18]).unwrap();
    let Ok(process) = pidfd_open(job.pid(), PidfdFlags::empty()) else {
        return skip_environment("the system has no pidfd");
    };
    let theirs = |fd: &OwnedFd| {
        let peer = rustix::net::getpeername(fd).ok().flatten();
        peer.and_then(|a| a.try_into().ok()) == Some(client.local_addr().unwrap())
    };
    let mut fds = (0..64).filter_map(|n| pidfd_getfd(&process, n, PidfdGetfdFlags::empty()).ok());
    let Some(socket) = fds.find(theirs) else {
        return skip_environment("sockets of other processes cannot be looked at");
    };
    assert!(sockopt::socket_keepalive(&socket).unwrap());
    assert_eq!(sockopt::tcp_keepidle(&socket).unwrap(), Duration::from_secs(60));
    assert_eq!(sockopt::tcp_keepintvl(&socket).unwrap(), Duration::from_secs(10));
    assert_eq!(sockopt::tcp_keepcnt(&socket).unwrap(), 6);
    assert_eq!(sockopt::tcp_user_timeout(&socket).unwrap(), 300_000);
}
