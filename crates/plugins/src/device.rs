//! The device: a plugin, or one of its handles for a client.
//!
//! Each client of a server gets a handle, as in nbdkit. The device itself has one too, for callers
//! that are no clients (a copy, or a filter that looks at the disk before the first client). It is
//! closed when the first client comes, because some plugins have only one handle at a time, and
//! opened again on demand.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use device::{
    Client, Connected, Device, Done, Error, ErrorKind, Fault, Info, Listed, Operation, Params,
    Result, Session, run_blocking, text,
};
use runtime::{Behalf, Context, Mutex, MutexGuard, contained, is_waiting, spawn};

use crate::call::Caller;
use crate::handle::Handle;
use crate::plugin::{Plugin, ThreadModel, alone};
use crate::request_queue::{Handler, Staff};
use crate::running;

/// The most requests of a client in flight in a parallel plugin, as in nbdkit.
const MOST: usize = 16;

/// How to open a plugin.
#[derive(Clone, Debug)]
pub struct PluginSpec {
    /// Its name, or the path of its file.
    pub plugin: String,
    /// Its parameters, in the order given; a value without a key has an empty one.
    pub params: Params,
    /// Which export it is.
    pub export: ExportChoice,
    /// Whether it is to be written.
    pub write: bool,
    /// It may turn out to be read-only.
    pub or_read_only: bool,
    /// It is opened when the first client comes, and not before that.
    pub late: bool,
}

/// Which export of a plugin a device is.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum ExportChoice {
    /// The one that a client names. There need be no default one.
    Client,
    /// This one, whatever a client names.
    Fixed(String),
    /// This one alone, because something of it is kept above: a client that names another one is
    /// refused. It may name none.
    Only(String),
}

impl ExportChoice {
    /// The name to open for a client that asks for `asked`.
    ///
    /// # Errors
    /// It is another one than there is.
    pub fn name<'a>(&'a self, asked: &'a str) -> Result<&'a str> {
        match self {
            Self::Client => Ok(asked),
            Self::Fixed(name) => Ok(name),
            Self::Only(name) if asked.is_empty() || asked == name => Ok(name),
            Self::Only(_) => {
                let asked = text::shown(asked);
                let action = format!(
                    "open `{asked}`: a filter or format keeps what belongs to one export, so there is no other one \
                     here; with the plugin's parameter export-name=NAME all names mean the export NAME"
                );
                Err(Error::new(ErrorKind::NotFound, Fault::User, action))
            }
        }
    }
}

/// Opens a plugin as a device.
///
/// # Errors
/// There is no such plugin, it cannot be loaded, refuses its parameters, or does not open.
pub fn open(wish: PluginSpec, context: &Context) -> Result<Arc<dyn Device>> {
    let plugin = running::start(&wish.plugin, &wish.params, context)?;
    let entry = Entry { plugin, export: wish.export, read_only: !wish.write };
    if wish.late && entry.export == ExportChoice::Client {
        let info = Info::new(entry.plugin.title(), 0);
        return Ok(Arc::new(PluginDisk { entry, info, own: Mutex::new(None) }));
    }
    let own = runtime::taking_time(|| entry.open(None));
    let (own, info) = match own {
        Ok(handle) => {
            let info = device::Blocking::info(&*handle).clone();
            (Some(handle), info)
        }
        Err(e) if entry.export == ExportChoice::Client => {
            context.log.say(format_args!("{e}; clients may ask for other exports"));
            (None, Info::new(entry.plugin.title(), 0))
        }
        Err(e) => return Err(e),
    };
    if wish.write && !wish.or_read_only && !info.abilities.write {
        let action = "open for writing: the plugin cannot write";
        return Err(Error::new(ErrorKind::ReadOnly, Fault::User, action).on(&info.name));
    }
    Ok(Arc::new(PluginDisk { entry, info, own: Mutex::new(own) }))
}

/// The way to a handle.
#[derive(Clone, Debug)]
struct Entry {
    plugin: Arc<Plugin>,
    export: ExportChoice,
    read_only: bool,
}

