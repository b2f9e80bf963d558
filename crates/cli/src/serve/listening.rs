//! Where a server listens: what the command line says, the sockets, and their URIs.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use clap::ArgMatches;
use server::{Family, ListenAddress, Listener, SocketName, SocketRights, look_up};
use wire::{ServerTls, Transport, Uri};

use super::encryption::Encryption;
use super::identity::{RunAs, owner};
use super::surroundings::{LABEL_FILE, Label};
use crate::failure::Failure;

/// The port of NBD.
const PORT: u32 = 10809;
/// This machine, as vsock(7) calls it.
const LOCAL_CID: u32 = 1;

/// One address that was asked for.
#[derive(Clone, Debug)]
enum RequestedAddress {
    Private,
    Tcp { host: Option<String>, port: u16 },
    Unix(PathBuf),
    Vsock(u32),
}

/// The options for listening.
#[derive(Debug)]
pub(super) struct Listening {
    /// Empty without such options.
    wanted: Vec<RequestedAddress>,
    /// The addresses of hosts: see [`Listening::look_up`].
    found: BTreeMap<String, Vec<IpAddr>>,
    /// One client, on standard input and output.
    is_single: bool,
    /// Disks are attached: without an address there is none.
    attaches: bool,
    family: Family,
    label: Option<String>,
    rights: SocketRights,
}

impl Listening {
    pub(super) fn resolve(matches: &ArgMatches) -> Result<Self, Failure> {
        let family = match (matches.get_flag("ipv4-only"), matches.get_flag("ipv6-only")) {
            (true, _) => Family::V4,
            (_, true) => Family::V6,
            _ => Family::Any,
        };
        let label = matches.get_one::<String>("selinux-label").cloned();
        let (wanted, is_single) = (wanted(matches)?, matches.get_flag("single"));
        let has_name = wanted.iter().any(|one| matches!(one, RequestedAddress::Unix(_)));
        let rights = rights(matches, has_name)?;
        if is_single {
            let more = !wanted.is_empty() || matches.contains_id("run");
            if more || matches.get_flag("daemon") {
                let others = "-U, -p, -i, --vsock, --run or --daemon";
                return Err(Failure::usage(format!("--single cannot be combined with {others}")));
            }
        }
        Ok(Self {
            wanted,
            found: BTreeMap::new(),
            is_single,
            attaches: false,
            family,
            label,
            rights,
        })
    }

    /// Looks up the hosts to listen on, while names can be looked up: before the sandbox.
    pub(super) fn look_up(&mut self) -> Result<(), Failure> {
        for place in &self.wanted {
            if let RequestedAddress::Tcp { host: Some(host), .. } = place {
                self.found.insert(host.clone(), look_up(host, self.family)?);
            }
        }
        Ok(())
    }

    /// Disks are attached, so that no client need connect.
    pub(super) fn attaches(&mut self, attaches: bool) {
        self.attaches = attaches;
    }

    /// One client, on standard input and output.
    pub(super) fn is_single(&self) -> bool {
        self.is_single
    }

    /// The port or socket is not known before it is opened.
    pub(super) fn is_any(&self) -> bool {
        let any = |one: &RequestedAddress| {
            matches!(one, RequestedAddress::Tcp { port: 0, .. } | RequestedAddress::Private)
        };
        self.wanted.iter().any(any)
    }

    /// The sockets that the service manager gave to us. Call it once, before anything is opened.
    pub(super) fn activated(&self) -> Result<Vec<Listener>, Failure> {
        let sockets = Listener::activated()?;
        if !sockets.is_empty() && (self.is_single || !self.wanted.is_empty()) {
            let others = "-U, -p, -i, -s and --vsock";
            return Err(Failure::usage(format!(
                "{others} cannot be combined with socket activation"
            )));
        }
        Ok(sockets)
    }

