//! A plugin in a process of its own: this program once more, which serves it on a socket that only
//! we may reach.
//!
//! Each client has a connection of its own there, and so a handle of its own. When the process ends
//! (a plugin may crash), its requests fail, the log says so once, and later clients are refused; or
//! they get a new process, if that was asked for: what the plugin kept in memory is gone then.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use ::device::{
    Client, Connected, Device, Done, Error, ErrorKind, Fault, Info, Lane, Listed, Operation,
    Params, Reach, Result, Session, text,
};
use client::{ExportSpec, Subprocess, command_reaches};
use plugins::ExportChoice;
use runtime::{Context, Mutex, OperatorLog, spawn};
use wire::{Transport, Uri};

use super::{PLUGIN, choice, own};
use crate::OpenOptions;
use crate::nbd;

/// Options of all processes that are started, but for flags of other plugins: `-v`, and each flag,
/// as `NAME.FLAG=N`.
static DEBUGGING: OnceLock<(bool, Vec<String>)> = OnceLock::new();

/// As [`crate::debug_processes`].
pub(crate) fn debug(verbose: bool, flags: &[String]) {
    let _ = DEBUGGING.set((verbose, flags.to_vec()));
}

/// What comes before the point in the flags of this plugin, which may be named by its path.
fn flagged(named: &str) -> &str {
    let file = named.rsplit('/').next().unwrap_or(named);
    let bare = file.strip_prefix("nbdkit-").and_then(|name| name.strip_suffix("-plugin.so"));
    bare.unwrap_or(file)
}

/// The command line of the process.
fn words(params: &Params, write: bool) -> Vec<String> {
    let program = std::env::current_exe().unwrap_or_default();
    let mut words = vec![text::carry(program.as_os_str()), "serve".to_owned()];
    // Its code may need anything; it cannot be confined.
    words.push("--sandbox=off".to_owned());
    words.extend((!write).then(|| "-r".to_owned()));
    let named = params.get(PLUGIN).unwrap_or_default();
    if let Some((verbose, flags)) = DEBUGGING.get() {
        words.extend(verbose.then(|| "-v".to_owned()));
        let is_own = |flag: &&String| {
            flag.strip_prefix(flagged(named)).is_some_and(|it| it.starts_with('.'))
        };
        words.extend(flags.iter().filter(is_own).map(|flag| format!("--debug={flag}")));
    }
    // What follows may look like an option.
    words.extend(["--", PLUGIN].map(str::to_owned));
    words.push(format!("{PLUGIN}={named}"));
    words.extend(own(params).iter().map(|(key, value)| match key {
        "" => value.to_owned(),
        key => format!("{key}={value}"),
    }));
    words
}

/// What it needs of the system: the process, which is not confined, and its socket. How it will be
/// opened is not known yet.
pub(super) fn reaches(params: &Params) -> Reach {
    let (mut programs, mut privates) = (Vec::new(), Vec::new());
    for write in [false, true] {
        let (program, folder) = command_reaches(&words(params, write));
        programs.push(program);
        privates.push(folder);
    }
    Reach { programs, privates, ..Reach::to(device::Endpoint::Unix) }
}

/// Opens a plugin in a process of its own; `restart`: the next client after its end gets a new one.
pub(super) fn open(
    params: &Params,
    restart: bool,
    options: &OpenOptions,
    context: &Context,
) -> Result<Arc<dyn Device>> {
    let name = params.get(PLUGIN).unwrap_or_default();
    // Its process has them, and says which of them it does not know.
    drop(context.debugging.take(flagged(name)));
    let way = Way {
        title: format!("{PLUGIN}:{name}"),
        words: words(params, options.write),
        export: choice(params, options),
        restart,
        // There are plugins that have one client at a time.
        options: OpenOptions { connections: 1, ..options.clone() },
        context: context.clone(),
        host: Mutex::default(),
    };
    let visit = way.visit("");
    let (own, info) = match visit {
        Ok(visit) => {
            let info = visit.info.clone();
            (Some(visit), info)
        }
        Err(e) if way.export == ExportChoice::Client && way.is_there() => {
            context.log.say(format_args!("{e}; clients may ask for other exports"));
            (None, Info::new(&way.title, 0))
        }
        Err(e) => return Err(e),
    };
    Ok(Arc::new(Isolated { way: Arc::new(way), info, own: Mutex::new(own) }))
}

/// The process.
#[derive(Debug)]
struct Host {
    process: Subprocess,
    title: String,
    log: OperatorLog,
    /// Its end was reported.
    told: AtomicBool,
}

impl Host {
    /// Reports that it has ended, once, if it has.
    fn tell(&self) {
        if let Some(status) = self.process.ended()
            && !self.told.swap(true, Ordering::Relaxed)
        {
            self.log.say(format_args!("{}: its process has ended ({status})", self.title));
        }
    }
}

