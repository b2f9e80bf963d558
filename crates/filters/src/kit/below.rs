//! The device below, for tasks: its operations as futures.
//!
//! Each call submits its operation at once, before it is awaited; so several may be in flight.

use device::{
    Buffer, Edge, Error, ErrorKind, Extent, Fault, Operation, Outcome, Result, Slice, ZeroFlags,
};
use runtime::{Promised, promise};

/// Submits `operation` below.
pub(crate) fn submit(below: &Edge, operation: Operation) -> Promised<Result<Outcome>> {
    let (owed, answer) = promise();
    below.submit(operation, Box::new(move |outcome| owed.keep(outcome)));
    answer
}

/// The result of a submitted operation.
///
/// # Errors
/// What the device below says.
pub(crate) async fn ended(answer: Promised<Result<Outcome>>) -> Result<Outcome> {
    answer.await.unwrap_or_else(|| Err(confused()))
}

/// Fills `buffer`.
///
/// # Errors
/// What the device below says.
pub(crate) async fn read(below: &Edge, offset: u64, buffer: Buffer) -> Result<Buffer> {
    let len = buffer.len();
    match ended(submit(below, Operation::Read { offset, buffer })).await? {
        Outcome::Read(buffer) if buffer.len() == len => Ok(buffer),
        _ => Err(confused()),
    }
}

/// Writes `data`.
///
/// # Errors
/// What the device below says.
pub(crate) async fn write(below: &Edge, offset: u64, data: Slice, fua: bool) -> Result<()> {
    ended(submit(below, Operation::Write { offset, data, fua })).await.map(drop)
}

/// Zeroes a range.
///
/// # Errors
/// What the device below says.
pub(crate) async fn zero(below: &Edge, offset: u64, len: u64, flags: ZeroFlags) -> Result<()> {
    ended(submit(below, Operation::Zero { offset, len, flags })).await.map(drop)
}

/// Says that a range is no longer needed.
///
/// # Errors
/// What the device below says.
pub(crate) async fn trim(below: &Edge, offset: u64, len: u64, fua: bool) -> Result<()> {
    ended(submit(below, Operation::Trim { offset, len, fua })).await.map(drop)
}

/// Makes everything durable that is complete.
///
/// # Errors
/// What the device below says.
pub(crate) async fn flush(below: &Edge) -> Result<()> {
    ended(submit(below, Operation::Flush)).await.map(drop)
}

/// What a range holds: at least one extent, at most `max`.
///
/// # Errors
/// What the device below says.
pub(crate) async fn resolve(
    below: &Edge,
    offset: u64,
    len: u64,
    max: usize,
) -> Result<Vec<Extent>> {
    match ended(submit(below, Operation::Resolve { offset, len, max })).await? {
        Outcome::Extents(extents) if !extents.is_empty() => Ok(extents),
        _ => Err(confused()),
    }
}

fn confused() -> Error {
    let action = "the device below gave an answer that makes no sense; this is a defect";
    Error::new(ErrorKind::Io, Fault::Us, action)
}
