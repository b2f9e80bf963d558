//! The socket that pauses and resumes requests: `p` is answered with `P` when nothing is in flight
//! any more, `r` with `R`, spaces with nothing and everything else with `X`.
//!
//! One thread listens, sleeps until there is a command, and ends with the filter. It takes a few
//! connections at a time and a few bytes of each, and closes a connection that does not read its
//! answers.

use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use device::{Error, Result, text};
use programs::names::OwnSocket;
use runtime::{Bell, Mutex};
use rustix::event::{PollFd, PollFlags, poll};

use super::Requests;

/// Connections at a time; others wait until one of them is closed.
const MOST: usize = 16;
/// How long to wait when a connection cannot be accepted.
const MOMENT: Duration = Duration::from_millis(100);

/// The socket, while it is there.
pub(super) struct ControlSocket {
    requests: Arc<Requests>,
    shared: Arc<Shared>,
}

struct Shared {
    socket: OwnSocket,
    /// Wakes the thread.
    bell: Bell,
    ended: AtomicBool,
    pausing: Mutex<Pausing>,
}

/// The latest pause.
#[derive(Default)]
struct Pausing {
    /// Counts the commands, so that a late answer to an earlier one is recognized.
    turn: u64,
    /// Nothing is in flight any more.
    reached: bool,
}

impl Pausing {
    /// A new command has come. Returns its number.
    fn turn(&mut self) -> u64 {
        *self = Self { turn: self.turn + 1, reached: false };
        self.turn
    }
}

impl ControlSocket {
    /// Creates the socket and listens.
    ///
    /// # Errors
    /// The socket cannot be created, or exists already.
    pub(super) fn listen(name: &str) -> Result<Self> {
        let failed = |action: &str, e: std::io::Error| {
            Error::os(format!("pause-control: {action}"), e).on(text::shown(name))
        };
        let path = text::path(name);
        let path = std::path::absolute(path).map_err(|e| failed("find the directory of", e))?;
        let bell = Bell::new().map_err(|e| failed("wait for commands", e))?;
        let listener = UnixListener::bind(&path).map_err(|e| failed("make the socket", e))?;
        let socket = OwnSocket::bound(&path).map_err(|e| failed("make the socket", e))?;
        let shared =
            Shared { socket, bell, ended: AtomicBool::new(false), pausing: Mutex::default() };
        let control = Self { requests: Arc::default(), shared: Arc::new(shared) };
        let desk = Desk {
            listener,
            connections: Vec::new(),
            requests: control.requests.clone(),
            shared: control.shared.clone(),
        };
        desk.listener.set_nonblocking(true).map_err(|e| failed("wait for commands", e))?;
        let thread = std::thread::Builder::new().name("pause".into());
        thread.spawn(move || desk.work()).map_err(|e| failed("wait for commands", e))?;
        Ok(control)
    }

    pub(super) fn requests(&self) -> &Arc<Requests> {
        &self.requests
    }

    /// Ends the thread before the filters are dropped.
    pub(super) fn ending(&self) -> impl FnOnce() + Send + 'static {
        let shared = self.shared.clone();
        move || shared.end()
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        self.shared.end();
    }
}

impl Shared {
    fn end(&self) {
        if !self.ended.swap(true, Ordering::AcqRel) {
            self.socket.remove();
            self.bell.ring();
        }
    }
}

/// The state of the thread.
struct Desk {
    listener: UnixListener,
    connections: Vec<ControlClient>,
    requests: Arc<Requests>,
    shared: Arc<Shared>,
}

struct ControlClient {
    stream: UnixStream,
    /// It has asked for a pause, and is read again when that is reached.
    waits: bool,
    /// Commands not yet carried out, the last first.
    said: Vec<u8>,
}

impl Desk {
    fn work(mut self) {
        while !self.shared.ended.load(Ordering::Acquire) {
            if self.wait().is_err() {
                return;
            }
            self.reached();
            self.accept();
            self.listen();
        }
    }

