//! Messages to the service manager: ready, stopping, reloading, and that the server is well
//! (sd_notify(3)).
//!
//! A message is one datagram to the socket that NOTIFY_SOCKET names: a path, or, behind an `@`, a
//! name without a file. Without it nothing is sent. A message that cannot be sent within a second
//! is dropped, and nothing fails because of it.

use std::ffi::OsStr;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::Arc;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use server::ServerHandle;

use crate::failure::Failure;

/// How long a message may wait for a manager that does not read.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long the manager is asked to wait after each message that a stop makes progress: longer than
/// a stop may stand still.
const STOP: Duration = Duration::from_secs(60);

/// The way to the service manager, if there is one. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(super) struct Notify(Option<Arc<Way>>);

#[derive(Debug)]
struct Way {
    socket: UnixDatagram,
    address: SocketAddr,
}

impl Notify {
    /// The one that the environment names. Call it before there is a sandbox.
    ///
    /// # Errors
    /// Its name is of an unknown form; or a socket cannot be made.
    pub(super) fn from_environment() -> Result<Self, Failure> {
        let Some(name) = std::env::var_os("NOTIFY_SOCKET") else { return Ok(Self::default()) };
        let say = |e: std::io::Error| {
            Failure::new(format!("NOTIFY_SOCKET={}: {e}", name.to_string_lossy()))
        };
        let address = address(&name).map_err(say)?;
        let socket = UnixDatagram::unbound().map_err(say)?;
        socket.set_write_timeout(Some(PATIENCE)).map_err(say)?;
        if address.as_abstract_name().is_some() {
            // A sandbox leaves no way to other abstract names than those that are connected. A
            // manager that is not there is no error.
            let _ = socket.connect_addr(&address);
        }
        Ok(Self(Some(Arc::new(Way { socket, address }))))
    }

    /// Whether there is one.
    pub(super) fn is_there(&self) -> bool {
        self.0.is_some()
    }

    /// Says one message: assignments, one in a line.
    fn say(&self, message: &str) {
        if let Some(way) = &self.0 {
            // A manager that has gone away makes no difference to clients.
            let _ = way.socket.send_to_addr(message.as_bytes(), &way.address);
        }
    }

    /// Clients can connect; `status` is for people.
    pub(super) fn ready(&self, status: &str) {
        self.say(&format!("READY=1\nSTATUS={}", one_line(status)));
    }

    /// What may change is being read again; [`Notify::ready`] says that it is done.
    pub(super) fn reloading(&self) {
        let now = clock_gettime(ClockId::Monotonic);
        let micros = i128::from(now.tv_sec) * 1_000_000 + i128::from(now.tv_nsec) / 1000;
        self.say(&format!("RELOADING=1\nMONOTONIC_USEC={micros}\nSTATUS=reloading"));
    }

    /// The server is stopping.
    pub(super) fn stopping(&self) {
        self.say(&format!("STOPPING=1\nSTATUS=stopping\n{}", extension()));
    }

    /// The stop makes progress, and needs more time.
    pub(super) fn goes_on(&self) {
        self.say(&extension());
    }

    /// From now on feeds the watchdog, as often as the manager wants, while the server is well.
    pub(super) fn watch(&self, server: ServerHandle) -> Result<(), Failure> {
        let Some(interval) = self.interval() else { return Ok(()) };
        // Waiting for the answer and for the next time takes less than half of it.
        let (me, pause) = (self.clone(), interval / 4);
        let thread = std::thread::Builder::new().name("watchdog".into());
        let watched = thread.spawn(move || {
            loop {
                if server.is_well(pause) {
                    me.say("WATCHDOG=1");
                }
                std::thread::sleep(pause);
            }
        });
        watched.map(drop).map_err(|e| Failure::new(format!("WATCHDOG_USEC: start a thread: {e}")))
    }

    /// How often the watchdog is to be fed, if there is one.
    fn interval(&self) -> Option<Duration> {
        self.0.as_ref()?;
        let number = |name| std::env::var(name).ok()?.parse::<u64>().ok();
        if number("WATCHDOG_PID").is_some_and(|pid| pid != u64::from(std::process::id())) {
            return None;
        }
        number("WATCHDOG_USEC").filter(|micros| *micros > 0).map(Duration::from_micros)
    }
}

fn extension() -> String {
    format!("EXTEND_TIMEOUT_USEC={}", STOP.as_micros())
}

/// A value must not become an assignment of its own.
fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

fn address(name: &OsStr) -> std::io::Result<SocketAddr> {
    match name.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name),
        [b'/', ..] => SocketAddr::from_pathname(name),
        _ => Err(std::io::Error::other("it must be an absolute path, or @ and a name")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manager_is_reached_by_a_path_and_by_a_name_without_a_file() {
        let path = std::env::temp_dir().join(format!("diskferry-notify-{}", std::process::id()));
        let name = format!("@diskferry-notify-{}", std::process::id());
        for name in [path.as_os_str(), OsStr::new(&name)] {
            let address = address(name).unwrap();
            let manager = UnixDatagram::bind_addr(&address).unwrap();
            let socket = UnixDatagram::unbound().unwrap();
            let notify = Notify(Some(Arc::new(Way { socket, address })));
            notify.ready("two\nMAINPID=1");
            let mut message = [0; 100];
            let n = manager.recv(&mut message).unwrap();
            assert_eq!(&message[..n], b"READY=1\nSTATUS=two MAINPID=1");
            drop(manager);
            // It has no listener any more.
            notify.stopping();
        }
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn other_addresses_are_refused() {
        for name in ["", "relative", "vsock:2:1234"] {
            assert!(address(OsStr::new(name)).is_err(), "{name}");
        }
    }
}
