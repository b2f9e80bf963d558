//! The server reports to the service manager what has happened, when it has happened.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::process::Command;
use std::time::Duration;

use blackbox::GUARD;
use blackbox::launch::Serve;
use blackbox::nbd::cmd;
use blackbox::run::{Job, ours, run};
use blackbox::session::{Mode, Request};
use blackbox::socket::Socket;
use blackbox::temp::TempDir;
use rustix::process::Signal;

/// A service manager: a socket, and how the environment names it.
struct Manager {
    socket: UnixDatagram,
    name: String,
}

impl Manager {
    fn by_path(temp: &TempDir) -> Self {
        let path = temp.join("notify");
        Self::at(UnixDatagram::bind(&path).unwrap(), path.display().to_string())
    }

    fn without_a_file(temp: &TempDir) -> Self {
        let name = temp.path().display().to_string();
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        Self::at(UnixDatagram::bind_addr(&address).unwrap(), format!("@{name}"))
    }

    fn at(socket: UnixDatagram, name: String) -> Self {
        socket.set_read_timeout(Some(GUARD)).unwrap();
        Self { socket, name }
    }

    fn starts(&self, command: &mut Command) -> Job {
        Job::start(command.env("NOTIFY_SOCKET", &self.name))
    }

    /// The next message.
    fn hears(&self) -> String {
        let mut message = [0; 4096];
        let n = self.socket.recv(&mut message).expect("a message of the service");
        String::from_utf8(message[..n].to_vec()).unwrap()
    }

    /// The next message that has this line.
    fn waits_for(&self, line: &str) -> String {
        loop {
            let message = self.hears();
            if message.lines().any(|other| other.starts_with(line)) {
                return message;
            }
        }
    }

    fn hears_nothing_for(&self, time: Duration) {
        self.socket.set_read_timeout(Some(time)).unwrap();
        let heard = self.socket.recv(&mut [0; 4096]);
        assert!(heard.is_err(), "it was told something");
        self.socket.set_read_timeout(Some(GUARD)).unwrap();
    }
}

#[test]
fn ready_is_sent_when_clients_can_connect_and_stopping_at_the_end() {
    for make in [Manager::by_path, Manager::without_a_file] {
        let temp = TempDir::new();
        let (manager, socket) = (make(&temp), temp.join("s"));
        let mut serve = ours(["serve", "--sandbox=require", "-U"]);
        let job = manager.starts(serve.arg(&socket).args(["memory", "1M"]));
        let message = manager.hears();
        // No second try: it has reported that it is ready.
        let client = Socket::unix(&socket).unwrap();
        assert!(
            message.starts_with("READY=1\nSTATUS=serving 1 export at nbd+unix:///?socket="),
            "{message}"
        );
        drop(client);
        job.signal(Signal::TERM);
        let message = manager.hears();
        assert!(message.starts_with("STOPPING=1\n"), "{message}");
        job.wait().succeeded();
    }
}

#[test]
fn a_server_whose_disk_is_not_open_yet_is_not_ready() {
    let temp = TempDir::new();
    let (manager, socket, upstream) =
        (Manager::by_path(&temp), temp.join("s"), temp.join("upstream"));
    let uri = format!("nbd+unix:///?socket={}", upstream.display());
    let mut serve = ours(["serve", "--open-timeout=60", "-U"]);
    let job = manager.starts(serve.arg(&socket).arg("--export").arg(format!("={uri}")));
    manager.hears_nothing_for(Duration::from_millis(500));
    assert!(!socket.exists());
    let mut other = ours(["serve", "-U"]);
    let _other = Job::start(other.arg(&upstream).args(["memory", "1M"]));
    manager.waits_for("READY=1");
    Socket::unix(&socket).unwrap();
    job.stop();
}

