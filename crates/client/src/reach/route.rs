//! The route to a server: where its sockets come from, now and later.

use std::fmt;
use std::os::unix::ffi::OsStrExt;

use device::{Error, ErrorKind, Fault, Result};
use net::tls::Connector;
use net::{Stream, Until};
use runtime::Mutex;
use wire::Transport;

use super::subprocess::Subprocess;
use super::target::{ExportSpec, ServerSpec};

/// The route to a server.
#[derive(Debug)]
pub(crate) struct Route {
    /// The server's name in messages.
    name: String,
    way: Way,
    /// The TLS settings of each connection.
    tls: Option<Connector>,
}

#[derive(Debug)]
enum Way {
    Address(Transport),
    /// A connection that we were given; it can be used once.
    Given(Mutex<Option<Stream>>),
    Process(Subprocess, Transport),
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

impl Route {
    /// The route to the server that `target` names; a command is started.
    pub(crate) fn open(target: &ExportSpec) -> Result<Self> {
        let name = target.server.to_string();
        let tls = target.tls.as_ref().map(Connector::new).transpose().map_err(|e| e.on(&name))?;
        let way = match &target.server {
            ServerSpec::Address(uri) if uri.tls && tls.is_none() => {
                let action = "connect: TLS settings are missing; this is a defect";
                return Err(Error::new(ErrorKind::InvalidInput, Fault::Us, action).on(&name));
            }
            ServerSpec::Address(uri) => Way::Address(uri.transport.clone()),
            ServerSpec::Command(words) => {
                let process = Subprocess::start(words)?;
                let path = process.socket().as_os_str().as_bytes().to_vec();
                Way::Process(process, Transport::Unix { path })
            }
            ServerSpec::Descriptor(number) => {
                let taken = Stream::handed(*number);
                let socket = taken.map_err(|e| Error::os("take the connection", e).on(&name))?;
                Way::Given(Mutex::new(Some(socket)))
            }
        };
        Ok(Self { name, way, tls })
    }

    /// How it is to be encrypted.
    pub(crate) fn tls(&self) -> Option<&Connector> {
        self.tls.as_ref()
    }

    /// A new stream to the server.
    pub(crate) fn connect(&self, until: Until) -> Result<Stream> {
        match &self.way {
            Way::Address(transport) | Way::Process(_, transport) => dial(transport, until),
            Way::Given(socket) => socket.lock().take().ok_or_else(|| {
                let action = "connect again: an inherited connection cannot be made again";
                Error::new(ErrorKind::Disconnected, Fault::User, action)
            }),
        }
    }

    /// An error on this route, with its cause, if known.
    pub(crate) fn explain(&self, e: Error) -> Error {
        let e = match &self.way {
            Way::Process(process, _) => process.explain(e),
            Way::Address(_) | Way::Given(_) => e,
        };
        e.on(self)
    }
}

fn dial(transport: &Transport, until: Until) -> Result<Stream> {
    match transport {
        Transport::Tcp { host, port } => Stream::dial_tcp(host, *port, until),
        Transport::Unix { path } => Stream::dial_unix(path, until),
        Transport::UnixAbstract { name } => Stream::dial_abstract(name, until),
        Transport::Vsock { cid, port } => Stream::dial_vsock(*cid, *port, until),
    }
}
