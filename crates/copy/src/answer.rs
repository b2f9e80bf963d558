//! Checks of devices' answers.

use device::{Buffer, Error, ErrorKind, Fault, Outcome};

/// The buffer of a read that was asked for `len` bytes.
pub(crate) fn read_outcome(outcome: Outcome, len: usize) -> Option<Buffer> {
    match outcome {
        Outcome::Read(buffer) if buffer.len() == len => Some(buffer),
        _ => None,
    }
}

/// An answer that makes no sense: the error that ends the copy.
pub(crate) fn confused(what: &str) -> Error {
    let action = format!("copy: the {what} gave an answer that makes no sense; this is a defect");
    Error::new(ErrorKind::Io, Fault::Us, action)
}
