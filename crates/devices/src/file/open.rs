//! Opening and creating files: their type, their lock, and what is known of them.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use device::{
    Abilities, BlockSizes, Device, Error, ErrorKind, Fault, Info, Params, Result, Simple, text,
};
use programs::names;
use runtime::Context;
use rustix::fs::{
    Advice, CWD, FileType, Mode, OFlags, SeekFrom, fadvise, fstat, fstatfs, ftruncate, openat, seek,
};
use rustix::io::Errno;

use super::cache::PageCaching;
use super::direct::Direct;
use super::filling::Filling;
use super::inlet::Inlet;
use super::made::MadeFile;
use super::outlet::Outlet;
use super::zero::Grain;
use super::{File, Lock, block, directory, handed, lock, pipe};
use crate::stream::ByteStream;
use crate::{CreatedDevice, Creation, Holds, Made, OpenOptions};
use device::values;

/// The parameters of which one says what is opened.
const NAMING: [&str; 4] = ["file", "dir", "fd", "dirfd"];
/// The length that no file is longer than.
pub(super) const LONGEST: u64 = i64::MAX.cast_unsigned();

const TMPFS: u64 = 0x0102_1994;
const RAMFS: u64 = 0x8584_58f6;

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
    /// Whether what is written is sent to the disk at once also where it stays in memory, where `cache` bounds that.
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

/// Opens what the parameters of `file` name: a directory, or a file.
pub(crate) fn open_any(
    params: &Params,
    options: &OpenOptions,
    context: &Context,
) -> Result<Arc<dyn Device>> {
    if directory::is_one(params) {
        return directory::open(params, options, context);
    }
    Ok(opened(open(params, options, context)?, context))
}

/// Opens `file` from parameters. A pipe whose bytes are wanted once becomes a temporary file.
fn open(params: &Params, options: &OpenOptions, context: &Context) -> Result<File> {
    let path = path_of(params)?;
    if let Some(number) = params.get("fd") {
        return handed::open(number, file_options(params, options)?, options);
    }
    let inlet = if options.once && !options.write { Inlet::at(&path)? } else { None };
    match inlet {
        Some(inlet) => inlet.kept(context),
        None => open_path(&path, file_options(params, options)?, options),
    }
}

/// The pipe that the parameters name, if it is one.
pub(crate) fn stream(params: &Params) -> Result<Option<ByteStream>> {
    let path = path_of(params)?;
    Ok(Inlet::at(&path)?.map(Inlet::stream))
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
        "fd" | "dirfd" => format!("/proc/self/fd/{value}").into(),
        _ => text::path(value),
    })
}

pub(super) fn file_options(params: &Params, options: &OpenOptions) -> Result<FileOptions> {
    let advice = match values::choice(params, "fadvise", &["normal", "random", "sequential"])? {
        Some(1) => Advice::Random,
        Some(2) => Advice::Sequential,
        _ => Advice::Normal,
    };
    let lock = match values::choice(params, "lock", &["on", "off", "auto"])? {
        Some(0) => Lock::On,
        Some(1) => Lock::Off,
        Some(_) => Lock::Auto,
        None if options.lock => Lock::Auto,
        None => Lock::Off,
    };
    let no_hole = values::choice(params, "no-hole", &["allocated", "written"])?;
    let (writes_zeroes, force, new) = (no_hole == Some(1), options.force, options.new);
    let cache = match values::choice(params, "cache", &PageCaching::WORDS)? {
        Some(number) => PageCaching::of_word(number),
        None if options.once => PageCaching::Auto,
        None => PageCaching::Default,
    };
    Ok(FileOptions { advice, lock, writes_zeroes, force, new, cache, early: true })
}

/// Opens a file or block device as it is.
///
/// # Errors
/// It is not a file or block device, it is in use, or the system refuses.
pub fn open_path(path: &Path, file: FileOptions, options: &OpenOptions) -> Result<File> {
    let named = |e: Error| e.on(path.display());
    let (fd, write) = open_descriptor(path, options, file.lock).map_err(named)?;
    lock::take(fd.as_fd(), write, file.lock, path).map_err(named)?;
    describe(path, fd, write, file).map_err(named)
}

/// A file or block device that is to be filled.
#[derive(Debug)]
pub struct FileTarget {
    /// It. A regular file has its length only after [`device::Device::finish`]; until then its
    /// size is that length or its old one, whichever is greater.
    pub file: File,
    /// What it is known to hold: zeroes if it was created here, or was empty.
    pub holds: Holds,
    /// If the file was made here.
    pub made: Option<Box<dyn Made>>,
}