    /// The addresses to listen on: those that were asked for, or the default, which is a private
    /// socket beside a `captive` command.
    fn places(&self, captive: bool) -> Vec<RequestedAddress> {
        match (self.is_single, self.wanted.is_empty()) {
            (true, _) => Vec::new(),
            (false, false) => self.wanted.clone(),
            (false, true) if self.attaches => Vec::new(),
            (false, true) if captive => vec![RequestedAddress::Private],
            (false, true) => vec![RequestedAddress::Tcp { host: None, port: 10809 }],
        }
    }

    /// Opens the sockets. A private one is given to `identity`.
    pub(super) fn open(&self, captive: bool, identity: &RunAs) -> Result<Vec<Listener>, Failure> {
        let _label = self.label.as_deref().map(Label::set).transpose()?;
        let mut listeners = Vec::new();
        for place in self.places(captive) {
            match place {
                RequestedAddress::Private => listeners.push(private(identity)?),
                RequestedAddress::Tcp { host, port } => {
                    let found = host.as_ref().and_then(|host| self.found.get(host));
                    listeners.extend(match found {
                        Some(addresses) => Listener::tcp_at(addresses, port)?,
                        None => Listener::tcp(host.as_deref(), port, self.family)?,
                    });
                }
                RequestedAddress::Unix(path) => {
                    listeners.push(Listener::unix_with(&path, &self.rights)?)
                }
                RequestedAddress::Vsock(port) => listeners.push(Listener::vsock(port)?),
            }
        }
        Ok(listeners)
    }

    /// The Unix sockets that are made.
    pub(super) fn sockets(&self, captive: bool) -> Vec<PathBuf> {
        let path = |place| match place {
            RequestedAddress::Unix(path) => Some(path),
            _ => None,
        };
        self.places(captive).into_iter().filter_map(path).collect()
    }

    /// The directories in which directories for sockets are made.
    pub(super) fn privates(&self, captive: bool) -> Vec<PathBuf> {
        let is_one = |place: &RequestedAddress| matches!(place, RequestedAddress::Private);
        let any = self.places(captive).iter().any(is_one);
        any.then(SocketName::above_private).into_iter().collect()
    }

    /// The file to write to label the sockets, if they get a label.
    pub(super) fn label_file(&self) -> Option<&'static Path> {
        self.label.as_ref().map(|_| Path::new(LABEL_FILE))
    }

    /// The URIs of these addresses, with this export name, for this user; none for a socket that
    /// the service manager opened.
    pub(super) fn uris(
        &self,
        places: &[ListenAddress],
        export: &str,
        encryption: &Encryption,
        user: Option<&str>,
    ) -> Vec<String> {
        let mut uris: Vec<String> = Vec::new();
        let tls = encryption.when != ServerTls::Off;
        for transport in places.iter().filter_map(|place| self.transport(place)) {
            let (user, params) = (user.map(str::to_owned), encryption.params());
            let uri = Uri { user, params, ..Uri::to(transport, tls, export.to_owned()) };
            let uri = uri.to_string();
            // A name may have several addresses.
            if !uris.contains(&uri) {
                uris.push(uri);
            }
        }
        uris
    }

    fn transport(&self, place: &ListenAddress) -> Option<Transport> {
        Some(match place {
            ListenAddress::Tcp(address) => {
                let host = match (address.ip().is_unspecified(), self.family) {
                    // As it was named.
                    (false, _) => self.host().unwrap_or_else(|| address.ip().to_string()),
                    // The name may have an address of the other family only.
                    (true, Family::V6) => "::1".to_owned(),
                    (true, _) => "localhost".to_owned(),
                };
                Transport::Tcp { host, port: address.port() }
            }
            ListenAddress::Unix(path) => {
                Transport::Unix { path: path.as_os_str().as_bytes().to_vec() }
            }
            ListenAddress::Vsock(port) => Transport::Vsock { cid: LOCAL_CID, port: *port },
            ListenAddress::Activated => return None,
        })
    }

    /// The name that was given, if only one was.
    fn host(&self) -> Option<String> {
        let mut hosts = self.wanted.iter().filter_map(|place| match place {
            RequestedAddress::Tcp { host, .. } => host.as_ref(),
            _ => None,
        });
        let first = hosts.next()?;
        hosts.all(|other| other == first).then(|| first.clone())
    }
}

