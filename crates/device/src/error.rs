//! Errors of the device layer: a small stable kind for programs, a sentence for people.
//!
//! An [`Error`] says what was attempted, on which thing, at which offset, why, and whose fault
//! it is. Callers match on [`ErrorKind`]; people read `Display`, which is always one line.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

/// The result of everything a device does.
pub type Result<T> = std::result::Result<T, Error>;

/// What went wrong, for programs. Stable: kinds are added, never changed.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The user, or a signal, asked to stop.
    Cancelled,
    /// The disk is not what it was when it was opened.
    Changed,
    /// The contents of a file break the rules of its format.
    Corrupt,
    /// Not allowed by the user: this file, or this peer.
    Denied,
    /// The peer went away.
    Disconnected,
    /// The client is to be dropped: a server closes the connection instead of answering.
    Dropped,
    /// Reading or writing failed below us.
    Io,
    /// A parameter or a request makes no sense.
    InvalidInput,
    /// A limit that protects this program was reached.
    Limit,
    /// Another program has the image open in a way that excludes us.
    Locked,
    /// What was written is not what the oracle expects.
    Mismatch,
    /// It cannot be read without a key or a password that was not given, or is the wrong one.
    NeedsKey,
    /// The system, or the other side, is out of memory.
    NoMemory,
    /// No room is left.
    NoSpace,
    /// A fast zero was asked for, and zeroing here is not known to be fast. Nothing was changed.
    NotFast,
    /// The thing does not exist.
    NotFound,
    /// The range does not lie inside the device.
    OutOfBounds,
    /// The system refused access.
    PermissionDenied,
    /// The peer broke the protocol.
    Protocol,
    /// The device cannot be written.
    ReadOnly,
    /// The other side is shutting down.
    Shutdown,
    /// Nothing happened for too long.
    TimedOut,
    /// The operation is not available here.
    Unsupported,
}

/// Whose fault an error is.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Fault {
    /// The file or disk below us.
    File,
    /// The peer at the other end of a connection.
    Peer,
    /// A defect of this program.
    Us,
    /// The person or program that called us.
    User,
}

/// What an error means for another try.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum ErrorClass {
    /// What should have worked did not: a disk, a file, a peer. Another try may end otherwise, but
    /// what was in flight is in doubt.
    Misbehaved,
    /// A defect of this program.
    Ours,
    /// A definite answer: another try gets the same one.
    Permanent,
    /// The way to the server failed, not the operation itself.
    Transient,
}

/// One failure, with its context.
pub struct Error(Box<Details>);

