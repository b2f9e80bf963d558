//! A server of our own: started by a command, listening where only this user may connect, and ended
//! with us.
//!
//! It gets its listening socket by systemd's socket activation (sd_listen_fds(3)): one socket, on
//! descriptor 3, with LISTEN_FDS and LISTEN_PID in its environment. It is never started again: what
//! a server kept in memory would be gone unnoticed.

use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::{Duration, Instant};

use device::{Error, ErrorKind, Fault, Result};
use net::SocketName;
use programs::{Program, Running, StandardStreams};
use runtime::{Mutex, MutexGuard};
use rustix::process::Signal;

/// LISTEN_PID must be the pid of the server, which only the process itself knows in time; so a
/// shell becomes the server. The socket comes in as standard input. What the server prints goes to
/// standard error, because standard output may carry data.
const BECOME: &str = "exec 3<&0 0</dev/null 1>&2; LISTEN_PID=$$; export LISTEN_PID; exec \"$@\"";
/// How long it may take to end on SIGTERM; then it is killed.
const LEAVING: Duration = Duration::from_secs(5);
/// How long it may take to end after it has closed its socket.
const LAST_BREATH: Duration = Duration::from_millis(200);
const LOOK: Duration = Duration::from_millis(5);

/// The variables of socket activation.
const LISTEN_FDS: &str = "LISTEN_FDS";
const LISTEN_FDNAMES: &str = "LISTEN_FDNAMES";

/// The program that is started for a command line, and the directory in which a directory for its
/// socket is made; for a sandbox.
#[must_use]
pub fn command_reaches(words: &[String]) -> (Program, PathBuf) {
    (program(words), SocketName::above_private())
}

fn program(words: &[String]) -> Program {
    let mut program = Program::script(BECOME, &[LISTEN_FDS, LISTEN_FDNAMES]);
    program.words.push("sh".into());
    program.words.extend(words.iter().cloned());
    // An interrupt from the terminal is for us: writes must still be flushed.
    program.is_apart = true;
    program
}

/// The servers that run, for a program that ends without dropping anything. Locked while one is
/// started, so that none is missing here; `None`: the program ends, and starts no more.
static RUNNING: Mutex<Servers> = Mutex::new(Some(Vec::new()));

/// Each with where it listens.
type Servers = Option<Vec<(Arc<Running>, SocketName)>>;

/// Ends the servers of exports that are still open, and removes their sockets. For a program that
/// ends at once, without closing anything.
pub fn abandon() {
    for (process, name) in running().take().into_iter().flatten() {
        let _ = process.signal(Signal::TERM);
        name.remove();
    }
}

fn running() -> MutexGuard<'static, Servers> {
    RUNNING.lock()
}

/// The server's process. Dropping this ends it.
#[derive(Debug)]
pub struct Subprocess {
    command: String,
    process: Arc<Running>,
    /// Its socket, in a directory that only we may enter. Both are removed with this.
    name: SocketName,
}

impl Subprocess {
    /// Starts the server; `words` are the program and its arguments.
    pub fn start(words: &[String]) -> Result<Self> {
        let command = words.first().cloned().unwrap_or_default();
        let (listener, name) = SocketName::private()?;
        let streams = StandardStreams { input: Some(listener), output: None };
        let failed = |e| Error::os("start the server", e).on(&command);
        let mut running = running();
        let Some(running) = running.as_mut() else {
            return Err(failed(std::io::ErrorKind::Interrupted.into()));
        };
        let started = programs::start(&program(words), &[(LISTEN_FDS, "1")], streams);
        let process = Arc::new(started.map_err(failed)?);
        running.push((process.clone(), name.clone()));
        Ok(Self { command, process, name })
    }

    /// Its socket.
    #[must_use]
    pub fn socket(&self) -> &Path {
        self.name.path()
    }

