//! nbd-server, the protocol's reference: a daemon, which is stopped by its pid file.

use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::{Signal, kill_process};

use crate::eventually;
use crate::peers::peer;
use crate::run::pid_in;
use crate::socket::Socket;
use crate::temp::TempDir;

/// It serves until it is dropped.
#[derive(Debug)]
pub struct NbdServer {
    /// Its directory, in which its Unix socket is `s`.
    pub temp: TempDir,
    /// Its TCP port, on which it insists.
    pub port: u16,
}

impl NbdServer {
    /// Starts it with this configuration, in which `%T` is its directory; files are made by `files`.
    /// `None`, after saying so, where it is missing.
    pub fn start(general: &str, exports: &str, files: impl FnOnce(&TempDir)) -> Option<Self> {
        let path = peer("nbd-server")?;
        let temp = TempDir::new();
        files(&temp);
        // A port that was just free may be taken by the time it wants it.
        let port = eventually("nbd-server starts", || {
            let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
            let config = format!(
                "[generic]\nunixsock = %T/s\nlistenaddr = 127.0.0.1\nport = {}\nallowlist = true\n\
                 {general}\n{exports}",
                port.port()
            );
            let config = temp.file("config", Self::place(&config, temp.path()).as_bytes());
            let mut command = Command::new(&path);
            command.arg("-C").arg(config).arg("-p").arg(temp.join("pid"));
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            command.status().unwrap().success().then_some(port)
        });
        pid_in(&temp.join("pid"));
        eventually("nbd-server listens", || Socket::tcp(port).ok());
        Some(Self { temp, port: port.port() })
    }

    fn place(text: &str, directory: &Path) -> String {
        text.replace("%T", directory.to_str().unwrap())
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
