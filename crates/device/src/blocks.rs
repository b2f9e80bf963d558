//! Block-size constraints of a device, as NBD states them (proto.md, "Size constraints").

/// The sizes, in bytes, in which a device likes to be used.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct BlockSizes {
    /// Offsets and lengths must be multiples of this. A power of two, 1 to 65536; for an image that
    /// is being made, which is never served, up to its cluster size.
    pub minimum: u32,
    /// Requests of multiples of this are served without extra work. A power of two, at least 512.
    pub preferred: u32,
    /// The longest read or write. Zero and trim may be longer.
    pub maximum: u32,
}

impl BlockSizes {
    /// What our own devices take: any byte, pages preferred, 32 MiB at once.
    pub const ANY: Self = Self { minimum: 1, preferred: 4096, maximum: 32 << 20 };
}

impl Default for BlockSizes {
    fn default() -> Self {
        Self::ANY
    }
}