struct Details {
    kind: ErrorKind,
    fault: Fault,
    action: String,
    thing: Option<String>,
    offset: Option<u64>,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl Error {
    /// A failure of `kind` while attempting `action` (a verb phrase: "read 4096 bytes").
    pub fn new(kind: ErrorKind, fault: Fault, action: impl Into<String>) -> Self {
        let action = action.into();
        Self(Box::new(Details { kind, fault, action, thing: None, offset: None, source: None }))
    }

    /// A failure of the system call behind `action`; the kind follows from the errno.
    pub fn os(action: impl Into<String>, source: impl Into<std::io::Error>) -> Self {
        let source = source.into();
        let kind = source.raw_os_error().map_or(ErrorKind::Io, ErrorKind::from_errno);
        Self::new(kind, kind.fault_of_call(), action).with_source(source)
    }

    /// A parameter or request that makes no sense.
    pub fn invalid(action: impl Into<String>) -> Self {
        Self::new(ErrorKind::InvalidInput, Fault::User, action)
    }

    /// The disk does not fit the request: it has no such partition, say.
    pub fn unfit(action: impl Into<String>) -> Self {
        Self::new(ErrorKind::InvalidInput, Fault::File, action)
    }

    /// Whether the request itself makes no sense, whatever exists: nothing was tried.
    pub fn is_usage(&self) -> bool {
        self.0.kind == ErrorKind::InvalidInput
            && self.0.fault == Fault::User
            && self.0.source.is_none()
    }

    /// An operation that is not available on this device.
    pub fn unsupported(action: impl Into<String>) -> Self {
        Self::new(ErrorKind::Unsupported, Fault::User, action)
    }

    /// A fast zero that would not be fast. Nothing was changed.
    pub fn not_fast() -> Self {
        Self::new(ErrorKind::NotFast, Fault::User, "zero fast: not known to be fast")
    }

    /// An operation that was dropped instead of being answered.
    pub fn unanswered() -> Self {
        let action = "a request was not answered; this is a defect";
        Self::new(ErrorKind::Io, Fault::Us, action)
    }

    /// Names the thing (path, URI, device) the failure happened on, unless already named.
    #[must_use]
    pub fn on(mut self, thing: impl fmt::Display) -> Self {
        if self.0.thing.is_none() {
            self.0.thing = Some(thing.to_string());
        }
        self
    }

    /// Adds the offset, in bytes, unless it has one already.
    #[must_use]
    pub fn at(mut self, offset: u64) -> Self {
        self.0.offset.get_or_insert(offset);
        self
    }

    /// Attaches the cause.
    #[must_use]
    pub fn with_source(
        mut self,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        self.0.source = Some(source.into());
        self
    }

    /// What went wrong, for programs.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Whose fault it is.
    pub fn fault(&self) -> Fault {
        self.0.fault
    }

    /// What it means for another try.
    pub fn class(&self) -> ErrorClass {
        match self.0.fault {
            Fault::Us => ErrorClass::Ours,
            Fault::File | Fault::Peer | Fault::User => self.0.kind.class(),
        }
    }

    /// The offset in bytes, where there is one.
    pub fn offset(&self) -> Option<u64> {
        self.0.offset
    }

    /// Whether the operation may succeed in another form (zeroes as data, say).
    pub fn is_unsupported(&self) -> bool {
        self.0.kind == ErrorKind::Unsupported
    }

    /// What a peer may know of it: what was attempted, where, and why it failed, without any name.
    /// The thing may be a path or a URI of this host, and is left out, and so is what looks as if
    /// it named one.
    pub fn without_names(&self) -> String {
        let c = &self.0;
        let action = if is_name_in(&c.action) { "it failed" } else { &c.action };
        let at = c.offset.map(|offset| format!(" at offset {offset}")).unwrap_or_default();
        let cause = c.source.as_deref().and_then(|source| match source.downcast_ref::<Self>() {
            Some(e) => Some(e.without_names()),
            None => Some(source.to_string()).filter(|text| !is_name_in(text)),
        });
        match cause {
            Some(cause) => format!("{action}{at}: {cause}"),
            None => format!("{action}{at}"),
        }
    }

    /// The number of the system call that failed, if one did.
    pub fn raw_os_error(&self) -> Option<i32> {
        let mut source = std::error::Error::source(self);
        while let Some(e) = source {
            if let Some(e) = e.downcast_ref::<std::io::Error>() {
                return e.raw_os_error();
            }
            source = e.source();
        }
        None
    }

    /// A copy for a second waiter of the same failure; the source is kept as text, or as the number
    /// of a system call.
    #[must_use]
    pub fn duplicate(&self) -> Self {
        let c = &self.0;
        let same = |source: &(dyn std::error::Error + Send + Sync + 'static)| {
            if let Some(e) = source.downcast_ref::<Self>() {
                return e.duplicate().into();
            }
            match source.downcast_ref::<std::io::Error>().and_then(std::io::Error::raw_os_error) {
                Some(number) => std::io::Error::from_raw_os_error(number).into(),
                None => source.to_string().into(),
            }
        };
        Self(Box::new(Details {
            kind: c.kind,
            fault: c.fault,
            action: c.action.clone(),
            thing: c.thing.clone(),
            offset: c.offset,
            source: c.source.as_deref().map(same),
        }))
    }
}

/// Whether a text may name a file, a URI or a host: it has a slash, a quotation or an address in
/// it.
fn is_name_in(text: &str) -> bool {
    let address = |word: &str| {
        let word = word.trim_matches(|c: char| !c.is_ascii_hexdigit() && !"[]:".contains(c));
        let word = word.trim_end_matches(':');
        word.parse::<SocketAddr>().is_ok() || word.parse::<IpAddr>().is_ok()
    };
    // The system's words for EIO are no path.
    text.replace("nput/output", "").contains(['/', '"']) || text.split_whitespace().any(address)
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let c = &self.0;
        if let Some(thing) = &c.thing {
            write!(f, "{thing}: ")?;
        }
        f.write_str(&c.action)?;
        if let Some(offset) = c.offset {
            write!(f, " at offset {offset}")?;
        }
        if let Some(source) = &c.source {
            write!(f, ": {source}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} ({:?}'s fault): {self}", self.0.kind, self.0.fault)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source.as_ref().map(|s| {
            let s: &(dyn std::error::Error + 'static) = s.as_ref();
            s
        })
    }
}

impl From<runtime::Panicked> for Error {
    fn from(panic: runtime::Panicked) -> Self {
        Self::new(ErrorKind::Io, Fault::Us, panic.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn os(number: i32) -> std::io::Error {
        std::io::Error::from_raw_os_error(number)
    }

    #[test]
    fn what_a_peer_may_know_has_no_name_of_this_host_in_it() {
        let read = |thing: &str| {
            Error::new(ErrorKind::Io, Fault::File, "read 512 bytes").on(thing).at(4096)
        };
        let below = || Error::os("open", os(libc::ENOENT)).on("/customers/acme");
        let gone = "read 512 bytes at offset 4096: open: No such file or directory (os error 2)";
        let refused = "it failed: Connection refused (os error 111)";
        let connect = |address: &str| {
            Error::os(format!("connect to {address}"), os(libc::ECONNREFUSED)).on("nbd:x")
        };
        for (error, told) in [
            (read("/customers/acme.raw"), "read 512 bytes at offset 4096"),
            (read("acme.raw").with_source(below()), gone),
            (read("acme.raw").with_source(below()).duplicate(), gone),
            (read("x").with_source("/tmp/x: is gone"), "read 512 bytes at offset 4096"),
            (
                read("x").with_source(os(libc::EIO)),
                "read 512 bytes at offset 4096: Input/output error (os error 5)",
            ),
            (read("x").with_source("it is tired"), "read 512 bytes at offset 4096: it is tired"),
            (Error::invalid("open: it is a link to ../acme"), "it failed"),
            (connect("10.0.0.1:10809"), refused),
            (connect("[fe80::1]:10809"), refused),
            (connect("\"acme\""), refused),
        ] {
            assert_eq!(error.without_names(), told, "{error}");
        }
    }

    #[test]
    fn the_number_of_a_system_call_is_kept() {
        let error = Error::os("open", os(libc::EEXIST)).on("x");
        let outer =
            Error::new(ErrorKind::Io, Fault::File, "convert").with_source(error.duplicate());
        for error in [error.duplicate(), outer.duplicate()] {
            assert_eq!(error.raw_os_error(), Some(libc::EEXIST), "{error}");
        }
        assert_eq!(Error::invalid("nothing was called").raw_os_error(), None);
    }
}
