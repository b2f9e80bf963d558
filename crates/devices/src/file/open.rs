//! Opening and creating files, and their lock.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use device::{Device, Error, ErrorKind, Fault, Params, Result};
use programs::names;
use runtime::Context;
use rustix::fs::{FileType, fstat, ftruncate};
use rustix::io::Errno;

use super::descriptor::{
    FileOptions, LONGEST, describe, file_options, kind_of, open_descriptor, opened, path_of,
};
use super::filling::Filling;
use super::inlet::Inlet;
use super::made::MadeFile;
use super::outlet::Outlet;
use super::{File, Lock, directory, found, handed, lock, pipe};
use crate::stream::ByteStream;
use crate::{Created, Creation, Holds, Made, OpenOptions};

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

/// Opens a file or block device as it is.
///
/// # Errors
/// It is not a file or block device, it is in use, or the system refuses.
pub fn open_path(path: &Path, file: FileOptions, options: &OpenOptions) -> Result<File> {
    open_as(path, path, file, options)
}

/// Opens the file that was looked up at `path`, whatever has that name by now.
pub(super) fn open_found(
    found: &OwnedFd,
    path: &Path,
    file: FileOptions,
    options: &OpenOptions,
) -> Result<File> {
    let named = |e| Error::os("open", e).on(path.display());
    let place = found::place_of(found).map_err(named)?;
    let opened = open_as(&place, path, file, options)?;
    match found::is_it(found, opened.fd()) {
        true => Ok(opened),
        false => Err(named(Errno::STALE.into())),
    }
}

/// Opens what is at `place` as the file `path`.
fn open_as(place: &Path, path: &Path, file: FileOptions, options: &OpenOptions) -> Result<File> {
    let opened = || {
        let (fd, write) = match open_descriptor(place, options, file.lock) {
            Err(e) if e.kind() == ErrorKind::PermissionDenied && !options.write => {
                (read_back(place, path).ok_or(e)?, false)
            }
            opened => opened?,
        };
        lock::take(fd.as_fd(), write, file.lock, path)?;
        describe(path, fd, write, file)
    };
    opened().map_err(|e| e.on(path.display()))
}

/// The file at `place`, by its name: one that was made in a sandbox can be read back by that alone.
fn read_back(place: &Path, path: &Path) -> Option<OwnedFd> {
    let fd = programs::names::read(path).ok()?;
    let found = rustix::fs::stat(place).ok()?;
    (names::numbers(&fd).ok()? == names::numbers_of(&found)).then_some(fd)
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
    if let Some((fd, made)) = make(path, file.lock).map_err(named)? {
        let described = set_size(&fd, size).and_then(|()| describe(path, fd, true, file));
        let mut file = described.inspect_err(|_| _ = made.remove()).map_err(named)?;
        file.filling = Some(Filling::new(Some(size), write_back && !file.in_memory));
        return Ok(FileTarget { file, holds: Holds::Zeroes, made: Some(Box::new(made)) });
    }
    if file.new {
        return Err(named(there_already()));
    }
    let options = OpenOptions { force: file.force, ..OpenOptions::read_write() };
    let mut file = open_path(path, file, &options)?;
    let regular = kind_of(&file.fd).map_err(named)? == FileType::RegularFile;
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
) -> Result<Created> {
    let path = path_of(params)?;
    if let Some(outlet) = Outlet::at(&path)? {
        return pipe::create(outlet, creation, context);
    }
    if !creation.whole && path.exists() {
        if creation.options.new {
            return Err(there_already().on(path.display()));
        }
        let file = open(params, &creation.options, context)?;
        return Ok(Created::as_it_is(opened(file, context), context));
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
    Ok(Created { made, ..Created::new(opened(file, context), holds, context) })
}

fn there_already() -> Error {
    Error::unfit("already exists; nothing was changed")
}

/// A container that grows as it is written. An existing file is emptied now: until the new image is
/// complete, the file must not be taken for the old one. A block device stays as it is.
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

/// A new file that has no name yet; `None` if something has that name, the file system has no such
/// files, or one could not be given its name at the end.
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
    if !found::can_appear(&fd) {
        return Ok(None);
    }
    lock::take(fd.as_fd(), true, file.lock, path).map_err(named)?;
    set_size(&fd, size).map_err(named)?;
    let file = FileOptions { early: file.early && creation.write_back, ..file };
    let mut opened = describe(path, fd, true, file).map_err(named)?;
    let look = |e| named(Error::os("get the status of the file", e));
    let stat = fstat(opened.fd()).map_err(look)?;
    let kept = rustix::io::fcntl_dupfd_cloexec(opened.fd(), 0).map_err(look)?;
    opened.filling = Some(Filling::new(Some(size), creation.write_back && !opened.in_memory));
    let made = MadeFile::nameless(path, names::numbers_of(&stat), kept);
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
    if let Some((fd, made)) = make(path, lock).map_err(named)? {
        return Ok(WritableFile::Made(fd, made));
    }
    let options = OpenOptions { write: true, or_read_only: false, ..options.clone() };
    let (fd, _) = open_descriptor(path, &options, lock).map_err(named)?;
    lock::take(fd.as_fd(), true, lock, path).map_err(named)?;
    Ok(WritableFile::Found(fd))
}

/// A new file, or `None` if there is something of that name.
fn make(path: &Path, lock: Lock) -> Result<Option<(OwnedFd, MadeFile)>> {
    let fd = match names::make(path, 0o666) {
        Ok(fd) => fd,
        Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => return Ok(None),
        Err(e) => return Err(Error::os("create", e)),
    };
    let numbers = names::numbers(&fd).map_err(|e| Error::os("get the status of the file", e))?;
    let made = MadeFile::new(path, numbers);
    // Another program that has it already keeps it. If it cannot be removed, the first error
    // matters.
    let taken = lock::take(fd.as_fd(), true, lock, path);
    if matches!(&taken, Err(e) if e.kind() != ErrorKind::Locked) {
        made.remove();
    }
    taken.map(|()| Some((fd, made)))
}

fn set_size(fd: &OwnedFd, size: u64) -> Result<()> {
    ftruncate(fd, size)
        .map_err(|e| Error::os(format!("set the length of the file to {size} bytes"), e))
}
