//! Where the metrics can be read: over HTTP, on a Unix socket or a loopback port.
//!
//! hyper speaks HTTP; a thread waits for readers, and each reader has a thread for a few seconds at
//! most. Their number is limited: further ones are refused, and none of this runs on a reactor.

use std::convert::Infallible;
use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use device::{Error, Result};
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode, header};
use net::{Family, Listener, Received, Stream, Until};

use crate::attending::attend;

/// Readers at a time.
const READERS: usize = 4;
/// Bytes of a request, at most.
const REQUEST: usize = 8 << 10;
/// How long a request and its answer may take together.
const WITHIN: Duration = Duration::from_secs(5);
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The text for each reader.
type Tell = Arc<dyn Fn() -> String + Send + Sync>;

/// Opens the listener that `text` names: the absolute path of a Unix socket, a port, or a loopback
/// address with one.
///
/// # Errors
/// It is none of these, or is taken.
pub fn listen(text: &str) -> Result<Vec<Listener>> {
    if text.starts_with('/') {
        return Ok(vec![Listener::unix(Path::new(text))?]);
    }
    let wrong = || {
        Error::invalid("--metrics: must be an absolute path, PORT, 127.0.0.1:PORT or [::1]:PORT")
    };
    let (host, port) = text.rsplit_once(':').unwrap_or(("127.0.0.1", text));
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let address: IpAddr = host.parse().map_err(|_| wrong())?;
    let port: u16 = port.parse().map_err(|_| wrong())?;
    if !address.is_loopback() || port == 0 {
        return Err(wrong());
    }
    Listener::tcp(Some(host), port, Family::Any)
}

/// Serves the metrics to readers that connect to `listener`, from a thread of its own until the
/// program ends.
///
/// # Errors
/// The system gives no thread.
pub fn start(listener: Listener, tell: impl Fn() -> String + Send + Sync + 'static) -> Result<()> {
    let tell: Tell = Arc::new(tell);
    attend(listener, "metrics", |_, others| others < READERS, move |stream| serve(stream, &tell))
}

fn serve(stream: Stream, tell: &Tell) {
    let until = Until::within(WITHIN);
    let answer = |request: Request<hyper::body::Incoming>| {
        let found = matches!(request.uri().path(), "/" | "/metrics");
        let found = found && request.method() == hyper::Method::GET;
        let text = if found { tell() } else { "GET /metrics is all there is\n".to_owned() };
        let mut response = Response::new(text);
        if !found {
            *response.status_mut() = StatusCode::NOT_FOUND;
        }
        let kind = if found { OPEN_METRICS } else { "text/plain" };
        let kind = header::HeaderValue::from_static(kind);
        response.headers_mut().insert(header::CONTENT_TYPE, kind);
        async { Ok::<_, Infallible>(response) }
    };
    let mut builder = http1::Builder::new();
    builder.keep_alive(false).max_buf_size(REQUEST);
    let way =
        Arc::new(Way { stream, reads: AtomicBool::new(false), writes: AtomicBool::new(false) });
    let mut speaking = pin!(builder.serve_connection(Ours(way.clone()), service_fn(answer)));
    while speaking.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
        if way.wait(until).is_err() {
            return;
        }
    }
}

/// The stream, and what is waited for.
struct Way {
    stream: Stream,
    reads: AtomicBool,
    writes: AtomicBool,
}

impl Way {
    /// Waits until something can be done. If hyper has not tried to read or write, it is called
    /// again.
    fn wait(&self, until: Until) -> Result<()> {
        let (reads, writes) =
            (self.reads.swap(false, Ordering::Relaxed), self.writes.swap(false, Ordering::Relaxed));
        if writes {
            until.writable(&self.stream)
        } else if reads {
            until.readable(&self.stream)
        } else {
            std::thread::yield_now();
            until.left().map(drop)
        }
    }
}

/// The same in hyper's interface.
struct Ours(Arc<Way>);

impl Read for Ours {
    fn poll_read(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        mut buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        let mut piece = [0; 1024];
        let most = buffer.remaining().min(piece.len());
        let piece = piece.get_mut(..most).unwrap_or_default();
        match self.0.stream.receive(piece)? {
            Received::Bytes(n) => buffer.put_slice(piece.get(..n).unwrap_or_default()),
            Received::End => {}
            Received::Nothing => {
                self.0.reads.store(true, Ordering::Relaxed);
                return Poll::Pending;
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl Write for Ours {
    fn poll_write(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.0.stream.send(bytes)? {
            0 if !bytes.is_empty() => {
                self.0.writes.store(true, Ordering::Relaxed);
                Poll::Pending
            }
            n => Poll::Ready(Ok(n)),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.stream.end();
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_but_loopback_is_listened_on() {
        for text in ["0", "0.0.0.0:9100", "10.0.0.1:9100", "localhost", "relative", "[::]:9100", ""]
        {
            assert!(listen(text).is_err(), "{text}");
        }
    }
}
