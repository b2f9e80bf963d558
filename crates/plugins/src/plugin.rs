//! A loaded plugin with its parameters, which all its handles share.

use std::ffi::{CStr, c_int};
use std::fmt::Write as _;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use device::{Error, ErrorKind, Fault, Params, Result};
use runtime::{Condvar, Context, Gate, Mutex, OperatorLog, Pass, Timers, WorkPool};

use crate::call::{self, Caller, Leave, Said, c_text};
use crate::handle::Handle;
use crate::library::{Library, printed};

/// How long the end waits for running calls.
const PATIENCE: Duration = Duration::from_secs(5);

/// How many of its callbacks may run at a time.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) enum ThreadModel {
    /// One client at a time, with one request.
    Connections,
    /// One request at a time, of all clients.
    AllRequests,
    /// One request of each client at a time.
    Requests,
    /// Any number.
    Parallel,
}

impl ThreadModel {
    fn of(number: c_int) -> Self {
        match number {
            i32::MIN..=0 => Self::Connections,
            1 => Self::AllRequests,
            2 => Self::Requests,
            3.. => Self::Parallel,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Connections => "serialize_connections",
            Self::AllRequests => "serialize_all_requests",
            Self::Requests => "serialize_requests",
            Self::Parallel => "parallel",
        }
    }
}

/// The description of a plugin.
#[derive(Clone, Debug)]
pub struct About {
    /// Its name.
    pub name: String,
    /// Its version, if it has one.
    pub version: Option<String>,
    /// Its help: lines for people.
    pub help: String,
    /// `key=value` lines for programs, as `nbdkit --dump-plugin` prints them.
    pub dump: String,
}

/// A plugin that is ready.
#[derive(Debug)]
pub(crate) struct Plugin {
    pub(crate) library: Library,
    pub(crate) model: ThreadModel,
    /// The pool for its callbacks.
    pub(crate) pool: WorkPool,
    pub(crate) log: OperatorLog,
    pub(crate) timers: Timers,
    /// What is behind it is in a callback, where there is to be one at a time, of all handles.
    pub(crate) one: Option<Arc<Gate>>,
    /// The gate for handles, if only one may be open at a time.
    pub(crate) door: Option<Arc<Gate>>,
    /// The latest handle.
    pub(crate) last: Mutex<Weak<Handle>>,
    open: (Mutex<usize>, Condvar),
}

impl Plugin {
    /// Gives a plugin its parameters and makes it ready.
    pub(crate) fn start(library: Library, params: &Params, context: &Context) -> Result<Self> {
        call::log_to(&context.log, context.debugging.verbose);
        call::stopped_by(&context.control);
        library.callbacks.load();
        set_flags(&library, context);
        let log = &context.log;
        configure(&library, params, log)?;
        let calls = library.callbacks;
        asked(&library, log, "take its parameters", || calls.config_complete())?;
        let model = model(&library, log)?;
        asked(&library, log, "get ready", || calls.get_ready())?;
        asked(&library, log, "begin", || calls.after_fork())?;
        Ok(Self {
            model,
            pool: context.pool.for_disk(),
            log: log.clone(),
            timers: context.timers.clone(),
            one: (model <= ThreadModel::AllRequests).then(Arc::default),
            door: (model == ThreadModel::Connections).then(Arc::default),
            last: Mutex::default(),
            open: (Mutex::new(0), Condvar::new()),
            library,
        })
    }

    /// Its name in messages.
    pub(crate) fn title(&self) -> String {
        format!("plugin:{}", self.library.name)
    }

    /// Runs a callback for a client.
    pub(crate) fn call<R>(&self, caller: &Arc<Caller>, callback: impl FnOnce() -> R) -> (R, Said) {
        call::within(Some(caller), callback)
    }

    /// It does not open: the client's export does not exist.
    pub(crate) fn without_export(&self, action: &str, said: &Said) -> Error {
        let number = said.number(self.library.callbacks.is_errno_preserved());
        let error = Error::new(ErrorKind::NotFound, Fault::File, action);
        explained(error, said, number).on(self.title())
    }

