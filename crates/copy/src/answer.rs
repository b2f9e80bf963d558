//! Devices' answers: waiting for them, and checks of them.

use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};

use device::{Buffer, Edge, Error, ErrorKind, Fault, Operation, Outcome, Result};

use crate::progress::{Cancel, LOOK};

/// The result, or that the copy is to stop.
pub(crate) fn heard<T>(told: &Receiver<Result<T>>, cancel: &Cancel) -> Result<T> {
    loop {
        match told.recv_timeout(LOOK) {
            Ok(answer) => return answer,
            Err(RecvTimeoutError::Timeout) => cancel.check()?,
            Err(RecvTimeoutError::Disconnected) => return Err(confused("device")),
        }
    }
}

/// Makes durable what was written, or waits until the copy is to stop.
pub(crate) fn flush(target: &Edge, cancel: &Cancel) -> Result<()> {
    let (tell, told) = channel();
    // The receiver may have gone.
    target.submit(Operation::Flush, Box::new(move |outcome| drop(tell.send(outcome))));
    match heard(&told, cancel) {
        Ok(_) => Ok(()),
        Err(e) => cancel.check().and(Err(e.on(&target.info().name))),
    }
}

/// The buffer of a read that was asked for `len` bytes.
pub(crate) fn read_outcome(outcome: Outcome, len: usize) -> Option<Buffer> {
    match outcome {
        Outcome::Read(buffer) if buffer.len() == len => Some(buffer),
        _ => None,
    }
}

/// An answer that makes no sense: the error that ends the copy.
pub(crate) fn confused(what: &str) -> Error {
    let action = format!("copy: the {what} returned an invalid result; this is a defect");
    Error::new(ErrorKind::Io, Fault::Us, action)
}