impl Entry {
    /// The client of a handle, and its export.
    fn caller(&self, client: Option<&Client>) -> Result<Arc<Caller>> {
        let asked = client.map_or("", |client| client.export.as_str());
        let name = self.export.name(asked).map_err(|e| e.on(self.plugin.title()))?;
        let caller = Arc::new(Caller::new(client.cloned(), name));
        if !name.is_empty() {
            return Ok(caller);
        }
        match self.plugin.default_export(&caller, self.read_only) {
            Some(name) if name.is_empty() => Ok(caller),
            Some(name) => Ok(Arc::new(Caller::new(client.cloned(), &name))),
            None => {
                let action = "open: there is no default export; name one";
                Err(Error::new(ErrorKind::NotFound, Fault::User, action).on(self.plugin.title()))
            }
        }
    }

    /// Opens a handle here, for no particular client. May block.
    fn open(&self, client: Option<&Client>) -> Result<Arc<Handle>> {
        let entry = self.clone();
        let client = client.cloned();
        let answer = runtime::wait_for(|promise| {
            spawn(async move { promise.keep(entry.opened(client).await) });
        });
        answer.unwrap_or_else(|| Err(Error::unanswered().on(self.plugin.title())))
    }

    /// Opens a handle when the gate allows it.
    async fn opened(self, client: Option<Client>) -> Result<Arc<Handle>> {
        let plugin = self.plugin.clone();
        let pass = alone(&plugin.door).await;
        let _alone = alone(&plugin.one).await;
        plugin.pool.enter().await;
        Handle::open(plugin, self.caller(client.as_ref())?, self.read_only, pass)
    }
}

/// See the module.
#[derive(Debug)]
struct PluginDisk {
    entry: Entry,
    info: Info,
    /// The device's own handle, while there are no clients.
    own: Mutex<Option<Arc<Handle>>>,
}

/// A client's device.
#[derive(Debug)]
struct ClientDisk {
    entry: Entry,
    client: Client,
    info: Info,
    /// `None`: it was closed, and could not be opened again.
    handle: Mutex<Option<Arc<Handle>>>,
    /// How often it was opened again.
    epoch: AtomicU64,
}

impl PluginDisk {
    fn own(&self) -> MutexGuard<'_, Option<Arc<Handle>>> {
        self.own.lock()
    }

    /// A handle for callers that are no clients, if one is open.
    fn handle(&self) -> Option<Arc<Handle>> {
        self.own().clone().or_else(|| {
            // If the plugin has one handle at a time, use the open one.
            let alone = self.entry.plugin.model == ThreadModel::Connections;
            let last = self.entry.plugin.last.lock();
            last.upgrade().filter(|_| alone)
        })
    }
}

impl Device for PluginDisk {
    fn info(&self) -> &Info {
        &self.info
    }

    fn submit(&self, operation: Operation, done: Done) {
        if let Some(handle) = self.handle() {
            return run(handle, operation, done);
        }
        // Nothing is known about the next client here: the handle is for this operation only.
        let entry = self.entry.clone();
        spawn(async move {
            match entry.opened(None).await {
                Ok(handle) => run(handle, operation, done),
                Err(e) => done(Err(e)),
            }
        });
    }

    fn session(&self) -> Option<&dyn Session> {
        Some(self)
    }
}

impl Session for PluginDisk {
    fn connect(&self, client: &Client, done: Connected) {
        // It closes when nothing uses it any more.
        drop(self.own().take());
        let (entry, client) = (self.entry.clone(), client.clone());
        spawn(async move {
            let opened = entry.clone().opened(Some(client.clone())).await;
            let disk = |handle| Arc::new(ClientDisk::new(entry, client, handle)) as Arc<dyn Device>;
            done(opened.map(|handle| Some(disk(handle))));
        });
    }

    fn is_chosen_by_name(&self) -> bool {
        self.entry.export == ExportChoice::Client
    }

    fn list(&self, client: &Client, done: Listed) {
        let (entry, client) = (self.entry.clone(), client.clone());
        spawn(async move {
            let plugin = &entry.plugin;
            let _alone = alone(&plugin.one).await;
            plugin.pool.enter().await;
            let caller = Arc::new(Caller::new(Some(client), ""));
            done(plugin.exports(&caller, entry.read_only));
        });
    }
}

