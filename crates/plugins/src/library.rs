//! Finding a plugin and loading it.
#![expect(unsafe_code, reason = "the interface is C's")]

use std::ffi::{CStr, CString, c_int, c_void};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use device::{Error, ErrorKind, Fault, Result, text};

use crate::abi::{Callbacks, Init, VERSIONS};
use crate::system;

/// Bytes of a script that are looked at for its first line.
const FIRST_LINE: usize = 256;
/// The user's directory of plugins.
const DIRECTORY: &str = "NBDKIT_PLUGINDIR";
/// The system's directories, besides that of this machine's architecture.
const USUAL: &[&str] = &[
    "/usr/lib64/nbdkit/plugins",
    "/usr/lib/nbdkit/plugins",
    "/usr/local/lib64/nbdkit/plugins",
    "/usr/local/lib/nbdkit/plugins",
];

/// A plugin in memory. It stays there.
#[derive(Debug)]
pub(crate) struct Library {
    pub(crate) path: PathBuf,
    pub(crate) name: String,
    pub(crate) callbacks: Callbacks,
    handle: Loaded,
}

/// The result of dlopen(3).
#[derive(Clone, Copy, Debug)]
struct Loaded(*mut c_void);

// SAFETY: dlsym(3) may be called by any thread, and it is never closed.
unsafe impl Send for Loaded {}
// SAFETY: as above.
unsafe impl Sync for Loaded {}

/// Whether a word that names no device means a plugin: the name of an installed one, or a path that
/// ends like a plugin's.
#[must_use]
pub fn is_plugin(word: &str) -> bool {
    if word.contains('/') {
        return word.ends_with(".so");
    }
    find(word).is_some() || script(word).is_some()
}

/// The file of a plugin, given by path or found in the directories of plugins.
#[must_use]
pub fn find(name: &str) -> Option<PathBuf> {
    if name.contains('/') {
        return Some(text::path(name)).filter(|path| path.is_file());
    }
    if !may_be_one(name) {
        return None;
    }
    let file = format!("nbdkit-{name}-plugin.so");
    let there = |directory: PathBuf| Some(directory.join(&file)).filter(|path| path.is_file());
    directories().find_map(there).or_else(|| there(installed()?))
}

fn may_be_one(name: &str) -> bool {
    !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || "-_.+".contains(c))
}

/// Where plugins are looked for, the user's directory first.
fn directories() -> impl Iterator<Item = PathBuf> {
    let own = std::env::var_os(DIRECTORY).map(PathBuf::from);
    own.into_iter()
        .chain(std::iter::once(system::directory()))
        .chain(USUAL.iter().map(PathBuf::from))
}

/// The directory of plugins: the first that is there, or else the usual one of this machine.
#[must_use]
pub fn directory() -> PathBuf {
    directories().find(|directory| directory.is_dir()).unwrap_or_else(system::directory)
}

/// A plugin that is a script for another one.
#[derive(Debug, Eq, PartialEq)]
pub(crate) struct Script {
    pub(crate) path: PathBuf,
    /// The plugin that runs it.
    pub(crate) language: String,
}

/// The script `nbdkit-NAME-plugin` in the directories of plugins, whose first line has nbdkit run
/// it (`#!/usr/sbin/nbdkit python`). A script elsewhere is no plugin by its contents: a guest may
/// have written them.
pub(crate) fn script(name: &str) -> Option<Script> {
    let file = format!("nbdkit-{name}-plugin");
    let mut places = directories().filter(|_| may_be_one(name)).map(|place| place.join(&file));
    let path = places.find(|path| is_program(path))?;
    let mut start = [0; FIRST_LINE];
    let n = std::fs::File::open(&path).ok()?.read(&mut start).ok()?;
    let first = start.get(..n)?.split(|byte| *byte == b'\n').next()?;
    let language = language(std::str::from_utf8(first).ok()?)?.to_owned();
    Some(Script { path, language })
}

fn is_program(path: &Path) -> bool {
    path.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o100 != 0)
}

/// The plugin that a first line names.
fn language(first: &str) -> Option<&str> {
    let mut words = first.strip_prefix("#!")?.split_ascii_whitespace();
    let is_nbdkit = Path::new(words.next()?).file_name().is_some_and(|name| name == "nbdkit");
    words.next().filter(|name| is_nbdkit && may_be_one(name))
}

/// The directory that nbdkit reports.
fn installed() -> Option<PathBuf> {
    let mut nbdkit = Command::new("nbdkit");
    let nbdkit = nbdkit.arg("--dump-config").stdin(Stdio::null()).stderr(Stdio::null());
    let said = String::from_utf8(nbdkit.output().ok()?.stdout).ok()?;
    said.lines().find_map(|line| line.strip_prefix("plugindir=")).map(PathBuf::from)
}

/// The error of a plugin before it was ready.
fn failed(kind: ErrorKind, action: impl Into<String>, path: &Path) -> Error {
    Error::new(kind, Fault::File, action).on(path.display())
}

