//! Which export of which server is meant, and how it is to be used. Nothing is opened here.

use std::fmt;
use std::os::fd::RawFd;
use std::time::Duration;

use net::tls::Calling;
use wire::Uri;

/// Most connections to one export, for each user that has its own.
pub const MOST_CONNECTIONS: usize = 64;

/// A server, named.
#[derive(Clone, Debug)]
pub enum ServerSpec {
    /// By its address.
    Address(Uri),
    /// By the command line that starts it.
    Command(Vec<String>),
    /// By a descriptor of ours that is connected to it.
    Descriptor(RawFd),
}

/// An export, named, and how to connect to it.
#[derive(Clone, Debug)]
pub struct ExportSpec {
    /// The server.
    pub server: ServerSpec,
    /// The export's name there; empty for the default one.
    pub export: String,
    /// How it is to be encrypted; never in clear text then.
    pub tls: Option<Calling>,
    /// Most connections, if the server allows more than one; from 1 to [`MOST_CONNECTIONS`].
    pub connections: usize,
    /// Whether the map of the export is wanted (the context `base:allocation`).
    pub map: bool,
    /// Whether its other status contexts are wanted, all that the server has.
    pub contexts: bool,
    /// Whether to open all connections at once.
    pub eager: bool,
    /// How often to try again to make the first connection, a second apart.
    pub retries: u32,
    /// How long to keep trying to make the first connection, with growing pauses.
    pub open_within: Option<Duration>,
    /// How long an attempt to connect may take; 30 seconds without it.
    pub timeout: Option<Duration>,
    /// How long a server that owes a reply may neither send nor take a byte; for ever without it.
    pub silence: Option<Duration>,
    /// How long requests wait for a lost server to come back. Without it they fail, and the client
    /// reconnects only on request.
    pub reconnect: Option<Duration>,
}

impl From<Uri> for ExportSpec {
    fn from(uri: Uri) -> Self {
        let export = uri.export.clone();
        Self::new(ServerSpec::Address(uri), export)
    }
}

impl ExportSpec {
    /// One connection, with the map.
    #[must_use]
    pub fn new(server: ServerSpec, export: String) -> Self {
        let (connections, eager, retries) = (1, false, 0);
        Self {
            server,
            export,
            tls: None,
            connections,
            map: true,
            contexts: false,
            eager,
            retries,
            open_within: None,
            timeout: None,
            silence: None,
            reconnect: None,
        }
    }

    /// The name of an export of this server, as it can be typed: a URI, or parameters. Without a
    /// password, which NBD has not.
    #[must_use]
    pub fn name_of(&self, export: &str) -> String {
        if let ServerSpec::Address(uri) = &self.server {
            let uri = Uri { export: export.to_owned(), ..uri.clone() };
            return uri.without_password().to_string();
        }
        let export = if export.is_empty() {
            String::new()
        } else {
            format!("&export={}", export.replace('&', "\\&"))
        };
        format!("{}{export}", self.server)
    }
}

impl fmt::Display for ServerSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(uri) => uri.clone().without_password().fmt(f),
            Self::Descriptor(number) => write!(f, "nbd:?socket-fd={number}"),
            Self::Command(words) => {
                let mut key = "nbd:?command";
                for word in words {
                    write!(f, "{key}={}", word.replace('&', "\\&"))?;
                    key = "&arg";
                }
                Ok(())
            }
        }
    }
}
