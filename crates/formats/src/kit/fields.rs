//! Numbers in headers. Missing bytes read as zeroes, so the length of a header is checked once,
//! when it is read.

use device::{Buffer, Edge, Error, ErrorKind, Fault, Result};

use super::numbers;

fn bytes<const N: usize>(from: &[u8], at: usize) -> [u8; N] {
    let found = at.checked_add(N).and_then(|end| from.get(at..end));
    found.and_then(|found| found.try_into().ok()).unwrap_or([0; N])
}

pub(crate) fn le16(from: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(bytes(from, at))
}

pub(crate) fn le32(from: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes(from, at))
}

pub(crate) fn le64(from: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes(from, at))
}

pub(crate) fn be16(from: &[u8], at: usize) -> u16 {
    numbers::be16(from, at).unwrap_or(0)
}

pub(crate) fn be32(from: &[u8], at: usize) -> u32 {
    numbers::be32(from, at).unwrap_or(0)
}

pub(crate) fn be64(from: &[u8], at: usize) -> u64 {
    numbers::be64(from, at).unwrap_or(0)
}

/// `N` bytes; zeroes where there are not so many.
pub(crate) fn array<const N: usize>(from: &[u8], at: usize) -> [u8; N] {
    bytes(from, at)
}

/// Stores `bytes` in a header, which must have room for them there.
pub(crate) fn put(into: &mut [u8], at: usize, bytes: &[u8]) {
    let room = at.checked_add(bytes.len()).and_then(|end| into.get_mut(at..end));
    debug_assert!(room.is_some(), "{at}+{} lies outside the header", bytes.len());
    if let Some(room) = room {
        room.copy_from_slice(bytes);
    }
}

/// Reads a piece of a container, which `what` names in errors. The caller has bounded `len`.
///
/// # Errors
/// The piece lies outside the container, or cannot be read.
pub(crate) fn load(below: &Edge, what: &str, offset: u64, len: usize) -> Result<Buffer> {
    lies_inside(below, what, offset, len as u64)?;
    let mut buffer = Buffer::zeroed(len);
    below.read(&mut buffer, offset)?;
    Ok(buffer)
}

/// Refuses a range that does not lie in the container.
///
/// # Errors
/// `Corrupt`.
pub(crate) fn lies_inside(below: &Edge, what: &str, offset: u64, len: u64) -> Result<()> {
    lies_within(below.info().size, what, offset, len)
}

/// The same for a file that has `size` bytes now.
///
/// # Errors
/// `Corrupt`.
pub(crate) fn lies_within(size: u64, what: &str, offset: u64, len: u64) -> Result<()> {
    if offset <= size && len <= size - offset {
        return Ok(());
    }
    let why = format!("its {what} ({len} bytes) lies outside the file, which has {size} bytes");
    Err(corrupt(why).at(offset))
}

/// The error for contents that break the rules of the format.
pub(crate) fn corrupt(why: impl Into<String>) -> Error {
    Error::new(ErrorKind::Corrupt, Fault::File, why)
}

/// The error for valid contents that cannot be read here.
pub(crate) fn foreign(why: impl Into<String>) -> Error {
    Error::new(ErrorKind::Unsupported, Fault::File, why)
}

/// A UUID, as unique as two seeds of the standard library's hashing.
pub(crate) fn new_uuid() -> [u8; 16] {
    use std::hash::{BuildHasher, Hasher, RandomState};
    let half = || RandomState::new().build_hasher().finish().to_le_bytes();
    let (mut uuid, (a, b)) = ([0; 16], (half(), half()));
    put(&mut uuid, 0, &a);
    put(&mut uuid, 8, &b);
    uuid[6] = uuid[6] & 0x0f | 0x40;
    uuid[8] = uuid[8] & 0x3f | 0x80;
    uuid
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_in_both_orders_and_what_is_not_there_is_zero() {
        let bytes = [1, 2, 3, 4, 5, 6, 7, 8];
        assert_eq!((le16(&bytes, 0), be16(&bytes, 0)), (0x201, 0x102));
        assert_eq!((le32(&bytes, 4), be32(&bytes, 4)), (0x0807_0605, 0x0506_0708));
        assert_eq!(
            (le64(&bytes, 0), be64(&bytes, 0)),
            (0x0807_0605_0403_0201, 0x0102_0304_0506_0708)
        );
        assert_eq!((le32(&bytes, 5), be64(&bytes, usize::MAX)), (0, 0));
        assert_ne!(new_uuid(), new_uuid());
    }
}
