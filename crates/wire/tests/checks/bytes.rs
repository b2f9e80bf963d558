//! Messages, written and parsed by hand.

pub(crate) const IHAVEOPT: &[u8; 8] = b"IHAVEOPT";
pub(crate) const REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;

pub(crate) const ACK: u32 = 1;
pub(crate) const SERVER: u32 = 2;
pub(crate) const INFO: u32 = 3;
pub(crate) const META: u32 = 4;
pub(crate) const UNSUP: u32 = 0x8000_0001;
pub(crate) const POLICY: u32 = 0x8000_0002;
pub(crate) const INVALID: u32 = 0x8000_0003;
pub(crate) const TLS_REQD: u32 = 0x8000_0005;
pub(crate) const UNKNOWN: u32 = 0x8000_0006;
pub(crate) const SHUTDOWN: u32 = 0x8000_0007;
pub(crate) const BLOCK_SIZE_REQD: u32 = 0x8000_0008;
pub(crate) const TOO_BIG: u32 = 0x8000_0009;
pub(crate) const EXT_REQD: u32 = 0x8000_000a;

pub(crate) const EPERM: u32 = 1;
pub(crate) const EINVAL: u32 = 22;
pub(crate) const ENOSPC: u32 = 28;
pub(crate) const ENOTSUP: u32 = 95;

pub(crate) const FUA: u16 = 1;
pub(crate) const NO_HOLE: u16 = 2;
pub(crate) const DF: u16 = 4;
pub(crate) const REQ_ONE: u16 = 8;
pub(crate) const FAST_ZERO: u16 = 16;
pub(crate) const PAYLOAD_LEN: u16 = 32;

/// Bytes, built up by appending.
#[derive(Clone, Debug, Default)]
pub(crate) struct Bytes(pub(crate) Vec<u8>);

impl Bytes {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    pub(crate) fn raw(mut self, bytes: impl AsRef<[u8]>) -> Self {
        self.0.extend_from_slice(bytes.as_ref());
        self
    }

    pub(crate) fn u16(self, value: u16) -> Self {
        self.raw(value.to_be_bytes())
    }

    pub(crate) fn u32(self, value: u32) -> Self {
        self.raw(value.to_be_bytes())
    }

    pub(crate) fn u64(self, value: u64) -> Self {
        self.raw(value.to_be_bytes())
    }

    /// A string with its length before it.
    pub(crate) fn counted(self, text: &str) -> Self {
        self.u32(u32::try_from(text.len()).unwrap()).raw(text)
    }
}

impl AsRef<[u8]> for Bytes {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// Takes fields off the front.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fields<'a>(pub(crate) &'a [u8]);

impl<'a> Fields<'a> {
    pub(crate) fn take(&mut self, len: usize) -> &'a [u8] {
        let (head, rest) = self.0.split_at(len);
        self.0 = rest;
        head
    }

    pub(crate) fn u16(&mut self) -> u16 {
        u16::from_be_bytes(self.take(2).try_into().unwrap())
    }

    pub(crate) fn u32(&mut self) -> u32 {
        u32::from_be_bytes(self.take(4).try_into().unwrap())
    }

    pub(crate) fn u64(&mut self) -> u64 {
        u64::from_be_bytes(self.take(8).try_into().unwrap())
    }
}

pub(crate) fn option(option: u32, data: impl AsRef<[u8]>) -> Bytes {
    let data = data.as_ref();
    Bytes::new().raw(IHAVEOPT).u32(option).u32(u32::try_from(data.len()).unwrap()).raw(data)
}

pub(crate) fn info(number: u32, name: &str, ids: &[u16]) -> Bytes {
    let mut data = Bytes::new().counted(name).u16(u16::try_from(ids.len()).unwrap());
    for id in ids {
        data = data.u16(*id);
    }
    option(number, data)
}

pub(crate) fn go(name: &str) -> Bytes {
    info(7, name, &[])
}

