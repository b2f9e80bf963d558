//! What is known of a file: its parameters, its type, and a device of an open descriptor.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use device::{
    Abilities, BlockSizes, Device, Error, ErrorKind, Fault, Granules, Info, Params, Result, Simple,
    text, values,
};
use runtime::Context;
use rustix::fs::{CWD, FileType, Mode, OFlags, SeekFrom, fstat, openat, seek};
use rustix::io::Errno;

use super::cache::PageCaching;
use super::direct::Direct;
use super::filling::Filling;
use super::outlet::Outlet;
use super::system::Advice;
use super::zero::Grain;
use super::{File, Lock, block, found, lock, system};
use crate::OpenOptions;

/// The parameters of which one says what is opened.
const NAMING: [&str; 4] = ["file", "dir", "fd", "dirfd"];
/// The length that no file is longer than.
pub(super) const LONGEST: u64 = i64::MAX.cast_unsigned();

/// What is particular to files in how one is opened.
#[derive(Clone, Copy, Debug)]
pub struct FileOptions {
    /// How it will be read.
    pub advice: Advice,
    /// Whether others are excluded.
    pub lock: Lock,
    /// Whether zeroes that must not be a hole are written.
    pub writes_zeroes: bool,
    /// A block device is written although the system uses it.
    pub force: bool,
    /// As a target it has to be created: an existing file is left alone.
    pub new: bool,
    /// What becomes of its pages.
    pub cache: PageCaching,
    /// Whether what is written is sent to the disk at once also where it stays in memory, where
    /// `cache` bounds that.
    pub early: bool,
}

impl Default for FileOptions {
    fn default() -> Self {
        Self {
            advice: Advice::Normal,
            lock: Lock::Auto,
            writes_zeroes: false,
            force: false,
            new: false,
            cache: PageCaching::Default,
            early: true,
        }
    }
}

/// A file as a device, whose work runs in the pool of `context`.
pub(crate) fn opened(file: File, context: &Context) -> Arc<dyn Device> {
    match file.cache {
        PageCaching::Direct if !file.in_memory => Direct::device(file, context),
        _ => Simple::device(file, &context.pool),
    }
}

/// Its path: for a descriptor, the one in /proc.
pub(super) fn path_of(params: &Params) -> Result<PathBuf> {
    let mut given = NAMING.iter().filter_map(|key| Some((*key, params.get(key)?)));
    let (key, value) = given
        .next()
        .filter(|(_, value)| !value.is_empty())
        .ok_or_else(|| Error::invalid("which file? write file:PATH"))?;
    if let Some((other, _)) = given.next() {
        return Err(Error::invalid(format!("give only one of {key} and {other}")));
    }
    Ok(match key {
        "fd" | "dirfd" => found::of_number(value),
        _ => text::path(value),
    })
}

pub(super) fn file_options(params: &Params, options: &OpenOptions) -> Result<FileOptions> {
    let advices = [Advice::Normal, Advice::Random, Advice::Sequential];
    let advice = values::meaning(params, "fadvise", "normal|random|sequential", advices)?;
    let locks = [Lock::On, Lock::Off, Lock::Auto];
    let lock = values::meaning(params, "lock", "on|off|auto", locks)?;
    let writes_zeroes = values::meaning(params, "no-hole", "allocated|written", [false, true])?;
    let caches = [PageCaching::Default, PageCaching::None, PageCaching::Direct, PageCaching::Auto];
    let cache = values::meaning(params, "cache", "default|none|direct|auto", caches)?;
    let usual = match (options.past_cache, options.once) {
        (true, _) => PageCaching::Direct,
        (false, true) => PageCaching::Auto,
        (false, false) => PageCaching::Default,
    };
    Ok(FileOptions {
        advice: advice.unwrap_or(Advice::Normal),
        lock: lock.unwrap_or(if options.lock { Lock::Auto } else { Lock::Off }),
        writes_zeroes: writes_zeroes.unwrap_or(false),
        force: options.force,
        new: options.new,
        cache: cache.unwrap_or(usual),
        early: true,
    })
}

/// A temporary file as a container that grows, and which goes into `outlet` when it is complete.
pub(super) fn temporary(fd: OwnedFd, outlet: Outlet) -> Result<File> {
    let options = FileOptions { lock: Lock::Off, ..FileOptions::default() };
    let mut file = describe(Path::new(outlet.name()), fd, true, options)?;
    file.filling = Some(Filling::new(Some(0), false));
    file.info.size = LONGEST;
    file.info.abilities.flush = outlet.file().is_some();
    file.info.abilities.fua = false;
    file.grows = true;
    file.outlet = Some(outlet);
    Ok(file)
}

