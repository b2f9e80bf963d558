//! What a device may know of a client that has chosen it.

use std::net::SocketAddr;
use std::sync::Arc;

use runtime::Mutex;

/// Where a client comes from.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Peer {
    /// TCP.
    Ip(SocketAddr),
    /// A Unix socket; the process that connected, where the system reports it (SO_PEERCRED).
    Unix {
        /// Process, user and group.
        credentials: Option<Credentials>,
    },
    /// A virtual machine, or its host.
    Vsock {
        /// The machine.
        cid: u32,
        /// Its port.
        port: u32,
    },
    /// Anything else: a pair of pipes, say.
    Other,
}

/// The process that connected to a Unix socket, as it was then.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Credentials {
    /// The process.
    pub pid: u32,
    /// Its effective user.
    pub uid: u32,
    /// Its effective group.
    pub gid: u32,
}

/// The identity that the other end of an encrypted connection has shown; unknown if all is `None`.
/// Names of certificates are as RFC 4514 writes them, the last part first (`CN=host,O=Company`).
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Identity {
    /// The subject of its certificate.
    pub subject: Option<String>,
    /// The issuer of its certificate.
    pub issuer: Option<String>,
    /// The user whose shared key it used.
    pub user: Option<String>,
}

/// A client that has chosen an export.
#[derive(Clone, Debug)]
pub struct Client {
    /// Counts the connections of the server, from 1.
    pub number: u64,
    /// Where it comes from.
    pub peer: Peer,
    /// The export name it asked for.
    pub export: String,
    /// The identity that it has shown, if the connection is encrypted.
    pub tls: Option<Arc<Identity>>,
    /// Whether it is still there.
    pub presence: Presence,
}

/// Whether a client is still there. Cheap to clone; all clones are one. The server reports when it
/// has closed the connection. An operation that waits only for this client (for a timer, or for its
/// turn) should then end with an error; what has begun goes on.
#[derive(Clone, Default)]
pub struct Presence(Arc<Mutex<Leaving>>);

/// The jobs to run when the client leaves; `None` when it has left.
struct Leaving(Option<Vec<Box<dyn FnOnce() + Send>>>);

impl Default for Leaving {
    fn default() -> Self {
        Self(Some(Vec::new()))
    }
}

runtime::debug_as!(Presence);

impl Presence {
    /// Runs `job` when the client leaves; at once if it has left. It must be short and must not
    /// block, and should own nothing that the client holds.
    pub fn on_leaving(&self, job: impl FnOnce() + Send + 'static) {
        let mut leaving = self.0.lock();
        if let Some(jobs) = &mut leaving.0 {
            return jobs.push(Box::new(job));
        }
        drop(leaving);
        job();
    }

    /// The client has left.
    pub fn leave(&self) {
        let jobs = self.0.lock().0.take();
        // Upper filters first: they were connected last, and pass requests that wait to those
        // below.
        jobs.into_iter().flatten().rev().for_each(|job| job());
    }
}
