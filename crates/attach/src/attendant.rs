//! The attendant: a second process of this program, which detaches where this one cannot. It holds
//! the other end of a pipe, and is neither in the sandbox nor of another user; a signal to the
//! group or a kill of this process does not reach it.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use device::{Error, Result};

/// Detaches what is at a point when this process ends or drops this, or, where the point outlives
/// that, when it is asked to.
#[derive(Debug)]
pub(crate) struct Attendant(Child);

impl Attendant {
    /// Starts it; a file at the point that `is_made` is removed at the end.
    ///
    /// # Errors
    /// The system does not let us start it.
    pub(crate) fn start(point: &Path, is_made: bool) -> Result<Self> {
        let mut command = Command::new("/proc/self/exe");
        command.arg0("diskferry").args(["detach", "--when-closed"]);
        if is_made {
            command.arg("--remove");
        }
        let null = || Stdio::null();
        command.arg("--").arg(point).stdin(Stdio::piped()).stdout(null()).stderr(null());
        let child = command.process_group(0).spawn();
        child
            .map(Self)
            .map_err(|e| Error::os("attach: start the process that detaches at the end", e))
    }

    /// Asks it to detach; whether that has succeeded.
    pub(crate) fn ask(&mut self) -> bool {
        if let Some(mut pipe) = self.0.stdin.take() {
            // It fails if it has gone.
            let _ = pipe.write_all(b"\n");
        }
        self.0.wait().is_ok_and(|status| status.success())
    }
}

impl Drop for Attendant {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        // What it could not do is seen in the table of mounts.
        let _ = self.0.wait();
    }
}
