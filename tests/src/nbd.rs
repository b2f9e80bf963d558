//! The numbers of the protocol, written down once more, independently of the `wire` crate.

/// First magic of every greeting, `NBDMAGIC`.
pub const NBDMAGIC: u64 = 0x4e42_444d_4147_4943;
/// Second magic of a newstyle greeting and first of every option, `IHAVEOPT`.
pub const IHAVEOPT: u64 = 0x4948_4156_454f_5054;
/// Second magic of an oldstyle greeting.
pub const OLDSTYLE: u64 = 0x0000_4202_8186_1253;
/// Magic of an option reply.
pub const OPTION_REPLY: u64 = 0x0003_e889_0455_65a9;
/// Magic of a compact request.
pub const REQUEST: u32 = 0x2560_9513;
/// Magic of an extended request.
pub const EXT_REQUEST: u32 = 0x21e4_1c71;
/// Magic of a simple reply.
pub const SIMPLE_REPLY: u32 = 0x6744_6698;
/// Magic of a structured reply chunk.
pub const CHUNK: u32 = 0x668e_33ef;
/// Magic of an extended reply chunk.
pub const EXT_CHUNK: u32 = 0x6e8a_278c;

/// Handshake flag: options other than `EXPORT_NAME` exist.
pub const FIXED_NEWSTYLE: u16 = 1;
/// Handshake flag: no padding after `EXPORT_NAME`.
pub const NO_ZEROES: u16 = 2;

/// Option numbers.
pub mod opt {
    #![allow(missing_docs, reason = "the names are the protocol's")]
    pub const EXPORT_NAME: u32 = 1;
    pub const ABORT: u32 = 2;
    pub const LIST: u32 = 3;
    pub const STARTTLS: u32 = 5;
    pub const INFO: u32 = 6;
    pub const GO: u32 = 7;
    pub const STRUCTURED_REPLY: u32 = 8;
    pub const LIST_META_CONTEXT: u32 = 9;
    pub const SET_META_CONTEXT: u32 = 10;
    pub const EXTENDED_HEADERS: u32 = 11;
}

/// Types of option replies.
pub mod rep {
    #![allow(missing_docs, reason = "the names are the protocol's")]
    pub const ACK: u32 = 1;
    pub const SERVER: u32 = 2;
    pub const INFO: u32 = 3;
    pub const META_CONTEXT: u32 = 4;
    pub const ERROR: u32 = 1 << 31;
    pub const UNSUP: u32 = ERROR + 1;
    pub const POLICY: u32 = ERROR + 2;
    pub const INVALID: u32 = ERROR + 3;
    pub const PLATFORM: u32 = ERROR + 4;
    pub const TLS_REQD: u32 = ERROR + 5;
    pub const UNKNOWN: u32 = ERROR + 6;
    pub const SHUTDOWN: u32 = ERROR + 7;
    pub const BLOCK_SIZE_REQD: u32 = ERROR + 8;
    pub const TOO_BIG: u32 = ERROR + 9;
    pub const EXT_HEADER_REQD: u32 = ERROR + 10;
}

/// Ids of the pieces of information that INFO and GO return.
pub mod info {
    #![allow(missing_docs, reason = "the names are the protocol's")]
    pub const EXPORT: u16 = 0;
    pub const NAME: u16 = 1;
    pub const DESCRIPTION: u16 = 2;
    pub const BLOCK_SIZE: u16 = 3;
}

/// Transmission flags of an export.
pub mod tflag {
    #![allow(missing_docs, reason = "the names are the protocol's")]
    pub const HAS_FLAGS: u16 = 1;
    pub const READ_ONLY: u16 = 1 << 1;
    pub const SEND_FLUSH: u16 = 1 << 2;
    pub const SEND_FUA: u16 = 1 << 3;
    pub const ROTATIONAL: u16 = 1 << 4;
    pub const SEND_TRIM: u16 = 1 << 5;
    pub const SEND_WRITE_ZEROES: u16 = 1 << 6;
    pub const SEND_DF: u16 = 1 << 7;
    pub const CAN_MULTI_CONN: u16 = 1 << 8;
    pub const SEND_RESIZE: u16 = 1 << 9;
    pub const SEND_CACHE: u16 = 1 << 10;
    pub const SEND_FAST_ZERO: u16 = 1 << 11;
    pub const BLOCK_STATUS_PAYLOAD: u16 = 1 << 12;
}

/// Commands.
pub mod cmd {
    #![allow(missing_docs, reason = "the names are the protocol's")]
    pub const READ: u16 = 0;
    pub const WRITE: u16 = 1;
    pub const DISC: u16 = 2;
    pub const FLUSH: u16 = 3;
    pub const TRIM: u16 = 4;
    pub const CACHE: u16 = 5;
    pub const WRITE_ZEROES: u16 = 6;
    pub const BLOCK_STATUS: u16 = 7;
}

