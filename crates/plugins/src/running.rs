//! The plugins of this process. A library keeps its parameters in its own variables, so it can have
//! only one set of them; another request for the same plugin and parameters shares it.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use device::{Error, ErrorKind, Fault, Params, Result, text};
use runtime::{Context, Mutex, MutexGuard};

use crate::descriptors::release_low_descriptors;
use crate::library::{Library, find, script};
use crate::plugin::{self, About, Plugin};

/// Whether a plugin is getting its parameters.
static CONFIGURES: AtomicBool = AtomicBool::new(false);

static RUNNING: Mutex<Vec<RunningPlugin>> = Mutex::new(Vec::new());

struct RunningPlugin {
    path: PathBuf,
    params: Params,
    /// `None`: it refused its parameters, and must not be asked again.
    plugin: Option<Arc<Plugin>>,
}

fn running() -> MutexGuard<'static, Vec<RunningPlugin>> {
    RUNNING.lock()
}

/// Whether a plugin may read standard input now.
pub(crate) fn may_read_input() -> bool {
    CONFIGURES.load(Ordering::Relaxed)
}

/// The file of a plugin, and its parameters: one that is a script is the first parameter of the
/// plugin for its language.
fn file(name: &str, params: &Params) -> Result<(PathBuf, Params)> {
    match (find(name), script(name)) {
        (None, Some(script)) => {
            let mut all = Params::default();
            all.add("", &text::carry(script.path.as_os_str()));
            params.iter().for_each(|(key, value)| all.add(key, value));
            Ok((library(&script.language)?, all))
        }
        _ => Ok((library(name)?, params.clone())),
    }
}

fn library(name: &str) -> Result<PathBuf> {
    find(name).ok_or_else(|| {
        let file = format!("nbdkit-{name}-plugin.so");
        let action = if name.contains('/') {
            "there is no such plugin".to_owned()
        } else {
            format!(
                "there is no such plugin (no {file} in NBDKIT_PLUGINDIR or where nbdkit has them)"
            )
        };
        Error::new(ErrorKind::NotFound, Fault::User, action).on(name)
    })
}

/// The plugin, ready, with these parameters.
pub(crate) fn start(name: &str, params: &Params, context: &Context) -> Result<Arc<Plugin>> {
    let (path, params) = file(name, params)?;
    let path = path.canonicalize().map_err(|e| Error::os("load", e).on(name))?;
    // No other thread starts a plugin meanwhile.
    let mut running = running();
    if let Some(known) = running.iter().find(|known| known.path == path) {
        return match &known.plugin {
            Some(plugin) if known.params == params => Ok(plugin.clone()),
            _ => {
                let action = "a plugin takes parameters once in a process; with isolate=true it \
                              has its own process";
                Err(Error::new(ErrorKind::Unsupported, Fault::User, action).on(name))
            }
        };
    }
    release_low_descriptors();
    CONFIGURES.store(true, Ordering::Relaxed);
    let started = Library::load(&path).and_then(|library| Plugin::start(library, &params, context));
    CONFIGURES.store(false, Ordering::Relaxed);
    let started = started.map(Arc::new);
    running.push(RunningPlugin { path, params, plugin: started.as_ref().ok().cloned() });
    started
}

/// What a plugin says of itself, with these parameters.
///
/// # Errors
/// There is no such plugin, it cannot be loaded, or it refuses a parameter.
pub fn about(name: &str, params: &Params) -> Result<About> {
    let (path, params) = file(name, params)?;
    release_low_descriptors();
    CONFIGURES.store(true, Ordering::Relaxed);
    let said = Library::load(&path).and_then(|library| plugin::about(&library, &params));
    CONFIGURES.store(false, Ordering::Relaxed);
    said
}

/// The end of the program: ends every plugin, when its handles are closed.
pub fn end() {
    let all = std::mem::take(&mut *running());
    for plugin in all.into_iter().rev().filter_map(|running| running.plugin) {
        plugin.end();
    }
}
