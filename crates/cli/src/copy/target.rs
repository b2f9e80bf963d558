//! Opening the two ends, and what becomes of a file that was made for a copy that failed.
//!
//! Nothing is made or emptied before the source is open and the two are known to differ. A file
//! that this process made is removed again when the copy fails, unless it shall be kept; a file
//! or disk that was there before never is. Under a filter it is not even emptied: a filter may
//! show only a part of it.

use std::fs::{File, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use device::{Device, Edge, ErrorKind, Name, Params, WorkPool};
use devices::OpenOptions;
use filters::Context;

use super::settings::Settings;
use crate::failure::Failure;

/// The target, open.
pub(super) struct Target {
    pub(super) device: Edge,
    /// All of it is known to read as zeroes.
    pub(super) is_zero: bool,
    /// The file, if it was made here.
    pub(super) made: Option<Made>,
}

/// A file that this process made. Cheap to clone; all clones share.
#[derive(Clone, Debug)]
pub(super) struct Made(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    path: PathBuf,
    dev: u64,
    ino: u64,
    settled: AtomicBool,
}

impl Made {
    /// Makes the file, empty; `None` if there is something of that name already.
    fn make(path: &Path) -> Option<Self> {
        // Any other trouble comes again, with its message, when the device is opened.
        let file = File::options().write(true).create_new(true).open(path).ok()?;
        let meta = file.metadata().ok()?;
        let (dev, ino) = (meta.dev(), meta.ino());
        let settled = AtomicBool::new(false);
        Some(Self(Arc::new(Inner { path: path.to_owned(), dev, ino, settled })))
    }

    /// Keeps the file from now on.
    pub(super) fn keep(&self) {
        self.0.settled.store(true, SeqCst);
    }

    /// Removes the file, unless it is to be kept, or is another file by now; whether it did.
    pub(super) fn remove(&self) -> bool {
        let inner = &self.0;
        if inner.settled.swap(true, SeqCst) {
            return false;
        }
        let same = std::fs::symlink_metadata(&inner.path)
            .is_ok_and(|m| (m.dev(), m.ino()) == (inner.dev, inner.ino));
        same && std::fs::remove_file(&inner.path).is_ok()
    }

    /// Makes the file's name durable.
    pub(super) fn sync_name(&self) -> std::io::Result<()> {
        let parent = self.0.path.parent().filter(|p| !p.as_os_str().is_empty());
        File::open(parent.unwrap_or(Path::new(".")))?.sync_all()
    }
}

/// Opens the source.
pub(super) fn open_source(settings: &Settings) -> Result<Arc<dyn Device>, Failure> {
    let options = OpenOptions {
        connections: settings.connections,
        map: !settings.options.no_extents,
        ..OpenOptions::read_only()
    };
    Ok(devices::open(&settings.source, &options)?)
}

/// Whether the target is a file or block device, which is opened without waiting for a peer.
pub(super) fn is_file(settings: &Settings) -> bool {
    file_of(&settings.target).is_ok_and(|file| file.is_some())
}

/// Opens the target for a source of `size` bytes, with its filters over it; makes or empties a
/// file.
pub(super) fn open(settings: &Settings, size: u64, context: &Context) -> Result<Target, Failure> {
    let Target { device, is_zero, made } = open_below(settings, size)?;
    let filters = &settings.target_filters;
    match filters.over(device, context) {
        // What is zero below need not be zero when seen through a filter.
        Ok(device) => Ok(Target { device, is_zero: is_zero && filters.is_empty(), made }),
        Err(e) => {
            if let Some(made) = made {
                made.remove();
            }
            Err(e)
        }
    }
}

fn open_below(settings: &Settings, size: u64) -> Result<Target, Failure> {
    let edge = |device: Arc<dyn Device>| Edge::new(device, WorkPool::undivided(super::POOL));
    let plain = |device| Target { device: edge(device), is_zero: false, made: None };
    let is_filtered = !settings.target_filters.is_empty();
    let options = OpenOptions {
        // A filter may have to.
        read: is_filtered,
        write: !settings.target_filters.reads_only(),
        connections: settings.connections,
        ..OpenOptions::read_write()
    };
    let Some((path, params)) = file_of(&settings.target)? else {
        return Ok(plain(devices::open(&sized(&settings.target, size)?, &options)?));
    };
    refuse_same(settings, &path)?;
    let made = Made::make(&path);
    if is_filtered && made.is_none() && path.exists() {
        // What a filter lets through may be a part of it (a partition); the rest stays.
        return Ok(plain(devices::open(&settings.target, &options)?));
    }
    match devices::file::create_named(&params, size) {
        Ok((file, is_zero)) => Ok(Target { device: edge(Arc::new(file)), is_zero, made }),
        Err(e) => {
            // A locked one is in use by somebody else by now.
            if let Some(made) = made.filter(|_| e.kind() != ErrorKind::Locked) {
                made.remove();
            }
            Err(e.into())
        }
    }
}

/// `null:` without a size is as large as it has to be.
fn sized(target: &Name, size: u64) -> Result<Name, Failure> {
    match target {
        Name::Device { kind, arg, params }
            if kind == "null" && arg.is_empty() && !params.contains("size") =>
        {
            let mut params = params.clone();
            params.set("size", &size.to_string())?;
            Ok(Name::Device { kind: kind.clone(), arg: String::new(), params })
        }
        other => Ok(other.clone()),
    }
}

/// The path and parameters of a name, if it names a file.
fn file_of(name: &Name) -> Result<Option<(PathBuf, Params)>, Failure> {
    let (path, mut params) = match name {
        Name::Path(path) => (path.clone(), Params::default()),
        Name::Device { kind, arg, params } if kind == "file" => (arg.clone(), params.clone()),
        _ => return Ok(None),
    };
    if !path.is_empty() {
        params.set("file", &path)?;
    }
    match params.get("file") {
        Some(path) if !path.is_empty() => Ok(Some((device::text::path(path), params))),
        _ => Err(Failure::usage("which file? write file:PATH")),
    }
}

/// To copy a file onto itself would empty it first.
fn refuse_same(settings: &Settings, target: &Path) -> Result<(), Failure> {
    let Some((source, _)) = file_of(&settings.source)? else { return Ok(()) };
    let (Ok(a), Ok(b)) = (std::fs::metadata(&source), std::fs::metadata(target)) else {
        return Ok(());
    };
    if is_same(&a, &b) {
        let (a, b) = (source.display(), target.display());
        return Err(Failure::new(format!("{b}: is the source itself ({a}); nothing was changed")));
    }
    Ok(())
}

fn is_same(a: &Metadata, b: &Metadata) -> bool {
    let same_file = (a.dev(), a.ino()) == (b.dev(), b.ino());
    // Two nodes of one block device: only those have a device number.
    let same_disk = a.rdev() != 0 && a.rdev() == b.rdev() && a.mode() == b.mode();
    same_file || same_disk
}