    /// The names of its exports, with descriptions. May block.
    pub(crate) fn exports(
        &self,
        caller: &Arc<Caller>,
        read_only: bool,
    ) -> Result<Vec<(String, String)>> {
        let mut list = crate::host::NbdkitExports::default();
        let is_tls = is_tls(caller);
        let calls = self.library.callbacks;
        let (answer, said) = self.call(caller, || calls.list_exports(read_only, is_tls, &mut list));
        match answer {
            Some(-1) => return Err(failure(&self.library, "list exports", &said)),
            Some(_) => {}
            None => list.with_default = true,
        }
        said.tell(&self.title(), &self.log);
        if list.with_default
            && let Some(name) = self.default_export(caller, read_only)
        {
            list.list.push((name, String::new()));
        }
        Ok(list.list)
    }

    /// The export for clients that ask for none, if there is one. May block.
    pub(crate) fn default_export(&self, caller: &Arc<Caller>, read_only: bool) -> Option<String> {
        let calls = self.library.callbacks;
        let (answer, said) = self.call(caller, || calls.default_export(read_only, is_tls(caller)));
        said.tell(&self.title(), &self.log);
        answer.unwrap_or_else(|| Some(String::new()))
    }

    /// Notes that a handle was opened or closed.
    pub(crate) fn count(&self, change: isize) {
        let mut open = self.open.0.lock();
        *open = open.saturating_add_signed(change);
        self.open.1.notify_all();
    }

    /// The end of the program: handles are closed by now, or soon; then the plugin's `cleanup` and
    /// `unload` run. Not if a handle stays open: a thread is in a callback.
    pub(crate) fn end(&self) {
        let until = Instant::now() + PATIENCE;
        let mut open = self.open.0.lock();
        while *open > 0 {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            let waited = self.open.1.wait_timeout(open, left);
            open = waited.0;
        }
        drop(open);
        let ((), said) = call::within(None, || {
            self.library.callbacks.cleanup();
            self.library.callbacks.unload();
        });
        said.tell(&self.title(), &self.log);
    }
}

fn is_tls(caller: &Caller) -> bool {
    caller.client.as_ref().is_some_and(|client| client.tls.is_some())
}

/// Passes a gate with no other task behind it, if there is one.
pub(crate) async fn alone(gate: &Option<Arc<Gate>>) -> Option<Pass> {
    match gate {
        Some(gate) => Some(gate.alone().await),
        None => None,
    }
}

/// The error of a failed callback outside of requests: the plugin's words, or the number's.
pub(crate) fn failure(library: &Library, action: &str, said: &Said) -> Error {
    let number = said.number(library.callbacks.is_errno_preserved());
    let kind = if said.leave == Some(Leave::AtOnce) {
        ErrorKind::Dropped
    } else {
        ErrorKind::from_errno(number)
    };
    explained(Error::new(kind, Fault::File, action), said, number)
        .on(format!("plugin:{}", library.name))
}

/// The error with the plugin's words, or, if it has said nothing, the system's for the number.
pub(crate) fn explained(error: Error, said: &Said, number: i32) -> Error {
    let text = said.text();
    if text.is_empty() {
        return error.with_source(std::io::Error::from_raw_os_error(number));
    }
    error.with_source(text)
}

/// Calls the plugin before it is ready; other messages go to the log.
fn asked(
    library: &Library,
    log: &OperatorLog,
    action: &str,
    callback: impl FnOnce() -> Option<c_int>,
) -> Result<Option<c_int>> {
    let (answer, said) = call::within(None, callback);
    if answer == Some(-1) {
        return Err(failure(library, action, &said));
    }
    said.tell(&format!("plugin:{}", library.name), log);
    Ok(answer)
}

fn model(library: &Library, log: &OperatorLog) -> Result<ThreadModel> {
    let most = ThreadModel::of(library.callbacks.max_thread_model());
    let callbacks = library.callbacks;
    let asked = asked(library, log, "choose its thread model", || callbacks.thread_model())?;
    Ok(asked.map_or(most, |number| ThreadModel::of(number).min(most)))
}

