//! A client that comes back after it lost its connection: what it asked for over the old one is
//! done before it is accepted, or never.

use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use blackbox::haggle::Haggler;
use blackbox::launch::Serve;
use blackbox::nbd::{cmd, go_data, opt};
use blackbox::peers::{diskferry, strace};
use blackbox::run::{Job, pid_in};
use blackbox::session::{Mode, Request};
use blackbox::socket::Socket;
use blackbox::temp::TempDir;
use blackbox::wait_for;

#[test]
fn a_write_does_not_overtake_those_of_the_same_client_after_it_came_back() {
    let Some(strace) = strace() else { return };
    let folder = TempDir::below(&std::env::current_dir().unwrap());
    let disk = folder.sparse_file("disk", 1 << 20);
    let temp = TempDir::new();
    let (socket, pid) = (temp.join("s"), temp.join("pid"));
    let mut command = Command::new(strace);
    command.args(["-f", "-q", "-o", "/dev/null", "-e", "trace=pwrite64,pwritev2"]);
    // The second write of a thread waits.
    command.args(["-e", "inject=pwrite64,pwritev2:delay_enter=1500000:when=2"]);
    command.arg(diskferry()).arg("serve").arg("-P").arg(&pid).arg("-U").arg(&socket).arg(&disk);
    let job = Job::start(command.stdin(Stdio::null()));
    wait_for("the socket", || UnixStream::connect(&socket).is_ok());
    let open = || Haggler::new(Socket::unix(&socket).unwrap()).go("");
    let mut first = open();
    first.write(8192, &[9; 4096]);
    first.send(&Request::write(0, &[1; 4096]));
    // It was received, and is still in flight.
    thread::sleep(Duration::from_millis(300));
    drop(first);
    let mut again = open();
    again.write(0, &[2; 4096]);
    thread::sleep(Duration::from_millis(1500));
    assert_eq!(again.read(0, 4096).unwrap(), [2; 4096]);
    drop(again);
    rustix::process::kill_process(pid_in(&pid), rustix::process::Signal::TERM).unwrap();
    job.wait();
}

#[test]
fn many_clients_that_wait_for_one_that_leaves_do_not_slow_the_others() {
    const CROWD: usize = 150;
    let server = Serve::memory("64M").start();
    let mut served = server.session(Mode::Simple, "");
    // No hole at its end: it is sent, and not read.
    served.write((32 << 20) - 1, &[1]);
    let idle: Vec<_> = (0..CROWD).map(|_| server.session(Mode::Simple, "")).collect();
    let mut leaves = server.session(Mode::Simple, "");
    for _ in 0..8 {
        leaves.send(&Request::new(cmd::READ, 0, 32 << 20));
    }
    leaves.socket.finish_sending();
    thread::sleep(Duration::from_millis(100));
    let waiting: Vec<_> = (0..CROWD)
        .map(|_| {
            let mut client = server.haggle();
            client.send(opt::GO, &go_data(b"", &[]));
            client
        })
        .collect();
    let before = server.processor_time();
    for _ in 0..1000 {
        served.assert_alive();
    }
    let spent = server.processor_time() - before;
    assert!(spent < 100, "{spent} hundredths of a second for a thousand small requests");
    assert!(waiting.iter().all(|client| client.socket.waiting() == 0), "they were let in");
    drop((idle, leaves));
}