/// Opens a target for a copy of `size` bytes: creates a file, or takes an existing regular file (it
/// stays the same file, for programs that have it open or linked) or a block device that is large
/// enough. Nothing is changed yet: a regular file is written over, and gets its length when it is
/// finished. With `write_back` write-back begins early.
///
/// # Errors
/// As for [`open_path`]; or the block device is too small.
pub fn create(path: &Path, size: u64, write_back: bool, file: FileOptions) -> Result<FileTarget> {
    let named = |e: Error| e.on(path.display());
    let file = FileOptions { early: file.early && write_back, ..file };
    if let Some((fd, numbers)) = make(path).map_err(named)? {
        let made = fill(&fd, size, file.lock, path).and_then(|()| describe(path, fd, true, file));
        let mut file = made.inspect_err(|e| unmake(path, numbers, e)).map_err(named)?;
        file.filling = Some(Filling::new(Some(size), write_back && !file.in_memory));
        let made = MadeFile::new(path, numbers);
        return Ok(FileTarget { file, holds: Holds::Zeroes, made: Some(Box::new(made)) });
    }
    if file.new {
        return Err(named(there_already()));
    }
    let options = OpenOptions { force: file.force, ..OpenOptions::read_write() };
    let (fd, _) = open_descriptor(path, &options, file.lock).map_err(named)?;
    lock::take(fd.as_fd(), true, file.lock, path).map_err(named)?;
    let regular = kind_of(&fd).map_err(named)? == FileType::RegularFile;
    let mut file = describe(path, fd, true, file).map_err(named)?;
    let holds = match (regular, file.info.size) {
        (true, 0) => Holds::Zeroes,
        (true, _) => Holds::Old,
        (false, _) => Holds::Unknown,
    };
    if regular {
        file.info.size = file.info.size.max(size);
    }
    if file.info.size < size {
        let action = format!("has {} bytes, {size} are needed", file.info.size);
        return Err(named(Error::new(ErrorKind::NoSpace, Fault::User, action)));
    }
    let write_back = write_back && !file.in_memory;
    file.filling = Some(Filling::new(regular.then_some(size), write_back));
    Ok(FileTarget { file, holds, made: None })
}

/// The target that the parameters of `file` name. An existing one of which only a part may be
/// visible is opened as it is.
pub(crate) fn create_named(
    params: &Params,
    creation: &Creation,
    context: &Context,
) -> Result<CreatedDevice> {
    let path = path_of(params)?;
    if let Some(outlet) = Outlet::at(&path)? {
        return pipe::create(outlet, creation, context);
    }
    if !creation.whole && path.exists() {
        if creation.options.new {
            return Err(there_already().on(path.display()));
        }
        return Ok(CreatedDevice::as_it_is(opened(
            open(params, &creation.options, context)?,
            context,
        )));
    }
    let options = file_options(params, &creation.options)?;
    let size = if creation.grows { 0 } else { creation.size };
    let nameless =
        if creation.appears { create_nameless(&path, size, creation, options)? } else { None };
    let target = match nameless {
        Some(target) => target,
        None => create(&path, size, creation.write_back, options)?,
    };
    let FileTarget { mut file, holds, made } = if creation.grows { empty(target)? } else { target };
    file.log = Some(context.log.clone());
    Ok(CreatedDevice { device: opened(file, context), holds, made })
}

fn there_already() -> Error {
    Error::unfit("is there already; nothing was changed")
}

