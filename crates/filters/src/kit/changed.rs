//! Bytes that a filter changes on their way, each in its place.

use device::{Buffer, Edge, Outcome, Result, Slice};
use runtime::where_there_is_time;

use crate::kit::below;

/// More bytes than this are not changed on a thread that has other work.
const LONG: usize = 256 << 10;

/// Reads what is below, and changes it.
pub(crate) async fn read(
    below: Edge,
    offset: u64,
    buffer: Buffer,
    change: impl FnOnce(&mut [u8]),
) -> Result<Outcome> {
    let mut buffer = below::read(&below, offset, buffer).await?;
    if buffer.len() > LONG {
        where_there_is_time(below.pool()).await;
    }
    change(&mut buffer);
    Ok(Outcome::Read(buffer))
}

/// Writes a copy of `data`, changed. The bytes belong to the caller, which may write them again.
pub(crate) async fn write(
    below: Edge,
    offset: u64,
    data: Slice,
    fua: bool,
    change: impl FnOnce(&mut [u8]),
) -> Result<Outcome> {
    if data.len() > LONG {
        where_there_is_time(below.pool()).await;
    }
    let mut changed = Buffer::copy_of(&data);
    change(&mut changed);
    drop(data);
    below::write(&below, offset, changed.into(), fua).await.map(|()| Outcome::Done)
}