/// Command flags.
pub mod cflag {
    #![allow(missing_docs, reason = "the names are the protocol's")]
    pub const FUA: u16 = 1;
    pub const NO_HOLE: u16 = 1 << 1;
    pub const DF: u16 = 1 << 2;
    pub const REQ_ONE: u16 = 1 << 3;
    pub const FAST_ZERO: u16 = 1 << 4;
    pub const PAYLOAD_LEN: u16 = 1 << 5;
}

/// Types of reply chunks.
pub mod chunk {
    #![allow(missing_docs, reason = "the names are the protocol's")]
    pub const NONE: u16 = 0;
    pub const OFFSET_DATA: u16 = 1;
    pub const OFFSET_HOLE: u16 = 2;
    pub const BLOCK_STATUS: u16 = 5;
    pub const BLOCK_STATUS_EXT: u16 = 6;
    pub const ERROR: u16 = 32769;
    pub const ERROR_OFFSET: u16 = 32770;
    /// Chunk flag: the last chunk of its reply.
    pub const DONE: u16 = 1;
}

/// Errors.
pub mod err {
    #![allow(missing_docs, reason = "the names are the protocol's")]
    pub const EPERM: u32 = 1;
    pub const EIO: u32 = 5;
    pub const ENOMEM: u32 = 12;
    pub const EINVAL: u32 = 22;
    pub const ENOSPC: u32 = 28;
    pub const EOVERFLOW: u32 = 75;
    pub const ENOTSUP: u32 = 95;
    pub const ESHUTDOWN: u32 = 108;
    /// Every value that may be in a reply.
    pub const ALL: [u32; 8] = [EPERM, EIO, ENOMEM, EINVAL, ENOSPC, EOVERFLOW, ENOTSUP, ESHUTDOWN];
}

/// Bits of `base:allocation`.
pub mod alloc {
    /// Not allocated: a write may run out of space.
    pub const HOLE: u64 = 1;
    /// Reads as zeroes.
    pub const ZERO: u64 = 2;
}

/// The one context that every server with block status has.
pub const BASE_ALLOCATION: &str = "base:allocation";

/// Takes big-endian integers and bytes from the front of a buffer; panics when it is too short.
#[derive(Debug, Clone, Copy)]
pub struct Cursor<'a>(pub &'a [u8]);

impl<'a> Cursor<'a> {
    /// The next `count` bytes.
    pub fn bytes(&mut self, count: usize) -> &'a [u8] {
        assert!(self.0.len() >= count, "too short: {count} bytes wanted, {} left", self.0.len());
        let (head, rest) = self.0.split_at(count);
        self.0 = rest;
        head
    }

    /// The next two bytes.
    pub fn u16(&mut self) -> u16 {
        u16::from_be_bytes(self.bytes(2).try_into().unwrap())
    }

    /// The next four bytes.
    pub fn u32(&mut self) -> u32 {
        u32::from_be_bytes(self.bytes(4).try_into().unwrap())
    }

    /// The next eight bytes.
    pub fn u64(&mut self) -> u64 {
        u64::from_be_bytes(self.bytes(8).try_into().unwrap())
    }
}

/// A message under construction.
#[derive(Debug, Clone, Default)]
pub struct Message(pub Vec<u8>);

impl Message {
    /// An empty message.
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends a big-endian u16.
    #[must_use]
    pub fn u16(mut self, value: u16) -> Self {
        self.0.extend(value.to_be_bytes());
        self
    }

    /// Appends a big-endian u32.
    #[must_use]
    pub fn u32(mut self, value: u32) -> Self {
        self.0.extend(value.to_be_bytes());
        self
    }

    /// Appends a big-endian u64.
    #[must_use]
    pub fn u64(mut self, value: u64) -> Self {
        self.0.extend(value.to_be_bytes());
        self
    }

    /// Appends bytes as they are.
    #[must_use]
    pub fn bytes(mut self, bytes: &[u8]) -> Self {
        self.0.extend(bytes);
        self
    }

    /// Appends a length as u32, then the bytes.
    #[must_use]
    pub fn counted(self, bytes: &[u8]) -> Self {
        self.u32(u32::try_from(bytes.len()).unwrap()).bytes(bytes)
    }
}

/// The data of INFO and GO: a name and the ids of the information wanted.
pub fn go_data(name: &[u8], ids: &[u16]) -> Vec<u8> {
    let head = Message::new().counted(name).u16(u16::try_from(ids.len()).unwrap());
    ids.iter().fold(head, |message, id| message.u16(*id)).0
}

/// The data of LIST_META_CONTEXT and SET_META_CONTEXT.
pub fn context_data(export: &str, queries: &[&str]) -> Vec<u8> {
    let count = u32::try_from(queries.len()).unwrap();
    let head = Message::new().counted(export.as_bytes()).u32(count);
    queries.iter().fold(head, |message, query| message.counted(query.as_bytes())).0
}
