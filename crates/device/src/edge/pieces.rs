//! Operations that a device does not take as they are: done in pieces, in other sizes, or by other
//! means.
//!
//! All of it waits without a thread. A filter's operations end in the device below, whose own edge
//! may need a thread of the pool; so nothing here may hold one, or a full pool would deadlock.

use std::sync::{Arc, OnceLock};

use runtime::{Mutex, Pass, each, promise, to_usize};

use super::{Edge, confused};
use crate::{
    Buffer, Done, Error, Operation, Outcome, Place, Result, Slice, ZeroFlags, below, copy_overlap,
};

/// Zeroes are written in pieces of this many bytes where a device cannot zero.
const ZERO_PIECE: usize = 1 << 20;
/// Pieces in flight at a time.
const WIDTH: usize = 16;
/// Pieces of zeroes written as data in flight at a time. One, so that a long zero is not in the way
/// of other requests, and does not look as fast as a device that zeroes in one request. A client
/// that wants more has several requests in flight.
const ZEROING: usize = 1;

/// `len` bytes of zeroes: up to [`ZERO_PIECE`] from a shared buffer, for a larger block from its
/// own.
fn zeroes(len: usize) -> Option<Slice> {
    if len > ZERO_PIECE {
        return Some(Buffer::zeroed(len).into());
    }
    static ZEROES: OnceLock<Arc<Buffer>> = OnceLock::new();
    Slice::part(ZEROES.get_or_init(|| Arc::new(Buffer::zeroed(ZERO_PIECE))), 0, len)
}

/// Runs an operation that lies inside the device.
pub(super) async fn run(edge: &Edge, operation: Operation) -> Result<Outcome> {
    match operation {
        Operation::Flush | Operation::Prefetch { .. } => edge.ask(operation).await,
        Operation::Read { offset, buffer } => read(edge, offset, buffer).await.map(Outcome::Read),
        Operation::Resolve { offset, len, max } => resolve(edge, offset, len, max).await,
        Operation::Status { context, offset, len, max } => {
            status(edge, &context, offset, len, max).await
        }
        Operation::Take { offset, len, from, share_only } => {
            take(edge, offset, len, from, share_only).await.map(Outcome::Taken)
        }
        Operation::Trim { offset, len, fua } => plain(trim(edge, offset, len, fua).await),
        Operation::Write { offset, data, fua } => plain(write(edge, offset, data, fua).await),
        Operation::Zero { offset, len, flags } => plain(zero(edge, offset, len, flags).await),
    }
}

fn plain(result: Result<()>) -> Result<Outcome> {
    result.map(|()| Outcome::Done)
}

impl Edge {
    /// Submits to the device what it takes as it is.
    async fn ask(&self, operation: Operation) -> Result<Outcome> {
        let (promise, answer) = promise();
        self.0.device.submit(operation, Box::new(move |result| promise.keep(result)));
        answer.await.unwrap_or_else(|| Err(Error::unanswered().on(&self.info().name)))
    }

    async fn ask_read(&self, offset: u64, len: usize) -> Result<Buffer> {
        match self.ask(Operation::Read { offset, buffer: Buffer::zeroed(len) }).await? {
            Outcome::Read(buffer) if buffer.len() == len => Ok(buffer),
            _ => Err(confused("read").on(&self.info().name).at(offset)),
        }
    }

    /// A flush, if one is wanted.
    async fn after(&self, wanted: bool) -> Result<()> {
        if wanted { self.ask(Operation::Flush).await.map(drop) } else { Ok(()) }
    }

    /// Writes zeroes as data, whatever the device could do instead, and returns at once; then
    /// `done`. Durable by then if `fua`.
    pub fn submit_zeroes(&self, offset: u64, len: u64, fua: bool, done: Done) {
        let edge = self.clone();
        let each = fua && self.needs_fua_each();
        let pieces = zero_pieces((offset, len), (self.block(), self.longest()), each);
        below::complete(done, async move {
            below::ask_all(&edge, pieces, ZEROING).await?;
            plain(edge.after(fua && !each).await)
        });
    }
}

async fn read(edge: &Edge, offset: u64, buffer: Buffer) -> Result<Buffer> {
    let len = buffer.len();
    if len == 0 {
        return Ok(buffer);
    }
    let (start, whole) = edge.widen(offset, len as u64);
    let pieces = cut(start, whole, edge.longest());
    read_over(edge, offset, buffer, pieces).await
}

