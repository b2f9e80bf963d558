//! Ways to a server.

use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::RawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyList;
use rustix::io::Errno;
use wire::{Transport, Uri};

use super::NBD;
use crate::engine::{Engine, EngineError, Settings, State, When, take_descriptor, transport};
use crate::nbd::shared::{CallError, Core, KeptObjects};

/// A way to a server, before anything is connected.
enum Way {
    Unix(Vec<u8>, Transport),
    Tcp { host: String, port: String, addresses: Vec<SocketAddr> },
    Vsock { cid: u32, port: u32 },
    Socket(RawFd),
    Program { words: Vec<String>, listens: bool },
}

impl Way {
    fn unix(path: &Path) -> Self {
        let bytes = path.as_os_str().as_bytes().to_vec();
        Self::Unix(bytes.clone(), Transport::Unix { path: bytes })
    }

    /// To a host, by its name: the lookup may take long.
    fn tcp(host: &str, port: &str) -> Result<Self, CallError> {
        let say = |why: &str| {
            let text = format!("getaddrinfo: hostname \"{host}\" port \"{port}\": {why}");
            CallError::Engine(EngineError::plain(text))
        };
        let number = service(port);
        let number = number.ok_or_else(|| say("Servname not supported for ai_socktype"))?;
        let addresses = (host, number).to_socket_addrs().map_err(|e| {
            let text = e.to_string();
            say(text.rsplit(": ").next().unwrap_or_default())
        })?;
        let (host, port) = (host.to_owned(), port.to_owned());
        Ok(Self::Tcp { host, port, addresses: addresses.collect() })
    }

    fn connect(self, engine: &mut Engine<KeptObjects>) -> Result<(), CallError> {
        When::Created.check(engine.state())?;
        match self {
            Self::Unix(path, place) => engine.connect_unix(&path, place)?,
            Self::Tcp { host, port, addresses } => engine.connect_tcp(&host, &port, addresses)?,
            Self::Vsock { cid, port } => engine.connect_vsock(cid, port)?,
            Self::Socket(number) => engine.connect_socket(take_descriptor(number)?)?,
            Self::Program { words, listens } => engine.connect_program(&words, listens)?,
        }
        Ok(())
    }
}

/// A port by its number, or by its name in /etc/services.
fn service(port: &str) -> Option<u16> {
    if let Ok(number) = port.parse() {
        return Some(number);
    }
    let services = std::fs::read_to_string("/etc/services").ok()?;
    services.lines().find_map(|line| {
        let line = line.split('#').next()?;
        let mut words = line.split_whitespace();
        let (name, number) = (words.next()?, words.next()?);
        let number = number.strip_suffix("/tcp")?;
        let named = name == port || words.any(|other| other == port);
        named.then(|| number.parse().ok())?
    })
}

fn invalid(text: impl Into<String>) -> CallError {
    EngineError::new(Errno::INVAL, text).into()
}

fn denied(text: impl Into<String>) -> CallError {
    EngineError::new(Errno::PERM, text).into()
}

/// Parses a URI; its errors are in libnbd's words.
fn parse(uri: &str) -> Result<Uri, CallError> {
    let Some((scheme, _)) = uri.split_once(':') else {
        return Err(invalid(
            "NBD URI does not have a scheme: valid NBD URIs should start with a scheme like \
             nbd://, nbds:// or nbd+unix://",
        ));
    };
    if !Uri::has_known_scheme(&format!("{scheme}://")) {
        return Err(invalid(format!("unknown NBD URI scheme: {scheme}")));
    }
    let has_socket = uri.split_once('?').is_some_and(|(_, query)| {
        query.split('&').any(|parameter| parameter.starts_with("socket="))
    });
    match (scheme.contains("+unix"), has_socket) {
        (true, false) => Err(invalid(format!(
            "cannot parse socket parameter from NBD URI (did you mean to use \
             \"{scheme}:///?socket=...\"?)"
        ))),
        (false, true) => Err(invalid(format!(
            "socket parameter is incompatible with \"{scheme}:\" (did you mean to use \
             \"{scheme}+unix:///?socket=...\"?)"
        ))),
        _ => Uri::parse(uri).map_err(|e| invalid(format!("unable to parse URI: {uri}: {e}"))),
    }
}

