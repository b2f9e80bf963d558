//! TLS, where the program was built without it: every request for it is refused.

use std::convert::Infallible;
use std::io::IoSliceMut;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use device::{Error, Identity, Result};

use super::{Calling, CertificateFiles, FailedHandshake, HandshakeProgress, Serving};
use crate::stream::{Received, Stream};

/// A server's settings: there are none.
#[derive(Clone, Debug)]
pub struct Acceptor(Infallible);

/// A client's settings: there are none.
#[derive(Clone, Debug)]
pub struct Connector(Infallible);

/// A handshake: there is none.
#[derive(Debug)]
pub struct Handshake(Infallible);

#[derive(Debug)]
pub(crate) struct TlsSession(Infallible);

fn absent() -> Error {
    Error::unsupported("TLS: this program was built without it")
}

impl Acceptor {
    /// Refuses.
    ///
    /// # Errors
    /// Always.
    pub fn new(_serving: &Serving) -> Result<Self> {
        Err(absent())
    }

    /// The user whose key it takes.
    #[must_use]
    pub fn only_user(&self) -> Option<&str> {
        match self.0 {}
    }

    /// Begins a handshake with a client.
    pub fn accept(&self) -> Result<Handshake> {
        match self.0 {}
    }
}

impl Connector {
    /// Refuses.
    ///
    /// # Errors
    /// Always.
    pub fn new(_calling: &Calling) -> Result<Self> {
        Err(absent())
    }

    /// Refuses.
    ///
    /// # Errors
    /// Always.
    pub fn of_files(_files: &CertificateFiles) -> Result<Self> {
        Err(absent())
    }

    /// The same for the server `host`.
    #[must_use]
    pub fn for_host(&self, _host: &str) -> Self {
        match self.0 {}
    }

    /// Begins a handshake with a server.
    pub fn connect(&self) -> Result<Handshake> {
        match self.0 {}
    }
}

impl Serving {
    /// Warnings: none.
    #[must_use]
    pub fn warning(&self) -> Option<String> {
        None
    }
}

impl Handshake {
    /// Continues as far as it can.
    pub fn advance(
        &mut self,
        _stream: &Stream,
    ) -> std::result::Result<HandshakeProgress, FailedHandshake> {
        match self.0 {}
    }

    /// Tells the peer that it failed.
    pub fn farewell(&mut self, _stream: &Stream) {
        match self.0 {}
    }
}

/// Methods that no session is there to be asked for.
macro_rules! never {
    ($($name:ident($($argument:ty),*) -> $answer:ty;)*) => {
        impl TlsSession {
            $(pub(crate) fn $name(&self, $(_: $argument),*) -> $answer {
                match self.0 {}
            })*
        }
    };
}

never! {
    identity() -> &Arc<Identity>;
    agreed() -> &str;
    why() -> Option<String>;
    holds() -> bool;
    held() -> u64;
    receive(&OwnedFd, &mut [u8]) -> rustix::io::Result<Received>;
    receive_scattered(&OwnedFd, &mut [IoSliceMut<'_>]) -> rustix::io::Result<Received>;
    unsent() -> u64;
    carried() -> u64;
    end(&OwnedFd) -> ();
}

impl TlsSession {
    pub(crate) fn send_gathered<'a>(
        &self,
        _: &OwnedFd,
        _: impl IntoIterator<Item = &'a [u8]>,
        _: usize,
    ) -> rustix::io::Result<usize> {
        match self.0 {}
    }
}
