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

/// What a disk works in below, in bytes, at multiples of each from its start; 0: not known. Hints:
/// requests of any other size are as right.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Granules {
    /// Its medium reads and writes so many together.
    pub physical: u32,
    /// A trim frees whole ones of these.
    pub trim: u32,
    /// A zero is no write where it has whole ones of these.
    pub zero: u32,
}

impl Granules {
    /// All of the same size: a power of two, or they are not known.
    #[must_use]
    pub fn all(bytes: u64) -> Self {
        let bytes = u32::try_from(bytes).ok().filter(|bytes| bytes.is_power_of_two());
        let bytes = bytes.unwrap_or(0);
        Self { physical: bytes, trim: bytes, zero: bytes }
    }

    /// Those of the bytes from `start` on: not known, where they are shifted.
    #[must_use]
    pub fn from(self, start: u64) -> Self {
        let kept = |bytes: u32| if start.is_multiple_of(bytes.max(1).into()) { bytes } else { 0 };
        Self { physical: kept(self.physical), trim: kept(self.trim), zero: kept(self.zero) }
    }
}

impl Default for BlockSizes {
    fn default() -> Self {
        Self::ANY
    }
}
