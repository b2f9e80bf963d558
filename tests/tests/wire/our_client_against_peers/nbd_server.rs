//! The reference server, nbd-server: no contexts, in old versions no structured replies,
//! requests of at most 32 MiB.

use std::fs;
use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use blackbox::peers::peer;
use blackbox::run::{ours, run};
use blackbox::socket::Socket;
use blackbox::temp::TempDir;
use blackbox::{GUARD, MIB};
use rustix::process::{Pid, Signal, kill_process};

use super::{disk, fetch, size, there_and_back};

/// nbd-server, stopped by its pid file: it serves several clients only as a daemon.
struct Daemon {
    temp: TempDir,
}

impl Daemon {
    fn uri(&self, export: &str) -> String {
        format!("nbd+unix:///{export}?socket={}", self.temp.join("s").display())
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let pid = fs::read_to_string(self.temp.join("pid")).ok();
        if let Some(pid) = pid.and_then(|p| Pid::from_raw(p.trim().parse().ok()?)) {
            let _ = kill_process(pid, Signal::TERM);
        }
    }
}

/// nbd-server on a Unix socket with the exports `disk` (writable) and `fixed` (read-only).
fn start() -> Option<Daemon> {
    let path = peer("nbd-server")?;
    let temp = TempDir::new();
    let socket = temp.join("s");
    let image = temp.sparse_file("disk", 6 * MIB);
    let fixed = temp.file("fixed", &disk());
    // It insists on a TCP port as well.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    drop(listener);
    let config = format!(
        "[generic]\nunixsock = {}\nlistenaddr = 127.0.0.1\nport = {port}\nallowlist = true\n\
         [disk]\nexportname = {}\nflush = true\nfua = true\ntrim = true\n\
         [fixed]\nexportname = {}\nreadonly = true\n",
        socket.display(),
        image.display(),
        fixed.display(),
    );
    let config = temp.file("config", config.as_bytes());
    let mut command = Command::new(path);
    command.arg("-C").arg(config).arg("-p").arg(temp.join("pid"));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    assert!(command.status().unwrap().success(), "nbd-server does not start");
    let begun = Instant::now();
    while Socket::unix(&socket).is_err() || !temp.join("pid").exists() {
        assert!(begun.elapsed() < GUARD, "nbd-server is not ready");
        thread::sleep(Duration::from_millis(10));
    }
    Some(Daemon { temp })
}

#[test]
fn nbd_server_there_and_back() {
    let Some(server) = start() else { return };
    there_and_back(&server.uri("disk"), &disk());
    assert!(fs::read(server.temp.join("disk")).unwrap() == disk());
}

#[test]
fn nbd_server_sends_the_size_only_in_go() {
    // Version 3.24 answers INFO before it opens the disk, with a size of 0; GO is right.
    let Some(server) = start() else { return };
    assert_eq!(size(&server.uri("disk")), 6 * MIB);
}

#[test]
fn nbd_server_read_only_export() {
    let Some(server) = start() else { return };
    assert!(fetch(&server.uri("fixed")) == disk());
    let temp = TempDir::new();
    let source = temp.file("source", &vec![1; disk().len()]);
    run(ours(["copy"]).arg(&source).arg(server.uri("fixed"))).failed();
    assert!(fs::read(server.temp.join("fixed")).unwrap() == disk());
}

#[test]
fn nbd_server_lists_its_exports() {
    let Some(server) = start() else { return };
    let outcome = run(&mut ours(["list", &server.uri("")]));
    let text = outcome.succeeded();
    assert!(text.contains("disk") && text.contains("fixed"), "{text}");
}

#[test]
fn nbd_server_does_not_know_an_export() {
    let Some(server) = start() else { return };
    run(&mut ours(["info", &server.uri("nowhere")])).failed();
    // It still serves the others.
    assert!(fetch(&server.uri("fixed")) == disk());
}
