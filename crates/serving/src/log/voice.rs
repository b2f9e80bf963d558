//! What is logged of one client: always with its address and its export, and no more than a few
//! lines of errors, which it may cause as fast as it likes.

use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use device::{OperationKind, Peer, format_size};

use super::{ServerLog, Severity};
use crate::present::ClientStatus;

/// Failed requests of one client that are logged one by one; more are counted.
const FAILURES: u64 = 10;
/// Characters of an export's name; a client may ask for any.
const NAME: usize = 100;

/// The log, and the client it is about.
#[derive(Debug)]
pub struct Voice {
    log: ServerLog,
    peer: Option<String>,
    export: OnceLock<String>,
    failures: AtomicU64,
    asked: Asked,
}

/// What a client has asked for so far. One thread counts requests at a time: that which serves it.
#[derive(Debug)]
struct Asked {
    since: Instant,
    requests: AtomicU64,
    /// Bytes.
    read: AtomicU64,
    written: AtomicU64,
    /// Replies that were errors. Any thread counts them.
    errors: AtomicU64,
}

impl Asked {
    fn new() -> Self {
        let [requests, read, written, errors] = [0; 4].map(AtomicU64::new);
        Self { since: Instant::now(), requests, read, written, errors }
    }

    fn request(&self, kind: Option<OperationKind>, bytes: u64) {
        let add = |count: &AtomicU64, more: u64| {
            let sum = count.load(Ordering::Relaxed).saturating_add(more);
            count.store(sum, Ordering::Relaxed);
        };
        add(&self.requests, 1);
        match kind {
            Some(OperationKind::Read) => add(&self.read, bytes),
            Some(OperationKind::Write) => add(&self.written, bytes),
            _ => {}
        }
    }
}

impl Voice {
    /// Of a client at `peer`.
    #[must_use]
    pub fn new(log: ServerLog, peer: &Peer) -> Self {
        Self::named(log, address(Some(peer)))
    }

    /// Of a client that is known by this word.
    #[must_use]
    pub fn named(log: ServerLog, peer: Option<String>) -> Self {
        let (export, failures) = (OnceLock::new(), AtomicU64::new(0));
        Self { log, peer, export, failures, asked: Asked::new() }
    }

    /// From now on lines name this export.
    pub fn chose(&self, export: &str) {
        // The first one stays: a client chooses an export once.
        let _ = self.export.set(export.to_owned());
    }

    /// Logs one line.
    pub fn event(&self, level: Severity, what: fmt::Arguments<'_>) {
        self.log.line(level, self.peer.clone(), self.export.get().map(String::as_str), what);
    }

    /// Logs that a request has failed, or only counts it when many have.
    pub fn failed(&self, what: fmt::Arguments<'_>) {
        match self.failures.fetch_add(1, Ordering::Relaxed) + 1 {
            1..FAILURES => self.event(Severity::Error, what),
            FAILURES => {
                self.event(Severity::Error, what);
                self.event(Severity::Error, format_args!("further errors are only counted"));
            }
            _ => {}
        }
    }

    /// Counts a request, of so many bytes.
    pub fn asked(&self, kind: Option<OperationKind>, bytes: u64) {
        self.asked.request(kind, bytes);
    }

    /// Who the client is, and what it has asked for so far. Its number and export are not known
    /// here.
    #[must_use]
    pub fn status(&self) -> ClientStatus {
        let Asked { since, requests, read, written, errors } = &self.asked;
        let [requests, read, written, errors] =
            [requests, read, written, errors].map(|count| count.load(Ordering::Relaxed));
        let (address, age) = (self.peer.clone(), since.elapsed());
        ClientStatus { number: 0, address, export: None, age, requests, errors, read, written }
    }

    /// Counts a reply that is an error.
    pub fn refused(&self) {
        self.asked.errors.fetch_add(1, Ordering::Relaxed);
    }

    /// Logs that the connection has ended, and why; and, of one that asked for something, what.
    pub fn ended(&self, why: impl fmt::Display) {
        let failures = self.failures.load(Ordering::Relaxed);
        if failures > FAILURES {
            self.event(Severity::Error, format_args!("{failures} requests have failed in all"));
        }
        let ClientStatus { requests, errors, read, written, age, .. } = self.status();
        if requests == 0 && errors == 0 {
            return self.event(Severity::Info, format_args!("ended: {why}"));
        }
        let seconds = age.as_secs_f64();
        let (read, written) = (format_size(read), format_size(written));
        self.event(
            Severity::Info,
            format_args!(
                "ended: {why}; {requests} requests in {seconds:.1} s, {read} read, {written} written, {errors} errors"
            ),
        );
    }
}

/// A client's address, as one word, if it is known.
pub(super) fn address(peer: Option<&Peer>) -> Option<String> {
    match peer? {
        Peer::Ip(address) => Some(address.to_string()),
        Peer::Unix { credentials: Some(peer) } => {
            Some(format!("pid={},uid={}", peer.pid, peer.uid))
        }
        Peer::Vsock { cid, port } => Some(format!("vsock:{cid}:{port}")),
        Peer::Unix { credentials: None } | Peer::Other => None,
    }
}

/// The start of a name: long enough to see whether it is longer than a line may show.
pub(super) fn start_of(name: &str) -> &str {
    let end = name.char_indices().nth(NAME + 1).map_or(name.len(), |(end, _)| end);
    name.get(..end).unwrap_or_default()
}

/// As much of a name as a line may show, and the mark that there is more.
fn cut(name: &str) -> (&str, &'static str) {
    match name.char_indices().nth(NAME) {
        Some((end, _)) => (name.get(..end).unwrap_or_default(), "..."),
        None => (name, ""),
    }
}

/// An export's name, cut where it is too long.
pub(super) fn shortened(name: &str) -> String {
    let (part, more) = cut(name);
    format!("{part}{more}")
}

/// An export's name as one piece of a line, cut where it is too long.
#[must_use]
pub fn quoted(name: &str) -> String {
    let (part, more) = cut(name);
    format!("{part:?}{more}")
}
