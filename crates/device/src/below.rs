//! The operations of a disk below as futures, for tasks.
//!
//! Each call submits its operation at once, before it is awaited; so several may be in flight. The
//! errors are those of the disk.

#![expect(clippy::missing_errors_doc, reason = "what the disk below says")]

use runtime::{Promised, each, promise, spawn};

use crate::{
    Buffer, Done, Edge, Error, ErrorKind, Extent, Fault, Operation, Outcome, Place, Result, Slice,
    ZeroFlags, merge_extent,
};

/// Completes an operation with the result of a task, which has let go of all that it held by then
/// ([`Device::submit`](crate::Device::submit)).
pub fn complete(done: Done, work: impl Future<Output = Result<Outcome>> + Send + 'static) {
    spawn(async move {
        let outcome = work.await;
        done(outcome);
    });
}

/// Submits an operation.
pub fn submit(below: &Edge, operation: Operation) -> Promised<Result<Outcome>> {
    let (owed, answer) = promise();
    below.submit(operation, Box::new(move |outcome| owed.keep(outcome)));
    answer
}

/// The result of a submitted operation.
pub async fn ended(answer: Promised<Result<Outcome>>) -> Result<Outcome> {
    answer.await.unwrap_or_else(|| Err(Error::unanswered()))
}

/// Runs any operation.
pub async fn ask(below: &Edge, operation: Operation) -> Result<Outcome> {
    ended(submit(below, operation)).await
}

/// Runs all of `pieces`, up to `width` (≥ 1) of them in flight at a time. After a failure no more
/// are started, and those in flight are waited for.
pub async fn ask_all(
    below: &Edge,
    pieces: impl Iterator<Item = Operation>,
    width: usize,
) -> Result<()> {
    let pieces = pieces.map(|operation| {
        let below = below.clone();
        async move { ask(&below, operation).await.map(drop) }
    });
    each(below.pool(), width, pieces).await
}

/// Fills `buffer`.
pub async fn read(below: &Edge, offset: u64, buffer: Buffer) -> Result<Buffer> {
    let len = buffer.len();
    match ask(below, Operation::Read { offset, buffer }).await? {
        Outcome::Read(buffer) if buffer.len() == len => Ok(buffer),
        _ => Err(confused()),
    }
}

/// Writes `data`.
pub async fn write(below: &Edge, offset: u64, data: Slice, fua: bool) -> Result<()> {
    ask(below, Operation::Write { offset, data, fua }).await.map(drop)
}

/// Makes a range read as zeroes.
pub async fn zero(below: &Edge, offset: u64, len: u64, flags: ZeroFlags) -> Result<()> {
    ask(below, Operation::Zero { offset, len, flags }).await.map(drop)
}

/// Says that a range is no longer needed.
pub async fn trim(below: &Edge, offset: u64, len: u64, fua: bool) -> Result<()> {
    ask(below, Operation::Trim { offset, len, fua }).await.map(drop)
}

/// Shares a range with another file. Returns how many bytes from the start were shared, perhaps
/// none.
pub async fn take(
    below: &Edge,
    (offset, len): (u64, u64),
    from: Place,
    share_only: bool,
) -> Result<u64> {
    match ask(below, Operation::Take { offset, len, from, share_only }).await? {
        Outcome::Taken(taken) => Ok(taken),
        _ => Err(confused()),
    }
}

/// Makes everything durable that is complete.
pub async fn flush(below: &Edge) -> Result<()> {
    ask(below, Operation::Flush).await.map(drop)
}

/// What a range holds: at least one extent, at most `max`.
pub async fn resolve(below: &Edge, offset: u64, len: u64, max: usize) -> Result<Vec<Extent>> {
    match ask(below, Operation::Resolve { offset, len, max }).await? {
        Outcome::Extents(extents) if !extents.is_empty() => Ok(extents),
        _ => Err(confused()),
    }
}

/// Adds to `found` what `len` bytes at `place` hold, as what lies at `at`; false: there are more
/// than `max` extents by now, and the rest is cut off.
pub async fn resolve_as(
    below: &Edge,
    at: u64,
    (place, len): (u64, u64),
    max: usize,
    found: &mut Vec<Extent>,
) -> Result<bool> {
    let (mut from, end) = (place, place + len);
    while from < end {
        for extent in resolve(below, from, end - from, max).await? {
            from = extent.end();
            merge_extent(found, Extent { start: at + (extent.start - place), ..extent });
        }
        if found.len() > max {
            found.truncate(max);
            return Ok(false);
        }
    }
    Ok(true)
}

/// Reads bytes; `None` if that would have to wait and `may_wait` is false.
pub async fn read_or_wait(
    below: &Edge,
    offset: u64,
    len: usize,
    may_wait: bool,
) -> Result<Option<Buffer>> {
    let mut buffer = Buffer::zeroed(len);
    if below.read_now(&mut buffer, offset)? {
        return Ok(Some(buffer));
    }
    if !may_wait {
        return Ok(None);
    }
    read(below, offset, buffer).await.map(Some)
}

/// The map of a range; `None` as for [`read_or_wait`].
pub async fn resolve_or_wait(
    below: &Edge,
    (offset, len): (u64, u64),
    max: usize,
    may_wait: bool,
) -> Result<Option<Vec<Extent>>> {
    let mut found = Vec::new();
    if below.resolve_now(offset, len, max, &mut found)? {
        return Ok(Some(found));
    }
    if !may_wait {
        return Ok(None);
    }
    resolve(below, offset, len, max).await.map(Some)
}

/// The error for an answer of the wrong kind.
#[must_use]
pub fn confused() -> Error {
    let action = "the disk below returned an invalid result; this is a defect";
    Error::new(ErrorKind::Io, Fault::Us, action)
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, mpsc};

    use super::*;

    #[test]
    fn what_a_task_held_is_let_go_before_its_operation_completes() {
        let held = Arc::new(());
        let (left, (tell, told)) = (Arc::downgrade(&held), mpsc::channel());
        let done: Done = Box::new(move |_| tell.send(left.strong_count()).unwrap());
        complete(done, async move {
            drop(held.clone());
            Ok(Outcome::Done)
        });
        assert_eq!(told.recv().unwrap(), 0);
    }
}
