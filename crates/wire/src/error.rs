//! What can go wrong, and whose fault it is.
//!
//! The peer broke the protocol ([`PeerMisbehaved`]), the peer lacks or refuses what we need
//! ([`PeerIncompatible`], [`HandshakeError::Refused`]), or we were asked for something impossible
//! ([`HandshakeError::Ours`]). None of these types carries a number of bytes that a peer chose
//! freely: messages are cut and cleaned.

use std::fmt;

use crate::constants::{option, reply};

macro_rules! reasons {
    ($(#[$doc:meta])* $name:ident { $($variant:ident = $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
        #[non_exhaustive]
        pub enum $name {
            $(#[doc = $text] $variant,)*
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self { $(Self::$variant => $text,)* })
            }
        }

        impl std::error::Error for $name {}
    };
}

reasons! {
    /// The peer broke a rule of the protocol; nothing that it says from here on can be trusted.
    PeerMisbehaved {
        AckWithData = "acknowledgement carries data",
        AnswerEndless = "reply does not end: one error after the other",
        BadInfoLength = "information of the wrong length",
        BadOptionMagic = "option does not begin with the option magic",
        BadOptionReplyMagic = "option reply does not begin with its magic",
        BadReplyMagic = "reply does not begin with a reply magic of this session",
        BadRequestMagic = "request does not begin with the request magic of this session",
        BlockStatusWithoutRequest = "block status in reply to another command",
        ChunkTooLong = "reply chunk longer than the request allows",
        ChunkUnexpected = "chunk type does not belong to this command",
        ChunkUnknown = "chunk type unknown",
        ContentOutOfRange = "content outside of the requested range",
        ContentOverlap = "content of a read overlaps earlier content",
        ContentMissing = "content of a read is incomplete",
        ContentTooFragmented = "content of a read is in too many pieces",
        ContextDuplicate = "two block status chunks for one context",
        ContextMissing = "no block status for a selected context",
        ContextUnknown = "block status for a context that was not selected",
        DataAfterStartTls = "plain text after the agreement to start TLS",
        DataTooShort = "data chunk without data",
        DoneMissing = "empty chunk that is not the last",
        DuplicateContextId = "two metadata contexts with one id",
        ErrorIsZero = "error chunk that says success",
        ErrorMessageTooLong = "error message longer than its chunk",
        ExportInfoMissing = "export accepted without its size and flags",
        ExportNameTooLong = "export name longer than 4096 bytes",
        ExtentEmpty = "block status with an extent of length zero",
        GreetingBad = "greeting is not that of an NBD server",
        HoleMalformed = "hole chunk malformed",
        NameInvalid = "export name is not UTF-8 or contains NUL",
        NoTransmissionFlags = "transmission flags are absent",
        OldstyleFlags = "oldstyle greeting with unknown flags",
        OptionBeforeFixed = "option other than EXPORT_NAME without fixed newstyle",
        OptionTooLong = "option longer than 32 MiB",
        ReplyForOtherOption = "option reply names another option",
        ReplyTooLong = "option reply longer than 64 KiB",
        ReplyTooShort = "option reply shorter than its fields",
        ReplyUnexpected = "option reply of a type that does not belong here",
        SimpleReplyToRead = "simple reply where structured replies were negotiated",
        SizeTooLarge = "export size of 2^63 bytes or more",
        StatusMalformed = "block status chunk malformed",
        TooManyOptions = "too many options",
        TooManyReplies = "too many replies to one option",
        UnknownClientFlags = "client flags that were not offered",
        UnknownCookie = "reply to no request that is in flight",
    }
}

reasons! {
    /// The peer keeps the rules but lacks something that we must have.
    PeerIncompatible {
        NoExportNames = "oldstyle server: it has no export names",
        NoFixedNewstyle = "server does not speak fixed newstyle",
        NoTls = "server does not speak TLS, which is required",
        TlsRequired = "server requires TLS, which is not enabled here",
    }
}

/// The connection is unusable: disconnect at once. Always the peer's fault.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Fatal(pub PeerMisbehaved);

impl fmt::Display for Fatal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "peer broke the protocol: {}", self.0)
    }
}

impl std::error::Error for Fatal {}

impl From<PeerMisbehaved> for Fatal {
    fn from(reason: PeerMisbehaved) -> Self {
        Self(reason)
    }
}

/// Why a client's handshake failed.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum HandshakeError {
    /// The server closed the connection during the handshake; `during` says at which point.
    Closed {
        /// The option in flight, or `greeting`.
        during: &'static str,
    },
    /// What was asked of this crate is impossible; no server is to blame.
    Ours(&'static str),
    /// The server lacks something that was required.
    PeerIncompatible(PeerIncompatible),
    /// The server broke the protocol.
    PeerMisbehaved(PeerMisbehaved),
    /// The server said no.
    Refused {
        /// The option that was refused.
        option: u32,
        /// The error reply type (bit 31 set).
        reply: u32,
        /// The server's words, cleaned of control characters and cut; may be empty.
        message: String,
    },
}

impl fmt::Display for HandshakeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed { during } => write!(f, "server closed the connection during {during}"),
            Self::Ours(what) => f.write_str(what),
            Self::PeerIncompatible(reason) => reason.fmt(f),
            Self::PeerMisbehaved(reason) => write!(f, "server broke the protocol: {reason}"),
            Self::Refused { option, reply, message } => {
                let (option, (name, what)) = (option::name(*option), reply::words(*reply));
                write!(f, "server refused {option}: {what} ({name})")?;
                // Servers like to say the same.
                if message.is_empty() || message == what {
                    return Ok(());
                }
                write!(f, ": {message}")
            }
        }
    }
}

impl std::error::Error for HandshakeError {}

impl From<PeerMisbehaved> for HandshakeError {
    fn from(reason: PeerMisbehaved) -> Self {
        Self::PeerMisbehaved(reason)
    }
}

impl From<PeerIncompatible> for HandshakeError {
    fn from(reason: PeerIncompatible) -> Self {
        Self::PeerIncompatible(reason)
    }
}

/// A peer's text made fit for a log: control characters replaced, length bounded.
pub(crate) fn cleaned(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let text = crate::codec::clipped(&text, crate::constants::MAX_STRING);
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}
