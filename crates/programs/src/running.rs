//! A program that runs, or has ended.

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ExitStatus};
use std::sync::{Mutex, PoisonError};

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, kill_process_group, waitpid};

use crate::helper;
use crate::system::ChildHandle;

/// A child of this process, however it was started. The code that started it waits for it: dropping
/// this does neither wait nor end it.
#[derive(Debug)]
pub struct Running {
    pid: Pid,
    process: ChildHandle,
    /// How it ended, once that was asked for.
    status: Mutex<Option<ExitStatus>>,
}

impl Running {
    pub(crate) fn child(child: &Child) -> io::Result<Self> {
        Self::of(Pid::from_child(child))
    }

    /// `pid` is a child that has not been waited for.
    pub(crate) fn of(pid: Pid) -> io::Result<Self> {
        match ChildHandle::of(pid) {
            Ok(process) => Ok(Self { pid, process, status: Mutex::new(None) }),
            Err(e) => {
                // Without one it could not be told to end. It has hardly begun, and the number is
                // still its own.
                let killed = match helper::asked() {
                    // A sandbox keeps signals inside.
                    Some(helper) => helper.signal(pid, Signal::KILL).is_ok(),
                    None => kill_process(pid, Signal::KILL).is_ok(),
                };
                // Nothing ends one that could not be killed; but it may have ended by itself.
                let how = if killed { WaitOptions::empty() } else { WaitOptions::NOHANG };
                let _ = waitpid(Some(pid), how);
                Err(e.into())
            }
        }
    }

    /// Its number, which is its own until it was waited for.
    #[must_use]
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// How it ended, if it has.
    pub fn try_wait(&self) -> io::Result<Option<ExitStatus>> {
        let mut status = self.status.lock().unwrap_or_else(PoisonError::into_inner);
        if status.is_none() {
            let ended = waitpid(Some(self.pid), WaitOptions::NOHANG)?;
            *status = ended.map(|(_, status)| ExitStatus::from_raw(status.as_raw()));
        }
        Ok(*status)
    }

    /// Waits until it has ended. Signals can be sent meanwhile.
    pub fn wait(&self) -> io::Result<ExitStatus> {
        loop {
            match self.process.ended() {
                Ok(()) | Err(Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
            if let Some(status) = self.try_wait()? {
                return Ok(status);
            }
        }
    }

    /// Sends it a signal, which never means another process, also when it has ended.
    ///
    /// # Errors
    /// The system refuses; that it has ended is one.
    pub fn signal(&self, signal: Signal) -> io::Result<()> {
        match helper::asked() {
            // A sandbox keeps signals inside.
            Some(helper) => helper.signal(self.pid, signal),
            None => Ok(self.process.signal(signal)?),
        }
    }

    /// Kills it and all that it has started, as far as that has stayed in its process group: a
    /// program that [is apart](crate::Program::is_apart), and has not been waited for. It may have
    /// ended.
    ///
    /// # Errors
    /// The system refuses; that it was waited for is one.
    pub fn kill_group(&self) -> io::Result<()> {
        // While this is held, nothing waits for it, and its number is its own.
        let status = self.status.lock().unwrap_or_else(PoisonError::into_inner);
        if status.is_some() {
            return Err(Errno::SRCH.into());
        }
        match helper::asked() {
            Some(helper) => helper.kill_group(self.pid),
            None => Ok(kill_process_group(self.pid, Signal::KILL)?),
        }
    }
}
