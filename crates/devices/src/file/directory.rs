//! `file dir=DIR`: the files of a directory as exports. A client chooses one by its name.
//!
//! A name is untrusted. It has to be that of an entry of the directory itself: no path, and no link
//! that leads out of it, even if the directory changes meanwhile. Only a regular file or a block
//! device is opened. Clients of one file share one device, with one lock.

use std::collections::HashMap;
use std::ffi::CStr;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::{Arc, Weak};

use device::{
    Abilities, Client, Connected, Device, Done, Error, ErrorKind, Fault, Info, Listed, Operation,
    Params, Result, Session, text,
};
use programs::names;
use runtime::{Context, Mutex};
use rustix::fs::{CWD, FileType, Mode, OFlags, fstat, openat};
use rustix::io::Errno;

use super::descriptor::{self, FileOptions};
use super::{found, handed, open};
use crate::OpenOptions;

/// Names that are listed at most.
const LISTED: usize = 10_000;

/// See the module.
pub(super) struct Directory {
    info: Info,
    shared: Arc<Shared>,
}

struct Shared {
    fd: OwnedFd,
    path: PathBuf,
    file: FileOptions,
    options: OpenOptions,
    context: Context,
    /// The open devices, by device and inode number.
    open: Mutex<HashMap<(u64, u64), Weak<dyn Device>>>,
}

/// Whether the parameters name a directory.
pub(super) fn is_one(params: &Params) -> bool {
    params.contains("dir") || params.contains("dirfd")
}

/// Opens the directory that parameters name.
pub(super) fn open(
    params: &Params,
    options: &OpenOptions,
    context: &Context,
) -> Result<Arc<dyn Device>> {
    let path = descriptor::path_of(params)?;
    let named = |e: Error| e.on(path.display());
    if !options.by_name {
        let action = "is a directory, whose files a server's clients choose by name (`serve file dir=DIR`, without a \
                      format and without filters that keep something of one disk); here name a file";
        return Err(named(Error::unfit(action)));
    }
    let fd = match params.get("dirfd") {
        Some(number) => handed::take("dirfd", number)?,
        None => {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let opened = openat(CWD, &path, flags, Mode::empty());
            opened.map_err(|e| named(Error::os("open the directory", e)))?
        }
    };
    if descriptor::kind_of(&fd).map_err(named)? != FileType::Directory {
        return Err(named(Error::unfit("is not a directory")));
    }
    let info = Info {
        abilities: Abilities { write: options.write, ..Abilities::READ },
        ..Info::new(path.display().to_string(), 0)
    };
    let shared = Shared {
        fd,
        path,
        file: descriptor::file_options(params, options)?,
        options: options.clone(),
        context: context.clone(),
        open: Mutex::default(),
    };
    Ok(Arc::new(Directory { info, shared: Arc::new(shared) }))
}

impl Shared {
    /// The file of that name, shared by all clients that have it open.
    fn file(&self, name: &str) -> Result<Arc<dyn Device>> {
        let path = self.path.join(text::path(name));
        let named = |e: Error| e.on(path.display());
        let found = self.look_up(name).map_err(named)?;
        let stat = fstat(&found).map_err(|e| named(Error::os("get the status of the file", e)))?;
        let number = names::numbers_of(&stat);
        let mut all = self.open.lock();
        all.retain(|_, device| device.strong_count() > 0);
        if let Some(device) = all.get(&number).and_then(Weak::upgrade) {
            return Ok(device);
        }
        let file = open::open_found(&found, &path, self.file, &self.options)?;
        let device = descriptor::opened(file, &self.context);
        all.insert(number, Arc::downgrade(&device));
        Ok(device)
    }

    fn look_up(&self, name: &str) -> Result<OwnedFd> {
        let none = || Error::new(ErrorKind::NotFound, Fault::User, "there is no such file");
        if name.is_empty() {
            let action = "which file? the name of the export is the name of a file in it";
            return Err(Error::new(ErrorKind::NotFound, Fault::User, action));
        }
        if !is_name(name) {
            return Err(none());
        }
        let fd = found::entry(&self.fd, &text::path(name)).map_err(|e| match e {
            Errno::NOENT | Errno::XDEV | Errno::LOOP | Errno::NAMETOOLONG => none(),
            e => Error::os("open", e),
        })?;
        descriptor::refuse_kind(descriptor::kind_of(&fd)?).map_err(|_| none())?;
        Ok(fd)
    }

    /// The names of all files that could be chosen, in order.
    fn names(&self) -> Result<Vec<(String, String)>> {
        let failed = |e: Errno| Error::os("list", e).on(self.path.display());
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        // A position of its own, since others may list at the same time.
        let fd = openat(&self.fd, ".", flags, Mode::empty()).map_err(failed)?;
        let mut names = Vec::new();
        let add = |name: &CStr| {
            // A name that is not text could not be asked for.
            let Ok(name) = name.to_str() else { return };
            if names.len() < LISTED && is_name(name) && self.look_up(name).is_ok() {
                names.push((name.to_owned(), String::new()));
            }
        };
        found::names(fd, add).map_err(failed)?;
        names.sort();
        Ok(names)
    }
}

/// Whether a name is that of an entry, and nothing else.
fn is_name(name: &str) -> bool {
    !name.is_empty() && name != "." && name != ".." && !name.contains(['/', '\0'])
}

impl Device for Directory {
    fn info(&self) -> &Info {
        &self.info
    }

    fn submit(&self, _: Operation, done: Done) {
        let action = "open: it is a directory, and no file in it was chosen";
        done(Err(Error::unsupported(action).on(&self.info.name)));
    }

    fn session(&self) -> Option<&dyn Session> {
        Some(self)
    }
}

impl Session for Directory {
    fn connect(&self, client: &Client, done: Connected) {
        let (shared, name) = (self.shared.clone(), client.export.clone());
        self.shared.context.pool.run(move || done(shared.file(&name).map(Some)));
    }

    fn is_chosen_by_name(&self) -> bool {
        true
    }

    fn list(&self, _: &Client, done: Listed) {
        let shared = self.shared.clone();
        self.shared.context.pool.run(move || done(shared.names()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_that_of_an_entry() {
        for name in ["a", "a b", "...", "-", "ä"] {
            assert!(is_name(name), "{name}");
        }
        for name in ["", ".", "..", "/", "a/b", "../a", "/etc/passwd", "a\0"] {
            assert!(!is_name(name), "{name:?}");
        }
    }
}
