//! TLS over a [`Stream`]: our credentials, trust, the handshake, and the encrypted
//! session.
//!
//! s2n-tls does the cryptography, on buffers in memory; the descriptor stays ours. An [`Acceptor`]
//! configures a server, a [`Connector`] a client, each with certificates or with pre-shared keys
//! (PSK), never with both: otherwise an unknown user could be treated like one with a certificate.
//! A [`Handshake`] never waits. When it has succeeded, the stream encrypts.
//!
//! TLS 1.3, and 1.2 for certificates; forward secrecy and authenticated ciphers only, AES-128-GCM
//! first. No session is resumed, nothing is sent ahead of the handshake, nothing is renegotiated. A
//! client never accepts less than it asked for, and never goes on in clear text.
//!
//! - `credentials.rs`: the files, with nbdkit's and libnbd's names. `authorities.rs`: those that
//!   are named one by one, and the system's.
//! - `memory.rs`: the buffers that the library reads and writes. All `unsafe` is there.
//! - `setup.rs`: what is negotiated. `handshake.rs`, `session.rs`, `outbound.rs`: the handshake,
//!   and what follows.
//! - `demands.rs`: what is checked of a peer besides, with `host.rs`, the host that a certificate
//!   is for. `names.rs`: its subject. `certificate.rs`: its fields.
//!
//! Without the feature `tls` only a refusal is left (`absent.rs`).

#[cfg(feature = "tls")]
mod authorities;
#[cfg(feature = "tls")]
mod certificate;
#[cfg(feature = "tls")]
mod credentials;
#[cfg(feature = "tls")]
mod demands;
#[cfg(feature = "tls")]
mod handshake;
#[cfg(feature = "tls")]
mod host;
#[cfg(feature = "tls")]
mod memory;
#[cfg(feature = "tls")]
mod names;
#[cfg(feature = "tls")]
mod outbound;
#[cfg(feature = "tls")]
mod session;
#[cfg(feature = "tls")]
mod setup;
#[cfg(test)]
mod tests;

#[cfg(not(feature = "tls"))]
mod absent;

use std::path::PathBuf;
use std::time::Duration;

use device::{Error, Result};

use crate::{Stream, Until};

#[cfg(not(feature = "tls"))]
pub(crate) use absent::TlsSession;
#[cfg(not(feature = "tls"))]
pub use absent::{Acceptor, Connector, Handshake};
#[cfg(feature = "tls")]
pub use handshake::Handshake;
#[cfg(feature = "tls")]
pub(crate) use session::TlsSession;
#[cfg(feature = "tls")]
pub use setup::{Acceptor, Connector};

/// Where systems keep the authorities that they trust.
const AUTHORITIES: [&str; 5] = [
    "/etc/ssl",
    "/etc/pki",
    "/usr/lib/ssl",
    "/usr/share/ca-certificates",
    "/usr/local/share/ca-certificates",
];

/// What a server shows, and what it requires of clients.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Serving {
    /// A certificate: `server-cert.pem` and `server-key.pem` in the directory, or in nbdkit's.
    Certificates {
        /// `None`: nbdkit's directories.
        directory: Option<PathBuf>,
        /// A client must have a certificate signed by `ca-cert.pem`.
        verify_peer: bool,
    },
    /// Keys that users know: lines `user:hexadecimal` of this file, or of the variable in
    /// `-env:NAME`.
    Keys(PathBuf),
}

impl Serving {
    /// The files that are read, as far as they are there.
    #[must_use]
    pub fn files(&self) -> Vec<PathBuf> {
        let directories = match self {
            Self::Keys(file) => return vec![file.clone()],
            Self::Certificates { directory: Some(directory), .. } => vec![directory.clone()],
            Self::Certificates { directory: None, .. } => places("nbdkit"),
        };
        let names = ["server-cert.pem", "server-key.pem", "ca-cert.pem"];
        directories.iter().flat_map(|one| names.map(|name| one.join(name))).collect()
    }
}