/// Applies what a URI sets, if it may.
fn apply(uri: &Uri, settings: &mut Settings) -> Result<(), CallError> {
    let (bit, name) = match uri.transport {
        Transport::Tcp { .. } => (transport::TCP, "TCP"),
        Transport::Unix { .. } | Transport::UnixAbstract { .. } => (transport::UNIX, "UNIX"),
        Transport::Vsock { .. } => (transport::VSOCK, "VSOCK"),
    };
    if settings.uri_transports & bit == 0 {
        return Err(denied(format!("URI transport {name} is not permitted")));
    }
    let forbidden = if uri.tls { settings.uri_tls == 0 } else { settings.uri_tls == 2 };
    if forbidden {
        let what = if uri.tls { "require" } else { "disable" };
        return Err(denied(format!("URI TLS setting {what} is not permitted")));
    }
    for (key, value) in &uri.params {
        if matches!(&**key, "tls-certificates" | "tls-psk-file") && !settings.uri_local_file {
            return Err(denied(format!(
                "local file access ({key}) is not allowed, call nbd_set_uri_allow_local_file to \
                 enable this"
            )));
        }
        match &**key {
            "tls-certificates" => settings.tls_certificates = Some(value.into()),
            "tls-psk-file" => settings.tls_psk_file = Some(value.into()),
            "tls-hostname" => settings.tls_hostname = Some(value.clone()),
            "tls-username" => settings.tls_username = Some(value.clone()),
            "tls-verify-peer" => settings.tls_verify_peer = uri.verifies_peer(),
            "tls-priority" if !settings.uri_tls_priority => {
                return Err(denied(
                    "overriding TLS priority (tls-priority) is not allowed, call \
                     nbd_set_uri_allow_tls_priority to enable this",
                ));
            }
            "tls-priority" => settings.tls_priority = Some(value.clone()),
            _ => {}
        }
    }
    if uri.tls {
        settings.tls = 2;
        if let Some(user) = &uri.user {
            settings.tls_username = Some(user.clone());
        }
    }
    settings.export.clone_from(&uri.export);
    Ok(())
}

fn words(argv: &Bound<'_, PyAny>) -> PyResult<Vec<String>> {
    let list = argv.cast::<PyList>();
    list.map_err(|_| PyTypeError::new_err("expecting a list parameter"))?.extract()
}

/// Whether a connection is there, for calls that wait for it.
fn connected(core: &mut Core) -> Option<Result<(), CallError>> {
    let engine = match core.engine() {
        Ok(engine) => engine,
        Err(failure) => return Some(Err(failure)),
    };
    match engine.state() {
        State::Ready | State::Negotiating => Some(Ok(())),
        State::Created | State::Connecting | State::Talking => None,
        State::Closed => Some(Err(EngineError::plain("connection is closed").into())),
        State::Dead => {
            let unknown = || EngineError::plain("connection is dead");
            Some(Err(engine.death().unwrap_or_else(unknown).into()))
        }
    }
}

impl NBD {
    fn begin(
        &self,
        py: Python<'_>,
        call: &str,
        way: impl FnOnce() -> Result<Way, CallError> + Send,
    ) -> PyResult<()> {
        self.shared.with(py, call, |core| Ok(When::Created.check(core.engine()?.state())?))?;
        // The name is looked up before the lock is taken.
        let way = py.detach(way).map_err(|failure| failure.raise(py, call))?;
        self.shared.detached(py, call, |engine| way.connect(engine))
    }

    fn connect(
        &self,
        py: Python<'_>,
        call: &str,
        way: impl FnOnce() -> Result<Way, CallError> + Send,
    ) -> PyResult<()> {
        self.begin(py, call, way)?;
        self.shared.wait(py, call, connected)
    }

    fn begin_uri(&self, py: Python<'_>, call: &str, uri: &str) -> PyResult<()> {
        let parsed = self.shared.with(py, call, |core| {
            let engine = core.engine()?;
            When::Created.check(engine.state())?;
            let uri = parse(uri)?;
            apply(&uri, &mut engine.settings)?;
            Ok(uri)
        })?;
        self.begin(py, call, || match parsed.transport {
            Transport::Tcp { host, port } => Way::tcp(&host, &port.to_string()),
            Transport::Unix { path } => Ok(Way::Unix(path.clone(), Transport::Unix { path })),
            Transport::UnixAbstract { name } => {
                let path = [&[0], &*name].concat();
                Ok(Way::Unix(path, Transport::UnixAbstract { name }))
            }
            Transport::Vsock { cid, port } => Ok(Way::Vsock { cid, port }),
        })
    }
}

