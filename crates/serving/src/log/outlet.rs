//! Where lines go: standard error, the system log, a file, or nowhere. These calls may block.

use std::fs::File;
use std::io::Write;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};

use device::{Error, Result};
use rustix::fs::fstat;

use super::line::{Line, LogFormat};

/// The socket of the system log.
pub(super) const SYSLOG: &str = "/dev/log";
/// The facility of daemons (RFC 3164).
const DAEMON: u8 = 3 << 3;

/// A destination for lines.
#[derive(Debug)]
pub(super) enum Outlet {
    Stderr {
        /// systemd's journal reads it.
        is_journal: bool,
    },
    File {
        path: PathBuf,
        file: File,
    },
    Nowhere,
    Syslog(UnixDatagram),
}

/// Whether standard error leads to systemd's journal, as JOURNAL_STREAM says (systemd.exec(5)).
#[must_use]
pub fn stderr_is_journal() -> bool {
    let Ok(named) = std::env::var("JOURNAL_STREAM") else { return false };
    // It may be another standard error by now: the variable is inherited.
    fstat(rustix::stdio::stderr()).is_ok_and(|at| named == format!("{}:{}", at.st_dev, at.st_ino))
}

impl Outlet {
    pub(super) fn file(path: &Path) -> Result<Self> {
        Ok(Self::File { file: append_to(path)?, path: path.to_owned() })
    }

    pub(super) fn syslog(path: &Path) -> Result<Self> {
        let say = |e| Error::os("reach the system log", e).on(path.display());
        let socket = UnixDatagram::unbound().map_err(say)?;
        socket.connect(path).map_err(say)?;
        // A log that is too slow loses lines.
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
    pub(super) fn write(&mut self, line: &Line, format: LogFormat, name: &str) {
        let text = match (format, &*self) {
            (_, Self::Nowhere) => return,
            (LogFormat::Json, _) => line.json(),
            // These have the time by themselves.
            (_, Self::Stderr { is_journal: true } | Self::Syslog(_)) => line.said(),
            (_, Self::Stderr { .. } | Self::File { .. }) => line.timed(),
        };
        let severity = line.level.severity();
        match self {
            // The journal takes the number for the priority.
            Self::Stderr { is_journal: true } => to_stderr(&format!("<{severity}>{text}\n")),
            Self::Stderr { .. } if format == LogFormat::Text => {
                to_stderr(&format!("{name}: {text}\n"));
            }
            Self::Stderr { .. } => to_stderr(&(text + "\n")),
            Self::File { file, .. } => _ = file.write_all((text + "\n").as_bytes()),
            Self::Syslog(socket) => {
                let (priority, id) = (DAEMON | severity, std::process::id());
                _ = socket.send(format!("<{priority}>{name}[{id}]: {text}").as_bytes());
            }
            Self::Nowhere => {}
        }
    }
}

/// Not through the library's lock, which others wait for when the pipe is not read.
fn to_stderr(text: &str) {
    let mut rest = text.as_bytes();
    while let Ok(n) = rustix::io::retry_on_intr(|| rustix::io::write(rustix::stdio::stderr(), rest))
    {
        rest = rest.get(n..).unwrap_or_default();
        if n == 0 || rest.is_empty() {
            break;
        }
    }
}

fn append_to(path: &Path) -> Result<File> {
    let file = programs::names::append(path).map(File::from);
    file.map_err(|e| Error::os("open the log", e).on(path.display()))
}
