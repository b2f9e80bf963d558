//! Conversions between the integers of devices (64 bits, bytes) and of memory, without a cast
//! that could lose anything.

/// A length that is known to fit in memory because it was cut to a buffer's length before.
/// Saturates, so that a mistake shows as a range error and never as a wrong byte.
pub(crate) fn to_usize(n: u64) -> usize {
    usize::try_from(n).unwrap_or(usize::MAX)
}

/// The length of a buffer.
pub(crate) fn len(bytes: &[u8]) -> u64 {
    bytes.len() as u64
}