/// Whom a client trusts, and what it shows.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Calling {
    /// The server has a certificate.
    Certificates {
        /// Where `ca-cert.pem` is, and `client-cert.pem` and `client-key.pem` if we have one.
        /// `None`: libnbd's directories, and if there are none, the authorities that the system
        /// trusts.
        directory: Option<PathBuf>,
        /// The name that it must be for.
        host: Option<String>,
        /// Whether it must be verified at all.
        verify_peer: bool,
    },
    /// A key that is shared with the server, of a file as that of [`Serving::Keys`].
    Keys {
        /// The file.
        file: PathBuf,
        /// Its user; without it the only one in the file, or that of `$USER`.
        user: Option<String>,
    },
}

/// A client's certificates, file by file, for servers of any name: see [`Connector::for_host`].
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct CertificateFiles {
    /// Who may have signed the server's certificate.
    pub trust: Trust,
    /// The parameters that name authorities, for the message that none is trusted.
    pub advice: &'static str,
    /// Our certificate and its key, which may be in one file.
    pub ours: Option<(PathBuf, PathBuf)>,
    /// The versions that may be negotiated.
    pub versions: TlsVersions,
    /// What is spoken under TLS, by its name in ALPN.
    pub protocol: &'static str,
}

/// The authorities that a client trusts.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Trust {
    /// The server's certificate is not verified.
    Anyone,
    /// Those that the system trusts, or those of `SSL_CERT_FILE` and `SSL_CERT_DIR`.
    System,
    /// Those of a file, which has to have some, and of the files of a directory.
    Named {
        /// The file.
        file: Option<PathBuf>,
        /// The directory.
        directory: Option<PathBuf>,
    },
}

/// Versions of TLS.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum TlsVersions {
    /// 1.2 and 1.3.
    Both,
    /// Only 1.2.
    Only12,
    /// Only 1.3.
    Only13,
}

impl Connector {
    /// Makes a stream encrypt that does not yet.
    ///
    /// # Errors
    /// The server is not trusted or does not trust us, nothing is common, or `until` has passed.
    /// The stream is not to be used any more.
    pub fn encrypt(&self, stream: &Stream, until: Until) -> Result<()> {
        let mut handshake = self.connect()?;
        loop {
            match handshake.advance(stream) {
                Ok(HandshakeProgress::Done) => return Ok(()),
                Ok(HandshakeProgress::Waits { room: true }) => until.writable(stream)?,
                Ok(HandshakeProgress::Waits { room: false }) => until.readable(stream)?,
                Err(failed) => {
                    // Where the server must not learn at once what was wrong, it sees only the end.
                    if failed.delay.is_zero() {
                        handshake.farewell(stream);
                    }
                    return Err(failed.why);
                }
            }
        }
    }
}

/// Where a client looks for certificates by default.
#[must_use]
pub fn certificate_places() -> Vec<PathBuf> {
    places("libnbd")
}

/// Where the authorities that the system trusts may be, with what links among them lead to.
#[must_use]
pub fn authority_places() -> Vec<PathBuf> {
    let file = std::env::var_os("SSL_CERT_FILE").map(PathBuf::from);
    let directories = std::env::var_os("SSL_CERT_DIR");
    let directories = directories.iter().flat_map(std::env::split_paths);
    file.into_iter().chain(directories).chain(AUTHORITIES.map(PathBuf::from)).collect()
}

/// Where certificates for `program` are looked for.
fn places(program: &str) -> Vec<PathBuf> {
    if rustix::process::geteuid().is_root() {
        return vec![PathBuf::from(format!("/etc/pki/{program}"))];
    }
    let home = std::env::var_os("HOME").filter(|home| !home.is_empty()).map(PathBuf::from);
    let below = home.map(|home| [home.join(".pki"), home.join(".config/pki")]);
    below.into_iter().flatten().map(|place| place.join(program)).collect()
}

/// How far a handshake has come.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum HandshakeProgress {
    /// The stream encrypts from now on.
    Done,
    /// The peer has to send something first, or, if so, to read something.
    Waits {
        /// For room in the socket.
        room: bool,
    },
}

/// A handshake that failed.
#[derive(Debug)]
pub struct FailedHandshake {
    /// Why.
    pub why: Error,
    /// How long to wait before the peer may learn of it, or see the connection end: the timing must
    /// not reveal what exactly was wrong.
    pub delay: Duration,
}
