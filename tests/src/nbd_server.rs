//! nbd-server, the protocol's reference: a daemon, which is stopped by its pid file.

use std::net::TcpListener;
use std::process::{Command, Stdio};

use rustix::process::{Signal, kill_process};

use crate::peers::peer;
use crate::run::{pid_in, runs};
use crate::socket::Socket;
use crate::temp::TempDir;
use crate::{eventually, wait_for};

/// It serves until it is dropped.
#[derive(Debug)]
pub struct NbdServer {
    /// Its directory, in which its Unix socket is `s`.
    pub temp: TempDir,
    /// Its TCP port, which it wants to be named in any case.
    pub port: u16,
}

impl NbdServer {
    /// Starts it on TCP or on a Unix socket with this configuration, in which `%T` is its
    /// directory; files are made by `files`. `None`, after saying so, where it is missing.
    pub fn start(
        is_tcp: bool,
        general: &str,
        exports: &str,
        files: impl FnOnce(&TempDir),
    ) -> Option<Self> {
        let path = peer("nbd-server")?;
        let temp = TempDir::new();
        files(&temp);
        let (socket, pid) = (temp.join("s"), temp.join("pid"));
        let unix = if is_tcp { "" } else { "unixsock = %T/s\n" };
        // A port that was just free may be taken by the time it wants it.
        let port = eventually("nbd-server starts", || {
            let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
            let port = address.port();
            let config = format!(
                "[generic]\n{unix}listenaddr = 127.0.0.1\nport = {port}\nallowlist = true\n\
                 {general}\n{exports}"
            );
            let config = config.replace("%T", temp.path().to_str().unwrap());
            let config = temp.file("config", config.as_bytes());
            let _ = std::fs::remove_file(&pid);
            let mut command = Command::new(&path);
            command.arg("-C").arg(config).arg("-p").arg(&pid);
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            assert!(command.status().unwrap().success(), "nbd-server does not start");
            let daemon = pid_in(&pid);
            wait_for("it listens or has ended", || {
                let try_it = || if is_tcp { Socket::tcp(address) } else { Socket::unix(&socket) };
                !runs(daemon) || try_it().is_ok()
            });
            runs(daemon).then_some(port)
        });
        Some(Self { temp, port })
    }

    /// The URI of an export on the Unix socket.
    pub fn uri(&self, export: &str) -> String {
        format!("nbd+unix:///{export}?socket={}", self.temp.join("s").display())
    }
}

impl Drop for NbdServer {
    fn drop(&mut self) {
        let _ = kill_process(pid_in(&self.temp.join("pid")), Signal::TERM);
    }
}