/// Gives a plugin its parameters.
fn configure(library: &Library, params: &Params, log: &OperatorLog) -> Result<()> {
    for (key, value) in pairs(library, params)? {
        let (key, value) = (lasting(&key), lasting(&value));
        let what = format!("take the parameter `{}`", key.to_string_lossy());
        let taken = asked(library, log, &what, || library.callbacks.config(key, value))?;
        let title = || format!("plugin:{}", library.name);
        taken.ok_or_else(|| Error::invalid("it takes no parameters").on(title()))?;
    }
    Ok(())
}

/// The parameters with their keys. A value without a key gets the plugin's magic key; without one,
/// the first is its script.
fn pairs(library: &Library, params: &Params) -> Result<Vec<(String, String)>> {
    let magic = library.callbacks.magic_config_key();
    let mut pairs = Vec::new();
    for (key, value) in params.iter() {
        let key = match (key, &magic) {
            ("", Some(magic)) => magic.clone(),
            ("", None) if pairs.is_empty() => "script".to_owned(),
            ("", None) => {
                let action = format!("expecting key=value on the command line but got: {value}");
                return Err(Error::invalid(action).on(format!("plugin:{}", library.name)));
            }
            (key, _) => key.to_owned(),
        };
        pairs.push((key, value.to_owned()));
    }
    Ok(pairs)
}

/// A C string that is never freed: plugins keep their parameters.
fn lasting(text: &str) -> &'static CStr {
    Box::leak(c_text(text).into_boxed_c_str())
}

/// Sets the debug flags of the plugin.
fn set_flags(library: &Library, context: &Context) {
    for flag in context.debugging.take(&library.name) {
        let number = flag.split_once('=').and_then(|(key, value)| Some((key, value.parse().ok()?)));
        let set = number.is_some_and(|(key, value)| library.set_flag(key, value));
        if !set {
            let name = &library.name;
            context.log.say(format_args!("-D {name}.{flag}: plugin:{name} has no such flag"));
        }
    }
}

/// The description of a plugin with these parameters, on which what it can do may depend. It is not
/// made ready, and ends with this call.
pub(crate) fn about(library: &Library, params: &Params) -> Result<About> {
    library.callbacks.load();
    let log = OperatorLog::default();
    let described = configure(library, params, &log).and_then(|()| describe(library, &log));
    // Some made files when they were loaded.
    library.callbacks.unload();
    described
}

fn describe(library: &Library, log: &OperatorLog) -> Result<About> {
    let calls = library.callbacks;
    let path = library.path.canonicalize().unwrap_or_else(|_| library.path.clone());
    let mut help = format!("plugin: {}", library.name);
    let line = |text: &mut String, what: Option<String>| {
        if let Some(what) = what {
            text.push_str(&what);
            if !text.ends_with('\n') {
                text.push('\n');
            }
        }
    };
    let longname = calls.longname().map(|name| format!(" ({name})"));
    // Writing to a string does not fail.
    let _ = writeln!(help, "{}\n({})", longname.unwrap_or_default(), library.path.display());
    line(&mut help, calls.description());
    line(&mut help, calls.config_help());
    let mut dump = format!("path={}\nname={}\n", path.display(), library.name);
    line(&mut dump, calls.version().map(|version| format!("version={version}")));
    let most = ThreadModel::of(calls.max_thread_model());
    let model = model(library, log)?;
    let _ = writeln!(
        dump,
        "api_version={}\nstruct_size={}\nmax_thread_model={}\nthread_model={}\nerrno_is_preserved={}",
        calls.api_version(),
        calls.struct_size(),
        most.name(),
        model.name(),
        u8::from(calls.is_errno_preserved()),
    );
    line(&mut dump, calls.magic_config_key().map(|key| format!("magic_config_key={key}")));
    for name in calls.has() {
        line(&mut dump, Some(format!("has_{name}=1")));
    }
    let own = printed(|| {
        call::within(None, || calls.dump_plugin());
    });
    line(&mut dump, own.ok().filter(|own| !own.is_empty()));
    Ok(About { name: library.name.clone(), version: calls.version(), help, dump })
}
