//! The arguments of `serve`, resolved: everything that is decided before anything is opened.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::ArgMatches;
use device::{Params, values};
use runtime::Patience;
use server::{ListenAddress, Options};
use serving::{LogFormat, ServerLog};

use super::access::Access;
use super::config::Config;
use super::disks::{self, Disk};
use super::encryption::Encryption;
use super::identity::RunAs;
use super::listening::Listening;
use super::notify::Notify;
use super::points::{self, ExportPoint};
use crate::arguments::size;
use crate::failure::{Failure, program};
use crate::names;
use crate::patience;
use crate::sandbox::{Wish, wish};

/// Threads that wait for disks.
const WORKERS: usize = 32;

/// The resolved command line.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "independent wishes of the command line")]
pub(super) struct Settings {
    pub(super) access: Access,
    /// At least one.
    pub(super) disks: Vec<Disk>,
    pub(super) default_export: Option<String>,
    /// Where disks are attached.
    pub(super) points: Vec<ExportPoint>,
    pub(super) description: String,
    pub(super) read_only: bool,
    pub(super) options: Options,
    pub(super) encryption: Encryption,
    /// How long to wait for other servers.
    pub(super) patience: Patience,
    pub(super) sandbox: Wish,
    /// Threads that wait for disks, at most.
    pub(super) workers: usize,
    pub(super) daemon: bool,
    pub(super) exit_with_parent: bool,
    pub(super) lock_memory: bool,
    pub(super) print_uri: bool,
    pub(super) pidfile: Option<PathBuf>,
    pub(super) run: Option<String>,
    pub(super) export_name: String,
    pub(super) identity: RunAs,
    pub(super) listening: Listening,
    /// Debug flags: `NAME.FLAG=N`.
    pub(super) debug: Vec<String>,
    /// Where metrics are served.
    pub(super) metrics: Option<String>,
    /// Where the control socket is made.
    pub(super) control: Option<PathBuf>,
    /// The configuration file, if any.
    pub(super) config: Option<Arc<Config>>,
    log: Option<String>,
    log_format: LogFormat,
    /// What tells this server from others in its messages.
    name: Option<String>,
}

impl Settings {
    /// The settings of the command line, after those of this file.
    pub(super) fn read(path: &Path) -> Result<Self, Failure> {
        let config = Arc::new(Config::read(path)?);
        let settings = Self::resolve(&config.matches()?, Some(config.clone()));
        settings.map_err(|failure| config.place(failure))
    }

    /// The settings of the command line, of which `config` is a part. Opens nothing:
    /// [`Encryption::acceptor`] is for the caller.
    pub(super) fn resolve(
        matches: &ArgMatches,
        config: Option<Arc<Config>>,
    ) -> Result<Self, Failure> {
        let text = |id: &str| matches.get_one::<String>(id).cloned();
        let mut listening = Listening::resolve(matches)?;
        let daemon = matches.get_flag("daemon") || goes_behind(matches, &listening);
        if daemon && std::env::var_os("LISTEN_FDS").is_some() {
            // LISTEN_PID names the parent, so the sockets would be lost.
            return Err(Failure::usage("--daemon cannot be combined with socket activation"));
        }
        let encryption = Encryption::resolve(matches)?;
        let any = listening.is_any();
        let log = text("log");
        let disks = disks::resolve(matches, config.as_deref())?;
        let default_export = text("default-export");
        let points = points::resolve(matches, &disks, default_export.as_deref())?;
        listening.attaches(!points.is_empty());
        let settings = Self {
            points,
            access: Access::resolve(matches, config.as_deref(), &disks, encryption.when)?,
            disks,
            default_export,
            description: text("description").unwrap_or_default(),
            read_only: matches.get_flag("readonly"),
            options: options(matches, &encryption)?,
            encryption,
            patience: patience::asked(matches)?,
            sandbox: wish(matches),
            workers: workers(matches).min(usize::from(u16::MAX)),
            daemon,
            exit_with_parent: matches.get_flag("exit-with-parent"),
            lock_memory: matches.get_flag("swap"),
            // Without its URI, a port or socket of the server's choice is of no use. With --single
            // standard output is the client's.
            print_uri: !listening.is_single()
                && (matches.get_flag("print-uri") || (any && text("run").is_none())),
            pidfile: matches.get_one::<PathBuf>("pidfile").cloned(),
            run: text("run"),
            export_name: super::disks::export_name(matches),
            identity: RunAs::resolve(text("user").as_deref(), text("group").as_deref())?,
            listening,
            debug: matches.get_many("debug").unwrap_or_default().cloned().collect(),
            metrics: text("metrics"),
            control: matches.get_one::<PathBuf>("control").map(absolute).transpose()?,
            config,
            log: log.map(|log| check_log(&log).map(|()| log)).transpose()?,
            name: matches.get_one("name").cloned(),
            log_format: match matches.get_one::<String>("log-format").map(String::as_str) {
                Some("json") => LogFormat::Json,
                _ => LogFormat::Text,
            },
        };
        match &settings.default_export {
            Some(name) if !settings.disks.iter().any(|disk| disk.export == *name) => {
                Err(Failure::usage(format!("--default-export: no export is named `{name}`")))
            }
            _ => Ok(settings),
        }
    }

    /// The export for clients that name none: the one that was named, or the first.
    pub(super) fn default_name(&self) -> Option<&str> {
        let first = self.disks.first().map(|disk| disk.export.as_str());
        self.default_export.as_deref().or(first)
    }

    /// The URIs of these places, for clients, with the export of `--run`.
    pub(super) fn uris(&self, places: &[ListenAddress]) -> Vec<String> {
        self.uris_of(places, &self.export_name)
    }

