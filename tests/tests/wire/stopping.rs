//! How a server ends: gracefully when it is asked to, at once when it is asked again, before long
//! in any case, and never by what a client, a reader of its log or the file system does.

use std::fs::{self, File};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use blackbox::haggle::Haggler;
use blackbox::launch::{Serve, Server};
use blackbox::nbd::cmd;
use blackbox::peers::{diskferry, skip_environment, strace};
use blackbox::run::{Job, Outcome, ours, pid_in, run, runs};
use blackbox::session::{Mode, Request};
use blackbox::socket::Socket;
use blackbox::temp::{TempDir, pattern};
use blackbox::{on_time, wait_for};
use rustix::process::{Signal, kill_process};

/// A server that a shell starts after `before`, and its socket.
fn after(before: &str, temp: &TempDir, words: &str) -> (Job, PathBuf) {
    let socket = temp.join("s");
    let text =
        format!("{before}; exec {} serve -U {} {words}", diskferry().display(), socket.display());
    let job = Job::start(Command::new("sh").args(["-c", &text]).stdin(Stdio::null()));
    wait_for("the socket", || UnixStream::connect(&socket).is_ok());
    (job, socket)
}

/// The log, without times and clients.
fn log_lines(path: &Path) -> Vec<String> {
    let text = fs::read_to_string(path).unwrap();
    text.lines().map(|line| line.split_once(": ").unwrap_or(("", line)).1.to_owned()).collect()
}

/// Whether the parent of the tests ignores SIGHUP (nohup does), as our servers then do.
fn ignores_hang_up() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
    u64::from_str_radix(mask.trim(), 16).unwrap() & 1 == 1
}

#[test]
fn a_terminal_that_goes_away_ends_a_server_as_a_stop_does() {
    for signal in [Signal::HUP, Signal::TERM] {
        if signal == Signal::HUP && ignores_hang_up() {
            skip_environment("SIGHUP is ignored here");
            continue;
        }
        let temp = TempDir::new();
        let disk = temp.sparse_file("disk", 1 << 20);
        let server = Serve::file(&disk).option("--filter=cache").option("-P");
        let mut server = server.option(temp.join("pid")).start();
        let mut client = server.session(Mode::Simple, "");
        client.write(0, &[b'A'; 65536]);
        let socket = server.socket().to_owned();
        assert_eq!(pid_in(&temp.join("pid")), server.pid());
        server.signal(signal);
        assert!(server.wait().success(), "{signal:?}");
        assert_eq!(fs::read(&disk).unwrap()[..65536], [b'A'; 65536], "{signal:?}");
        assert!(!socket.exists() && !temp.join("pid").exists(), "{signal:?}");
    }
}

#[test]
fn a_server_that_was_started_without_a_terminal_in_mind_goes_on_without_it() {
    let temp = TempDir::new();
    let (job, socket) = after("trap '' HUP", &temp, "memory 1M");
    job.signal(Signal::HUP);
    thread::sleep(Duration::from_millis(300));
    UnixStream::connect(&socket).unwrap();
    job.stop();
}

#[test]
fn a_hang_up_makes_a_daemon_open_its_log_again() {
    let temp = TempDir::new();
    let (log, pid) = (temp.join("log"), temp.join("pid"));
    let mut command = ours(["serve", "--daemon", "-v", "-U"]);
    command.arg(temp.join("s")).arg("-P").arg(&pid).arg("--log").arg(&log).args(["memory", "1M"]);
    run(&mut command).succeeded();
    let daemon = pid_in(&pid);
    fs::rename(&log, temp.join("old")).unwrap();
    kill_process(daemon, Signal::HUP).unwrap();
    wait_for("the new log", || log.exists());
    drop(Socket::unix(&temp.join("s")).unwrap());
    wait_for("a line in it", || fs::read_to_string(&log).unwrap().contains("connected"));
    kill_process(daemon, Signal::TERM).unwrap();
    wait_for("the daemon's end", || !pid.exists());
}

/// A proxy to a server that has stopped answering, with a request on its way.
fn with_a_request_that_does_not_end(
    options: &[&str],
) -> (Server, Server, blackbox::session::Session) {
    let mut upstream = Serve::memory("1M").start();
    let mut proxy = Serve::proxy(&upstream.uri(""));
    for option in options {
        proxy = proxy.option(*option);
    }
    let proxy = proxy.start();
    let mut client = proxy.session(Mode::Simple, "");
    upstream.signal(Signal::STOP);
    client.send(&Request::new(cmd::READ, 0, 512));
    (proxy, upstream, client)
}

