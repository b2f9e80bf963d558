//! Where lines go: standard error, the system log, a file, or nowhere. What is done here may wait.

use std::fs::File;
use std::io::Write;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use device::{Error, Result, timestamp};

use super::Level;

/// Where the system log listens.
pub(super) const SYSLOG: &str = "/dev/log";
/// The facility of daemons (RFC 3164).
const DAEMON: u8 = 3 << 3;

/// A place for lines.
#[derive(Debug)]
pub(super) enum Outlet {
    Stderr,
    File { path: PathBuf, file: File },
    Nowhere,
    Syslog(UnixDatagram),
}

/// One line, without its end.
#[derive(Debug)]
pub(super) struct Line {
    pub(super) time: SystemTime,
    pub(super) level: Level,
    pub(super) text: String,
}

impl Outlet {
    pub(super) fn file(path: &Path) -> Result<Self> {
        Ok(Self::File { file: append_to(path)?, path: path.to_owned() })
    }

    pub(super) fn syslog(path: &Path) -> Result<Self> {
        let say = |e| Error::os("reach the system log", e).on(path.display());
        let socket = UnixDatagram::unbound().map_err(say)?;
        socket.connect(path).map_err(say)?;
        // A log that does not keep up loses lines.
        socket.set_nonblocking(true).map_err(say)?;
        Ok(Self::Syslog(socket))
    }

    /// Opens a file again, which may have got another name meanwhile.
    pub(super) fn reopen(&mut self) -> Result<()> {
        if let Self::File { path, file } = self {
            *file = append_to(path)?;
        }
        Ok(())
    }

    /// Writes a line, in one call, so that lines of several programs do not mix. One that cannot be
    /// written is lost; a reader that has gone away does no harm.
    pub(super) fn write(&mut self, line: &Line) {
        let Line { time, level, text } = line;
        match self {
            Self::Stderr => {
                let line = format!("diskferry: {} {level} {text}\n", timestamp(*time));
                let mut rest = line.as_bytes();
                // Not through the library's lock, which others wait for when the pipe is not read.
                while let Ok(n) =
                    rustix::io::retry_on_intr(|| rustix::io::write(rustix::stdio::stderr(), rest))
                {
                    rest = rest.get(n..).unwrap_or_default();
                    if n == 0 || rest.is_empty() {
                        break;
                    }
                }
            }
            Self::File { file, .. } => {
                let line = format!("{} {level} {text}\n", timestamp(*time));
                let _ = file.write_all(line.as_bytes());
            }
            Self::Syslog(socket) => {
                let (priority, id) = (DAEMON | level.severity(), std::process::id());
                let line = format!("<{priority}>diskferry[{id}]: {level} {text}");
                let _ = socket.send(line.as_bytes());
            }
            Self::Nowhere => {}
        }
    }
}

fn append_to(path: &Path) -> Result<File> {
    let file = File::options().append(true).create(true).open(path);
    file.map_err(|e| Error::os("open the log", e).on(path.display()))
}
