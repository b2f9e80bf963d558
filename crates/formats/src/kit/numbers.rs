//! Numbers and text in byte slices that may be too short.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

/// The 16-bit big-endian number at `at`.
pub(crate) fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    array(bytes, at).map(u16::from_be_bytes)
}

/// The 32-bit big-endian number at `at`.
pub(crate) fn be32(bytes: &[u8], at: usize) -> Option<u32> {
    array(bytes, at).map(u32::from_be_bytes)
}

/// The 64-bit big-endian number at `at`.
pub(crate) fn be64(bytes: &[u8], at: usize) -> Option<u64> {
    array(bytes, at).map(u64::from_be_bytes)
}

/// Bytes as text that carries all of them (`device::text`).
pub(crate) fn text(bytes: &[u8]) -> String {
    device::text::carry(OsStr::from_bytes(bytes))
}
