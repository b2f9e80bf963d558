//! A question to the control socket of a server, and its reply.

use std::io::{BufRead, BufReader, IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use device::{Error, ErrorKind, Fault};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use serde_json::Value;

use crate::failure::Failure;

/// A server that has gone is an error and no signal; where there is no flag for that, the signal is
/// ignored, as in every program in Rust.
#[cfg(target_os = "linux")]
const SENT: SendFlags = SendFlags::NOSIGNAL;
#[cfg(not(target_os = "linux"))]
const SENT: SendFlags = SendFlags::empty();

/// How long the server may take.
const WITHIN: Duration = Duration::from_secs(10);
/// Bytes of a reply, at most.
const REPLY: u64 = 64 << 20;

/// Asks the server at `path`, and sends a file along.
///
/// # Errors
/// It is not there, has gone, or refuses.
pub(crate) fn ask(path: &Path, request: &Value, file: Option<&OwnedFd>) -> Result<Value, Failure> {
    let place = path.display();
    let say = |e: std::io::Error| Failure::new(format!("{place}: {e}"));
    let mut stream = UnixStream::connect(path).map_err(|e| {
        let cure = "is it the socket of `serve --control`, and is the server running?";
        let line = format!("{place}: connect: {e}; {cure}");
        match e.kind() {
            std::io::ErrorKind::NotFound | std::io::ErrorKind::ConnectionRefused => gone(line),
            _ => Failure::new(line),
        }
    })?;
    stream.set_read_timeout(Some(WITHIN)).map_err(say)?;
    stream.set_write_timeout(Some(WITHIN)).map_err(say)?;
    // One that refuses us may have said why, and left.
    let sent = send(&mut stream, format!("{request}\n").as_bytes(), file);
    let mut line = String::new();
    let got = BufReader::new(stream.take(REPLY)).read_line(&mut line);
    if line.is_empty() {
        got.and(sent).map_err(say)?;
        return Err(gone(format!("{place}: the server closed the connection without a reply")));
    }
    let reply: Value = serde_json::from_str(&line)
        .map_err(|e| Failure::new(format!("{place}: invalid reply: {e}")))?;
    if let Some(error) = reply.get("error") {
        let error = error.as_str().map_or_else(|| error.to_string(), str::to_owned);
        return Err(Failure::new(format!("{place}: {error}")));
    }
    Ok(reply)
}

/// Sends a request, and a file with it.
fn send(stream: &mut UnixStream, bytes: &[u8], file: Option<&OwnedFd>) -> std::io::Result<()> {
    let Some(file) = file else { return stream.write_all(bytes) };
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let files = [file.as_fd()];
    control.push(SendAncillaryMessage::ScmRights(&files));
    let sent = sendmsg(&*stream, &[IoSlice::new(bytes)], &mut control, SENT)?;
    stream.write_all(bytes.get(sent..).unwrap_or_default())
}

/// The server is not there, or has gone: another try may succeed.
fn gone(line: String) -> Failure {
    let error = Error::new(ErrorKind::Disconnected, Fault::Peer, line);
    Failure::because(&error, &error)
}
