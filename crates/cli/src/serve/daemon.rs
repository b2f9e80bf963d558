//! Going into the background: the parent stays until the child serves, and then says so by its
//! exit status.
//!
//! Uses `unsafe` to fork, which no safe library offers, because a child of a process with
//! threads may do almost nothing. It is called before any thread is made.
#![expect(unsafe_code, reason = "see above")]

use std::fs::File;
use std::io::{PipeWriter, Read, Write};

use crate::failure::Failure;

/// The child's way to tell the parent that it serves.
#[derive(Debug)]
pub(super) struct Ready(PipeWriter);

/// Forks; returns in the child, in a session of its own. The parent ends here.
pub(super) fn detach() -> Result<Ready, Failure> {
    let say = |e: std::io::Error| Failure::new(format!("--daemon: {e}"));
    // Closed in the programs that the child starts, and in its helper: else a start that fails
    // would be noticed when they end.
    let (mut reader, writer) = std::io::pipe().map_err(say)?;
    // SAFETY: no other thread exists yet, so the child may go on as the parent would.
    match unsafe { libc::fork() } {
        -1 => Err(say(std::io::Error::last_os_error())),
        0 => {
            drop(reader);
            rustix::process::setsid().map_err(|e| say(e.into()))?;
            Ok(Ready(writer))
        }
        _ => {
            drop(writer);
            let mut byte = [0];
            let served = reader.read_exact(&mut byte).is_ok();
            // The child has reported the error.
            std::process::exit(i32::from(!served));
        }
    }
}

impl Ready {
    /// Lets the parent exit, and leaves the terminal.
    pub(super) fn announce(mut self) -> Result<(), Failure> {
        let say = |e: std::io::Error| Failure::new(format!("--daemon: {e}"));
        let null = File::options().read(true).write(true).open("/dev/null").map_err(say)?;
        rustix::stdio::dup2_stdin(&null).map_err(|e| say(e.into()))?;
        rustix::stdio::dup2_stdout(&null).map_err(|e| say(e.into()))?;
        self.0.write_all(&[1]).map_err(say)?;
        rustix::stdio::dup2_stderr(&null).map_err(|e| say(e.into()))
    }
}
