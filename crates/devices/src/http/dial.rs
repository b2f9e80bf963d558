//! Connecting to a server: directly, through a Unix socket, or by a proxy; plain or encrypted.

use std::sync::Arc;
use std::time::Duration;

use device::{Error, ErrorKind, Fault, Result};
use net::tls::{CertificateFiles, Connector};
use net::{Received, Stream, Tuning, Until};

use super::answer::protocol;
use super::connection::HttpConnection;
use super::proxy::{Proxies, Proxy};
use super::transport::HttpTransport;
use super::url::{HttpScheme, Url};
use runtime::Bell;

/// How long it may take until a request can be sent.
const CONNECT: Duration = Duration::from_secs(10);
/// Bytes of a proxy's answer, at most.
const HEAD: usize = 16 << 10;

/// How servers are reached.
#[derive(Clone, Debug)]
pub(super) struct Ways {
    /// Instead of the network.
    pub(super) unix: Option<String>,
    pub(super) proxies: Proxies,
    /// `HOST:PORT:ADDRESS`, as three.
    pub(super) resolve: Vec<(String, u16, String)>,
    pub(super) tls: CertificateFiles,
    /// How long a server that owes something may be silent.
    pub(super) patience: Duration,
}

/// Makes connections.
pub(super) struct Dialer {
    ways: Ways,
    /// Made when it is first needed: certificates are read for https only.
    tls: std::sync::OnceLock<Connector>,
    bell: Arc<Bell>,
}

impl Dialer {
    pub(super) fn new(ways: Ways, bell: Arc<Bell>) -> Self {
        Self { ways, tls: std::sync::OnceLock::new(), bell }
    }

    /// The proxy that leads to `url`, if one does.
    pub(super) fn proxy(&self, url: &Url) -> Option<&Proxy> {
        if self.ways.unix.is_some() { None } else { self.ways.proxies.of(url) }
    }

    /// The peer of a connection for `url`: requests for the same peer can share one.
    pub(super) fn to(&self, url: &Url) -> String {
        match self.proxy(url) {
            Some(proxy) if url.scheme == HttpScheme::Http => format!("proxy {}", proxy.endpoint()),
            _ => format!("{}://{}", url.scheme.name(), url.endpoint()),
        }
    }

    /// Reads what https needs, if `url` does.
    ///
    /// # Errors
    /// As [`Connector::of_files`].
    pub(super) fn prepare(&self, url: &Url) -> Result<()> {
        if url.scheme == HttpScheme::Https { self.tls().map(|_| ()) } else { Ok(()) }
    }

    /// A connection over which `url` can be requested.
    ///
    /// # Errors
    /// There is no server, or it is not the right one.
    pub(super) fn dial(&self, url: &Url) -> Result<HttpConnection> {
        let until = Until::within(CONNECT.min(self.ways.patience));
        let proxy = self.proxy(url);
        let stream = match (&self.ways.unix, proxy) {
            (Some(path), _) => Stream::dial_unix(path.as_bytes(), until)?,
            (None, Some(proxy)) => {
                let (host, port) = proxy.place();
                let stream = Stream::dial_tcp(host, port, until).map_err(|e| {
                    failed(&format!("connect to the proxy {}", proxy.endpoint()), e)
                })?;
                if url.scheme == HttpScheme::Https {
                    tunnel(&stream, proxy, url, until)?;
                }
                stream
            }
            (None, None) => {
                let fixed = self.ways.resolve.iter();
                let mut fixed =
                    fixed.filter(|(host, port, _)| *host == url.host && *port == url.port);
                let host = fixed.next().map_or(url.host.as_str(), |(_, _, address)| address);
                Stream::dial_tcp(host, url.port, until)?
            }
        };
        stream.tune(Tuning { receive_buffer: true, ..Tuning::default() });
        if url.scheme == HttpScheme::Https {
            self.tls()?.for_host(&url.host).encrypt(&stream, until)?;
        }
        let transport = HttpTransport::new(stream);
        Ok(HttpConnection::new(self.to(url), transport, &self.bell, self.ways.patience))
    }

    fn tls(&self) -> Result<&Connector> {
        match self.tls.get() {
            Some(tls) => Ok(tls),
            None => Connector::of_files(&self.ways.tls).map(|tls| self.tls.get_or_init(|| tls)),
        }
    }
}

fn failed(action: &str, e: Error) -> Error {
    Error::new(e.kind(), e.fault(), action).with_source(e)
}

/// Asks a proxy for a tunnel to `url`.
fn tunnel(stream: &Stream, proxy: &Proxy, url: &Url, until: Until) -> Result<()> {
    let place = url.endpoint();
    let login = proxy.authorization().map(|login| format!("Proxy-Authorization: {login}\r\n"));
    let request =
        format!("CONNECT {place} HTTP/1.1\r\nHost: {place}\r\n{}\r\n", login.unwrap_or_default());
    let confused = || protocol("connect to the proxy: its reply is invalid");
    let broken = |e: rustix::io::Errno| Error::os("talk to the proxy", e);
    let mut left = request.as_bytes();
    while !left.is_empty() {
        match stream.send(left).map_err(broken)? {
            0 => until.writable(stream)?,
            n => left = left.get(n..).unwrap_or_default(),
        }
    }
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        match stream.receive(&mut byte).map_err(broken)? {
            Received::Bytes(_) if head.len() < HEAD => head.extend_from_slice(&byte),
            Received::Nothing => until.readable(stream)?,
            Received::Bytes(_) | Received::End => return Err(confused()),
        }
    }
    let line = String::from_utf8_lossy(&head);
    let line = line.lines().next().unwrap_or_default();
    match line.strip_prefix("HTTP/1.").and_then(|rest| rest.get(2..5)) {
        Some(status) if status.starts_with('2') => Ok(()),
        Some("407") => {
            let action = "connect: the proxy requires proxy-user= and proxy-password=";
            Err(Error::new(ErrorKind::PermissionDenied, Fault::User, action))
        }
        Some(status) if status.bytes().all(|b| b.is_ascii_digit()) => {
            let action = format!("connect: the proxy answers {status}");
            Err(Error::new(ErrorKind::Io, Fault::Peer, action))
        }
        _ => Err(confused()),
    }
}
