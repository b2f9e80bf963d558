//! The numbers of the protocol: magics, options, reply types, information ids, commands, chunk
//! types, flags, errors.
//!
//! All integers travel big-endian and unsigned. The values here are the protocol's own and are
//! never taken from the host's headers.

/// First eight bytes of every greeting, `NBDMAGIC` in ASCII.
pub const NBDMAGIC: u64 = 0x4e42_444d_4147_4943;
/// Second magic of a newstyle greeting and first of every option, `IHAVEOPT` in ASCII.
pub const IHAVEOPT: u64 = 0x4948_4156_454F_5054;
/// Second magic of an oldstyle greeting.
pub const OLDSTYLE_MAGIC: u64 = 0x0000_4202_8186_1253;
/// First field of every option reply.
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// First field of a compact (28-byte) request.
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
/// First field of an extended (32-byte) request.
pub const EXTENDED_REQUEST_MAGIC: u32 = 0x21e4_1c71;
/// First field of a simple reply.
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// First field of a structured reply chunk.
pub const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;
/// First field of an extended reply chunk.
pub const EXTENDED_REPLY_MAGIC: u32 = 0x6e8a_278c;

/// Bytes of an option's header, before its data.
pub const OPTION_HEADER_LEN: usize = 16;
/// Bytes of an option reply's header, before its data.
pub const OPTION_REPLY_HEADER_LEN: usize = 20;
/// Bytes of a compact request's header.
pub const REQUEST_LEN: usize = 28;
/// Bytes of an extended request's header.
pub const EXTENDED_REQUEST_LEN: usize = 32;
/// Bytes of a simple reply's header.
pub const SIMPLE_REPLY_LEN: usize = 16;
/// Bytes of a structured chunk's header.
pub const STRUCTURED_REPLY_LEN: usize = 20;
/// Bytes of an extended chunk's header.
pub const EXTENDED_REPLY_LEN: usize = 32;

/// Longest string (export name, description, context name, message) either side may send, in bytes.
pub const MAX_STRING: usize = 4096;
/// Largest export the protocol's users can address, in bytes: offsets are signed 64-bit numbers in
/// every file API.
pub const MAX_EXPORT_SIZE: u64 = i64::MAX as u64;
/// Longest error message we send, in bytes. QEMU's client gives the connection up on error chunks
/// above 1000.
pub const MAX_SENT_MESSAGE: usize = 256;
/// Most extents in one block-status chunk, either way.
pub const MAX_STATUS_EXTENTS: usize = 1 << 20;
/// A payload up to this is drained and answered even when it exceeds the export's own maximum, in
/// bytes.
pub const MAX_TOLERATED_PAYLOAD: u64 = 32 << 20;
/// The context every server with block status has.
pub const BASE_ALLOCATION: &str = "base:allocation";

/// Handshake flags of the server (16 bits) and of the client (32 bits); the bits agree.
pub mod handshake_flags {
    /// Fixed newstyle: options other than EXPORT_NAME are understood and answered.
    pub const FIXED_NEWSTYLE: u16 = 1 << 0;
    /// The 124 zero bytes after EXPORT_NAME are left out.
    pub const NO_ZEROES: u16 = 1 << 1;
}

/// Options of the newstyle handshake.
pub mod option {
    /// Choose an export and enter transmission, without an answer in the option-reply form.
    pub const EXPORT_NAME: u32 = 1;
    /// Soft disconnect.
    pub const ABORT: u32 = 2;
    /// Name the exports.
    pub const LIST: u32 = 3;
    /// Withdrawn from the protocol.
    pub const PEEK_EXPORT: u32 = 4;
    /// Switch to TLS.
    pub const STARTTLS: u32 = 5;
    /// Describe an export.
    pub const INFO: u32 = 6;
    /// Describe an export and enter transmission.
    pub const GO: u32 = 7;
    /// Agree on structured replies.
    pub const STRUCTURED_REPLY: u32 = 8;
    /// Name the metadata contexts of an export.
    pub const LIST_META_CONTEXT: u32 = 9;
    /// Select metadata contexts for block status.
    pub const SET_META_CONTEXT: u32 = 10;
    /// Agree on extended headers.
    pub const EXTENDED_HEADERS: u32 = 11;