/// Reads pieces (offset and length) and copies the parts of them that lie in `buffer`, which begins
/// at `offset`.
async fn read_over(
    edge: &Edge,
    offset: u64,
    buffer: Buffer,
    pieces: impl Iterator<Item = (u64, usize)> + Send + 'static,
) -> Result<Buffer> {
    let target = Arc::new(Mutex::new(Some(buffer)));
    let (into, me) = (target.clone(), edge.clone());
    let reads = pieces.map(move |(at, n)| {
        let (into, edge) = (into.clone(), me.clone());
        async move {
            let piece = edge.ask_read(at, n).await?;
            if let Some(buffer) = &mut *into.lock() {
                copy_overlap(buffer, offset, &piece, at);
            }
            Result::Ok(())
        }
    });
    each(edge.pool(), WIDTH, reads).await?;
    let buffer = target.lock().take();
    buffer.ok_or_else(|| confused("read"))
}

/// The pieces of at most `longest` bytes of `len` bytes from `start`.
fn cut(start: u64, len: usize, longest: usize) -> impl Iterator<Item = (u64, usize)> + Send {
    (0..len).step_by(longest).map(move |at| (start + at as u64, longest.min(len - at)))
}

async fn resolve(edge: &Edge, offset: u64, len: u64, max: usize) -> Result<Outcome> {
    if len == 0 {
        return Ok(Outcome::Extents(Vec::new()));
    }
    match edge.ask(Operation::Resolve { offset, len, max: max.max(1) }).await? {
        Outcome::Extents(extents) => {
            edge.check_extents(&extents, offset, len)?;
            Ok(Outcome::Extents(extents))
        }
        _ => Err(confused("resolve").on(&edge.info().name).at(offset)),
    }
}

async fn status(
    edge: &Edge,
    context: &Arc<str>,
    offset: u64,
    len: u64,
    max: usize,
) -> Result<Outcome> {
    if len == 0 {
        return Ok(Outcome::Status(Vec::new()));
    }
    let context = context.clone();
    match edge.ask(Operation::Status { context, offset, len, max: max.max(1) }).await? {
        Outcome::Status(runs) => {
            edge.check_runs(&runs, offset, len)?;
            Ok(Outcome::Status(runs))
        }
        _ => Err(confused("status").on(&edge.info().name).at(offset)),
    }
}

/// A device of blocks is asked to take whole ones from the start of the range.
async fn take(edge: &Edge, offset: u64, len: u64, from: Place, share_only: bool) -> Result<u64> {
    let (start, len) = edge.whole_blocks(offset, len);
    if start != offset || len == 0 || !edge.info().abilities.take {
        return Ok(0);
    }
    // A read-modify-write of part of these blocks must not bring old bytes back.
    let _together = together(edge).await;
    match edge.ask(Operation::Take { offset, len, from, share_only }).await? {
        Outcome::Taken(taken) if taken <= len => Ok(taken),
        _ => Err(confused("take").on(&edge.info().name).at(offset)),
    }
}

/// Keeps out rewrites of parts of a block, where there are blocks.
async fn together(edge: &Edge) -> Option<Pass> {
    match edge.block() {
        1 => None,
        _ => Some(edge.0.gate.together().await),
    }
}

async fn trim(edge: &Edge, offset: u64, len: u64, fua: bool) -> Result<()> {
    // A hint: only whole blocks can be discarded.
    let (start, len) = edge.whole_blocks(offset, len);
    let native = fua && edge.info().abilities.fua;
    if len > 0 && edge.info().abilities.trim {
        match edge.ask(Operation::Trim { offset: start, len, fua: native }).await {
            // Nothing was done, but earlier writes may still have to become durable.
            Err(e) if e.is_unsupported() => {}
            other => {
                other?;
                return edge.after(fua && !native).await;
            }
        }
    }
    edge.after(fua && !edge.needs_fua_each()).await
}

async fn write(edge: &Edge, offset: u64, data: Slice, fua: bool) -> Result<()> {
    if data.is_empty() {
        return edge.after(fua).await;
    }
    let native = fua && edge.info().abilities.fua;
    if edge.block() == 1 {
        put(edge, offset, data, native).await?;
    } else if edge.is_whole(offset, data.len() as u64) {
        let _together = edge.0.gate.together().await;
        put(edge, offset, data, native).await?;
    } else {
        let _alone = edge.0.gate.alone().await;
        rewrite(edge, offset, data, native).await?;
    }
    edge.after(fua && !native).await
}

/// Writes whole blocks, in pieces if need be, which are made durable by one flush, if they can be.
async fn put(edge: &Edge, offset: u64, data: Slice, fua: bool) -> Result<()> {
    let longest = edge.longest();
    if data.len() <= longest {
        return edge.ask(Operation::Write { offset, data, fua }).await.map(drop);
    }
    let each_fua = fua && edge.needs_fua_each();
    let (me, step) = (edge.clone(), longest as u64);
    let writes = data.into_pieces(longest).into_iter().zip(0u64..).map(move |(data, i)| {
        let edge = me.clone();
        let operation = Operation::Write { offset: offset + i * step, data, fua: each_fua };
        async move { edge.ask(operation).await.map(drop) }
    });
    each(edge.pool(), WIDTH, writes).await?;
    edge.after(fua && !each_fua).await
}