fn private(identity: &RunAs) -> Result<Listener, Failure> {
    let listener = Listener::private()?;
    if let ListenAddress::Unix(socket) = listener.place() {
        identity.own(socket)?;
    }
    Ok(listener)
}

/// Unix sockets first: they are the nearest.
fn wanted(matches: &ArgMatches) -> Result<Vec<RequestedAddress>, Failure> {
    let mut wanted = Vec::new();
    for path in matches.get_many::<String>("unix").unwrap_or_default() {
        let is_private = path == "-";
        wanted.push(if is_private {
            RequestedAddress::Private
        } else {
            RequestedAddress::Unix(path.into())
        });
    }
    // As it stands in a URI, an IPv6 address has brackets.
    let bare = |host: &String| {
        let inner = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        inner.unwrap_or(host).to_owned()
    };
    let hosts = matches.get_many::<String>("ipaddr").unwrap_or_default().map(bare);
    let hosts: Vec<Option<String>> = hosts.map(Some).collect();
    let ports: Vec<u32> = matches.get_many("port").unwrap_or_default().copied().collect();
    let is_vsock = matches.get_flag("vsock");
    if is_vsock && !hosts.is_empty() {
        return Err(Failure::usage("--vsock cannot be combined with -i"));
    }
    if ports.is_empty() && hosts.is_empty() && !is_vsock {
        return Ok(wanted);
    }
    let ports = if ports.is_empty() { vec![PORT] } else { ports };
    if is_vsock {
        wanted.extend(ports.into_iter().map(RequestedAddress::Vsock));
        return Ok(wanted);
    }
    let hosts = if hosts.is_empty() { vec![None] } else { hosts };
    for port in ports {
        let port = u16::try_from(port)
            .map_err(|_| Failure::usage("--port: a TCP port is at most 65535"))?;
        wanted.extend(hosts.iter().map(|host| RequestedAddress::Tcp { host: host.clone(), port }));
    }
    Ok(wanted)
}

/// Mode and owner of the Unix sockets.
fn rights(matches: &ArgMatches, has_name: bool) -> Result<SocketRights, Failure> {
    let text = |id: &str| matches.get_one::<String>(id);
    let mode = text("socket-mode").map(|text| mode(text)).transpose()?;
    let (user, group) =
        text("socket-owner").map(|text| owner(text)).transpose()?.unwrap_or_default();
    let rights = SocketRights { mode, user, group };
    if rights != SocketRights::default() && !has_name {
        let what = "--socket-mode and --socket-owner apply to Unix sockets: add -U PATH";
        return Err(Failure::usage(what));
    }
    Ok(rights)
}

fn mode(text: &str) -> Result<u32, Failure> {
    let digits = text.strip_prefix("0o").unwrap_or(text);
    let mode = u32::from_str_radix(digits, 8).ok().filter(|mode| *mode <= 0o777);
    // A sign would be taken for part of the number.
    let mode = mode.filter(|_| digits.bytes().all(|b| b.is_ascii_digit()));
    mode.ok_or_else(|| {
        Failure::usage(format!("--socket-mode {text}: must be octal, up to 0777, as 0660"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mode_is_octal() {
        assert_eq!(
            ["660", "0660", "0o660", "0"].map(|text| mode(text).unwrap()),
            [0o660, 0o660, 0o660, 0]
        );
        for wrong in ["", "rw", "+660", "1777", "0x1b0", "8", "99999999999"] {
            assert!(mode(wrong).unwrap_err().line().contains("octal"), "{wrong}");
        }
    }
}