impl ClientDisk {
    fn new(entry: Entry, client: Client, handle: Arc<Handle>) -> Self {
        let info = device::Blocking::info(&*handle).clone();
        let handle = Mutex::new(Some(handle));
        Self { entry, client, info, handle, epoch: AtomicU64::new(0) }
    }

    fn error(&self, kind: ErrorKind, action: &str) -> Error {
        Error::new(kind, Fault::File, action).on(&self.info.name)
    }
}

impl Device for ClientDisk {
    fn info(&self) -> &Info {
        &self.info
    }

    fn submit(&self, operation: Operation, done: Done) {
        let handle = self.handle.lock().clone();
        match handle {
            Some(handle) => run(handle, operation, done),
            None => done(Err(self.error(ErrorKind::Disconnected, "the plugin is not open"))),
        }
    }

    fn session(&self) -> Option<&dyn Session> {
        Some(self)
    }
}

impl Session for ClientDisk {
    /// Closes the handle, and opens another.
    fn reopen(&self) -> Result<()> {
        drop(self.handle.lock().take());
        let opened = self.entry.open(Some(&self.client))?;
        let info = device::Blocking::info(&*opened);
        if info.size != self.info.size || info.abilities != self.info.abilities {
            return Err(self.error(ErrorKind::Changed, "open again: the disk has changed"));
        }
        // What was acknowledged before may have been lost with the other handle.
        self.epoch.fetch_add(1, Ordering::Release);
        *self.handle.lock() = Some(opened);
        Ok(())
    }

    fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }
}

/// Runs an operation in the plugin's pool, when the thread model allows it; on this thread, if the
/// caller waits for the end anyway.
fn run(handle: Arc<Handle>, operation: Operation, done: Done) {
    let most = match handle.plugin.model {
        ThreadModel::Parallel => MOST,
        ThreadModel::Requests => 1,
        ThreadModel::AllRequests | ThreadModel::Connections => {
            return run_alone(handle, operation, done);
        }
    };
    let staff = || Staff {
        handler: handle.clone(),
        most,
        pool: handle.plugin.pool.clone(),
        timers: handle.plugin.timers.clone(),
    };
    handle.requests.ask((operation, done), staff, most);
}

impl Handler for Handle {
    fn serve(&self, operation: Operation) -> Result<device::Outcome> {
        called(self, operation)
    }
}

/// Runs an operation while no other callback of the plugin runs.
fn run_alone(handle: Arc<Handle>, operation: Operation, done: Done) {
    let gate = handle.plugin.one.clone();
    let here = is_waiting().then(|| std::thread::current().id());
    let behalf = Behalf::current();
    spawn(async move {
        let alone = alone(&gate).await;
        // The thread that opened the gate may have other work.
        if here != Some(std::thread::current().id()) {
            handle.plugin.pool.enter().await;
        }
        if behalf.is_wanted() {
            let result = called(&handle, operation);
            drop(alone);
            done(result);
        }
    });
}

fn called(handle: &Handle, operation: Operation) -> Result<device::Outcome> {
    let result = contained("a request", || run_blocking(handle, operation));
    result.unwrap_or_else(|panic| Err(panic.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_gets_the_export_that_it_names_or_the_one_that_there_is_or_none() {
        let name = |choice: &ExportChoice, asked: &str| choice.name(asked).map(str::to_owned).ok();
        let [fixed, only] =
            [ExportChoice::Fixed, ExportChoice::Only].map(|choice| choice("a".into()));
        for (choice, names) in [
            (&ExportChoice::Client, [Some(""), Some("a"), Some("b")]),
            (&fixed, [Some("a"), Some("a"), Some("a")]),
            (&only, [Some("a"), Some("a"), None]),
        ] {
            let found = ["", "a", "b"].map(|asked| name(choice, asked));
            assert_eq!(found, names.map(|name| name.map(str::to_owned)), "{choice:?}");
        }
        let refused = only.name("b\n").unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::NotFound);
        assert!(refused.to_string().contains("export-name=NAME"), "{refused}");
        assert!(!refused.to_string().contains('\n'), "{refused}");
    }
}
