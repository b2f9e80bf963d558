//! Requests to the disk below: answered at once if possible, later if not, and never holding a
//! thread.

use device::{
    Buffer, Edge, Error, ErrorKind, Extent, Fault, Operation, Outcome, Place, Result, Slice,
    ZeroFlags,
};
use runtime::promise;

/// Runs any operation.
pub(crate) async fn ask(below: &Edge, operation: Operation) -> Result<Outcome> {
    let (promise, answer) = promise();
    below.submit(operation, Box::new(move |outcome| promise.keep(outcome)));
    answer.await.unwrap_or_else(|| Err(Error::unanswered()))
}

/// Reads bytes; `None` if that would have to wait and `may_wait` is false.
pub(crate) async fn read(
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
    match ask(below, Operation::Read { offset, buffer }).await? {
        Outcome::Read(buffer) => Ok(Some(buffer)),
        _ => Err(confused()),
    }
}

/// The map of a range; `None` as for [`read`].
pub(crate) async fn resolve(
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
    match ask(below, Operation::Resolve { offset, len, max }).await? {
        Outcome::Extents(found) => Ok(Some(found)),
        _ => Err(confused()),
    }
}

/// Writes bytes.
pub(crate) async fn write(below: &Edge, offset: u64, data: Slice) -> Result<()> {
    ask(below, Operation::Write { offset, data, fua: false }).await.map(drop)
}

/// Makes a range read as zeroes.
pub(crate) async fn zero(below: &Edge, range: (u64, u64), flags: ZeroFlags) -> Result<()> {
    let (offset, len) = range;
    ask(below, Operation::Zero { offset, len, flags }).await.map(drop)
}

/// Shares a range with another file. Returns how many bytes from the start were shared, perhaps
/// none.
pub(crate) async fn take(
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

/// Makes writes durable.
pub(crate) async fn flush(below: &Edge) -> Result<()> {
    ask(below, Operation::Flush).await.map(drop)
}

/// The answer has the wrong type.
pub(crate) fn confused() -> Error {
    Error::new(ErrorKind::Io, Fault::Us, "the disk below gave an answer that makes no sense")
}