pub(crate) fn meta(number: u32, name: &str, queries: &[&str]) -> Bytes {
    let mut data = Bytes::new().counted(name).u32(u32::try_from(queries.len()).unwrap());
    for query in queries {
        data = data.counted(query);
    }
    option(number, data)
}

/// An option reply: the option, the type, the data.
pub(crate) type OptionReply = (u32, u32, Vec<u8>);

/// An option reply as a server sends it.
pub(crate) fn option_reply(option: u32, kind: u32, data: impl AsRef<[u8]>) -> Bytes {
    let data = data.as_ref();
    Bytes::new()
        .u64(REPLY_MAGIC)
        .u32(option)
        .u32(kind)
        .u32(u32::try_from(data.len()).unwrap())
        .raw(data)
}

/// Parses a run of option replies; no byte may be left over.
pub(crate) fn option_replies(bytes: &[u8]) -> Vec<OptionReply> {
    let mut fields = Fields(bytes);
    let mut replies = Vec::new();
    while !fields.0.is_empty() {
        assert_eq!(fields.u64(), REPLY_MAGIC);
        let (option, kind, len) = (fields.u32(), fields.u32(), fields.u32());
        replies.push((option, kind, fields.take(len.try_into().unwrap()).to_vec()));
    }
    replies
}

/// The types of a run of option replies.
pub(crate) fn kinds(bytes: &[u8]) -> Vec<u32> {
    option_replies(bytes).iter().map(|(_, kind, _)| *kind).collect()
}

/// A request, in either framing.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Ask {
    pub(crate) extended: bool,
    pub(crate) flags: u16,
    pub(crate) command: u16,
    pub(crate) cookie: u64,
    pub(crate) offset: u64,
    pub(crate) length: u64,
}

impl Ask {
    pub(crate) fn bytes(self) -> Bytes {
        let magic = if self.extended { 0x21e4_1c71 } else { 0x2560_9513 };
        let head = Bytes::new()
            .u32(magic)
            .u16(self.flags)
            .u16(self.command)
            .u64(self.cookie)
            .u64(self.offset);
        if self.extended {
            head.u64(self.length)
        } else {
            head.u32(u32::try_from(self.length).unwrap())
        }
    }
}

/// One reply header with what followed it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Answer {
    Simple { error: u32, cookie: u64, data: Vec<u8> },
    Chunk { last: bool, kind: u16, cookie: u64, offset: Option<u64>, payload: Vec<u8> },
}

impl Answer {
    pub(crate) fn cookie(&self) -> u64 {
        match self {
            Self::Simple { cookie, .. } | Self::Chunk { cookie, .. } => *cookie,
        }
    }

    /// The error, or 0.
    pub(crate) fn error(&self) -> u32 {
        match self {
            Self::Simple { error, .. } => *error,
            Self::Chunk { kind, payload, .. } if kind & 0x8000 != 0 => Fields(payload).u32(),
            Self::Chunk { .. } => 0,
        }
    }

    pub(crate) fn is_chunk(&self) -> bool {
        matches!(self, Self::Chunk { .. })
    }
}

/// Parses a run of replies; `data` bytes follow a simple success.
pub(crate) fn answers(bytes: &[u8], data: usize) -> Vec<Answer> {
    let mut fields = Fields(bytes);
    let mut answers = Vec::new();
    while !fields.0.is_empty() {
        let magic = fields.u32();
        if magic == 0x6744_6698 {
            let (error, cookie) = (fields.u32(), fields.u64());
            let data = fields.take(if error == 0 { data } else { 0 }).to_vec();
            answers.push(Answer::Simple { error, cookie, data });
            continue;
        }
        let extended = magic == 0x6e8a_278c;
        assert!(extended || magic == 0x668e_33ef, "magic {magic:x}");
        let (flags, kind, cookie) = (fields.u16(), fields.u16(), fields.u64());
        let offset = extended.then(|| fields.u64());
        let len = if extended { fields.u64() } else { fields.u32().into() };
        let payload = fields.take(len.try_into().unwrap()).to_vec();
        answers.push(Answer::Chunk { last: flags & 1 != 0, kind, cookie, offset, payload });
    }
    answers
}
