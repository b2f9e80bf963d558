//! Messages, written by hand.

pub(crate) use blackbox::nbd::Cursor as Fields;
pub(crate) use blackbox::nbd::rep::{ACK, INFO, META_CONTEXT as META, POLICY, SERVER, UNSUP};
use blackbox::nbd::{EXT_REQUEST, OPTION_REPLY, REQUEST};

pub(crate) const IHAVEOPT: &[u8; 8] = b"IHAVEOPT";

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

pub(crate) fn meta(number: u32, name: &str, queries: &[&str]) -> Bytes {
    let mut data = Bytes::new().counted(name).u32(u32::try_from(queries.len()).unwrap());
    for query in queries {
        data = data.counted(query);
    }
    option(number, data)
}

/// An option reply as a server sends it.
pub(crate) fn option_reply(option: u32, kind: u32, data: impl AsRef<[u8]>) -> Bytes {
    let data = data.as_ref();
    Bytes::new()
        .u64(OPTION_REPLY)
        .u32(option)
        .u32(kind)
        .u32(u32::try_from(data.len()).unwrap())
        .raw(data)
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
        let magic = if self.extended { EXT_REQUEST } else { REQUEST };
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
