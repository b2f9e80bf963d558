//! The numbers and layouts of the kernel's FUSE protocol (include/uapi/linux/fuse.h).
//!
//! Requests are read through [`Fields`], which never reads past what came; replies are put together
//! byte by byte. All numbers are in the machine's order.

use crate::fields::Fields;

/// The version spoken: what a newer kernel adds is asked for by flags alone.
pub(super) const MAJOR: u32 = 7;
/// FUSE_PASSTHROUGH came with this one (Linux 6.9).
pub(super) const MINOR: u32 = 40;
/// The oldest that is spoken to: Linux 5.4.
pub(super) const OLDEST: u32 = 31;

/// Of a request: `fuse_in_header`.
pub(super) const HEADER: usize = 40;
/// `fuse_write_in`, behind which the data lies.
const WRITE_IN: usize = 40;
/// Where the data of a write begins.
pub(super) const HEAD: usize = HEADER + WRITE_IN;
/// Bytes of a request or reply, at most, beyond its header.
pub(super) const MOST: usize = 1 << 20;
/// The number of the root.
pub(super) const ROOT: u64 = 1;

pub(super) mod op {
    pub(in crate::fuse) const FORGET: u32 = 2;
    pub(in crate::fuse) const GETATTR: u32 = 3;
    pub(in crate::fuse) const SETATTR: u32 = 4;
    pub(in crate::fuse) const OPEN: u32 = 14;
    pub(in crate::fuse) const READ: u32 = 15;
    pub(in crate::fuse) const WRITE: u32 = 16;
    pub(in crate::fuse) const STATFS: u32 = 17;
    pub(in crate::fuse) const RELEASE: u32 = 18;
    pub(in crate::fuse) const FSYNC: u32 = 20;
    pub(in crate::fuse) const INIT: u32 = 26;
    pub(in crate::fuse) const INTERRUPT: u32 = 36;
    pub(in crate::fuse) const DESTROY: u32 = 38;
    pub(in crate::fuse) const BATCH_FORGET: u32 = 42;
    pub(in crate::fuse) const FALLOCATE: u32 = 43;
    pub(in crate::fuse) const LSEEK: u32 = 46;
}

/// Flags of INIT.
pub(super) mod init {
    pub(in crate::fuse) const ASYNC_READ: u64 = 1 << 0;
    pub(in crate::fuse) const BIG_WRITES: u64 = 1 << 5;
    pub(in crate::fuse) const ASYNC_DIO: u64 = 1 << 15;
    pub(in crate::fuse) const MAX_PAGES: u64 = 1 << 22;
    pub(in crate::fuse) const EXT: u64 = 1 << 30;
    pub(in crate::fuse) const DIRECT_IO_ALLOW_MMAP: u64 = 1 << 36;
    pub(in crate::fuse) const PASSTHROUGH: u64 = 1 << 37;
}

/// Flags of the reply to OPEN.
pub(super) mod opened {
    pub(in crate::fuse) const DIRECT_IO: u32 = 1 << 0;
    pub(in crate::fuse) const KEEP_CACHE: u32 = 1 << 1;
    pub(in crate::fuse) const NO_FLUSH: u32 = 1 << 5;
    pub(in crate::fuse) const PARALLEL_DIRECT_WRITES: u32 = 1 << 6;
    pub(in crate::fuse) const PASSTHROUGH: u32 = 1 << 7;
}

/// FATTR_SIZE of SETATTR: a length is asked for.
pub(super) const SET_SIZE: u32 = 1 << 3;
/// FATTR_MODE, FATTR_UID and FATTR_GID.
pub(super) const SET_OWNERSHIP: u32 = 0b111;
/// O_SYNC and O_DSYNC among the flags of a write's file.
pub(super) const DSYNC: u32 = 0o10000;

/// What `fallocate` is to do.
pub(super) mod falloc {
    pub(in crate::fuse) const KEEP_SIZE: u32 = 1;
    pub(in crate::fuse) const PUNCH_HOLE: u32 = 2;
    pub(in crate::fuse) const ZERO_RANGE: u32 = 16;
}

/// The header of a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Header {
    pub(super) len: u32,
    pub(super) opcode: u32,
    pub(super) unique: u64,
    pub(super) node: u64,
}

impl Header {
    pub(super) fn read(bytes: &[u8]) -> Option<Self> {
        let mut fields = Fields(bytes.get(..HEADER)?);
        Some(Self {
            len: fields.u32()?,
            opcode: fields.u32()?,
            unique: fields.u64()?,
            node: fields.u64()?,
        })
    }
}

/// The header of a reply, `fuse_out_header`, with `len` bytes behind it.
pub(super) fn out_header(unique: u64, errno: i32, len: usize) -> [u8; 16] {
    let mut header = [0; 16];
    let all = u32::try_from(16 + len).unwrap_or(u32::MAX);
    let parts = [&all.to_ne_bytes()[..], &(-errno).to_ne_bytes(), &unique.to_ne_bytes()];
    for (to, from) in header.iter_mut().zip(parts.into_iter().flatten()) {
        *to = *from;
    }
    header
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_that_is_cut_off_is_none() {
        assert!(Header::read(&[0; 39]).is_none());
    }

    #[test]
    fn a_header_of_a_reply_has_its_length_a_negative_error_and_the_number_of_the_request() {
        let header = out_header(7, 5, 100);
        let mut fields = Fields(&header);
        assert_eq!(fields.u32(), Some(116));
        assert_eq!(fields.u32().map(u32::cast_signed), Some(-5));
        assert_eq!(fields.u64(), Some(7));
    }
}
