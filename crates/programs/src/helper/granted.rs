//! The names that the helper may change, and what it made there.
//!
//! An attacker may control the asking side. So the directories are looked up before anything is
//! asked, a name is one that was granted, and only what the helper made itself is removed, opened
//! once more or put in the place of another: in the worst case the files that the command line
//! names for writing are lost. What is read again, or appended to, is looked up by its whole path
//! each time, as without a sandbox: a link on the way may have been replaced.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{CWD, FileType, Mode, OFlags, fcntl_getfl, fcntl_setfl, fstat, openat};
use rustix::io::Errno;
use rustix::process::{Pid, geteuid, getppid};

use crate::names::{Act, At, Grant, HeldTurn, Numbers, direct, owned, private_name_of};

/// Files, and private directories beneath each directory, that are made at most: as many as no
/// command line names.
const MOST: usize = 1024;

/// All of them.
pub(super) struct Granted<'a> {
    all: Vec<Held<'a>>,
    /// Each file that was made and may be opened again, removed or renamed: while it is open no
    /// other has its numbers.
    made: Vec<OwnedFd>,
    /// The process that asks.
    asking: Option<Pid>,
}

struct Held<'a> {
    grant: &'a Grant,
    directory: io::Result<OwnedFd>,
    /// Without a directory. Empty where the path can only be a directory's.
    name: OsString,
    turn: Option<HeldTurn>,
    /// The numbers of the private directories that were made.
    privates: BTreeSet<u32>,
}

impl<'a> Granted<'a> {
    pub(super) fn new(grants: &'a [Grant]) -> Self {
        let asking = getppid();
        let mut all: Vec<_> = grants.iter().map(Held::new).collect();
        all.iter_mut().for_each(|held| held.find_privates(asking));
        Self { all, made: owned(), asking }
    }

    /// Does what is asked; `along` came with the question.
    pub(super) fn act(
        &mut self,
        index: u32,
        act: Act,
        along: Vec<OwnedFd>,
    ) -> io::Result<Option<OwnedFd>> {
        let along = along.into_iter().next();
        if let Act::Reopen { flags } = act {
            return self.reopen(along, flags);
        }
        let held = usize::try_from(index).ok().and_then(|index| self.all.get_mut(index));
        let held = held.ok_or(Errno::PERM)?;
        match held.grant {
            Grant::File(_) => self.on_file(index, act, along),
            Grant::Reading(_) => match act {
                Act::Read => regular(held.grant, direct::read).map(Some),
                _ => Err(Errno::PERM.into()),
            },
            Grant::Socket(_) => held.on_socket(act).map(|()| None),
            Grant::Nameless(_) => match act {
                Act::Nameless { .. } => held.temporary().map(Some),
                _ => Err(Errno::PERM.into()),
            },
            Grant::Private(_) => held.on_private(act, self.asking).map(|()| None),
        }
    }

    fn on_file(
        &mut self,
        index: u32,
        act: Act,
        along: Option<OwnedFd>,
    ) -> io::Result<Option<OwnedFd>> {
        let at = self.at(index)?;
        let made = match act {
            // Before anything has a name.
            Act::Make { .. } | Act::Nameless { .. } if self.made.len() >= MOST => {
                return Err(Errno::MFILE.into());
            }
            Act::Make { mode } => direct::make(at, mode & 0o777)?,
            Act::Nameless { mode } => direct::nameless(at, mode & 0o777)?,
            Act::Append => return regular(self.held(index)?.grant, direct::append).map(Some),
            Act::Link => {
                let file = along.ok_or(Errno::BADF)?;
                self.is_made(Numbers::of(&fstat(&file)?))?;
                return direct::link(file.as_fd(), at).map(|()| None);
            }
            Act::Replace { by } => {
                let by = self.at(by)?;
                self.is_made(Numbers::of(&by.stat()?))?;
                return direct::replace(by, at).map(|()| None);
            }
            Act::Remove { numbers } => {
                self.is_made(numbers)?;
                direct::remove(at, numbers)?;
                self.made.retain(|file| !has(file, numbers));
                return Ok(None);
            }
            Act::Sync => return direct::sync(at).map(|()| None),
            _ => return Err(Errno::PERM.into()),
        };
        // Not a duplicate, which would share its locks.
        match direct::reopen(made.as_fd(), OFlags::PATH) {
            Ok(kept) => self.made.push(kept),
            Err(e) => {
                if matches!(act, Act::Make { .. }) {
                    // The first error is the one to report.
                    let _ = fstat(&made).map(|stat| direct::remove(at, Numbers::of(&stat)));
                }
                return Err(e);
            }
        }
        Ok(Some(made))
    }

    /// Removes a file that was made just now, and does not arrive where it was asked for.
    pub(super) fn take_back(&mut self, index: u32, act: Act, made: &OwnedFd) {
        if let (Act::Make { .. }, Ok(stat)) = (act, fstat(made)) {
            let numbers = Numbers::of(&stat);
            // That it could not be sent is the error to report.
            let _ = self.on_file(index, Act::Remove { numbers }, None);
        }
    }