    /// Sleeps until there is something to do.
    fn wait(&self) -> std::io::Result<()> {
        if self.connections.iter().any(|c| !c.waits && !c.said.is_empty()) {
            return Ok(());
        }
        let mut sources = vec![PollFd::new(&self.shared.bell, PollFlags::IN)];
        if self.connections.len() < MOST {
            sources.push(PollFd::new(&self.listener, PollFlags::IN));
        }
        let speaking = self.connections.iter().filter(|c| !c.waits);
        sources.extend(speaking.map(|c| PollFd::from_borrowed_fd(c.stream.as_fd(), PollFlags::IN)));
        match poll(&mut sources, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
        self.shared.bell.silence();
        Ok(())
    }

    /// Answers the connections that wait for a pause that is reached.
    fn reached(&mut self) {
        if std::mem::take(&mut self.shared.pausing.lock().reached) {
            self.answer_waiting(b'P');
        }
    }

    fn answer_waiting(&mut self, answer: u8) {
        for connection in self.connections.iter_mut().filter(|c| c.waits) {
            connection.waits = false;
            connection.answer(answer);
        }
    }

    fn accept(&mut self) {
        while self.connections.len() < MOST {
            match self.listener.accept() {
                Ok((stream, _)) if stream.set_nonblocking(true).is_ok() => {
                    self.connections.push(ControlClient { stream, waits: false, said: Vec::new() });
                }
                Ok(_) => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => return,
                // For example, there are no more descriptors: the connection still waits to be
                // accepted.
                Err(_) => return std::thread::sleep(MOMENT),
            }
        }
    }

    /// Reads each connection that is not waiting, once.
    fn listen(&mut self) {
        for number in (0..self.connections.len()).rev() {
            let Some(connection) = self.connections.get_mut(number).filter(|c| !c.waits) else {
                continue;
            };
            if connection.said.is_empty() && !connection.hear() {
                self.connections.swap_remove(number);
                continue;
            }
            while let Some(word) = self.connections.get_mut(number).and_then(ControlClient::next) {
                self.obey(number, word);
            }
        }
    }

    fn obey(&mut self, number: usize, word: u8) {
        match word {
            b'p' => {
                if let Some(connection) = self.connections.get_mut(number) {
                    connection.waits = true;
                }
                let (shared, turn) = (self.shared.clone(), self.shared.pausing.lock().turn());
                self.requests.pause(move || {
                    let mut pausing = shared.pausing.lock();
                    pausing.reached |= pausing.turn == turn;
                    drop(pausing);
                    shared.bell.ring();
                });
            }
            b'r' => {
                self.shared.pausing.lock().turn();
                self.requests.resume();
                // Another connection's pause will not be reached any more.
                self.answer_waiting(b'X');
                self.answer(number, b'R');
            }
            b' ' | b'\t' | b'\r' | b'\n' => {}
            _ => self.answer(number, b'X'),
        }
    }

    fn answer(&mut self, number: usize, answer: u8) {
        if let Some(connection) = self.connections.get_mut(number) {
            connection.answer(answer);
        }
    }
}

impl ControlClient {
    /// Reads a few bytes of commands; returns whether the connection is still open.
    fn hear(&mut self) -> bool {
        let mut words = [0; 64];
        match self.stream.read(&mut words) {
            Ok(0) => false,
            Ok(n) => {
                self.said.extend(words.get(..n).unwrap_or_default().iter().rev());
                true
            }
            Err(e) => matches!(e.kind(), ErrorKind::Interrupted | ErrorKind::WouldBlock),
        }
    }

    /// The next command, unless it has to wait.
    fn next(&mut self) -> Option<u8> {
        if self.waits { None } else { self.said.pop() }
    }

    fn answer(&mut self, answer: u8) {
        if self.stream.write_all(&[answer]).is_err() {
            // The connection counts as closed, and is dropped.
            let _ = self.stream.shutdown(std::net::Shutdown::Both);
        }
    }
}
