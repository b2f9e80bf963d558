//! The settings of the process in the system: its parent, its memory, its descriptors, the label of
//! its sockets.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

use rustix::mm::{MlockAllFlags, mlockall};
use rustix::process::{
    Pid, Resource, Rlimit, Signal, getppid, getrlimit, set_parent_process_death_signal, setrlimit,
};

use crate::failure::Failure;

/// Asks for a signal when the parent ends; `parent` is its process id at the start. It counts as
/// ended when the thread ends that started us (prctl(2)). Call it after a change of user, which
/// would undo it.
pub(super) fn exit_with_parent(parent: Option<Pid>) -> Result<(), Failure> {
    let say = |e: rustix::io::Errno| {
        Failure::new(format!("--exit-with-parent: {}", std::io::Error::from(e)))
    };
    set_parent_process_death_signal(Some(Signal::TERM)).map_err(say)?;
    if getppid() == parent {
        return Ok(());
    }
    Err(Failure::new("--exit-with-parent: the parent has ended already"))
}

/// Locks the pages that are there, now and later. Pages that were never touched are not filled: a
/// `memory` disk may be far larger than the memory.
pub(super) fn lock_memory() -> Result<(), Failure> {
    let flags = MlockAllFlags::CURRENT | MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT;
    mlockall(flags).map_err(|e| {
        let e = std::io::Error::from(e);
        Failure::new(format!("--swap: lock the memory: {e} (see `ulimit -l`)"))
    })
}

/// The limit of open descriptors before this process raised it.
#[derive(Debug)]
pub(super) struct Descriptors(Rlimit);

impl Descriptors {
    /// Raises the limit as far as the system allows: each client takes one.
    pub(super) fn allow() -> Self {
        let before = getrlimit(Resource::Nofile);
        set_limit(Rlimit { current: before.maximum, maximum: before.maximum });
        Self(before)
    }

    /// Runs `start`, which starts a program, with the limit as it was: there are programs that
    /// cannot have more (select(2)).
    pub(super) fn as_before<T>(&self, mut start: impl FnMut() -> io::Result<T>) -> io::Result<T> {
        let now = getrlimit(Resource::Nofile);
        set_limit(Rlimit { current: self.0.current, maximum: now.maximum });
        let started = start();
        set_limit(now);
        match started {
            // This process itself has more open than that.
            Err(e) if e.raw_os_error() == Some(rustix::io::Errno::MFILE.raw_os_error()) => start(),
            started => started,
        }
    }
}

fn set_limit(limit: Rlimit) {
    if getrlimit(Resource::Nofile).current != limit.current {
        // Without it fewer clients can be served.
        let _ = setrlimit(Resource::Nofile, limit);
    }
}

/// The file that sets the label of new sockets.
pub(super) const LABEL_FILE: &str = "/proc/thread-self/attr/sockcreate";

/// As long as this lives, sockets that this thread makes have a label.
#[derive(Debug)]
pub(super) struct Label(File);

impl Label {
    /// From now on.
    pub(super) fn set(label: &str) -> Result<Self, Failure> {
        if !Path::new("/sys/fs/selinux/enforce").exists() {
            return Err(Failure::new(format!(
                "--selinux-label {label}: this system runs without SELinux"
            )));
        }
        let say = |e: std::io::Error| Failure::new(format!("--selinux-label {label}: {e}"));
        let mut file = File::options().write(true).open(LABEL_FILE).map_err(say)?;
        file.write_all(label.as_bytes()).map_err(say)?;
        Ok(Self(file))
    }
}

impl Drop for Label {
    fn drop(&mut self) {
        // An empty write takes the label back (setsockcreatecon(3)); later sockets are clients.
        let _ = self.0.write(&[]);
    }
}