/// Checks the type before opening: opening a pipe would wait for its other end. Returns the type.
fn refuse_what_is_no_disk(path: &Path) -> Result<FileType> {
    let found = std::fs::metadata(path).map_err(|e| match std::fs::read_link(path) {
        Ok(to) if e.kind() == std::io::ErrorKind::NotFound => Error::os(
            format!("open: it is a symbolic link to {}, which does not exist", to.display()),
            e,
        ),
        _ => Error::os("open", e),
    })?;
    let kind = found::kind(std::os::unix::fs::MetadataExt::mode(&found));
    refuse_kind(kind).map(|()| kind)
}

pub(super) fn refuse_kind(kind: FileType) -> Result<()> {
    let what = match kind {
        FileType::RegularFile => return Ok(()),
        FileType::BlockDevice => return block::allowed(),
        FileType::Directory => "is a directory",
        FileType::Fifo => "is a pipe (copy and convert read one)",
        FileType::Socket => "is a socket (an NBD server there is nbd+unix:///?socket=PATH)",
        FileType::CharacterDevice => "is a character device (for /dev/null write null:)",
        _ => "is neither",
    };
    Err(Error::unfit(format!("{what}; a disk is a file or a block device")))
}

pub(super) fn kind_of(fd: &OwnedFd) -> Result<FileType> {
    let stat = fstat(fd).map_err(|e| Error::os("get the status of the file", e))?;
    Ok(FileType::from_raw_mode(stat.st_mode))
}

/// Opens an existing file or device. A block device for writing is opened exclusively, which the
/// kernel refuses while it, or part of it, is mounted or otherwise in use.
pub(super) fn open_descriptor(
    path: &Path,
    options: &OpenOptions,
    lock: Lock,
) -> Result<(OwnedFd, bool)> {
    let device = refuse_what_is_no_disk(path)? == FileType::BlockDevice;
    let flags = OFlags::CLOEXEC | OFlags::NOCTTY;
    if options.write {
        let alone = if device && lock != Lock::Off && !options.force {
            OFlags::EXCL
        } else {
            OFlags::empty()
        };
        match openat(CWD, path, flags | alone | OFlags::RDWR, Mode::empty()) {
            Ok(fd) if !device || !block::is_read_only(fd.as_fd()) => return Ok((fd, true)),
            Ok(_) | Err(Errno::ACCESS | Errno::PERM | Errno::ROFS) if options.or_read_only => {}
            Ok(_) => {
                let action = "open for writing: the device is read-only";
                return Err(Error::new(ErrorKind::ReadOnly, Fault::User, action));
            }
            Err(Errno::BUSY) => return Err(lock::refusal(lock::Conflict::Device, path)),
            Err(e) => return Err(Error::os("open for writing", e)),
        }
    }
    match openat(CWD, path, flags | OFlags::RDONLY, Mode::empty()) {
        Ok(fd) => Ok((fd, false)),
        Err(e) => Err(Error::os("open", e)),
    }
}

/// Collects the facts of an open file and makes a device of it.
pub(super) fn describe(path: &Path, fd: OwnedFd, write: bool, file: FileOptions) -> Result<File> {
    let stat = fstat(&fd).map_err(|e| Error::os("get the status of the file", e))?;
    let kind = FileType::from_raw_mode(stat.st_mode);
    refuse_kind(kind)?;
    let geometry = (kind == FileType::BlockDevice).then(|| block::geometry(fd.as_fd()));
    let size = match geometry {
        None => u64::try_from(stat.st_size).unwrap_or(0),
        Some(_) => seek(&fd, SeekFrom::End(0)).map_err(|e| Error::os("query the size", e))?,
    };
    let in_memory = geometry.is_none() && system::lies_in_memory(fd.as_fd());
    if file.advice != Advice::Normal {
        // A hint; it is not needed.
        let _ = system::expect(fd.as_fd(), file.advice);
    }
    let preferred = u64::try_from(stat.st_blksize).unwrap_or(0);
    let grain = match &geometry {
        Some(geometry) => Grain::Sectors(geometry.sector),
        None => Grain::of_file(fd.as_fd(), preferred),
    };
    let info = Info {
        blocks: geometry.as_ref().map_or(BlockSizes::ANY, |g| g.blocks),
        // A hole in a file is whole blocks of its file system.
        granules: geometry.as_ref().map_or_else(|| Granules::all(grain.size().0), |g| g.granules),
        serial: geometry.as_ref().and_then(|g| g.serial.as_deref().map(Arc::from)),
        room: geometry.as_ref().map_or(0, |g| g.room),
        abilities: Abilities {
            written_zero: write,
            prefetch: !in_memory,
            take: write && geometry.is_none(),
            extents: geometry.is_none(),
            rotational: geometry.as_ref().is_some_and(|g| g.rotational),
            // Whether a filesystem can zero fast shows only when it is asked to. If it cannot, a
            // fast zero is refused at once, as it should be.
            ..Abilities::all(write)
        },
        ..Info::new(path.display().to_string(), size)
    };
    Ok(File::new(fd, info, grain, in_memory, file))
}
