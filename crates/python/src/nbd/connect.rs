//! Ways to a server.

use std::net::ToSocketAddrs;
use std::os::fd::RawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyList;
use rustix::io::Errno;
use wire::{Transport, Uri};

use super::shared::{CallError, Core};
use super::{NBD, Object};
use crate::engine::When::Created;
use crate::engine::{Destination, EngineError, Settings, State, transport};

fn unix(path: &Path) -> Destination {
    Transport::Unix { path: path.as_os_str().as_bytes().to_vec() }.into()
}

fn vsock(cid: u32, port: u32) -> Destination {
    Transport::Vsock { cid, port }.into()
}

fn tcp(host: &str, port: &str) -> Destination {
    Destination::Tcp { host: host.to_owned(), port: port.to_owned(), addresses: Vec::new() }
}

fn program(argv: Object<'_, '_>, listens: bool) -> PyResult<Destination> {
    let list = argv.cast::<PyList>();
    let list = list.map_err(|_| PyTypeError::new_err("expecting a list parameter"))?;
    Ok(Destination::Program { words: list.extract()?, listens })
}

/// An address as in Python's socket module: a path, or a host and a port.
fn address(given: Object<'_, '_>) -> PyResult<Destination> {
    if let Ok((host, port)) = given.extract::<(String, u16)>() {
        return Ok(tcp(&host, &port.to_string()));
    }
    Ok(unix(&given.extract::<PathBuf>()?))
}

/// Looks the addresses of a host up, by its name: that may take long.
fn look_up(mut way: Destination) -> Result<Destination, EngineError> {
    let Destination::Tcp { host, port, addresses } = &mut way else { return Ok(way) };
    let say = |why: &str| {
        EngineError::plain(format!("getaddrinfo: hostname \"{host}\" port \"{port}\": {why}"))
    };
    let number = service(port);
    let number = number.ok_or_else(|| say("Servname not supported for ai_socktype"))?;
    let found = (&**host, number).to_socket_addrs().map_err(|e| {
        let text = e.to_string();
        say(text.rsplit(": ").next().unwrap_or_default())
    })?;
    addresses.extend(found);
    Ok(way)
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
    EngineError::invalid(text).into()
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

/// Whether a connection is there, for calls that wait for it.
fn connected(core: &mut Core) -> Result<Option<()>, CallError> {
    let engine = core.engine()?;
    match engine.state() {
        State::Ready | State::Negotiating => Ok(Some(())),
        State::Created | State::Connecting | State::Talking => Ok(None),
        State::Closed => Err(EngineError::plain("connection is closed").into()),
        State::Dead => {
            let unknown = || EngineError::plain("connection is dead");
            Err(engine.death().unwrap_or_else(unknown).into())
        }
    }
}

impl NBD {
    fn begin(&self, py: Python<'_>, call: &str, way: Destination) -> PyResult<()> {
        self.know(py, call, Created, |_| Ok(()))?;
        // What may take long comes before the lock is taken.
        let way = py.detach(|| look_up(way.dialled()));
        let way = way.map_err(|fault| CallError::Engine(fault).raise(py, call))?;
        self.shared.detached(py, call, |engine| Ok(engine.connect(way)?))
    }

    fn connect(&self, py: Python<'_>, call: &str, way: Destination) -> PyResult<()> {
        self.begin(py, call, way)?;
        self.shared.wait(py, call, connected)
    }

    fn begin_uri(&self, py: Python<'_>, call: &str, uri: &str) -> PyResult<()> {
        let transport = self.shared.with(py, call, |core| {
            let engine = core.engine()?;
            Created.check(engine.state())?;
            let uri = parse(uri)?;
            apply(&uri, &mut engine.settings)?;
            Ok(uri.transport)
        })?;
        self.begin(py, call, transport.into())
    }

    fn through_uri(&self, py: Python<'_>, call: &str, uri: &str) -> PyResult<()> {
        self.begin_uri(py, call, uri)?;
        self.shared.wait(py, call, connected)
    }
}

methods! {
    /// Connects to an NBD URI (nbd, nbds, nbd+unix, nbds+unix, nbd+vsock, nbds+vsock), and waits
    /// until it can be used.
    connect_uri(uri: &str) -> () = through_uri(uri);

    /// Connects to a Unix socket by its path.
    connect_unix(unixsocket: PathBuf) -> () = connect(unix(&unixsocket));

    /// Connects to a port of a virtual machine, or of its host (2).
    connect_vsock(cid: u32, port: u32) -> () = connect(vsock(cid, port));

    /// Connects to a host by its name or address, and a port by its number or name.
    connect_tcp(hostname: &str, port: &str) -> () = connect(tcp(hostname, port));

    /// Takes over a connected socket by its descriptor, and closes it at the end.
    connect_socket(sock: RawFd) -> () = connect(Destination::Socket(sock));

    /// Starts a server that speaks on its standard input and output (`nbdkit -s`); it ends with
    /// this.
    connect_command(argv: Object<'_, '_>) -> () = connect(program(argv, false)?);

    /// Starts a server by systemd's socket activation (qemu-nbd, nbdkit), and connects to it; it
    /// ends with this.
    connect_systemd_socket_activation(argv: Object<'_, '_>) -> () = connect(program(argv, true)?);

    /// Starts to connect to a URI.
    aio_connect_uri(uri: &str) -> () = begin_uri(uri);

    /// Starts to connect to an address as in Python's socket module: a path, or a host and a port.
    aio_connect(addr: Object<'_, '_>) -> () = begin(address(addr)?);

    /// Starts to connect to a Unix socket.
    aio_connect_unix(unixsocket: PathBuf) -> () = begin(unix(&unixsocket));

    /// Connects to a port of a virtual machine; this waits until the machine answers.
    aio_connect_vsock(cid: u32, port: u32) -> () = begin(vsock(cid, port));

    /// Starts to connect to a host.
    aio_connect_tcp(hostname: &str, port: &str) -> () = begin(tcp(hostname, port));

    /// Takes over a connected socket.
    aio_connect_socket(sock: RawFd) -> () = begin(Destination::Socket(sock));

    /// Starts a server that speaks on its standard input and output.
    aio_connect_command(argv: Object<'_, '_>) -> () = begin(program(argv, false)?);

    /// Starts a server by systemd's socket activation.
    aio_connect_systemd_socket_activation(argv: Object<'_, '_>) -> () = begin(program(argv, true)?);
}
