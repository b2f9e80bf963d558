//! The first 512 bytes of a VDI image.
//!
//! | at | what |
//! |---|---|
//! | 0 | 64 bytes of text |
//! | 64, 68 | signature, version |
//! | 72, 76, 80 | bytes of the header from 72 on, kind, flags |
//! | 84 | 256 bytes of description |
//! | 340, 344 | where the map and the blocks begin |
//! | 348, 352, 356, 360 | cylinders, heads, sectors, bytes of a sector |
//! | 368 | bytes of the disk (64 bits) |
//! | 376, 380 | bytes of a block, and of what stands in front of each: 0 |
//! | 384, 388 | blocks, and how many of them are there |
//! | 392, 408, 424, 440 | identifiers: the image, its state, its parent, the state of its parent |

use device::{Edge, Result};

use crate::kit::fields::{corrupt, foreign, le32, le64, load, new_uuid, put};

pub(super) const SIGNATURE_AT: usize = 64;
pub(super) const SIGNATURE: [u8; 4] = 0xbeda_107f_u32.to_le_bytes();
/// Where the number of blocks that are there is.
pub(super) const ALLOCATED_AT: u64 = 388;
/// Bytes of the header.
pub(super) const LEN: u64 = 512;
const VERSION: u32 = 0x0001_0001;
/// The most entries of the map.
pub(super) const BLOCKS_MAX: u64 = 0x3fff_ffff;

/// How space is allocated.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Kind {
    Dynamic,
    Static,
}

/// Its fields.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Header {
    pub(super) kind: Kind,
    /// Where the map begins.
    pub(super) map: u64,
    /// Where the blocks begin.
    pub(super) data: u64,
    /// Bytes of the disk.
    pub(super) size: u64,
    /// Bytes of a block; a power of two.
    pub(super) block: u64,
    /// How many blocks the disk has, and how many are in the image.
    pub(super) blocks: u64,
    pub(super) allocated: u64,
}

impl Kind {
    fn of(number: u32) -> Result<Self> {
        match number {
            1 => Ok(Self::Dynamic),
            2 => Ok(Self::Static),
            other => Err(foreign(format!(
                "a VDI image of kind {other} stands over others, which it names by identifiers only; \
                 flatten it with VBoxManage clonemedium"
            ))),
        }
    }
}

impl Header {
    pub(super) fn read(container: &Edge) -> Result<Self> {
        let bytes = load(container, "header", 0, usize::try_from(LEN).unwrap_or(512))?;
        Self::decode(&bytes)
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self> {
        let u32_at = |at| u64::from(le32(bytes, at));
        if bytes.get(SIGNATURE_AT..SIGNATURE_AT + 4) != Some(&SIGNATURE) {
            return Err(corrupt("this is not a VDI image: it has no signature"));
        }
        let version = le32(bytes, 68);
        if version != VERSION {
            let (major, minor) = (version >> 16, version & 0xffff);
            return Err(foreign(format!("VDI version {major}.{minor} is not known, only 1.1")));
        }
        // VirtualBox's own odd sizes are rounded up, as QEMU does.
        let size = le64(bytes, 368);
        let header = Self {
            kind: Kind::of(le32(bytes, 76))?,
            map: u32_at(340),
            data: u32_at(344),
            size: size.checked_next_multiple_of(512).unwrap_or(u64::MAX),
            block: u32_at(376),
            blocks: u32_at(384),
            allocated: u32_at(388),
        };
        // Its link, and the state of its parent: either is set only where it stands over another.
        if bytes.get(424..456).is_none_or(|parent| parent.iter().any(|b| *b != 0)) {
            return Err(foreign(
                "the VDI image stands over another, which it names by an identifier only",
            ));
        }
        // VirtualBox keeps the field and sets it to 0; QEMU reads as if it were 0. What one of them
        // reads, the other does not.
        if le32(bytes, 380) != 0 {
            return Err(foreign("the VDI image has extra bytes in front of each of its blocks"));
        }
        header.check(le32(bytes, 360))?;
        Ok(header)
    }

    fn check(&self, sector: u32) -> Result<()> {
        let map_end = self.map + self.blocks * 4;
        let wrong = if sector != 512 {
            "its sectors do not have 512 bytes"
        } else if !self.block.is_power_of_two() || !(4096..=1 << 28).contains(&self.block) {
            "its blocks are not of 4 KiB to 256 MiB"
        } else if self.blocks > BLOCKS_MAX || self.size > self.blocks * self.block {
            "its map is not as long as its disk"
        } else if !self.map.is_multiple_of(512) || !self.data.is_multiple_of(512) {
            "its parts do not begin at sectors"
        } else if self.map < LEN || self.data < map_end {
            "its map lies in its header, or in its blocks"
        } else {
            return Ok(());
        };
        Err(corrupt(format!("the VDI image is broken: {wrong}")))
    }

    /// The offset of the block with this number.
    pub(super) fn place(&self, index: u64) -> Option<u64> {
        (index < BLOCKS_MAX).then(|| self.data + index * self.block)
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![0; usize::try_from(LEN).unwrap_or(512)];
        let mut put_u32 = |at, n: u64| {
            let n = u32::try_from(n).unwrap_or(u32::MAX);
            put(&mut bytes, at, &n.to_le_bytes());
        };
        put_u32(68, VERSION.into());
        put_u32(72, 0x180);
        put_u32(76, if self.kind == Kind::Dynamic { 1 } else { 2 });
        put_u32(340, self.map);
        put_u32(344, self.data);
        put_u32(360, 512);
        put_u32(376, self.block);
        put_u32(384, self.blocks);
        put_u32(388, self.allocated);
        put(&mut bytes, 0, b"<<< diskferry Virtual Disk Image >>>\n");
        put(&mut bytes, SIGNATURE_AT, &SIGNATURE);
        put(&mut bytes, 368, &self.size.to_le_bytes());
        put(&mut bytes, 392, &new_uuid());
        put(&mut bytes, 408, &new_uuid());
        bytes
    }
}
