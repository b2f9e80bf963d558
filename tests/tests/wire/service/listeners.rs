//! Several sockets at once, and which users may connect to those of the file system.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::process::Stdio;

use blackbox::peers::skip_environment;
use blackbox::run::{ours, run};
use blackbox::temp::TempDir;

#[test]
fn tcp_and_unix_sockets_serve_at_the_same_time() {
    let temp = TempDir::new();
    let sockets = [temp.join("a"), temp.join("b")];
    let mut serve = ours(["serve", "--print-uri", "-i", "127.0.0.1", "-p", "0", "-p", "0", "-U"]);
    serve.arg(&sockets[0]).arg("-U").arg(&sockets[1]).args(["pattern", "1M"]);
    let mut server = serve.stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(server.stdout.take().unwrap()).lines();
    let uris: Vec<String> = lines.take(4).map(Result::unwrap).collect();
    for (uri, socket) in uris.iter().zip(&sockets) {
        assert_eq!(*uri, format!("nbd+unix:///?socket={}", socket.display()));
    }
    assert!(uris[2..].iter().all(|uri| uri.starts_with("nbd://127.0.0.1:")), "{uris:?}");
    assert_ne!(uris[2], uris[3]);
    let sums: Vec<bool> = uris
        .iter()
        .map(|uri| run(&mut ours(["compare", uri, "pattern:1M"])).status.success())
        .collect();
    let pid = rustix::process::Pid::from_child(&server);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert!(server.wait().unwrap().success());
    assert_eq!(sums, [true; 4], "{uris:?}");
    assert!(sockets.iter().all(|socket| !socket.exists()), "a socket was left behind");
}

#[test]
fn of_two_sockets_one_that_cannot_be_had_leaves_neither() {
    let temp = TempDir::new();
    let socket = temp.join("a");
    let mut serve = ours(["serve", "-U"]);
    serve.arg(&socket).arg("-U").arg(temp.join("none/b")).args(["memory", "1M"]);
    assert!(run(&mut serve).failed().contains("none/b"));
    assert!(!socket.exists());
}

#[test]
fn the_command_of_run_gets_one_of_each_kind() {
    let words = ["serve", "-U", "-", "-i", "127.0.0.1", "-p", "0", "memory", "1M", "--run"];
    let outcome = run(ours(words).arg("echo $unixsocket; echo $port; echo $uri"));
    let lines: Vec<&str> = outcome.succeeded().lines().collect();
    assert!(lines[0].ends_with("/socket"), "{lines:?}");
    assert_ne!(lines[1].parse::<u16>().unwrap(), 0);
    assert_eq!(lines[2], format!("nbd+unix:///?socket={}", lines[0]));
}

#[test]
fn a_socket_has_the_mode_and_the_owner_that_were_asked_for() {
    let temp = TempDir::new();
    let (socket, other) = (temp.join("s"), temp.join("t"));
    let ours_is = fs::metadata(temp.path()).unwrap();
    let (uid, gid) = match ours_is.uid() {
        0 => (12_345, 54_321),
        uid => (uid, ours_is.gid()),
    };
    if ours_is.uid() != 0 {
        skip_environment("only root gives files away");
    }
    let mut serve = ours(["serve", "--socket-mode=0620", "--socket-owner"]);
    serve.arg(format!("{uid}:{gid}")).arg("-U").arg(&socket).arg("-U").arg(&other);
    let look = format!("stat -c '%a %u %g' {} {}", socket.display(), other.display());
    let outcome = run(serve.args(["memory", "1M", "--run", &look]));
    let line = format!("620 {uid} {gid}\n");
    assert_eq!(outcome.succeeded(), line.repeat(2));
}
