//! What is logged of one client: always with its address and its export, and no more than a few lines
//! of errors, which it may cause as fast as it likes.

use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use device::Peer;

use super::{Level, Log};

/// Failed requests of one client that are told one by one; more are counted.
const FAILURES: u64 = 10;
/// Characters of an export's name; a client may ask for any.
const NAME: usize = 100;

/// The log, and the client it is about.
#[derive(Debug)]
pub(crate) struct Voice {
    log: Log,
    peer: String,
    export: OnceLock<String>,
    failures: AtomicU64,
}

impl Voice {
    pub(crate) fn new(log: Log, peer: &Peer) -> Self {
        let peer = address(Some(peer));
        Self { log, peer, export: OnceLock::new(), failures: AtomicU64::new(0) }
    }

    /// From now on lines name this export.
    pub(crate) fn chose(&self, export: &str) {
        // The first one stays: a client goes in once.
        let _ = self.export.set(export.to_owned());
    }

    /// Says one line.
    pub(crate) fn event(&self, level: Level, what: fmt::Arguments<'_>) {
        self.log.line(level, &self.peer, self.export.get().map(String::as_str), what);
    }

    /// Says that a request has failed, or only counts it when many have.
    pub(crate) fn failed(&self, what: fmt::Arguments<'_>) {
        match self.failures.fetch_add(1, Ordering::Relaxed) + 1 {
            1..FAILURES => self.event(Level::Error, what),
            FAILURES => {
                self.event(Level::Error, what);
                self.event(Level::Error, format_args!("further errors are only counted"));
            }
            _ => {}
        }
    }

    /// Says that the connection has ended, and why.
    pub(crate) fn ended(&self, why: impl fmt::Display) {
        let failures = self.failures.load(Ordering::Relaxed);
        if failures > FAILURES {
            self.event(Level::Error, format_args!("{failures} requests have failed in all"));
        }
        self.event(Level::Info, format_args!("ended: {why}"));
    }
}

/// A client's address, as one word.
pub(super) fn address(peer: Option<&Peer>) -> String {
    match peer {
        Some(Peer::Ip(address)) => address.to_string(),
        Some(Peer::Unix { credentials: Some(who) }) => format!("pid={},uid={}", who.pid, who.uid),
        Some(Peer::Vsock { cid, port }) => format!("vsock:{cid}:{port}"),
        Some(Peer::Unix { credentials: None } | Peer::Other) | None => "-".to_owned(),
    }
}

/// An export's name as one piece of a line, cut where it is too long.
pub(crate) fn quoted(name: &str) -> String {
    match name.char_indices().nth(NAME) {
        Some((end, _)) => format!("{:?}...", name.get(..end).unwrap_or_default()),
        None => format!("{name:?}"),
    }
}