#[test]
fn a_second_signal_ends_at_once_with_a_status_that_says_so() {
    // Those that come within half a second are one.
    on_time(Duration::from_millis(300), || {
        let temp = TempDir::new();
        let log = temp.join("log");
        let option = format!("--log={}", log.display());
        let (mut proxy, _upstream, _client) = with_a_request_that_does_not_end(&["-v", &option]);
        let socket = proxy.socket().to_owned();
        proxy.signal(Signal::TERM);
        wait_for("the stop", || log_lines(&log).contains(&"stopping".to_owned()));
        // Two signals in a row (timeout(1) sends them) are one request.
        proxy.signal(Signal::TERM);
        thread::sleep(Duration::from_millis(700));
        assert!(proxy.is_running(), "one wish was taken for two");
        proxy.signal(Signal::TERM);
        assert_eq!(proxy.wait().code(), Some(1));
        assert!(log_lines(&log).last().unwrap().contains("by a second signal"));
        assert!(!socket.exists());
    });
}

#[test]
fn a_stop_right_after_the_first_client_keeps_what_was_acknowledged() {
    let Some(strace) = strace() else { return };
    let temp = TempDir::new();
    let (disk, socket) = (temp.sparse_file("disk", 1 << 20), temp.join("s"));
    // Clients can connect already when the server shuts its sandbox behind itself, which takes
    // three seconds here.
    let mut command = Command::new(strace);
    command.args(["-D", "-f", "-qq", "-o", "/dev/null"]);
    command.args(["-e", "trace=seccomp", "-e", "inject=seccomp:delay_enter=3000000"]);
    command
        .arg(diskferry())
        .args(["serve", "--sandbox=require", "--filter=cache", "-U"])
        .arg(&socket);
    let job = Job::start(command.arg("file").arg(&disk).stdin(Stdio::null()));
    wait_for("the socket", || UnixStream::connect(&socket).is_ok());
    let mut client = Haggler::new(Socket::unix(&socket).unwrap()).go("");
    client.write(0, &pattern(0, 65_536));
    job.signal(Signal::TERM);
    let outcome = job.wait();
    assert_eq!(outcome.status.code(), Some(0), "{outcome:#?}");
    assert!(fs::read(&disk).unwrap()[..65_536] == pattern(0, 65_536), "{outcome:#?}");
}

#[test]
fn no_stop_takes_longer_than_its_limit_whatever_the_program_waits_for() {
    // A report into a pipe that is not read: the program cannot even look at signals.
    let temp = TempDir::new();
    let pipe = temp.join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let held = File::options().read(true).write(true).open(&pipe).unwrap();
    rustix::pipe::fcntl_setpipe_size(&held, 4096).unwrap();
    fill(&held);
    let filter = format!("--filter=stats?statsfile={}", pipe.display());
    let mut server = Serve::memory("1M").option(filter).start();
    server.signal(Signal::USR1);
    let at = format!("/proc/{}/wchan", server.pid().as_raw_nonzero());
    wait_for("the report", || fs::read_to_string(&at).unwrap().contains("pipe_write"));
    let socket = server.socket().to_owned();
    server.signal(Signal::TERM);
    assert_eq!(server.wait().code(), Some(1));
    assert!(!socket.exists());
}

#[test]
fn a_write_back_that_moves_is_given_the_time_it_takes() {
    // Nine rounds of eight pieces, each of four seconds: longer than a stop may make no progress.
    let temp = TempDir::new();
    let disk = temp.sparse_file("disk", 72 << 20);
    let server =
        Serve::file(&disk).option("--filter=cache").option("--filter=delay?wdelay=4s").start();
    let mut client = server.session(Mode::Simple, "");
    for piece in 0..72 {
        client.write(piece << 20, &[b'A'; 1 << 20]);
    }
    drop(client);
    assert!(server.stop().success());
    assert!(fs::read(&disk).unwrap().iter().all(|byte| *byte == b'A'));
}

/// Leaves no room in a pipe.
fn fill(pipe: &File) {
    use std::io::Write;
    rustix::io::ioctl_fionbio(pipe, true).unwrap();
    let mut pipe = pipe;
    while pipe.write(&[b' '; 4096]).is_ok() {}
    while pipe.write(b" ").is_ok() {}
    rustix::io::ioctl_fionbio(pipe, false).unwrap();
}

#[test]
fn a_client_that_does_nothing_does_not_delay_a_stop() {
    let temp = TempDir::new();
    let log = temp.join("log");
    let server =
        Serve::memory("1M").option("-v").option(format!("--log={}", log.display())).start();
    let mut idle = server.session(Mode::Simple, "");
    idle.assert_alive();
    assert!(server.stop().success());
    let lines = log_lines(&log);
    // After the longer wait for a client with requests in flight it would log that.
    let is_end = |line: &String| line.starts_with("ended: the server stops");
    assert!(lines.iter().any(is_end), "{lines:?}");
    drop(idle);
}

/// A client that has asked for 32 MiB, far more than sockets hold, and has seen the answer begin.
fn with_a_long_answer(server: &Server) -> blackbox::session::Session {
    let mut client = server.session(Mode::Simple, "");
    client.send(&Request::new(cmd::READ, 0, 32 << 20));
    client.socket.receive(16, "the header of the answer");
    client
}

