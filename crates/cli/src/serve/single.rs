//! One client on standard input and output (-s), as inetd or a test starts a server.
//!
//! If both are the same socket the server gets it as it is. Otherwise (two pipes, say) two threads
//! carry the bytes between them and a socket of our own. Either way nothing else of this process
//! reads standard input or writes to standard output from then on.

use std::fs::File;
use std::io;
use std::net::Shutdown;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::thread::JoinHandle;

use rustix::fs::fstat;
use rustix::net::{SocketType, sockopt};

use crate::failure::Failure;

/// Bytes carried at a time.
const PIECE: usize = 256 << 10;

/// The client on standard input and output.
#[derive(Debug)]
pub(super) enum OnlyClient {
    Socket(OwnedFd),
    Pipes { input: OwnedFd, output: OwnedFd },
}

/// The threads that carry its bytes.
#[derive(Debug)]
pub(super) struct Carrier(Option<JoinHandle<()>>);

impl OnlyClient {
    /// Takes over standard input and output.
    pub(super) fn take() -> Result<Self, Failure> {
        let (input, output) = (rustix::stdio::stdin(), rustix::stdio::stdout());
        let client = take(input, output).map_err(say)?;
        let null = File::options().read(true).write(true).open("/dev/null").map_err(say)?;
        rustix::stdio::dup2_stdin(&null).map_err(|e| say(e.into()))?;
        rustix::stdio::dup2_stdout(&null).map_err(|e| say(e.into()))?;
        Ok(client)
    }

    /// A socket to serve it on. Starts threads if need be.
    pub(super) fn socket(self) -> Result<(OwnedFd, Carrier), Failure> {
        let (input, output) = match self {
            Self::Socket(socket) => return Ok((socket, Carrier(None))),
            Self::Pipes { input, output } => (File::from(input), File::from(output)),
        };
        let (ours, theirs) = UnixStream::pair().map_err(say)?;
        let back = ours.try_clone().map_err(say)?;
        start("from-client", move || carry(input, &ours, &ours, Shutdown::Write))?;
        let thread = start("to-client", move || {
            // Closing the output tells the client; closing the socket tells the server.
            carry(&back, output, &back, Shutdown::Both);
        })?;
        Ok((theirs.into(), Carrier(Some(thread))))
    }
}

impl Carrier {
    /// Waits until the client has everything that the server sent. Call it when the server has
    /// closed its socket.
    pub(super) fn finish(self) {
        if let Some(thread) = self.0 {
            // The only error is a panic, which has been reported.
            let _ = thread.join();
        }
    }
}

fn say(e: io::Error) -> Failure {
    Failure::new(format!("--single: {e}"))
}

fn take(input: BorrowedFd<'_>, output: BorrowedFd<'_>) -> io::Result<OnlyClient> {
    let here = fstat(input)?;
    let there = fstat(output)?;
    let same = (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino);
    let input = input.try_clone_to_owned()?;
    if same && sockopt::socket_type(&input) == Ok(SocketType::STREAM) {
        return Ok(OnlyClient::Socket(input));
    }
    Ok(OnlyClient::Pipes { input, output: output.try_clone_to_owned()? })
}

fn start(name: &str, work: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, Failure> {
    std::thread::Builder::new().name(name.into()).spawn(work).map_err(say)
}

/// What can be read now; `None` at the end, and after an error.
fn read<'a>(from: &mut impl io::Read, buffer: &'a mut [u8]) -> Option<&'a [u8]> {
    loop {
        match from.read(buffer) {
            Ok(0) => return None,
            Ok(n) => return buffer.get(..n),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return None,
        }
    }
}

/// Carries bytes until there are no more, or the reader has gone.
fn carry(mut from: impl io::Read, mut to: impl io::Write, socket: &UnixStream, how: Shutdown) {
    // Not `io::copy`: it splices, and a splice that waits for a socket locks the pipe it is to
    // fill, so that what is in there already cannot be read.
    let mut buffer = vec![0; PIECE];
    while let Some(piece) = read(&mut from, &mut buffer) {
        if to.write_all(piece).is_err() {
            break;
        }
    }
    // Whatever ended it, the other side learns of it as an end of the connection.
    drop(to);
    let _ = socket.shutdown(how);
}