    /// The same with another export.
    pub(super) fn uris_of(&self, places: &[ListenAddress], export: &str) -> Vec<String> {
        let user = self.options.tls.as_ref().and_then(|tls| tls.only_user());
        self.listening.uris(places, export, &self.encryption, user)
    }

    /// Whether SIGHUP reloads instead of ending the server.
    pub(super) fn reloads(&self, notify: &Notify) -> bool {
        self.daemon || self.config.is_some() || notify.is_there()
    }

    /// The path of the metrics socket, if it has one.
    pub(super) fn metrics_socket(&self) -> Option<PathBuf> {
        self.metrics.as_deref().filter(|place| place.starts_with('/')).map(PathBuf::from)
    }

    /// The file of the log, which is created again after it was renamed.
    pub(super) fn log_file(&self) -> Option<PathBuf> {
        self.log.as_deref().filter(|log| log.starts_with('/')).map(PathBuf::from)
    }

    /// Opens the log: what was asked for, or standard error, or for a daemon the system log if
    /// there is one.
    pub(super) fn log(&self) -> Result<ServerLog, Failure> {
        let log = match self.log.as_deref() {
            Some("stderr") => ServerLog::stderr(),
            Some("null") => ServerLog::nowhere(),
            Some("syslog") => ServerLog::syslog()?,
            Some(path) if path != "default" => ServerLog::file(path.as_ref())?,
            _ if self.daemon => ServerLog::syslog().unwrap_or_else(|_| ServerLog::nowhere()),
            _ => ServerLog::stderr(),
        };
        let called = match &self.name {
            Some(name) => format!("{}[{name}]", program()),
            None => program().to_owned(),
        };
        Ok(log.in_format(self.log_format).in_name(called))
    }
}

/// Threads that wait for disks. nbdkit's number is that of each connection.
fn workers(matches: &ArgMatches) -> usize {
    let asked = number(matches, "threads").unwrap_or(WORKERS);
    if names::is_nbdkit() { asked.max(WORKERS) } else { asked }
}

/// Whether nbdkit goes into the background.
fn goes_behind(matches: &ArgMatches, listening: &Listening) -> bool {
    let stays = ["foreground", "exit-with-parent", "check"].iter().any(|id| matches.get_flag(id));
    let is_captive = matches.contains_id("run");
    let is_activated = std::env::var_os("LISTEN_FDS").is_some();
    names::is_nbdkit() && !(stays || is_captive || is_activated || listening.is_single())
}

/// Before the working directory may change.
fn absolute(path: &PathBuf) -> Result<PathBuf, Failure> {
    std::path::absolute(path).map_err(|e| Failure::usage(format!("--control: {e}")))
}

fn check_log(text: &str) -> Result<(), Failure> {
    if text.starts_with('/') || ["stderr", "syslog", "null", "default"].contains(&text) {
        return Ok(());
    }
    let known = "stderr, syslog, null, default or an absolute path";
    Err(Failure::usage(format!("--log {text}: it must be {known}")))
}

fn options(matches: &ArgMatches, encryption: &Encryption) -> Result<Options, Failure> {
    let memory = size(matches, "memory-limit")?.unwrap_or(512 << 20).max(1 << 20);
    Ok(Options {
        policy: wire::ServerPolicy { tls: encryption.when, ..policy(matches)? },
        max_connections: number(matches, "max-connections").unwrap_or(1),
        max_of_address: number(matches, "max-connections-per-address"),
        handshake_timeout: time(matches, "handshake-timeout")?.unwrap_or(Duration::from_secs(10)),
        idle_timeout: time(matches, "idle-timeout")?,
        stop_timeout: time(matches, "stop-timeout")?.unwrap_or(Duration::from_secs(5)),
        max_requests: matches.get_one::<u32>("max-requests").map(|n| u64::from(*n)),
        memory,
        verbose: matches.get_flag("verbose"),
        ..Options::default()
    })
}

fn number(matches: &ArgMatches, key: &str) -> Option<usize> {
    let number = matches.get_one::<u32>(key)?;
    Some(usize::try_from(*number).unwrap_or(usize::MAX))
}

/// A time that is not 0.
fn time(matches: &ArgMatches, key: &str) -> Result<Option<Duration>, Failure> {
    let mut params = Params::default();
    if let Some(text) = matches.get_one::<String>(key) {
        params.set(key, text)?;
    }
    match values::duration(&params, key).map_err(|e| Failure::usage(format!("--{e}")))? {
        Some(Duration::ZERO) => Err(Failure::usage(format!(
            "--{key}: must be more than 0; leave it out for the default"
        ))),
        time => Ok(time),
    }
}

/// What a client is offered.
fn policy(matches: &ArgMatches) -> Result<wire::ServerPolicy, Failure> {
    let mask = match matches.get_one::<String>("mask-handshake") {
        None => u64::MAX,
        Some(text) => {
            let mut params = Params::default();
            params.set("mask-handshake", text)?;
            let mask = values::number(&params, "mask-handshake");
            mask.map_err(|e| Failure::usage(format!("--{e}")))?.unwrap_or(u64::MAX)
        }
    };
    let structured = !matches.get_flag("no-sr");
    Ok(wire::ServerPolicy {
        oldstyle: matches.get_flag("oldstyle"),
        fixed_newstyle: mask & 1 != 0,
        no_zeroes: mask & 2 != 0,
        structured,
        // Extended headers include structured replies.
        extended: structured && !matches.get_flag("no-eh"),
        meta_contexts: !matches.get_flag("no-mc"),
        ..wire::ServerPolicy::default()
    })
}