#[test]
fn a_client_that_never_reads_does_not_hold_up_a_stop_and_one_that_reads_slowly_gets_all() {
    let temp = TempDir::new();
    let log = temp.join("log");
    let mut server =
        Serve::device(["pattern", "32M"]).option(format!("--log={}", log.display())).start();
    let (stuck, mut slow) = (with_a_long_answer(&server), with_a_long_answer(&server));
    server.signal(Signal::TERM);
    // It takes longer than the limit, but never makes no progress for that long.
    let mut got = 0;
    for _ in 0..35 {
        got += slow.socket.receive(256 << 10, "a part of the answer").len();
        thread::sleep(Duration::from_millis(200));
    }
    slow.socket.receive((32 << 20) - got, "the rest of the answer");
    drop(slow);
    assert!(server.wait().success());
    let lines = log_lines(&log);
    let closed = |line: &&String| line.contains("it reads nothing, and the server is stopping");
    assert_eq!(lines.iter().filter(closed).count(), 1, "{lines:?}");
    drop(stuck);
}

#[test]
fn a_standard_error_that_is_not_read_stops_neither_clients_nor_the_end() {
    let temp = TempDir::new();
    let pipe = temp.join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let held = File::options().read(true).write(true).open(&pipe).unwrap();
    rustix::pipe::fcntl_setpipe_size(&held, 4096).unwrap();
    let socket = temp.join("s");
    let mut command = ours(["serve", "-v", "-U"]);
    command.arg(&socket).args(["memory", "1M"]);
    let out = File::options().write(true).open(&pipe).unwrap();
    let mut server = command.stderr(out).stdout(Stdio::null()).spawn().unwrap();
    wait_for("the socket", || UnixStream::connect(&socket).is_ok());
    for _ in 0..300 {
        let mut client = Socket::unix(&socket).unwrap();
        client.receive(18, "the greeting");
        client.offer(&[0xff; 20]);
        client.drain();
    }
    Haggler::new(Socket::unix(&socket).unwrap()).go("").assert_alive();
    let pid = rustix::process::Pid::from_child(&server);
    kill_process(pid, Signal::TERM).unwrap();
    wait_for("the end", || !runs(pid));
    assert!(server.wait().unwrap().success());
    drop(held);
}

#[test]
fn a_write_beyond_the_limit_of_file_sizes_is_an_error_of_that_write() {
    let temp = TempDir::new();
    let disk = temp.sparse_file("disk", 4 << 20);
    let (job, socket) = after("ulimit -f 1024", &temp, &format!("file {}", disk.display()));
    let mut client = Haggler::new(Socket::unix(&socket).unwrap()).go("");
    let no_space = client.error_of(&Request::write(2 << 20, &[b'x'; 4096]));
    assert_eq!(no_space, blackbox::nbd::err::ENOSPC);
    client.write(0, &[b'x'; 4096]);
    job.stop();
}

#[test]
fn a_copy_beyond_the_limit_of_file_sizes_fails_as_other_copies_do() {
    let temp = TempDir::new();
    let outcome = limited(&temp, "copy pattern:4M new.raw");
    assert!(outcome.failed().contains("new.raw"), "{outcome:?}");
    assert!(!temp.join("new.raw").exists());
}

#[test]
fn a_command_beside_a_server_has_the_signals_and_limits_that_the_server_was_given() {
    let temp = TempDir::new();
    let line = "grep -E 'Sig(Ign|Cgt)' /proc/self/status; ulimit -Sn";
    let outcome = limited(&temp, &format!("serve null 1M --run \"{line}\""));
    let lines: Vec<&str> = outcome.succeeded().lines().collect();
    for mask in &lines[..2] {
        let mask = u64::from_str_radix(mask.split_whitespace().nth(1).unwrap(), 16).unwrap();
        assert_eq!(mask >> (libc::SIGXFSZ - 1) & 1, 0, "{lines:?}");
    }
    assert_eq!(lines[2], "300");
}

/// Runs our program with little allowed.
fn limited(temp: &TempDir, words: &str) -> Outcome {
    let text = format!("ulimit -Sn 300; ulimit -f 1024; exec {} {words}", diskferry().display());
    run(Command::new("sh").args(["-c", &text]).current_dir(temp.path()))
}

#[test]
fn a_stop_that_comes_while_disks_are_opened_does_not_wait_for_them() {
    let temp = TempDir::new();
    let silent = UnixListener::bind(temp.join("silent")).unwrap();
    let upstream = format!("socket={}", temp.join("silent").display());
    for (run, status) in [(None, 0), (Some("true"), 1)] {
        let mut command = ours(["serve", "nbd", &upstream, "retry=1000000"]);
        command.args(run.map(|command| ["--run", command]).into_iter().flatten());
        let job = Job::start(&mut command);
        let (_client, _) = silent.accept().unwrap();
        job.signal(Signal::INT);
        let outcome = job.wait();
        assert_eq!(outcome.status.code(), Some(status), "{outcome:?}");
    }
}
