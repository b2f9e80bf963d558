//! Where a server says what it cannot say to a client: standard error, the system log, a file, or
//! nowhere.
//!
//! A line that cannot be written is lost; nobody is harmed by a reader that has gone away.

use std::fmt;
use std::fs::File;
use std::io::Write;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::sync::Arc;

use device::{Error, Result};

/// Where the system log listens.
const SYSLOG: &str = "/dev/log";
/// A daemon's error: facility 3, severity 3 (RFC 3164).
const DAEMON_ERROR: u8 = 3 << 3 | 3;

/// A place for lines. Cheap to clone; all clones share.
#[derive(Clone, Debug, Default)]
pub struct Log(Arc<To>);

#[derive(Debug, Default)]
enum To {
    #[default]
    Stderr,
    File(File),
    Nowhere,
    Syslog(UnixDatagram),
}

impl Log {
    /// Standard error, where the program's name begins each line.
    #[must_use]
    pub fn stderr() -> Self {
        Self::default()
    }

    /// Nowhere.
    #[must_use]
    pub fn nowhere() -> Self {
        Self(Arc::new(To::Nowhere))
    }

    /// The end of a file, which is made if need be.
    ///
    /// # Errors
    /// It cannot be opened.
    pub fn file(path: &Path) -> Result<Self> {
        let file = File::options().append(true).create(true).open(path);
        let file = file.map_err(|e| Error::os("open the log", e).on(path.display()))?;
        Ok(Self(Arc::new(To::File(file))))
    }

    /// The system log.
    ///
    /// # Errors
    /// Nobody listens there.
    pub fn syslog() -> Result<Self> {
        Self::syslog_at(Path::new(SYSLOG))
    }

    fn syslog_at(path: &Path) -> Result<Self> {
        let say = |e| Error::os("reach the system log", e).on(path.display());
        let socket = UnixDatagram::unbound().map_err(say)?;
        socket.connect(path).map_err(say)?;
        // A log that does not keep up loses lines; a server must not wait for it.
        socket.set_nonblocking(true).map_err(say)?;
        Ok(Self(Arc::new(To::Syslog(socket))))
    }

    /// Says one line.
    pub fn say(&self, what: fmt::Arguments<'_>) {
        let line = format!("diskferry: {what}\n");
        // One call a line, so that lines of several threads do not mix.
        let _ = match &*self.0 {
            To::Stderr => std::io::stderr().write_all(line.as_bytes()),
            To::File(file) => (&mut &*file).write_all(line.as_bytes()),
            To::Syslog(socket) => {
                let id = std::process::id();
                socket.send(format!("<{DAEMON_ERROR}>diskferry[{id}]: {what}").as_bytes()).map(drop)
            }
            To::Nowhere => Ok(()),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scratch(name: &str) -> std::path::PathBuf {
        std::env::temp_dir().join(format!("diskferry-log-{}-{name}", std::process::id()))
    }

    #[test]
    fn a_file_keeps_what_it_had_and_gets_whole_lines() {
        let path = scratch("file");
        std::fs::write(&path, "before\n").unwrap();
        let log = Log::file(&path).unwrap();
        log.say(format_args!("one"));
        log.clone().say(format_args!("two"));
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(text, "before\ndiskferry: one\ndiskferry: two\n");
    }

    #[test]
    fn the_system_log_gets_a_datagram_a_line_with_its_priority() {
        let path = scratch("syslog");
        let listener = UnixDatagram::bind(&path).unwrap();
        let log = Log::syslog_at(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        log.say(format_args!("a peer misbehaved"));
        let mut line = [0; 100];
        let n = listener.recv(&mut line).unwrap();
        let id = std::process::id();
        assert_eq!(&line[..n], format!("<27>diskferry[{id}]: a peer misbehaved").as_bytes());
        // A log that went away harms nobody.
        drop(listener);
        log.say(format_args!("lost"));
        assert!(Log::syslog_at(&path).is_err());
    }
}