    /// The option's name in the protocol text, for messages.
    pub fn name(option: u32) -> &'static str {
        match option {
            EXPORT_NAME => "EXPORT_NAME",
            ABORT => "ABORT",
            LIST => "LIST",
            PEEK_EXPORT => "PEEK_EXPORT",
            STARTTLS => "STARTTLS",
            INFO => "INFO",
            GO => "GO",
            STRUCTURED_REPLY => "STRUCTURED_REPLY",
            LIST_META_CONTEXT => "LIST_META_CONTEXT",
            SET_META_CONTEXT => "SET_META_CONTEXT",
            EXTENDED_HEADERS => "EXTENDED_HEADERS",
            _ => "unknown option",
        }
    }
}

/// Types of option replies.
pub mod reply {
    /// The option is done.
    pub const ACK: u32 = 1;
    /// One export of a list.
    pub const SERVER: u32 = 2;
    /// One piece of information about an export.
    pub const INFO: u32 = 3;
    /// One metadata context.
    pub const META_CONTEXT: u32 = 4;
    /// Set in every error reply.
    pub const ERROR_BIT: u32 = 1 << 31;
    /// The option is not known.
    pub const ERR_UNSUP: u32 = ERROR_BIT | 1;
    /// The server is set up not to do this.
    pub const ERR_POLICY: u32 = ERROR_BIT | 2;
    /// The option's data are malformed, or it makes no sense now.
    pub const ERR_INVALID: u32 = ERROR_BIT | 3;
    /// The platform cannot do it.
    pub const ERR_PLATFORM: u32 = ERROR_BIT | 4;
    /// TLS is needed first.
    pub const ERR_TLS_REQD: u32 = ERROR_BIT | 5;
    /// There is no such export.
    pub const ERR_UNKNOWN: u32 = ERROR_BIT | 6;
    /// The server is shutting down.
    pub const ERR_SHUTDOWN: u32 = ERROR_BIT | 7;
    /// The client must ask for (and obey) block sizes.
    pub const ERR_BLOCK_SIZE_REQD: u32 = ERROR_BIT | 8;
    /// The request is larger than the server deals with.
    pub const ERR_TOO_BIG: u32 = ERROR_BIT | 9;
    /// Extended headers are needed first (or are active already and rule this out).
    pub const ERR_EXT_HEADER_REQD: u32 = ERROR_BIT | 10;

    /// The error's name in the protocol text, and what it means for people.
    pub(crate) fn words(reply: u32) -> (&'static str, &'static str) {
        match reply {
            ERR_UNSUP => ("ERR_UNSUP", "not supported"),
            ERR_POLICY => ("ERR_POLICY", "against the server's policy"),
            ERR_INVALID => ("ERR_INVALID", "invalid"),
            ERR_PLATFORM => ("ERR_PLATFORM", "not possible on the server's platform"),
            ERR_TLS_REQD => ("ERR_TLS_REQD", "TLS is required"),
            ERR_UNKNOWN => ("ERR_UNKNOWN", "no such export"),
            ERR_SHUTDOWN => ("ERR_SHUTDOWN", "the server is shutting down"),
            ERR_BLOCK_SIZE_REQD => ("ERR_BLOCK_SIZE_REQD", "block sizes must be negotiated"),
            ERR_TOO_BIG => ("ERR_TOO_BIG", "too big"),
            ERR_EXT_HEADER_REQD => ("ERR_EXT_HEADER_REQD", "extended headers are required"),
            _ => ("unknown error", "error"),
        }
    }
}

/// Ids of the pieces of information about an export.
pub mod info {
    /// Size and transmission flags.
    pub const EXPORT: u16 = 0;
    /// The export's canonical name.
    pub const NAME: u16 = 1;
    /// Text for people.
    pub const DESCRIPTION: u16 = 2;
    /// Block size constraints.
    pub const BLOCK_SIZE: u16 = 3;
}

/// Types of reply chunks.
pub mod chunk {
    /// Nothing; carries DONE.
    pub const NONE: u16 = 0;
    /// Bytes of a read.
    pub const OFFSET_DATA: u16 = 1;
    /// Zero bytes of a read.
    pub const OFFSET_HOLE: u16 = 2;
    /// Block status with 32-bit extents.
    pub const BLOCK_STATUS: u16 = 5;
    /// Block status with 64-bit extents.
    pub const BLOCK_STATUS_EXT: u16 = 6;
    /// Set in the type of every error chunk.
    pub const ERROR_BIT: u16 = 1 << 15;
    /// The request failed.
    pub const ERROR: u16 = ERROR_BIT | 1;
    /// The request failed at an offset.
    pub const ERROR_OFFSET: u16 = ERROR_BIT | 2;
    /// Flag of a reply's last chunk.
    pub const FLAG_DONE: u16 = 1 << 0;
}