impl Library {
    /// Loads a plugin from a file. Its code runs from here on.
    ///
    /// # Errors
    /// It is no plugin, or has an unknown version.
    pub(crate) fn load(path: &Path) -> Result<Self> {
        if cfg!(target_feature = "crt-static") {
            let action = "load a plugin: this program is linked statically and cannot";
            return Err(failed(ErrorKind::Unsupported, action, path));
        }
        // The functions that it calls must be in the program, whatever else uses them.
        let _ = crate::host::keep();
        let handle = open(path)?;
        let plugin = |action: String| failed(ErrorKind::Corrupt, action, path);
        let init = symbol(handle, c"plugin_init");
        let init = init
            .ok_or_else(|| plugin("load: it is not a plugin (it has no `plugin_init`)".into()))?;
        // SAFETY: a symbol of this name is this function, as nbdkit has it.
        let init = unsafe { std::mem::transmute::<*mut c_void, Init>(init) };
        // SAFETY: called once, and what it answers is the plugin's table, or null.
        let callbacks = unsafe { Callbacks::read(init()) };
        let callbacks = callbacks.ok_or_else(|| plugin("load: it refused to register".into()))?;
        let version = callbacks.api_version();
        if !VERSIONS.contains(&version) {
            return Err(plugin(format!("load: version {version} of the interface is not known")));
        }
        if let Some(missing) = callbacks.missing() {
            return Err(plugin(format!("load: the plugin must have a .{missing} callback")));
        }
        let name = callbacks.name().filter(|name| !name.is_empty());
        let name = name.ok_or_else(|| plugin("load: the plugin has no name".into()))?;
        Ok(Self { path: path.to_owned(), name, callbacks, handle })
    }

    /// Sets a debug flag, which is a variable of the plugin; false if there is none.
    pub(crate) fn set_flag(&self, flag: &str, value: c_int) -> bool {
        let variable = format!("{}_debug_{}", self.name, flag.replace(['.', '-'], "_"));
        let found = CString::new(variable).ok().and_then(|name| symbol(self.handle, &name));
        if let Some(found) = found {
            // SAFETY: a symbol of such a name is an `int`, as nbdkit has it; nothing of the plugin
            // runs just now.
            unsafe { found.cast::<c_int>().write(value) }
        }
        found.is_some()
    }
}

fn open(path: &Path) -> Result<Loaded> {
    let whole = path.canonicalize().map_err(|e| Error::os("load", e).on(path.display()))?;
    let name = CString::new(whole.as_os_str().as_bytes()).unwrap_or_default();
    // SAFETY: a path; what the library does when it is loaded is what the user has asked for.
    let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW) };
    if !handle.is_null() {
        return Ok(Loaded(handle));
    }
    // SAFETY: null, or a text that lives until this thread's next call of its kind.
    let why = unsafe { crate::abi::text(libc::dlerror()) }.unwrap_or_default();
    Err(failed(ErrorKind::Unsupported, "load", path).with_source(why))
}

fn symbol(handle: Loaded, name: &CStr) -> Option<*mut c_void> {
    // SAFETY: an open handle and a text.
    let found = unsafe { libc::dlsym(handle.0, name.as_ptr()) };
    (!found.is_null()).then_some(found)
}

/// Captures what a callback prints to C's standard output.
pub(crate) fn printed(callback: impl FnOnce()) -> std::io::Result<String> {
    use std::io::Seek;
    use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
    let number = |result: c_int| {
        if result < 0 { Err(std::io::Error::last_os_error()) } else { Ok(result) }
    };
    let mut file = system::scratch()?;
    // SAFETY: the descriptor that comes of it is ours.
    let before = unsafe {
        OwnedFd::from_raw_fd(number(libc::fcntl(libc::STDOUT_FILENO, libc::F_DUPFD_CLOEXEC, 3))?)
    };
    let put = |of: &dyn AsRawFd| {
        // SAFETY: all that was printed so far leaves first; then standard output is another open
        // file.
        unsafe {
            libc::fflush(std::ptr::null_mut());
            libc::dup2(of.as_raw_fd(), libc::STDOUT_FILENO);
        }
    };
    put(&file);
    callback();
    put(&before);
    file.rewind()?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plugin_is_found_by_its_path_or_its_name_and_nothing_else_is_one() {
        for wrong in ["", "no such", "..", "a/b", "../nbdkit", "nothing-of-this-name"] {
            assert_eq!(find(wrong), None, "{wrong}");
        }
        assert!(is_plugin("./nbdkit-x-plugin.so") && !is_plugin("./disk.img"));
    }

    #[test]
    fn a_script_names_the_plugin_for_its_language() {
        for (first, named) in [
            ("#!/usr/sbin/nbdkit python", Some("python")),
            ("#! /opt/nbdkit  perl -v", Some("perl")),
            ("#!/usr/bin/python3", None),
            ("#!/usr/bin/env nbdkit", None),
            ("#!/usr/sbin/nbdkit ../x", None),
            ("/usr/sbin/nbdkit sh", None),
        ] {
            assert_eq!(language(first), named, "{first}");
        }
        assert_eq!(script("../x"), None);
    }

    #[test]
    fn what_is_no_library_is_refused_in_one_line() {
        let wrong = Library::load(Path::new("/etc/passwd")).unwrap_err().to_string();
        assert!(wrong.starts_with("/etc/passwd: load") && !wrong.contains('\n'), "{wrong}");
        assert!(Library::load(Path::new("/nonexistent")).is_err());
    }
}