#[test]
fn a_server_that_cannot_start_never_sends_ready() {
    let temp = TempDir::new();
    let manager = Manager::by_path(&temp);
    let mut serve = ours(["serve", "-U"]);
    serve.arg(temp.join("s")).arg(temp.join("missing.raw")).env("NOTIFY_SOCKET", &manager.name);
    run(&mut serve).failed();
    manager.hears_nothing_for(Duration::from_millis(1));
}

#[test]
fn a_manager_that_is_named_wrongly_is_an_error_and_one_that_has_gone_away_is_none() {
    let temp = TempDir::new();
    let mut serve = ours(["serve", "memory", "1M", "--run", "true"]);
    assert!(run(serve.env("NOTIFY_SOCKET", "nowhere")).failed().contains("NOTIFY_SOCKET"));
    run(serve.env("NOTIFY_SOCKET", temp.join("gone"))).succeeded();
}

#[test]
fn the_watchdog_is_fed_while_the_server_is_well() {
    let temp = TempDir::new();
    let manager = Manager::by_path(&temp);
    let mut serve = ours(["serve", "-U"]);
    serve.arg(temp.join("s")).args(["memory", "1M"]);
    serve.env("WATCHDOG_USEC", "400000");
    let job = manager.starts(&mut serve);
    manager.waits_for("READY=1");
    for _ in 0..3 {
        assert_eq!(manager.waits_for("WATCHDOG=1"), "WATCHDOG=1");
    }
    job.signal(Signal::TERM);
    manager.waits_for("STOPPING=1");
    job.wait().succeeded();
}

#[test]
fn a_watchdog_of_another_process_is_not_fed() {
    let temp = TempDir::new();
    let manager = Manager::by_path(&temp);
    let mut serve = ours(["serve", "-U"]);
    serve.arg(temp.join("s")).args(["memory", "1M"]);
    serve.env("WATCHDOG_USEC", "40000").env("WATCHDOG_PID", "1");
    let job = manager.starts(&mut serve);
    manager.waits_for("READY=1");
    manager.hears_nothing_for(Duration::from_millis(300));
    job.signal(Signal::TERM);
    assert!(manager.hears().starts_with("STOPPING=1\n"));
    job.wait().succeeded();
}

#[test]
fn a_hang_up_under_a_service_manager_means_reload() {
    let temp = TempDir::new();
    let (manager, socket) = (Manager::by_path(&temp), temp.join("s"));
    let mut serve = ours(["serve", "-U"]);
    let job = manager.starts(serve.arg(&socket).args(["memory", "1M"]));
    manager.waits_for("READY=1");
    job.signal(Signal::HUP);
    let message = manager.waits_for("RELOADING=1");
    let time = message.lines().find_map(|line| line.strip_prefix("MONOTONIC_USEC=")).unwrap();
    assert!(time.parse::<u64>().unwrap() > 0, "{message}");
    assert!(manager.hears().starts_with("READY=1\n"));
    Socket::unix(&socket).unwrap();
    job.stop();
}

#[test]
fn a_stop_that_goes_on_asks_for_more_time() {
    // A write-back of several pieces, each of which takes a second.
    let temp = TempDir::new();
    let manager = Manager::by_path(&temp);
    let disk = temp.sparse_file("disk", 32 << 20);
    let server = Serve::file(&disk)
        .option("--filter=cache")
        .option("--filter=delay?wdelay=1s")
        .environment("NOTIFY_SOCKET", &manager.name)
        .start();
    let mut client = server.session(Mode::Simple, "");
    for piece in 0..16 {
        assert_eq!(client.error_of(&Request::write(piece << 20, &[b'A'; 1 << 20])), 0);
    }
    client.send(&Request::new(cmd::DISC, 0, 0));
    drop(client);
    let stopped = std::thread::spawn(move || server.stop());
    manager.waits_for("STOPPING=1");
    assert!(manager.waits_for("EXTEND_TIMEOUT_USEC=").starts_with("EXTEND_TIMEOUT_USEC="));
    assert!(stopped.join().unwrap().success());
}