/// Reads the blocks that are covered only in part, copies `data` over them, and writes them all.
async fn rewrite(edge: &Edge, offset: u64, data: Slice, fua: bool) -> Result<()> {
    let (start, len) = edge.widen(offset, data.len() as u64);
    let (block, end) = (edge.block(), start + len as u64);
    let last = (end - 1) - (end - 1) % block;
    let ends = if last == start { vec![start] } else { vec![start, last] };
    let touched = ends.into_iter().map(move |at| (at, to_usize(block.min(end - at))));
    let mut whole = read_over(edge, start, Buffer::zeroed(len), touched).await?;
    copy_overlap(&mut whole, start, &data, offset);
    put(edge, start, whole.into(), fua).await
}

async fn zero(edge: &Edge, offset: u64, len: u64, flags: ZeroFlags) -> Result<()> {
    if len == 0 {
        return edge.after(flags.fua).await;
    }
    if edge.is_whole(offset, len) {
        let fua = zero_blocks(edge, offset, len, flags).await?;
        return edge.after(fua).await;
    }
    if flags.fast_only {
        return Err(Error::not_fast().on(&edge.info().name).at(offset));
    }
    zero_in_parts(edge, offset, len, flags).await
}

/// The parts of blocks at both ends are written, the blocks between are zeroed, and all of it is
/// made durable by one flush, if it can be.
async fn zero_in_parts(edge: &Edge, offset: u64, len: u64, flags: ZeroFlags) -> Result<()> {
    let each = flags.fua && edge.needs_fua_each();
    let (inner, inner_len) = edge.whole_blocks(offset, len);
    let end = offset + len;
    let (head, tail) = match inner_len {
        0 => ((offset, len), (end, 0)),
        n => ((offset, inner - offset), (inner + n, end - inner - n)),
    };
    for (at, n) in [head, tail] {
        if n > 0 {
            write(edge, at, Buffer::zeroed(to_usize(n)).into(), each).await?;
        }
    }
    if inner_len > 0 {
        zero_blocks(edge, inner, inner_len, ZeroFlags { fua: each, ..flags }).await?;
    }
    edge.after(flags.fua && !each).await
}

/// Zeroes whole blocks: by the device, or, where it cannot, by writing, but never when it must be
/// fast. Returns whether a flush has to follow.
async fn zero_blocks(edge: &Edge, offset: u64, len: u64, flags: ZeroFlags) -> Result<bool> {
    if !edge.zeroes_so(flags) {
        return write_zeroes(edge, offset, len, flags).await;
    }
    let native = flags.fua && edge.info().abilities.fua;
    let asked = {
        // A read-modify-write of part of these blocks must not bring old bytes back.
        let _together = together(edge).await;
        let flags = ZeroFlags { fua: native, ..flags };
        edge.ask(Operation::Zero { offset, len, flags }).await
    };
    match asked {
        Err(e) if e.is_unsupported() => write_zeroes(edge, offset, len, flags).await,
        other => other.map(|_| flags.fua && !native),
    }
}

/// The zero that a device without blocks turned out not to support.
pub(super) async fn unzeroable(
    edge: &Edge,
    offset: u64,
    len: u64,
    flags: ZeroFlags,
) -> Result<Outcome> {
    let flush = write_zeroes(edge, offset, len, flags).await?;
    plain(edge.after(flush).await)
}

/// Writes zeroes. One flush at the end costs less than FUA on every piece; a device that has only
/// FUA makes no more durable than the pieces themselves, so each of them has it. Returns whether a
/// flush has to follow.
async fn write_zeroes(edge: &Edge, offset: u64, len: u64, flags: ZeroFlags) -> Result<bool> {
    if flags.fast_only {
        return Err(Error::not_fast().on(&edge.info().name).at(offset));
    }
    let each_fua = flags.fua && edge.needs_fua_each();
    let me = edge.clone();
    let writes = zero_pieces((offset, len), (edge.block(), edge.longest()), each_fua).map(
        move |operation| {
            let edge = me.clone();
            async move {
                // Again for each piece: others have their turn between them.
                let _together = together(&edge).await;
                edge.ask(operation).await.map(drop)
            }
        },
    );
    each(edge.pool(), ZEROING, writes).await?;
    Ok(flags.fua && !each_fua)
}

fn zero_pieces(
    (offset, len): (u64, u64),
    (block, longest): (u64, usize),
    fua: bool,
) -> impl Iterator<Item = Operation> + Send {
    let step = (longest.clamp(1, ZERO_PIECE) as u64).max(block);
    (0..len.div_ceil(step)).filter_map(move |i| {
        let at = i * step;
        let n = to_usize(step.min(len - at));
        Some(Operation::Write { offset: offset + at, data: zeroes(n)?, fua })
    })
}
