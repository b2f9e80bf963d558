//! The header of a Parallels disk.
//!
//! | at | what, little end first |
//! |---|---|
//! | 0 | `WithoutFreeSpace`, or `WithouFreSpacExt`, whose table counts in blocks and not in sectors |
//! | 16, 28, 32 | version, sectors of a block, entries |
//! | 36 | sectors of the disk: 64 bits, in the older kind 32 |
//! | 44 | whether it is open |
//! | 48 | the sector where blocks begin |
//! | 64 | the table: 32 bits for each block, 0 for one that is not there |

use device::{Edge, Result};

use crate::kit::fields::{corrupt, foreign, le32, le64, load};

pub(super) const OLD: &[u8] = b"WithoutFreeSpace";
pub(super) const NEW: &[u8] = b"WithouFreSpacExt";
pub(super) const HEADER: usize = 64;
const SECTOR: u64 = 512;
const IN_USE: u32 = 0x746f_6e59;

pub(super) struct Header {
    pub(super) size: u64,
    pub(super) block: u64,
    pub(super) entries: u64,
    /// Bytes that a number in the table counts in.
    pub(super) unit: u64,
    pub(super) in_use: bool,
    /// Where the room for blocks begins, as the image says: bytes.
    pub(super) data: u64,
}

impl Header {
    pub(super) fn read(container: &Edge) -> Result<Self> {
        let bytes = load(container, "header", 0, HEADER)?;
        let newer = bytes.starts_with(NEW);
        if !newer && !bytes.starts_with(OLD) {
            return Err(corrupt("this is not a Parallels image: it has no header"));
        }
        if le32(&bytes, 16) != 2 {
            return Err(foreign(format!(
                "Parallels version {} is not known, only 2",
                le32(&bytes, 16)
            )));
        }
        let block = u64::from(le32(&bytes, 28)) * SECTOR;
        let sectors = if newer { le64(&bytes, 36) } else { le32(&bytes, 36).into() };
        let entries = u64::from(le32(&bytes, 32));
        let broken = |why: &str| corrupt(format!("the Parallels image is broken: {why}"));
        if block == 0 || block > 1 << 30 {
            return Err(broken("its blocks are not of 512 bytes to 1 GiB"));
        }
        let size = sectors.checked_mul(SECTOR).filter(|size| size.div_ceil(block) <= entries);
        let size = size.ok_or_else(|| broken("its table is shorter than its disk"))?;
        let unit = if newer { block } else { SECTOR };
        let (in_use, data) = (le32(&bytes, 44) == IN_USE, u64::from(le32(&bytes, 48)) * SECTOR);
        Ok(Self { size, block, entries, unit, in_use, data })
    }
}