/// A container that grows as it is written. An existing file is emptied now: until the new image is complete, the
/// file must not be taken for the old one. A block device stays as it is.
fn empty(target: FileTarget) -> Result<FileTarget> {
    let FileTarget { mut file, mut holds, made } = target;
    if file.filling.as_ref().is_some_and(|filling| filling.resize(0)) {
        let emptied = set_size(&file.fd, 0).map_err(|e| e.on(&file.info.name));
        if let (Err(_), Some(made)) = (&emptied, &made) {
            made.remove();
        }
        emptied?;
        holds = Holds::Zeroes;
        file.info.size = LONGEST;
        file.grows = true;
    }
    Ok(FileTarget { file, holds, made })
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

/// A new file that has no name yet; `None` if something has that name, the file system has no such files, or one could not
/// be given its name at the end.
fn create_nameless(
    path: &Path,
    size: u64,
    creation: &Creation,
    file: FileOptions,
) -> Result<Option<FileTarget>> {
    let named = |e: Error| e.on(path.display());
    if std::fs::symlink_metadata(path).is_ok() {
        return Ok(None);
    }
    let Ok(fd) = names::nameless_for(path, 0o666) else { return Ok(None) };
    if !MadeFile::can_appear(&fd) {
        return Ok(None);
    }
    fill(&fd, size, file.lock, path).map_err(named)?;
    let file = FileOptions { early: file.early && creation.write_back, ..file };
    let mut opened = describe(path, fd, true, file).map_err(named)?;
    let look = |e| named(Error::os("look at the file", e));
    let stat = fstat(opened.fd()).map_err(look)?;
    let kept = rustix::io::fcntl_dupfd_cloexec(opened.fd(), 0).map_err(look)?;
    opened.filling = Some(Filling::new(Some(size), creation.write_back && !opened.in_memory));
    let made = MadeFile::nameless(path, (stat.st_dev, stat.st_ino), kept);
    Ok(Some(FileTarget { file: opened, holds: Holds::Zeroes, made: Some(Box::new(made)) }))
}

/// A file that is to be written, open.
pub(super) enum WritableFile {
    /// It was there.
    Found(OwnedFd),
    /// It was made here, and is empty.
    Made(OwnedFd, MadeFile),
}

/// Opens a file or block device for writing, and makes a file that is missing.
pub(super) fn open_or_make(path: &Path, options: &OpenOptions, lock: Lock) -> Result<WritableFile> {
    let named = |e: Error| e.on(path.display());
    if let Some((fd, numbers)) = make(path).map_err(named)? {
        let taken = lock::take(fd.as_fd(), true, lock, path);
        taken.inspect_err(|e| unmake(path, numbers, e)).map_err(named)?;
        return Ok(WritableFile::Made(fd, MadeFile::new(path, numbers)));
    }
    let options = OpenOptions { write: true, or_read_only: false, ..options.clone() };
    let (fd, _) = open_descriptor(path, &options, lock).map_err(named)?;
    lock::take(fd.as_fd(), true, lock, path).map_err(named)?;
    Ok(WritableFile::Found(fd))
}

/// A new file, with its device and inode number, or `None` if there is something of that name.
fn make(path: &Path) -> Result<Option<(OwnedFd, (u64, u64))>> {
    match names::make(path, 0o666) {
        Ok(fd) => {
            let numbers = names::numbers(&fd).map_err(|e| Error::os("look at the file", e))?;
            Ok(Some((fd, numbers)))
        }
        Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => Ok(None),
        Err(e) => Err(Error::os("create", e)),
    }
}

fn fill(fd: &OwnedFd, size: u64, lock: Lock, path: &Path) -> Result<()> {
    lock::take(fd.as_fd(), true, lock, path)?;
    set_size(fd, size)
}

fn set_size(fd: &OwnedFd, size: u64) -> Result<()> {
    ftruncate(fd, size).map_err(|e| Error::os(format!("make the file {size} bytes long"), e))
}

/// Removes a file that was just created and cannot be used, unless another program uses it already.
/// If even that fails, the first error matters.
fn unmake(path: &Path, numbers: (u64, u64), why: &Error) {
    if why.kind() != ErrorKind::Locked {
        let _ = names::remove(path, numbers);
    }
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
    let kind = FileType::from_raw_mode(std::os::unix::fs::MetadataExt::mode(&found));
    refuse_kind(kind).map(|()| kind)
}

pub(super) fn refuse_kind(kind: FileType) -> Result<()> {
    let what = match kind {
        FileType::RegularFile | FileType::BlockDevice => return Ok(()),
        FileType::Directory => "is a directory",
        FileType::Fifo => "is a pipe (copy and convert read one)",
        FileType::Socket => "is a socket (an NBD server there is nbd+unix:///?socket=PATH)",
        FileType::CharacterDevice => "is a character device (for /dev/null write null:)",
        _ => "is neither",
    };
    Err(Error::unfit(format!("{what}; a disk is a file or a block device")))
}

pub(super) fn kind_of(fd: &OwnedFd) -> Result<FileType> {
    let stat = fstat(fd).map_err(|e| Error::os("look at the file", e))?;
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
    let stat = fstat(&fd).map_err(|e| Error::os("look at the file", e))?;
    let kind = FileType::from_raw_mode(stat.st_mode);
    refuse_kind(kind)?;
    let geometry = (kind == FileType::BlockDevice).then(|| block::geometry(fd.as_fd()));
    let size = match geometry {
        None => u64::try_from(stat.st_size).unwrap_or(0),
        Some(_) => seek(&fd, SeekFrom::End(0)).map_err(|e| Error::os("ask for the size", e))?,
    };
    let in_memory = geometry.is_none() && lies_in_memory(&fd);
    if file.advice != Advice::Normal {
        // A hint; it is not needed.
        let _ = fadvise(&fd, 0, None, file.advice);
    }
    let info = Info {
        blocks: geometry.map_or(BlockSizes::ANY, |g| g.blocks),
        room: geometry.map_or(0, |g| g.room),
        abilities: Abilities {
            write,
            flush: true,
            fua: write,
            trim: write,
            zero: write,
            // Whether a filesystem can do it shows only when it is asked to. If it cannot, a fast
            // zero is refused at once, as it should be.
            fast_zero: write,
            written_zero: write,
            prefetch: !in_memory,
            take: write && geometry.is_none(),
            multi_conn: true,
            extents: geometry.is_none(),
            rotational: geometry.is_some_and(|g| g.rotational),
            discards: false,
            ..Abilities::READ
        },
        ..Info::new(path.display().to_string(), size)
    };
    let preferred = u64::try_from(stat.st_blksize).unwrap_or(0);
    let grain = match geometry {
        Some(geometry) => Grain::Sectors(geometry.sector),
        None => Grain::of_file(fd.as_fd(), preferred),
    };
    Ok(File::new(fd, info, grain, in_memory, file))
}

fn lies_in_memory(fd: &OwnedFd) -> bool {
    let magic = fstatfs(fd).ok().and_then(|s| u64::try_from(s.f_type).ok());
    magic.is_some_and(|m| m == TMPFS || m == RAMFS)
}
