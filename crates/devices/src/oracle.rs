//! Disks whose content is fixed, and which accept only writes that agree with it: source and
//! destination of one copy, and the proof that it is right.

use device::{Error, ErrorKind, Fault, Result};

use crate::words::first_difference;
use runtime::to_usize;

/// Compared at a time: small enough to stay in the first-level cache.
const PIECE: usize = 4096;

/// Compares `data`, written at `offset`, with what `expected` puts there.
///
/// # Errors
/// `Mismatch`, at the first byte that differs.
pub(crate) fn verify(
    name: &str,
    data: &[u8],
    offset: u64,
    expected: impl Fn(&mut [u8], u64),
) -> Result<()> {
    let mut want = [0; PIECE];
    let mut at = offset;
    for piece in data.chunks(PIECE) {
        let want = &mut want[..piece.len()];
        expected(want, at);
        if let Some(i) = first_difference(piece, want) {
            return Err(mismatch(name, at + i));
        }
        at += piece.len() as u64;
    }
    Ok(())
}

/// Compares `length` zeroes with what `expected` puts at `offset`.
///
/// # Errors
/// `Mismatch`, at the first byte that is not zero.
pub(crate) fn verify_zero(
    name: &str,
    offset: u64,
    length: u64,
    expected: impl Fn(&mut [u8], u64),
) -> Result<()> {
    let mut done = 0;
    while done < length {
        let n = (length - done).min(PIECE as u64);
        verify(name, &[0; PIECE][..to_usize(n)], offset + done, &expected)?;
        done += n;
    }
    Ok(())
}

/// The error for a write that does not match.
pub(crate) fn mismatch(name: &str, offset: u64) -> Error {
    let action = "write: the data does not match this disk";
    Error::new(ErrorKind::Mismatch, Fault::User, action).on(name).at(offset)
}
