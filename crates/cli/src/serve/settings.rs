//! What the arguments of `serve` come to: everything decided before anything is opened.

use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Duration;

use clap::ArgMatches;
use device::{Name, Params, parse_size};
use server::{Listener, Options, Place};
use wire::{Scheme, Transport, Uri};

use crate::failure::Failure;

/// The port of NBD.
const PORT: u32 = 10809;
/// This machine, as vsock(7) calls it.
const LOCAL_CID: u32 = 1;

/// A disk to be served.
#[derive(Debug)]
pub(super) struct Disk {
    pub(super) export: String,
    pub(super) disk: DiskName,
}

/// How the disk was named.
#[derive(Debug)]
pub(super) enum DiskName {
    /// nbdkit's form.
    Kind {
        kind: String,
        arg: Option<String>,
        params: Params,
    },
    Name(Name),
}

#[derive(Debug)]
enum Listen {
    Private,
    Tcp { host: Option<String>, port: u16 },
    Unix(PathBuf),
    Vsock(u32),
}

/// The resolved command line.
#[derive(Debug)]
pub(super) struct Settings {
    pub(super) disks: Vec<Disk>,
    pub(super) default_export: Option<String>,
    pub(super) description: String,
    pub(super) read_only: bool,
    pub(super) options: Options,
    pub(super) daemon: bool,
    pub(super) print_uri: bool,
    pub(super) pidfile: Option<PathBuf>,
    pub(super) run: Option<String>,
    pub(super) export_name: String,
    listen: Option<Listen>,
}

impl Settings {
    pub(super) fn resolve(matches: &ArgMatches) -> Result<Self, Failure> {
        let text = |id: &str| matches.get_one::<String>(id).cloned();
        let listen = listen(matches)?;
        let any_port = matches!(&listen, Some(Listen::Tcp { port: 0, .. }));
        Ok(Self {
            disks: disks(matches)?,
            default_export: text("default-export"),
            description: text("description").unwrap_or_default(),
            read_only: matches.get_flag("readonly"),
            options: options(matches)?,
            daemon: matches.get_flag("daemon"),
            // A port that nobody knows is of no use.
            print_uri: matches.get_flag("print-uri") || (any_port && text("run").is_none()),
            pidfile: matches.get_one::<PathBuf>("pidfile").cloned(),
            run: text("run"),
            export_name: text("exportname").unwrap_or_default(),
            listen,
        })
    }

    /// Opens the listening sockets: those of the service manager, those asked for, or the
    /// default.
    pub(super) fn listen(&self) -> Result<Vec<Listener>, Failure> {
        let activated = Listener::activated()?;
        match (&self.listen, activated.is_empty()) {
            (Some(_), false) => {
                Err(Failure::usage("-U, -p, -i and --vsock do not go with socket activation"))
            }
            (None, false) => Ok(activated),
            (None, true) if self.run.is_some() => Ok(vec![Listener::private()?]),
            (None, true) => Ok(Listener::tcp(None, 10809)?),
            (Some(Listen::Private), true) => Ok(vec![Listener::private()?]),
            (Some(Listen::Unix(path)), true) => Ok(vec![Listener::unix(path)?]),
            (Some(Listen::Vsock(port)), true) => Ok(vec![Listener::vsock(*port)?]),
            (Some(Listen::Tcp { host, port }), true) => Ok(Listener::tcp(host.as_deref(), *port)?),
        }
    }

    /// The URI of the first place, with the name given by -e.
    pub(super) fn uri(&self, places: &[Place]) -> String {
        let (scheme, transport) = match places.first() {
            Some(Place::Tcp(address)) => {
                let host = if address.ip().is_unspecified() {
                    "localhost".to_owned()
                } else {
                    address.ip().to_string()
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
        let export = self.export_name.clone();
        let uri = Uri { scheme, transport, tls: false, export, user: None, params: Vec::new() };
        uri.to_string()
    }
}

fn options(matches: &ArgMatches) -> Result<Options, Failure> {
    let number = |id: &str| matches.get_one::<u32>(id).copied().unwrap_or(1);
    let memory = matches.get_one::<String>("memory-limit").map_or("512M", String::as_str);
    let memory = parse_size(memory)
        .map_err(|e| Failure::usage(format!("--memory-limit: {e}")))?
        .max(1 << 20);
    Ok(Options {
        workers: matches.get_one::<u16>("threads").map_or(16, |n| usize::from(*n)),
        max_connections: usize::try_from(number("max-connections")).unwrap_or(usize::MAX),
        handshake_timeout: Duration::from_secs(number("handshake-timeout").into()),
        memory,
        verbose: matches.get_flag("verbose"),
        ..Options::default()
    })
}

fn listen(matches: &ArgMatches) -> Result<Option<Listen>, Failure> {
    let unix = matches.get_one::<String>("unix");
    let port = matches.get_one::<u32>("port").copied();
    let host = matches.get_one::<String>("ipaddr").cloned();
    let vsock = matches.get_flag("vsock");
    if unix.is_some() && (port.is_some() || host.is_some() || vsock) {
        return Err(Failure::usage("-U does not go with -p, -i or --vsock"));
    }
    if vsock && host.is_some() {
        return Err(Failure::usage("--vsock does not go with -i"));
    }
    Ok(match (unix, vsock) {
        (Some(path), _) if path == "-" => Some(Listen::Private),
        (Some(path), _) => Some(Listen::Unix(path.into())),
        (None, true) => Some(Listen::Vsock(port.unwrap_or(PORT))),
        (None, false) if port.is_none() && host.is_none() => None,
        (None, false) => {
            let port = u16::try_from(port.unwrap_or(PORT))
                .map_err(|_| Failure::usage("--port: a TCP port is at most 65535"))?;
            Some(Listen::Tcp { host, port })
        }
    })
}

fn disks(matches: &ArgMatches) -> Result<Vec<Disk>, Failure> {
    let words: Vec<&str> =
        matches.get_many::<String>("disk").unwrap_or_default().map(String::as_str).collect();
    let mut disks = Vec::new();
    if let Some((first, rest)) = words.split_first() {
        disks.push(Disk { export: String::new(), disk: positional(first, rest)? });
    }
    for text in matches.get_many::<String>("export").unwrap_or_default() {
        let (name, disk) = text
            .split_once('=')
            .ok_or_else(|| Failure::usage(format!("--export {text}: write NAME=DISK")))?;
        let disk = DiskName::Name(Name::parse(disk)?);
        disks.push(Disk { export: name.to_owned(), disk });
    }
    if disks.is_empty() {
        return Err(Failure::usage("no disk to serve; name one, for example memory:1G"));
    }
    Ok(disks)
}

/// `DISK`, or nbdkit's `DEVICE [ARG] [key=value]...` when the first word is that of a device.
fn positional(first: &str, rest: &[&str]) -> Result<DiskName, Failure> {
    if let Err(unknown) = devices::kind(first) {
        if rest.is_empty() {
            return Ok(DiskName::Name(Name::parse(first)?));
        }
        // Parameters follow the word of a device, so this was meant to be one.
        return Err(Failure::usage(unknown));
    }
    let (arg, pairs) = match rest.split_first() {
        Some((arg, pairs)) if !arg.contains('=') => (Some((*arg).to_owned()), pairs),
        _ => (None, rest),
    };
    let params = Params::parse(pairs.iter().copied())?;
    Ok(DiskName::Kind { kind: first.to_owned(), arg, params })
}
