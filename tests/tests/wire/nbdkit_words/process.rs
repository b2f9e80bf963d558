//! The server as a process: its memory, its parent, and when and where it listens.

use std::fs;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Command, Stdio};

use blackbox::launch::Serve;
use blackbox::peers::{diskferry, skip_environment};
use blackbox::run::{Job, ours, pid_in, run, runs};
use blackbox::session::Mode;
use blackbox::temp::TempDir;
use blackbox::wait_for;
use rustix::process::Pid;

use super::identity::status;

#[test]
fn a_debug_flag_is_named_as_ignored() {
    let outcome = run(&mut ours(["serve", "-D", "x.y=1", "memory", "1M", "--run", "true"]));
    outcome.succeeded();
    assert!(outcome.stderr.contains("-D x.y=1"), "{outcome:?}");
}

#[test]
fn swap_locks_the_program_in_memory() {
    if !rustix::process::geteuid().is_root() {
        return skip_environment("locking memory may take root");
    }
    let server = Serve::memory("1M").option("--swap").start();
    server.session(Mode::Simple, "").assert_alive();
    assert_ne!(status(server.pid(), "VmLck:"), ["0 kB"]);
}

#[test]
fn swap_fills_no_disk_in_memory() {
    if !rustix::process::geteuid().is_root() {
        return skip_environment("locking memory may take root");
    }
    let server = Serve::memory("300M").option("--swap").start();
    let mut session = server.session(Mode::Structured, "");
    session.read(0, 4096).unwrap();
    // Hole and zero.
    assert_eq!(session.map(), [(300 << 20, 3)]);
}

#[test]
fn a_label_is_refused_where_there_is_no_selinux() {
    if Path::new("/sys/fs/selinux/enforce").exists() {
        return skip_environment("SELinux is here");
    }
    let outcome = run(&mut ours(["serve", "--selinux-label=x", "memory", "1M", "--run", "true"]));
    assert!(outcome.failed().contains("without SELinux"));
}

/// Starts a server whose parent is a shell that ends when its standard input does; the server's
/// process id once it listens.
fn child_of_a_shell(temp: &TempDir, options: &str) -> (std::process::Child, Pid) {
    let pid = temp.join("pid");
    let script = format!(
        "{} serve --exit-with-parent {options} -U {} -P {} memory 1M & read line",
        diskferry().display(),
        temp.join("s").display(),
        pid.display(),
    );
    let mut shell = Command::new("sh");
    let shell = shell.args(["-c", &script]).stdin(Stdio::piped()).spawn().unwrap();
    (shell, pid_in(&pid))
}

#[test]
fn a_server_ends_with_its_parent_if_that_is_set() {
    let mut options = vec![""];
    let is_root = rustix::process::geteuid().is_root();
    if is_root {
        // A change of user undoes the wish if it comes too late.
        options.push("-u 65534 -g 65534");
    }
    for options in options {
        let temp = TempDir::new();
        fs::set_permissions(temp.path(), std::os::unix::fs::PermissionsExt::from_mode(0o777))
            .unwrap();
        let (mut shell, server) = child_of_a_shell(&temp, options);
        assert!(runs(server));
        drop(shell.stdin.take());
        shell.wait().unwrap();
        wait_for("the server's end", || !runs(server));
    }
}

#[test]
fn no_client_can_connect_before_the_disks_are_open() {
    // The disk is on a server that does not greet, so opening it takes until that one goes.
    let temp = TempDir::new();
    let silent = UnixListener::bind(temp.join("silent")).unwrap();
    let socket = temp.join("s");
    let mut command = ours(["serve", "-U"]);
    command.arg(&socket).arg("nbd").arg(format!("socket={}", temp.join("silent").display()));
    let job = Job::start(&mut command);
    let (client, _) = silent.accept().unwrap();
    assert!(!socket.exists(), "it listens already");
    drop((client, silent));
    job.wait().failed();
    assert!(!socket.exists());
}

#[test]
fn a_private_socket_without_a_command_is_named() {
    let job = Job::start(&mut ours(["serve", "-U", "-", "memory", "1M"]));
    let uri = job.first_line();
    assert!(uri.starts_with("nbd+unix:///?socket=/") && uri.ends_with("/socket"), "{uri}");
    job.stop();
}

#[test]
fn the_uri_names_the_host_as_it_was_given_and_without_brackets() {
    for (host, named) in
        [("localhost", "localhost"), ("127.0.0.1", "127.0.0.1"), ("[127.0.0.1]", "127.0.0.1")]
    {
        let words = ["serve", "-i", host, "-p", "0", "memory", "1M", "--run", "echo $uri"];
        let outcome = run(&mut ours(words));
        assert!(outcome.succeeded().starts_with(&format!("nbd://{named}:")), "{outcome:?}");
    }
}