#[pymethods]
impl NBD {
    /// Connects to an NBD URI (nbd, nbds, nbd+unix, nbds+unix, nbd+vsock, nbds+vsock), and waits
    /// until it can be used.
    fn connect_uri(&self, py: Python<'_>, uri: &str) -> PyResult<()> {
        self.begin_uri(py, "connect_uri", uri)?;
        self.shared.wait(py, "connect_uri", connected)
    }

    /// Connects to a Unix socket by its path.
    fn connect_unix(&self, py: Python<'_>, unixsocket: PathBuf) -> PyResult<()> {
        self.connect(py, "connect_unix", || Ok(Way::unix(&unixsocket)))
    }

    /// Connects to a port of a virtual machine, or of its host (2).
    #[pyo3(signature = (cid, port))]
    fn connect_vsock(&self, py: Python<'_>, cid: u32, port: u32) -> PyResult<()> {
        self.connect(py, "connect_vsock", || Ok(Way::Vsock { cid, port }))
    }

    /// Connects to a host by its name or address, and a port by its number or name.
    fn connect_tcp(&self, py: Python<'_>, hostname: &str, port: &str) -> PyResult<()> {
        self.connect(py, "connect_tcp", || Way::tcp(hostname, port))
    }

    /// Takes over a connected socket by its descriptor, and closes it at the end.
    fn connect_socket(&self, py: Python<'_>, sock: RawFd) -> PyResult<()> {
        self.connect(py, "connect_socket", || Ok(Way::Socket(sock)))
    }

    /// Starts a server that speaks on its standard input and output (`nbdkit -s`); it ends with
    /// this.
    fn connect_command(&self, py: Python<'_>, argv: &Bound<'_, PyAny>) -> PyResult<()> {
        let words = words(argv)?;
        self.connect(py, "connect_command", || Ok(Way::Program { words, listens: false }))
    }

    /// Starts a server by systemd's socket activation (qemu-nbd, nbdkit), and connects to it; it
    /// ends with this.
    fn connect_systemd_socket_activation(
        &self,
        py: Python<'_>,
        argv: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let words = words(argv)?;
        let call = "connect_systemd_socket_activation";
        self.connect(py, call, || Ok(Way::Program { words, listens: true }))
    }

    /// Starts to connect to a URI.
    fn aio_connect_uri(&self, py: Python<'_>, uri: &str) -> PyResult<()> {
        self.begin_uri(py, "aio_connect_uri", uri)
    }

    /// Starts to connect to an address as in Python's socket module: a path, or a host and a port.
    fn aio_connect(&self, py: Python<'_>, addr: &Bound<'_, PyAny>) -> PyResult<()> {
        if let Ok((host, port)) = addr.extract::<(String, u16)>() {
            return self.begin(py, "aio_connect", || Way::tcp(&host, &port.to_string()));
        }
        let path: PathBuf = addr.extract()?;
        self.begin(py, "aio_connect", || Ok(Way::unix(&path)))
    }

    /// Starts to connect to a Unix socket.
    fn aio_connect_unix(&self, py: Python<'_>, unixsocket: PathBuf) -> PyResult<()> {
        self.begin(py, "aio_connect_unix", || Ok(Way::unix(&unixsocket)))
    }

    /// Connects to a port of a virtual machine; this waits until the machine answers.
    fn aio_connect_vsock(&self, py: Python<'_>, cid: u32, port: u32) -> PyResult<()> {
        self.begin(py, "aio_connect_vsock", || Ok(Way::Vsock { cid, port }))
    }

    /// Starts to connect to a host.
    fn aio_connect_tcp(&self, py: Python<'_>, hostname: &str, port: &str) -> PyResult<()> {
        self.begin(py, "aio_connect_tcp", || Way::tcp(hostname, port))
    }

    /// Takes over a connected socket.
    fn aio_connect_socket(&self, py: Python<'_>, sock: RawFd) -> PyResult<()> {
        self.begin(py, "aio_connect_socket", || Ok(Way::Socket(sock)))
    }

    /// Starts a server that speaks on its standard input and output.
    fn aio_connect_command(&self, py: Python<'_>, argv: &Bound<'_, PyAny>) -> PyResult<()> {
        let words = words(argv)?;
        self.begin(py, "aio_connect_command", || Ok(Way::Program { words, listens: false }))
    }

    /// Starts a server by systemd's socket activation.
    fn aio_connect_systemd_socket_activation(
        &self,
        py: Python<'_>,
        argv: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let words = words(argv)?;
        let call = "aio_connect_systemd_socket_activation";
        self.begin(py, call, || Ok(Way::Program { words, listens: true }))
    }
}
