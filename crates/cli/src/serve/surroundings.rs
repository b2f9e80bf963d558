//! What a server arranges with the system around it: its parent, its memory, its descriptors,
//! the label of its sockets.

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

/// Keeps in memory what is there, now and later. What was never touched is not filled in: a disk in
/// memory may be far larger than what there is.
pub(super) fn lock_memory() -> Result<(), Failure> {
    let flags = MlockAllFlags::CURRENT | MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT;
    mlockall(flags).map_err(|e| {
        let e = std::io::Error::from(e);
        Failure::new(format!("--swap: lock the memory: {e} (see `ulimit -l`)"))
    })
}

/// How many descriptors this process was allowed before it allowed itself more.
#[derive(Debug)]
pub(super) struct Descriptors(Rlimit);

impl Descriptors {
    /// Allows this process as many as the system lets it have: each client takes one.
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
            // We hold more than that ourselves.
            Err(e) if e.raw_os_error() == Some(rustix::io::Errno::MFILE.raw_os_error()) => start(),
            started => started,
        }
    }
}

fn set_limit(limit: Rlimit) {
    if getrlimit(Resource::Nofile).current != limit.current {
        // Without it fewer clients find room.
        let _ = setrlimit(Resource::Nofile, limit);
    }
}

/// Where the label of new sockets is written.
pub(super) const LABEL_FILE: &str = "/proc/thread-self/attr/sockcreate";

/// Sockets that this thread makes until it is dropped have a label.
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