/// Flags of [`BASE_ALLOCATION`] extents.
pub mod allocation {
    /// Not allocated: a later write may fail for want of space.
    pub const HOLE: u64 = 1 << 0;
    /// Reads as zeroes.
    pub const ZERO: u64 = 1 << 1;
    /// The defined bits; the others are to be ignored.
    pub const MASK: u64 = HOLE | ZERO;
}

macro_rules! flag_set {
    ($name:ident) => {
        impl $name {
            /// Whether every bit of `other` is set.
            pub const fn contains(self, other: Self) -> bool {
                self.0 & other.0 == other.0
            }

            /// These flags and those of `other`.
            #[must_use]
            pub const fn with(self, other: Self) -> Self {
                Self(self.0 | other.0)
            }

            /// These flags but those of `other`.
            #[must_use]
            pub const fn without(self, other: Self) -> Self {
                Self(self.0 & !other.0)
            }
        }
    };
}

flag_set!(TransmissionFlags);
flag_set!(CommandFlags);

/// What the server says about an export (16 bits).
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub struct TransmissionFlags(pub u16);

impl TransmissionFlags {
    /// Always set.
    pub const HAS_FLAGS: Self = Self(1 << 0);
    /// The export cannot be written.
    pub const READ_ONLY: Self = Self(1 << 1);
    /// FLUSH is understood.
    pub const SEND_FLUSH: Self = Self(1 << 2);
    /// The FUA flag is understood.
    pub const SEND_FUA: Self = Self(1 << 3);
    /// Seeks cost time.
    pub const ROTATIONAL: Self = Self(1 << 4);
    /// TRIM is understood.
    pub const SEND_TRIM: Self = Self(1 << 5);
    /// WRITE_ZEROES is understood, with NO_HOLE.
    pub const SEND_WRITE_ZEROES: Self = Self(1 << 6);
    /// The DF flag is understood.
    pub const SEND_DF: Self = Self(1 << 7);
    /// A flush on one connection covers all.
    pub const CAN_MULTI_CONN: Self = Self(1 << 8);
    /// RESIZE is understood (experimental).
    pub const SEND_RESIZE: Self = Self(1 << 9);
    /// CACHE is understood.
    pub const SEND_CACHE: Self = Self(1 << 10);
    /// The FAST_ZERO flag is understood.
    pub const SEND_FAST_ZERO: Self = Self(1 << 11);
    /// Block status can be asked for some contexts only.
    pub const BLOCK_STATUS_PAYLOAD: Self = Self(1 << 12);

    /// The flags that make sense together: what depends on something missing is dropped, HAS_FLAGS
    /// is set.
    #[must_use]
    pub(crate) fn consistent(self, mode: Framing) -> Self {
        let mut flags = self.with(Self::HAS_FLAGS);
        if mode == Framing::Simple {
            flags = flags.without(Self::SEND_DF);
        }
        if mode != Framing::Extended {
            flags = flags.without(Self::BLOCK_STATUS_PAYLOAD);
        }
        if flags.contains(Self::READ_ONLY) {
            flags = flags.without(Self::SEND_TRIM).without(Self::SEND_WRITE_ZEROES);
        }
        if !flags.contains(Self::SEND_WRITE_ZEROES) {
            flags = flags.without(Self::SEND_FAST_ZERO);
        }
        flags
    }
}

/// Flags of a request (16 bits).
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub struct CommandFlags(pub u16);

impl CommandFlags {
    /// No flag.
    pub const NONE: Self = Self(0);
    /// Answer only when this command's data are on stable storage.
    pub const FUA: Self = Self(1 << 0);
    /// WRITE_ZEROES: leave the range allocated.
    pub const NO_HOLE: Self = Self(1 << 1);
    /// READ: at most one content chunk.
    pub const DF: Self = Self(1 << 2);
    /// BLOCK_STATUS: one extent, not beyond the range.
    pub const REQ_ONE: Self = Self(1 << 3);
    /// WRITE_ZEROES: fail rather than be as slow as writing.
    pub const FAST_ZERO: Self = Self(1 << 4);
    /// Extended headers: the length is that of a payload that follows.
    pub const PAYLOAD_LEN: Self = Self(1 << 5);
}