    /// How it ended, if it has. Where it has just closed its socket that may be known a moment
    /// later.
    #[must_use]
    pub fn ended(&self) -> Option<ExitStatus> {
        self.wait(Duration::ZERO)
    }

    /// The cause of `e`, if it is that the server has ended. Its own messages have been printed by
    /// then.
    pub fn explain(&self, e: Error) -> Error {
        if e.kind() != ErrorKind::Disconnected {
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
        let begun = Instant::now();
        loop {
            match self.process.try_wait() {
                Ok(Some(status)) => return Some(status),
                Ok(None) if begun.elapsed() < patience => std::thread::sleep(LOOK),
                // It cannot fail: the child is ours and no other code waits for it.
                Ok(None) | Err(_) => return None,
            }
        }
    }
}

impl Drop for Subprocess {
    fn drop(&mut self) {
        if let Some(running) = running().as_mut() {
            running.retain(|(_, name)| name.path() != self.name.path());
        }
        if self.wait(Duration::ZERO).is_none() {
            let _ = self.process.signal(Signal::TERM);
            if self.wait(LEAVING).is_none() {
                let _ = self.process.signal(Signal::KILL);
                let _ = self.process.wait();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    /// A server that is a shell script, and a file that exists once the script has run.
    fn script(text: &str) -> (Subprocess, PathBuf) {
        let words = ["/bin/sh", "-c", text].map(str::to_owned);
        let process = Subprocess::start(&words).unwrap();
        let directory = process.socket().parent().unwrap().to_owned();
        (process, directory)
    }

    fn pid(process: &Subprocess) -> u32 {
        u32::try_from(process.process.pid().as_raw_nonzero().get()).unwrap()
    }

    fn is_alive(pid: u32) -> bool {
        Path::new(&format!("/proc/{pid}")).exists()
    }

    #[test]
    fn the_server_gets_one_listening_socket_as_systemd_gives_it() {
        let (process, _) = script(
            "test $LISTEN_FDS = 1 && test $LISTEN_PID = $$ && test -z \"$LISTEN_FDNAMES\" &&
             test -S /proc/self/fd/3 && test ! -e /proc/self/fd/4 &&
             test ! -S /proc/self/fd/0 && test /proc/self/fd/1 -ef /proc/self/fd/2",
        );
        let status = process.wait(Duration::from_secs(60)).unwrap();
        assert!(status.success(), "{status}");
    }

    #[test]
    fn only_we_may_connect() {
        use std::os::unix::fs::MetadataExt;
        let (_process, directory) = script("sleep 60");
        assert_eq!(directory.metadata().unwrap().mode() & 0o777, 0o700);
    }

    #[test]
    fn it_ends_with_us_and_leaves_nothing_behind() {
        let (process, directory) = script("exec sleep 600");
        let pid = pid(&process);
        assert!(is_alive(pid) && directory.exists());
        drop(process);
        assert!(!is_alive(pid) && !directory.exists());
    }

    #[test]
    fn one_that_will_not_end_is_killed() {
        let (process, _) = script("trap '' TERM; while :; do read x < /dev/null; done");
        let pid = pid(&process);
        drop(process);
        assert!(!is_alive(pid));
    }

    #[test]
    fn an_error_that_its_end_does_not_explain_is_left_as_it_is() {
        let (process, _) = script("exec sleep 600");
        let lost = || Error::new(ErrorKind::Disconnected, Fault::Peer, "talk");
        assert_eq!(process.explain(lost()).to_string(), "talk");
        drop(process);
        let (process, _) = script("exit 3");
        assert!(process.explain(lost()).to_string().contains("has ended (exit status: 3)"));
        // A server may exit after it has refused the client.
        let refused = Error::new(ErrorKind::NotFound, Fault::User, "no such export");
        assert_eq!(process.explain(refused).to_string(), "no such export");
        let wrong = Error::invalid("nonsense");
        assert_eq!(process.explain(wrong).to_string(), "nonsense");
    }
}
