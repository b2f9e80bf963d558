//! Where a server listens: what the command line says, the sockets, and the URI of the first.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use clap::ArgMatches;
use server::{Family, Listener, Place};
use wire::{Scheme, Transport, Uri};

use super::encryption::Encryption;
use super::identity::Identity;
use super::surroundings::{LABEL_FILE, Label};
use crate::failure::Failure;

/// The port of NBD.
const PORT: u32 = 10809;
/// This machine, as vsock(7) calls it.
const LOCAL_CID: u32 = 1;

#[derive(Debug)]
enum Listen {
    /// Nothing was said.
    Default,
    Private,
    /// Standard input and output.
    Single,
    Tcp {
        host: Option<String>,
        port: u16,
    },
    Unix(PathBuf),
    Vsock(u32),
}

/// What the command line says of listening.
#[derive(Debug)]
pub(super) struct Listening {
    listen: Listen,
    family: Family,
    label: Option<String>,
}

impl Listening {
    pub(super) fn resolve(matches: &ArgMatches) -> Result<Self, Failure> {
        let family = match (matches.get_flag("ipv4-only"), matches.get_flag("ipv6-only")) {
            (true, _) => Family::V4,
            (_, true) => Family::V6,
            _ => Family::Any,
        };
        let label = matches.get_one::<String>("selinux-label").cloned();
        Ok(Self { listen: listen(matches)?, family, label })
    }

    /// One client, on standard input and output.
    pub(super) fn is_single(&self) -> bool {
        matches!(self.listen, Listen::Single)
    }

    /// The port or the socket that is listened on is not known before.
    pub(super) fn is_any(&self) -> bool {
        matches!(self.listen, Listen::Tcp { port: 0, .. } | Listen::Private)
    }

    /// The sockets that the service manager gave to us. Call it once, before anything is opened.
    pub(super) fn activated(&self) -> Result<Vec<Listener>, Failure> {
        let sockets = Listener::activated()?;
        match self.listen {
            _ if sockets.is_empty() => Ok(sockets),
            Listen::Default => Ok(sockets),
            _ => {
                let others = "-U, -p, -i, -s and --vsock";
                Err(Failure::usage(format!("{others} do not go with socket activation")))
            }
        }
    }

    /// Opens the sockets asked for, or the default, which is a private one beside a `captive`
    /// command. A private one is given to `identity`.
    pub(super) fn open(
        &self,
        captive: bool,
        identity: &Identity,
    ) -> Result<Vec<Listener>, Failure> {
        let _label = self.label.as_deref().map(Label::set).transpose()?;
        let tcp = |host, port| Ok(Listener::tcp(host, port, self.family)?);
        match &self.listen {
            Listen::Single => Ok(Vec::new()),
            Listen::Default if captive => private(identity),
            Listen::Private => private(identity),
            Listen::Default => tcp(None, 10809),
            Listen::Tcp { host, port } => tcp(host.as_deref(), *port),
            Listen::Unix(path) => Ok(vec![Listener::unix(path)?]),
            Listen::Vsock(port) => Ok(vec![Listener::vsock(*port)?]),
        }
    }

    /// The directory in which a socket is made, or a directory for one.
    pub(super) fn folder(&self, captive: bool) -> Option<PathBuf> {
        match &self.listen {
            Listen::Default if captive => Some(std::env::temp_dir()),
            Listen::Private => Some(std::env::temp_dir()),
            Listen::Unix(path) => {
                let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
                Some(parent.unwrap_or(Path::new(".")).to_owned())
            }
            Listen::Default | Listen::Single | Listen::Tcp { .. } | Listen::Vsock(_) => None,
        }
    }

    /// The file that is written for the label of the sockets, if they have one.
    pub(super) fn label_file(&self) -> Option<&'static Path> {
        self.label.as_ref().map(|_| Path::new(LABEL_FILE))
    }

    /// The URI of the first place, with this export name, for this user; empty if there is none.
    pub(super) fn uri(
        &self,
        places: &[Place],
        export: &str,
        encryption: &Encryption,
        user: Option<&str>,
    ) -> String {
        let (scheme, transport) = match places.first() {
            Some(Place::Tcp(address)) => {
                let host = match (address.ip().is_unspecified(), self.family) {
                    // As it was named.
                    (false, _) => self.host().unwrap_or_else(|| address.ip().to_string()),
                    // The name may stand for the other family alone.
                    (true, Family::V6) => "::1".to_owned(),
                    (true, _) => "localhost".to_owned(),
                };
                (Scheme::Nbd, Transport::Tcp { host, port: address.port() })
            }
            Some(Place::Unix(path)) => {
                let path = path.as_os_str().as_bytes().to_vec();
                (Scheme::NbdUnix, Transport::Unix { path })
            }
            Some(Place::Vsock(port)) => {
                (Scheme::NbdVsock, Transport::Vsock { cid: LOCAL_CID, port: *port })
            }
            Some(Place::Activated) | None => return String::new(),
        };
        let (export, user) = (export.to_owned(), user.map(str::to_owned));
        let (scheme, params) = encryption.told(scheme);
        let uri = Uri { scheme, transport, tls: scheme.tls(), export, user, params };
        uri.to_string()
    }

    /// The name that was given.
    fn host(&self) -> Option<String> {
        if let Listen::Tcp { host, .. } = &self.listen { host.clone() } else { None }
    }
}

fn private(identity: &Identity) -> Result<Vec<Listener>, Failure> {
    let listener = Listener::private()?;
    if let Place::Unix(socket) = listener.place() {
        identity.own(socket)?;
    }
    Ok(vec![listener])
}

fn listen(matches: &ArgMatches) -> Result<Listen, Failure> {
    let unix = matches.get_one::<String>("unix");
    let port = matches.get_one::<u32>("port").copied();
    // As it stands in a URI, an IPv6 address has brackets.
    let bare = |host: &String| {
        let inner = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        inner.unwrap_or(host).to_owned()
    };
    let host = matches.get_one::<String>("ipaddr").map(bare);
    let vsock = matches.get_flag("vsock");
    let network = port.is_some() || host.is_some() || vsock;
    if matches.get_flag("single") {
        let more = network || unix.is_some() || matches.contains_id("run");
        if more || matches.get_flag("daemon") {
            let others = "-U, -p, -i, --vsock, --run or --daemon";
            return Err(Failure::usage(format!("--single does not go with {others}")));
        }
        return Ok(Listen::Single);
    }
    if unix.is_some() && network {
        return Err(Failure::usage("-U does not go with -p, -i or --vsock"));
    }
    if vsock && host.is_some() {
        return Err(Failure::usage("--vsock does not go with -i"));
    }
    Ok(match (unix, vsock) {
        (Some(path), _) if path == "-" => Listen::Private,
        (Some(path), _) => Listen::Unix(path.into()),
        (None, true) => Listen::Vsock(port.unwrap_or(PORT)),
        (None, false) if !network => Listen::Default,
        (None, false) => {
            let port = u16::try_from(port.unwrap_or(PORT))
                .map_err(|_| Failure::usage("--port: a TCP port is at most 65535"))?;
            Listen::Tcp { host, port }
        }
    })
}