/// The commands of the transmission phase. Unknown ones travel as plain `u16`.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Command {
    /// Status of blocks in the selected contexts.
    BlockStatus = 7,
    /// Prefetch.
    Cache = 5,
    /// Disconnect; no reply.
    Disconnect = 2,
    /// Make answered writes stable.
    Flush = 3,
    /// Read.
    Read = 0,
    /// Change the export's size (experimental; never advertised by us).
    Resize = 8,
    /// Forget a range.
    Trim = 4,
    /// Write.
    Write = 1,
    /// Make a range read as zeroes.
    WriteZeroes = 6,
}

impl Command {
    /// The command of a wire value, or `None` for one that this crate does not know.
    pub const fn from_wire(value: u16) -> Option<Self> {
        Some(match value {
            0 => Self::Read,
            1 => Self::Write,
            2 => Self::Disconnect,
            3 => Self::Flush,
            4 => Self::Trim,
            5 => Self::Cache,
            6 => Self::WriteZeroes,
            7 => Self::BlockStatus,
            8 => Self::Resize,
            _ => return None,
        })
    }

    /// The wire value.
    pub const fn to_wire(self) -> u16 {
        self as u16
    }

    /// The command's name in lower case, for messages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Disconnect => "disconnect",
            Self::Flush => "flush",
            Self::Trim => "trim",
            Self::Cache => "cache",
            Self::WriteZeroes => "write zeroes",
            Self::BlockStatus => "block status",
            Self::Resize => "resize",
        }
    }
}

/// An error number of the protocol. The values happen to be Linux's, and are fixed by the protocol
/// everywhere.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct ErrorCode(pub u32);

impl ErrorCode {
    /// Not permitted: the export is read-only.
    pub const EPERM: Self = Self(1);
    /// Input/output error.
    pub const EIO: Self = Self(5);
    /// Out of memory.
    pub const ENOMEM: Self = Self(12);
    /// Invalid argument.
    pub const EINVAL: Self = Self(22);
    /// No space left.
    pub const ENOSPC: Self = Self(28);
    /// Too large.
    pub const EOVERFLOW: Self = Self(75);
    /// Not supported (only for FAST_ZERO).
    pub const ENOTSUP: Self = Self(95);
    /// The server is shutting down.
    pub const ESHUTDOWN: Self = Self(108);

    /// The protocol's error for a Linux error number: EROFS becomes EPERM, EDQUOT and EFBIG become
    /// ENOSPC, what the protocol has no number for becomes EINVAL.
    pub const fn from_errno(errno: i32) -> Self {
        match errno {
            1 | 30 => Self::EPERM,
            5 => Self::EIO,
            12 => Self::ENOMEM,
            27 | 28 | 122 => Self::ENOSPC,
            75 => Self::EOVERFLOW,
            95 => Self::ENOTSUP,
            108 => Self::ESHUTDOWN,
            _ => Self::EINVAL,
        }
    }

    /// Itself, its symbolic name, and what that means for people; EINVAL's, if it is not known.
    fn entry(self) -> (Self, &'static str, &'static str) {
        match self {
            Self::EPERM => (self, "EPERM", "not permitted"),
            Self::EIO => (self, "EIO", "input/output error"),
            Self::ENOMEM => (self, "ENOMEM", "out of memory"),
            Self::ENOSPC => (self, "ENOSPC", "no space left"),
            Self::EOVERFLOW => (self, "EOVERFLOW", "too large"),
            Self::ENOTSUP => (self, "ENOTSUP", "not supported"),
            Self::ESHUTDOWN => (self, "ESHUTDOWN", "server is shutting down"),
            _ => (Self::EINVAL, "EINVAL", "invalid argument"),
        }
    }

    /// What a received value means: unknown values are EINVAL.
    #[must_use]
    pub fn known(self) -> Self {
        self.entry().0
    }

    /// The Linux error number; unknown values are EINVAL.
    pub fn to_errno(self) -> i32 {
        i32::try_from(self.known().0).unwrap_or(22)
    }

    /// The symbolic name.
    pub fn name(self) -> &'static str {
        self.entry().1
    }

    /// What the name means, for people.
    pub fn meaning(self) -> &'static str {
        self.entry().2
    }
}

impl std::fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({})", self.meaning(), self.name())
    }
}

/// How requests and replies are framed, as negotiated.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub enum Framing {
    /// Compact requests, simple replies.
    #[default]
    Simple,
    /// Compact requests, replies in chunks where the command needs it.
    Structured,
    /// Extended requests, replies in extended chunks.
    Extended,
}
