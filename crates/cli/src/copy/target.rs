//! Opening the two ends, and what becomes of a file that was made for a copy that failed.
//!
//! Nothing is made or changed before the source is open and the two are known to differ, as far as
//! their names tell. A file that this process made is removed again when the copy fails, unless it
//! shall be kept; a file or disk that was there before never is, nor is it emptied: it is written
//! over, and a file gets its length at the end. Under a filter it keeps its length: a filter may
//! show only a part of it.

use runtime::WorkPool;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use copy::{Ends, Flush};
use device::{Device, Edge, Name, Params, format_size};
use devices::{OpenOptions, Relation};
use filters::Context;
use rustix::io::Errno;

use super::settings::Settings;
use crate::failure::Failure;

/// The target, open.
pub(super) struct Target {
    pub(super) device: Edge,
    /// What is known of what it holds.
    pub(super) content: Content,
    /// What it has to do with the source.
    pub(super) ends: Ends,
    /// The file, if it was made here.
    pub(super) made: Option<Made>,
}

/// What a target is known to hold.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Content {
    /// Zeroes throughout.
    Zeroes,
    /// What a file held before, whatever the user believes of it.
    Old,
    /// Anything, unless the user knows.
    Unknown,
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
    fn new(path: &Path, (dev, ino): (u64, u64)) -> Self {
        let settled = AtomicBool::new(false);
        Self(Arc::new(Inner { path: path.to_owned(), dev, ino, settled }))
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
        let directory = File::open(parent.unwrap_or(Path::new(".")));
        let synced = directory.and_then(|directory| directory.sync_all());
        match synced.as_ref().err().and_then(Errno::from_io_error) {
            // Directories that cannot be synced, or not by us: all of the file system can.
            Some(Errno::ACCESS | Errno::INVAL | Errno::OPNOTSUPP | Errno::NOSYS) => {
                Ok(rustix::fs::syncfs(File::open(&self.0.path)?)?)
            }
            _ => synced,
        }
    }
}

/// Opens the source.
pub(super) fn open_source(settings: &Settings) -> Result<Arc<dyn Device>, Failure> {
    let options = OpenOptions {
        connections: settings.connections,
        map: !settings.options.no_extents,
        ..OpenOptions::read_only()
    };
    let source = devices::open(&settings.source, &options)?;
    if settings.show != super::settings::Show::Json {
        crate::formats::warn(&settings.source, &*source);
    }
    Ok(source)
}

/// Whether the target is a file or block device, which is opened without waiting for a peer.
pub(super) fn is_file(settings: &Settings) -> bool {
    file_of(&settings.target).is_ok_and(|file| file.is_some())
}

/// Opens the target for a source of `size` bytes, with its filters over it; makes a file that is
/// missing.
pub(super) fn open(settings: &Settings, size: u64, context: &Context) -> Result<Target, Failure> {
    let Target { device, content, ends, made } = open_below(settings, size)?;
    let filters = &settings.target_filters;
    match filters.over(device, context) {
        Ok(device) if filters.is_empty() => Ok(Target { device, content, ends, made }),
        Ok(device) if device.info().size < size => {
            if let Some(made) = made {
                made.remove();
            }
            let seen = device.info();
            let words: Vec<_> = filters.kinds().map(|kind| kind.word).collect();
            Err(Failure::new(format!(
                "{}: target is too small: seen through --target-filter={} it has {} bytes ({}), \
                 the source has {size} bytes ({}); it was not written",
                seen.name,
                words.join(","),
                seen.size,
                format_size(seen.size),
                format_size(size)
            )))
        }
        // What is zero below need not be zero when seen through a filter.
        Ok(device) => Ok(Target { device, content: Content::Unknown, ends, made }),
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
    let ends = relate(settings)?;
    let write_back = settings.options.flush != Flush::Never;
    let plain = |device| {
        let content = Content::Unknown;
        Target { device: edge(device), content, ends, made: None }
    };
    let options = OpenOptions {
        // A filter may have to, and it is compared with the source.
        read: true,
        write: !settings.target_filters.reads_only(),
        connections: settings.connections,
        ..OpenOptions::read_write()
    };
    let Some((path, params)) = file_of(&settings.target)? else {
        return Ok(plain(devices::open(&sized(&settings.target, size)?, &options)?));
    };
    if !settings.target_filters.is_empty() && path.exists() {
        // What a filter lets through may be a part of it (a partition); the rest stays.
        return Ok(plain(devices::open(&settings.target, &options)?));
    }
    let created = devices::file::create_named(&params, size, write_back)?;
    let made = created.made.map(|numbers| Made::new(&path, numbers));
    let content = match (created.is_zero, created.regular) {
        (true, _) => Content::Zeroes,
        (false, true) => Content::Old,
        (false, false) => Content::Unknown,
    };
    Ok(Target { device: edge(Arc::new(created.file)), content, ends, made })
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

/// What the names tell of the two ends. Where both are files or block devices, a copy that would
/// write over what it reads is refused; of servers it is done, with care.
fn relate(settings: &Settings) -> Result<Ends, Failure> {
    let (source, target) = (devices::storage(&settings.source), devices::storage(&settings.target));
    let on_disk = matches!(target, devices::Storage::Spans(_));
    let (a, b) = (shown(&settings.source), shown(&settings.target));
    match source.relation(&target) {
        Relation::Apart => Ok(Ends::Apart),
        Relation::Unknown => Ok(Ends::Unknown),
        Relation::Same if on_disk => {
            Err(Failure::new(format!("{b}: is the source itself ({a}); nothing was changed")))
        }
        Relation::Overlapping if on_disk => Err(Failure::new(format!(
            "{b}: holds bytes of the source ({a}), at other offsets; nothing was changed"
        ))),
        Relation::Same | Relation::Overlapping => Ok(Ends::Same),
    }
}

fn shown(name: &Name) -> String {
    match name {
        Name::Path(path) => path.clone(),
        Name::Uri { text, .. } => text.clone(),
        Name::Device { kind, arg, params } => {
            let file = params.get("file").filter(|_| arg.is_empty());
            file.map_or_else(|| format!("{kind}:{arg}"), str::to_owned)
        }
    }
}
