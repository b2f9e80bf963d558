//! A server that this process starts: over a socket that is its standard input and output, or
//! started as systemd would start it.

use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use net::{SocketName, Stream, Until};
use programs::{Program, Running, StandardStreams};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::Signal;

use super::fault::EngineError;

/// LISTEN_PID must be the server's process ID, which only that process knows in time: a shell sets
/// it and becomes the server.
const BECOME: &str = "exec 3<&0 0</dev/null; LISTEN_PID=$$; export LISTEN_PID; exec \"$@\"";
const LISTEN_FDS: &str = "LISTEN_FDS";
const LISTEN_FDNAMES: &str = "LISTEN_FDNAMES";
/// How long its queue of connections may be full.
const BUSY: Duration = Duration::from_secs(30);

/// The process. Dropping this waits for its end; one that was given a socket to listen on gets a
/// signal first.
#[derive(Debug)]
pub(crate) struct Process {
    running: Running,
    /// Where it listens.
    name: Option<SocketName>,
}

fn os(what: &str, e: &std::io::Error) -> EngineError {
    EngineError::number(e.raw_os_error().unwrap_or(0), what)
}

/// The program of `words`, which `script` becomes.
fn program(script: &str, hidden: &[&str], words: &[String]) -> Program {
    let mut program = Program::script(script, hidden);
    program.words.push("sh".to_owned());
    program.words.extend(words.iter().cloned());
    program
}

impl Process {
    /// Starts a server that speaks on its standard input and output; or, with the name of the
    /// socket, one that is started by systemd's socket activation.
    pub(super) fn start(
        words: &[String],
        listens: Option<&str>,
    ) -> Result<(Self, Stream), EngineError> {
        listens.map_or_else(|| Self::on_socket(words), |name| Self::activated(words, name))
    }

    fn on_socket(words: &[String]) -> Result<(Self, Stream), EngineError> {
        let say = |e: Errno| EngineError::new(e, "socketpair");
        let pair = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None);
        let (ours, theirs) = pair.map_err(say)?;
        let copy: OwnedFd = theirs.try_clone().map_err(|e| os("socketpair", &e))?;
        let streams = StandardStreams { input: Some(theirs), output: Some(copy) };
        // A program that cannot be started looks like one that exits at once, as it does with a
        // shell.
        let program = program("exec \"$@\"", &[], words);
        let running = programs::start(&program, &[], streams).map_err(|e| os("fork", &e))?;
        let stream = Stream::new(ours).map_err(say)?;
        Ok((Self { running, name: None }, stream))
    }

    fn activated(words: &[String], name: &str) -> Result<(Self, Stream), EngineError> {
        let refused = |e: device::Error| EngineError::plain(e.to_string());
        let (listener, place) = SocketName::private().map_err(refused)?;
        let program = program(BECOME, &[LISTEN_FDS, LISTEN_FDNAMES], words);
        let streams = StandardStreams { input: Some(listener), output: None };
        let name = if name.is_empty() { "unknown" } else { name };
        let told = [(LISTEN_FDS, "1"), (LISTEN_FDNAMES, name)];
        let running = programs::start(&program, &told, streams).map_err(|e| os("fork", &e))?;
        let path = place.path().as_os_str().as_bytes().to_vec();
        let process = Self { running, name: Some(place) };
        let stream = Stream::dial_unix(&path, Until::within(BUSY)).map_err(refused)?;
        Ok((process, stream))
    }

    /// Its process ID.
    pub(crate) fn pid(&self) -> i64 {
        self.running.pid().as_raw_nonzero().get().into()
    }

    /// Sends it a signal.
    pub(crate) fn signal(&self, number: i32) -> Result<(), EngineError> {
        let number = if number == 0 { Signal::TERM.as_raw() } else { number };
        let unknown = || EngineError::invalid(format!("invalid signal number: {number}"));
        let signal = Signal::from_named_raw(number).ok_or_else(unknown)?;
        self.running.signal(signal).map_err(|e| os("kill", &e))
    }

    /// Ends it, and waits for that. The connection to it is closed.
    pub(crate) fn end(self) {
        if let Some(name) = &self.name {
            let _ = self.running.signal(Signal::TERM);
            name.remove();
        }
        let _ = self.running.wait();
    }
}
