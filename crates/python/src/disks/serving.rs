//! A disk over NBD, from this process.

use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use disk::{Content, OpenOptions};
use pyo3::prelude::*;
use runtime::{Context, Mutex, WorkPool};
use server::{Family, ListenAddress, Listener, Options};
use serving::{Allowed, Export, Exports, ServerLog};
use wire::{Transport, Uri};

use super::naming::Handling;
use super::{Naming, raise, wrong};

/// Threads for operations that may block.
const WORKERS: usize = 16;
/// Connections to a server, if the served disk is on one.
const CONNECTIONS: usize = 8;

/// A server that runs until it is stopped.
#[pyclass(name = "Server", module = "diskferry", frozen)]
pub(crate) struct DiskServer {
    uri: String,
    running: Mutex<Option<(server::Server, Context)>>,
}

/// Where to listen: a path, a host and a port; or a private socket.
fn listen(unix: Option<&PathBuf>, tcp: Option<(String, u16)>) -> device::Result<Listener> {
    if let Some(path) = unix {
        return Listener::unix(path);
    }
    let Some((host, port)) = tcp else { return Listener::private() };
    let found = Listener::tcp(Some(&host), port, Family::Any)?;
    let none = || device::Error::invalid("listen: the host has no address");
    found.into_iter().next().ok_or_else(none)
}

fn uri(place: &ListenAddress, export: &str) -> String {
    let transport = match place {
        ListenAddress::Unix(path) => Transport::Unix { path: path.as_os_str().as_bytes().to_vec() },
        ListenAddress::Tcp(address) => {
            Transport::Tcp { host: address.ip().to_string(), port: address.port() }
        }
        ListenAddress::Vsock(port) => Transport::Vsock { cid: 1, port: *port },
        ListenAddress::Activated => return String::new(),
    };
    Uri::to(transport, false, export.to_owned()).to_string()
}

#[pymethods]
impl DiskServer {
    #[new]
    #[pyo3(signature = (naming, export, read_only, unix, tcp))]
    fn new(
        py: Python<'_>,
        naming: Naming,
        export: String,
        read_only: bool,
        unix: Option<PathBuf>,
        tcp: Option<(String, u16)>,
    ) -> PyResult<Self> {
        if export.len() > 4096 {
            return Err(wrong("export: a name has 4096 bytes at most"));
        }
        let (named, stack) = naming.resolve(py, Handling::Write)?;
        if matches!(stack.image().content, Content::Guess) {
            return Err(wrong(format!("{named}: a format is not guessed for a server; name it")));
        }
        let started = py.detach(|| {
            let context = Context::new(WorkPool::new(WORKERS));
            let options = OpenOptions {
                write: !read_only,
                or_read_only: true,
                export: export.clone(),
                contexts: true,
                connections: CONNECTIONS,
                ..OpenOptions::default()
            };
            let edge = disk::open(&named, &stack, &options, &context)?.edge;
            let listener = listen(unix.as_ref(), tcp)?;
            let uri = uri(listener.place(), &export);
            let exports = Exports::new();
            let description = edge.info().description.clone();
            let name = export.clone();
            exports.add(Export { name, description, edge, read_only, allow: Allowed::default() });
            exports.set_default(&export);
            let options = Options { log: ServerLog::nowhere(), ..Options::default() };
            let server = server::Server::start(exports, vec![listener], &options)?;
            Ok::<_, device::Error>((uri, server, context))
        });
        let (uri, server, context) = started.map_err(|e| raise(py, &e))?;
        Ok(Self { uri, running: Mutex::new(Some((server, context))) })
    }

    /// The URI of the server.
    #[getter]
    fn uri(&self) -> &str {
        &self.uri
    }

    /// The number of connected clients.
    #[getter]
    fn connections(&self) -> usize {
        let running = self.running.lock();
        running.as_ref().map_or(0, |(server, _)| server.connections())
    }

    /// Answers the requests in flight, and stops. A second call does nothing.
    fn stop(&self, py: Python<'_>) -> PyResult<()> {
        let running = self.running.lock().take();
        let Some((server, context)) = running else { return Ok(()) };
        let complaint = py.detach(|| {
            let ended = server.stop();
            context.control.end();
            let complaint = context.control.take_complaints().first().map(ToString::to_string);
            let stuck = || Some("a thread still waits for a disk".to_owned());
            if ended { complaint } else { stuck() }
        });
        match complaint {
            None => Ok(()),
            Some(text) => Err(super::raise_words(py, device::ErrorKind::Io, &text)),
        }
    }
}
