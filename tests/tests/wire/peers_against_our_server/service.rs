//! How a server is started, found and stopped: --run, pid file, --daemon, service manager,
//! a stop, many clients.

use std::fs;
use std::os::unix::net::UnixListener;
use std::process::{Command, Stdio};

use blackbox::launch::{Serve, Server};
use blackbox::peers::diskferry;
use blackbox::run::{Job, Outcome, ours, pid_in, run};
use blackbox::session::Mode;
use blackbox::socket::Socket;
use blackbox::temp::TempDir;
use blackbox::{MIB, wait_for};
use rustix::process::Signal;

/// Runs a shell command beside a server of 1 MiB of memory.
fn beside(options: &[&str], shell: &str) -> Outcome {
    run(ours(["serve"]).args(options).args(["memory", "1M", "--run", shell]))
}

#[test]
fn run_has_the_variables() {
    let outcome = beside(&["--exportname", "ex"], "env");
    let vars = outcome.succeeded().to_owned();
    let value = |name: &str| {
        let found = vars.lines().find_map(|l| l.strip_prefix(&format!("{name}=")));
        found.unwrap_or_else(|| panic!("no ${name} in {vars}")).to_owned()
    };
    let (uri, socket) = (value("uri"), value("unixsocket"));
    assert!(uri.starts_with("nbd+unix:///ex?socket="), "{uri}");
    assert!(uri.ends_with(&socket), "{uri} {socket}");
    assert_eq!(value("nbd"), uri);
    assert_eq!(value("exportname"), "ex");
    // The socket was made for us, and is gone.
    assert!(!std::path::Path::new(&socket).exists(), "{socket} was left behind");
}

#[test]
fn run_passes_the_exit_status_on() {
    for status in [0, 1, 7, 255] {
        let outcome = beside(&[], &format!("exit {status}"));
        assert_eq!(outcome.status.code(), Some(status));
        assert_eq!(outcome.stderr, "", "the status is the command's own affair");
    }
    assert_eq!(beside(&[], "kill -TERM $$").status.code(), Some(128 + 15));
    assert_eq!(beside(&[], "kill -KILL $$").status.code(), Some(128 + 9));
    assert_eq!(beside(&[], "/nonexistent/command").status.code(), Some(127));
}

#[test]
fn run_with_spaces_and_quotes_in_the_export_name() {
    let outcome =
        beside(&["--exportname", "a b'c\"d%"], "printf '%s' \"$exportname\"; echo; echo $uri");
    let text = outcome.succeeded().to_owned();
    let mut lines = text.lines();
    assert_eq!(lines.next(), Some("a b'c\"d%"));
    let uri = lines.next().unwrap();
    assert!(!uri.contains(' ') && uri.contains("%20"), "{uri}");
}

#[test]
fn a_pid_file_is_only_written_when_it_listens() {
    let temp = TempDir::new();
    let file = temp.join("pid");
    let missing = temp.join("no/such/directory/s");
    let mut command = ours(["serve", "-U"]);
    command.arg(&missing).arg("-P").arg(&file).args(["memory", "1M"]);
    run(&mut command).failed();
    assert!(!file.exists());
}

#[test]
fn a_daemon_goes_away_and_is_ready_at_once() {
    let temp = TempDir::new();
    let (socket, file) = (temp.join("s"), temp.join("pid"));
    let mut command = Command::new(diskferry());
    command.args(["serve", "--daemon", "-U"]).arg(&socket).arg("-P").arg(&file);
    command.args(["memory", "1M"]).stdin(Stdio::null()).stdout(Stdio::null());
    assert!(command.stderr(Stdio::null()).status().unwrap().success());
    // No waiting here: the parent returned, so it must be there.
    assert!(fs::read_to_string(&file).unwrap().ends_with('\n'));
    let mut socket = Socket::unix(&socket).unwrap();
    assert_eq!(socket.receive(18, "the greeting").len(), 18);
    drop(socket);
    let pid = pid_in(&file);
    rustix::process::kill_process(pid, Signal::TERM).unwrap();
    wait_for("the daemon's end", || rustix::process::test_kill_process(pid).is_err());
}

#[test]
fn the_service_manager_hands_over_its_socket() {
    let temp = TempDir::new();
    let path = temp.join("s");
    let listener = UnixListener::bind(&path).unwrap();
    // The shell moves the listener from standard input to descriptor 3.
    let script = "LISTEN_FDS=1 LISTEN_PID=$$ exec \"$0\" serve memory 1M 3<&0 0</dev/null";
    let mut command = Command::new("sh");
    command.args(["-c", script]).arg(diskferry());
    command.stdin(Stdio::from(std::os::fd::OwnedFd::from(listener)));
    let job = Job::start(&mut command);
    let mut greeted = Socket::unix(&path).unwrap();
    greeted.receive(18, "the greeting");
    drop(greeted);
    let mut session = blackbox::haggle::Haggler::new(Socket::unix(&path).unwrap()).go("");
    session.assert_alive();
    session.disconnect();
    job.stop();
    assert!(path.exists(), "the socket is the service manager's, not ours to remove");
}

#[test]
fn a_signal_right_after_the_start_is_as_graceful_as_any() {
    // A server that listens must already know what to do with a signal: otherwise one that comes
    // early kills it, or is lost.
    for _ in 0..20 {
        let status = Serve::memory("1M").start().stop();
        assert!(status.success(), "{status}");
    }
}

#[test]
fn a_socket_for_another_process_is_not_taken() {
    // LISTEN_PID names another process: the variables are not for us.
    let temp = TempDir::new();
    let path = temp.join("s");
    let mut command = Command::new(diskferry());
    command.args(["serve", "-U"]).arg(&path).args(["memory", "1M"]);
    command.env("LISTEN_FDS", "1").env("LISTEN_PID", "1");
    let server = Server::start(command, temp, path);
    server.session(Mode::Simple, "").assert_alive();
}

#[test]
fn hundreds_of_connections_are_cheap() {
    let server = Serve::memory("1M").start();
    let before = server.anonymous_memory();
    let mut sessions: Vec<_> = (0..500).map(|_| server.session(Mode::Simple, "")).collect();
    for session in &mut sessions {
        session.assert_alive();
    }
    let grown = server.anonymous_memory().saturating_sub(before);
    assert!(grown < 64 * MIB, "{grown} bytes for 500 idle connections");
}
