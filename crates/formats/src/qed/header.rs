//! The header of a QED image.
//!
//! | at | what, little end first |
//! |---|---|
//! | 0 | `QED` and a zero |
//! | 4, 8, 12 | bytes of a cluster, clusters of a table, clusters of the header |
//! | 16, 24, 32 | features that must be known, that may be, that are cleared |
//! | 40, 48 | where the first table is, bytes of the disk |
//! | 56, 60 | where the name of the backing image is, and its bytes |

use device::{Edge, Result};

use crate::NamedFile;
use crate::kit::fields::{corrupt, foreign, le32, le64, load};
use crate::kit::numbers::text;

pub(super) const MAGIC: &[u8] = b"QED\0";
const HEADER: usize = 64;
const BACKED: u64 = 1;
const NEEDS_CHECK: u64 = 2;
const BACKING_IS_RAW: u64 = 4;
const NAME_MAX: u32 = 1023;

pub(super) struct Header {
    pub(super) cluster: u64,
    /// Bytes of a table.
    pub(super) table: u64,
    pub(super) first: u64,
    pub(super) size: u64,
    pub(super) dirty: bool,
    /// Bytes of the header's clusters.
    pub(super) len: u64,
    pub(super) backing: Option<NamedFile>,
}

impl Header {
    pub(super) fn read(container: &Edge) -> Result<Self> {
        let bytes = load(container, "header", 0, HEADER)?;
        if !bytes.starts_with(MAGIC) {
            return Err(corrupt("this is not a QED image: it has no header"));
        }
        let (cluster, tables) = (u64::from(le32(&bytes, 4)), u64::from(le32(&bytes, 8)));
        let features = le64(&bytes, 16);
        if features > (BACKED | NEEDS_CHECK | BACKING_IS_RAW) {
            return Err(foreign(format!("the QED image has unknown features: {features:#x}")));
        }
        let broken = |why: &str| corrupt(format!("the QED image is broken: {why}"));
        if !cluster.is_power_of_two() || !(4096..=64 << 20).contains(&cluster) {
            return Err(broken("its clusters are not of 4 KiB to 64 MiB"));
        }
        if !tables.is_power_of_two() || tables > 16 {
            return Err(broken("its tables do not have 1 to 16 clusters"));
        }
        let (table, size, len) = (tables * cluster, le64(&bytes, 48), u64::from(le32(&bytes, 12)));
        let (first, len) = (le64(&bytes, 40), len.saturating_mul(cluster));
        let entries = table / 8;
        let most = entries.saturating_mul(entries).saturating_mul(cluster);
        if size > most.min(1 << 62) || !size.is_multiple_of(512) {
            return Err(broken("its disk is larger than its tables"));
        }
        if !first.is_multiple_of(cluster) || first < len || len == 0 {
            return Err(broken("its first table lies in its header"));
        }
        let backing = match features & BACKED {
            0 => None,
            _ => {
                let (at, n) = (le32(&bytes, 56), le32(&bytes, 60));
                if n > NAME_MAX || u64::from(at) + u64::from(n) > len {
                    return Err(broken("the name of its backing image is not in its header"));
                }
                let n = usize::try_from(n).unwrap_or(0);
                let name = text(&load(container, "name of its backing image", at.into(), n)?);
                let raw = features & BACKING_IS_RAW != 0;
                Some(NamedFile { name, format: raw.then(|| "raw".into()) })
            }
        };
        let dirty = features & NEEDS_CHECK != 0;
        Ok(Self { cluster, table, first, size, dirty, len, backing })
    }
}