    /// The file with this index.
    fn held(&self, index: u32) -> io::Result<&Held<'a>> {
        let held = usize::try_from(index).ok().and_then(|index| self.all.get(index));
        let held = held.filter(|held| matches!(held.grant, Grant::File(_)));
        Ok(held.ok_or(Errno::PERM)?)
    }

    /// Its name.
    fn at(&self, index: u32) -> io::Result<At<'_>> {
        self.held(index)?.at()
    }

    fn is_made(&self, numbers: Numbers) -> io::Result<()> {
        let is_one = self.made.iter().any(|file| has(file, numbers));
        if is_one { Ok(()) } else { Err(Errno::PERM.into()) }
    }

    fn reopen(&self, file: Option<OwnedFd>, flags: u32) -> io::Result<Option<OwnedFd>> {
        let allowed = OFlags::WRONLY | OFlags::RDWR | OFlags::DIRECT;
        let file = file.ok_or(Errno::BADF)?;
        self.is_made(Numbers::of(&fstat(&file)?))?;
        direct::reopen(file.as_fd(), OFlags::from_bits_truncate(flags) & allowed).map(Some)
    }
}

impl<'a> Held<'a> {
    fn new(grant: &'a Grant) -> Self {
        let path = grant.path();
        let folder = match grant {
            Grant::File(_) | Grant::Reading(_) | Grant::Socket(_) => {
                path.parent().unwrap_or(Path::new("/"))
            }
            Grant::Nameless(_) | Grant::Private(_) => path,
        };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = openat(CWD, folder, flags, Mode::empty()).map_err(io::Error::from);
        // What ends like this is no file, though its last part could be one's name.
        let is_folder = path.as_os_str().as_bytes().ends_with(b"/");
        let name = path.file_name().filter(|_| !is_folder).unwrap_or_default().to_owned();
        Self { grant, directory, name, turn: None, privates: BTreeSet::new() }
    }

    /// Takes over the private directories that the asking side made before there was a sandbox, as
    /// another user perhaps.
    fn find_privates(&mut self, asking: Option<Pid>) {
        let (Grant::Private(_), Some(pid), Ok(folder)) = (self.grant, asking, &self.directory)
        else {
            return;
        };
        for number in (0..).take(MOST) {
            let name = private_name_of(pid.as_raw_nonzero().get(), number);
            let Ok(stat) = (At { directory: folder.as_fd(), name: Path::new(&name) }).stat() else {
                return;
            };
            let is_ours = stat.st_uid == geteuid().as_raw();
            if is_ours && FileType::from_raw_mode(stat.st_mode).is_dir() {
                self.privates.insert(number);
            }
        }
    }

    fn folder(&self) -> io::Result<&OwnedFd> {
        self.directory
            .as_ref()
            .map_err(|e| io::Error::from_raw_os_error(e.raw_os_error().unwrap_or(libc::EIO)))
    }

    fn at(&self) -> io::Result<At<'_>> {
        if self.name.is_empty() {
            return Err(Errno::ISDIR.into());
        }
        Ok(At { directory: self.folder()?.as_fd(), name: Path::new(&self.name) })
    }

    fn temporary(&self) -> io::Result<OwnedFd> {
        direct::temporary(self.folder()?.as_fd(), Path::new("."))
    }

    fn on_socket(&mut self, act: Act) -> io::Result<()> {
        match act {
            Act::TakeTurn => {
                let turn = HeldTurn::take(self.at()?)?.ok_or(Errno::NOLCK)?;
                self.turn = Some(turn);
                Ok(())
            }
            Act::EndTurn => {
                let turn = self.turn.take();
                let folder = self.folder()?.as_fd();
                turn.iter().for_each(|turn| turn.end(folder));
                Ok(())
            }
            Act::Remove { numbers } => {
                let at = self.at()?;
                if !FileType::from_raw_mode(at.stat()?.st_mode).is_socket() {
                    return Err(Errno::NOTSOCK.into());
                }
                direct::remove(at, numbers)
            }
            _ => Err(Errno::PERM.into()),
        }
    }

    fn on_private(&mut self, act: Act, asking: Option<Pid>) -> io::Result<()> {
        let pid = asking.ok_or(Errno::SRCH)?.as_raw_nonzero();
        let (Act::MakePrivate { number } | Act::RemovePrivate { number }) = act else {
            return Err(Errno::PERM.into());
        };
        let name = private_name_of(pid.get(), number);
        if matches!(act, Act::RemovePrivate { .. }) {
            if !self.privates.remove(&number) {
                return Err(Errno::PERM.into());
            }
            let at = At { directory: self.folder()?.as_fd(), name: Path::new(&name) };
            return direct::remove_private(at);
        }
        if self.privates.len() >= MOST {
            return Err(Errno::MFILE.into());
        }
        direct::make_directory(At { directory: self.folder()?.as_fd(), name: Path::new(&name) })?;
        self.privates.insert(number);
        Ok(())
    }
}

/// Whether an open file has these numbers.
fn has(file: &OwnedFd, numbers: Numbers) -> bool {
    fstat(file).is_ok_and(|stat| Numbers::of(&stat) == numbers)
}

/// Opens the regular file that has the whole path by now. A pipe or a device could make the helper
/// wait, and is opened by the process that has a right to it.
fn regular(grant: &Grant, open: fn(At<'_>, OFlags) -> io::Result<OwnedFd>) -> io::Result<OwnedFd> {
    let check = |stat: rustix::fs::Stat| {
        let is_file = FileType::from_raw_mode(stat.st_mode).is_file();
        if is_file { Ok(()) } else { Err(Errno::ACCESS) }
    };
    // Opening some devices does something to them.
    match rustix::fs::stat(grant.path()).and_then(check) {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(e) => return Err(e.into()),
    }
    // It may be a pipe by now, which could make us wait.
    let file = open(At::here(grant.path()), OFlags::NONBLOCK)?;
    check(fstat(&file)?)?;
    fcntl_setfl(&file, fcntl_getfl(&file)? - OFlags::NONBLOCK)?;
    Ok(file)
}
