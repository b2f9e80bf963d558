//! A server that is ours alone: started by a command, listening where only we may connect, and
//! ended with us.
//!
//! It is given its listening socket by systemd's socket activation (sd_listen_fds(3)): one socket,
//! on descriptor 3, with LISTEN_FDS and LISTEN_PID in its environment. It is never started again:
//! what a server kept in memory would be gone, and nobody would know.

use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use device::{Error, ErrorKind, Fault, Result};
use rustix::process::{Pid, Signal, kill_process};

/// LISTEN_PID must be the pid of the server, which only the process itself knows in time; so a
/// shell becomes the server. The socket comes in as standard input. What the server prints goes to
/// standard error, because standard output may be somebody's data.
const BECOME: &str = "exec 3<&0 0</dev/null 1>&2; LISTEN_PID=$$; export LISTEN_PID; exec \"$@\"";
/// How long it may take to end when it is asked to; then it is killed.
const GOODBYE: Duration = Duration::from_secs(5);
/// How long its end may be in coming when it has closed its socket.
const LAST_BREATH: Duration = Duration::from_millis(200);
const LOOK: Duration = Duration::from_millis(5);

/// The server's process. Dropping this ends it.
#[derive(Debug)]
pub(crate) struct Subprocess {
    command: String,
    child: Mutex<Child>,
    place: Place,
}

impl Subprocess {
    /// Starts the server; `words` are the program and its arguments.
    pub(crate) fn start(words: &[String]) -> Result<Self> {
        let command = words.first().cloned().unwrap_or_default();
        let place = Place::make()?;
        let say = |e: std::io::Error| Error::os("start the server", e).on(&command);
        let listener = UnixListener::bind(&place.socket).map_err(say)?;
        let child = Command::new("/bin/sh")
            .args(["-c", BECOME, "sh"])
            .args(words)
            .env("LISTEN_FDS", "1")
            .env_remove("LISTEN_FDNAMES")
            .stdin(Stdio::from(OwnedFd::from(listener)))
            // An interrupt from the terminal is for us: what was written must still be flushed.
            .process_group(0)
            .spawn()
            .map_err(say)?;
        Ok(Self { command, child: Mutex::new(child), place })
    }

    /// Where it listens.
    pub(crate) fn socket(&self) -> &Path {
        &self.place.socket
    }

    /// The cause behind `e`, if it is that the server has ended.
    pub(crate) fn explain(&self, e: Error) -> Error {
        if !matches!(e.kind(), ErrorKind::Disconnected | ErrorKind::NotFound) {
            return e;
        }
        match self.wait(LAST_BREATH) {
            Some(status) => {
                let action = format!("talk to the server: `{}` has ended ({status})", self.command);
                Error::new(ErrorKind::Disconnected, Fault::User, action)
            }
            None => e,
        }
    }

    /// How it ended, if it does so soon.
    fn wait(&self, patience: Duration) -> Option<ExitStatus> {
        let mut child = self.child.lock().unwrap_or_else(PoisonError::into_inner);
        let begun = Instant::now();
        loop {
            match child.try_wait() {
                Ok(Some(status)) => return Some(status),
                Ok(None) if begun.elapsed() < patience => std::thread::sleep(LOOK),
                // It cannot fail: the child is ours and nobody else waits for it.
                Ok(None) | Err(_) => return None,
            }
        }
    }
}

impl Drop for Subprocess {
    fn drop(&mut self) {
        if self.wait(Duration::ZERO).is_none() {
            {
                let child = self.child.lock().unwrap_or_else(PoisonError::into_inner);
                // It has not been waited for, so the number is still its own.
                let _ = kill_process(Pid::from_child(&child), Signal::TERM);
            }
            if self.wait(GOODBYE).is_none() {
                let mut child = self.child.lock().unwrap_or_else(PoisonError::into_inner);
                let _ = child.kill();
                let _ = child.wait();
            }
        }
    }
}

/// A path for a socket in a new directory that only we may enter. Both are removed with this.
#[derive(Debug)]
struct Place {
    directory: PathBuf,
    socket: PathBuf,
}

impl Place {
    fn make() -> Result<Self> {
        let mut attempt = 0u32;
        loop {
            let name = format!("diskferry-{}-{attempt}", std::process::id());
            let directory = std::env::temp_dir().join(name);
            match std::fs::DirBuilder::new().mode(0o700).create(&directory) {
                Ok(()) => return Ok(Self { socket: directory.join("socket"), directory }),
                Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists && attempt < 1000 => {
                    attempt += 1;
                }
                Err(e) => {
                    let error = Error::os("make a private directory", e);
                    return Err(error.on(directory.display()));
                }
            }
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // Somebody else may have removed them; nothing is lost then.
        let _ = std::fs::remove_file(&self.socket);
        let _ = std::fs::remove_dir(&self.directory);
    }
}