/// The route to the process.
#[derive(Debug)]
struct Way {
    title: String,
    words: Vec<String>,
    export: ExportChoice,
    restart: bool,
    options: OpenOptions,
    context: Context,
    host: Mutex<Option<Arc<Host>>>,
}

impl Way {
    /// The process; a new one, if there was none yet or its end is to be forgotten.
    fn host(&self) -> Result<Arc<Host>> {
        let mut host = self.host.lock();
        if let Some(host) = &*host {
            let Some(status) = host.process.ended() else { return Ok(host.clone()) };
            host.tell();
            if !self.restart {
                let action = format!(
                    "its process has ended ({status}); with restart=true the next client gets a new one"
                );
                let error = Error::new(ErrorKind::Disconnected, Fault::File, action);
                return Err(error.on(&self.title));
            }
        }
        let process = Subprocess::start(&self.words).map_err(|e| e.on(&self.title))?;
        let (title, log) = (self.title.clone(), self.context.log.clone());
        let new = Arc::new(Host { process, title, log, told: AtomicBool::new(false) });
        *host = Some(new.clone());
        Ok(new)
    }

    /// Whether the process runs.
    fn is_there(&self) -> bool {
        let host = self.host.lock();
        host.as_ref().is_some_and(|host| host.process.ended().is_none())
    }

    fn target(&self, host: &Host, export: &str) -> ExportSpec {
        let path = host.process.socket().as_os_str();
        let transport = Transport::Unix { path: OsStr::as_bytes(path).to_vec() };
        Uri::to(transport, false, export.to_owned()).into()
    }

    /// A connection for a client that asks for `export`. Blocks.
    fn visit(&self, export: &str) -> Result<Visit> {
        let export = self.export.name(export).map_err(|e| e.on(&self.title))?;
        let host = self.host()?;
        let target = self.target(&host, export);
        let opened = nbd::open_target(target, &self.options, &self.context);
        let device = opened.map_err(|e| {
            let e = host.process.explain(e);
            host.tell();
            e.on(&self.title)
        })?;
        // The plugin's block sizes are passed on as they are.
        let blocks = device.info().blocks;
        let name = self.title.clone();
        let mut info = Info { name, advertised: Some(blocks), ..device.info().clone() };
        // A plugin, as in this process.
        info.abilities.observed = true;
        Ok(Visit { device, info, host })
    }
}

/// A connection to the process, for one user.
#[derive(Clone)]
struct Visit {
    device: Arc<dyn Device>,
    info: Info,
    host: Arc<Host>,
}

impl Visit {
    fn submit(&self, operation: Operation, done: Done) {
        let host = self.host.clone();
        let then: Done = Box::new(move |result| {
            if matches!(&result, Err(e) if e.kind() == ErrorKind::Disconnected) {
                host.tell();
            }
            done(result);
        });
        self.device.submit(operation, then);
    }
}

impl Device for Visit {
    fn info(&self) -> &Info {
        &self.info
    }

    fn submit(&self, operation: Operation, done: Done) {
        self.submit(operation, done);
    }

    fn lane(&self) -> Result<Option<Box<dyn Lane>>> {
        self.device.lane()
    }
}

/// See the module.
struct Isolated {
    way: Arc<Way>,
    info: Info,
    /// The device's own connection, while there are no clients.
    own: Mutex<Option<Visit>>,
}

impl Device for Isolated {
    fn info(&self) -> &Info {
        &self.info
    }

    fn submit(&self, operation: Operation, done: Done) {
        if let Some(visit) = self.own.lock().clone() {
            return visit.submit(operation, done);
        }
        let way = self.way.clone();
        spawn(async move {
            way.context.pool.enter().await;
            match way.visit("") {
                Ok(visit) => visit.submit(operation, done),
                Err(e) => done(Err(e)),
            }
        });
    }

    fn lane(&self) -> Result<Option<Box<dyn Lane>>> {
        let visit = self.own.lock().clone();
        visit.map_or(Ok(None), |visit| visit.device.lane())
    }

    fn session(&self) -> Option<&dyn Session> {
        Some(self)
    }
}

impl Session for Isolated {
    fn connect(&self, client: &Client, done: Connected) {
        // There are plugins that have one client at a time.
        drop(self.own.lock().take());
        let (way, export) = (self.way.clone(), client.export.clone());
        spawn(async move {
            way.context.pool.enter().await;
            done(way.visit(&export).map(|visit| Some(Arc::new(visit) as Arc<dyn Device>)));
        });
    }

    fn is_chosen_by_name(&self) -> bool {
        self.way.export == ExportChoice::Client
    }

    fn list(&self, _: &Client, done: Listed) {
        let way = self.way.clone();
        spawn(async move {
            way.context.pool.enter().await;
            let listed = way.host().and_then(|host| client::list(&way.target(&host, "")));
            done(listed.map(|list| list.into_iter().map(|e| (e.name, e.description)).collect()));
        });
    }
}
