//! The edge of a device that waits for something outside: everything the edge supplies, without
//! ever blocking a thread.
//!
//! A filter's operations end in the device below, whose own edge may need a thread of the pool;
//! so nothing here may hold one, or a full pool would wait for itself.

use runtime::{Pass, spawn};
use std::sync::{Arc, Mutex, PoisonError};

use super::spread::{Piece, spread, spread_zeroes};
use super::{Edge, to_usize};
use crate::{Buffer, Done, Error, Operation, Outcome, Result, Slice, ZeroFlags};

/// What follows an operation that has nothing to show.
type Then = Box<dyn FnOnce(Result<()>) + Send>;

/// Starts `operation`, whatever its range, alignment and length.
pub(super) fn submit(edge: &Edge, operation: Operation, done: Done) {
    if let Err(e) = admit(edge, &operation) {
        return done(Err(e));
    }
    match operation {
        Operation::Flush | Operation::Prefetch { .. } => edge.0.device.submit(operation, done),
        Operation::Read { offset, buffer } => {
            let len = buffer.len();
            // A filter's defect must not put the replies of a server out of step.
            let whole: Done = Box::new(move |result| done(result.and_then(|o| of_length(o, len))));
            read(edge, offset, buffer, whole);
        }
        Operation::Resolve { offset, len, max } => {
            let question = Operation::Resolve { offset, len, max: max.max(1) };
            ask(edge, question, Outcome::Extents(Vec::new()), done);
        }
        Operation::Status { context, offset, len, max } => {
            let question = Operation::Status { context, offset, len, max: max.max(1) };
            ask(edge, question, Outcome::Status(Vec::new()), done);
        }
        take @ Operation::Take { .. } => self::take(edge, take, done),
        Operation::Trim { offset, len, fua } => trim(edge, offset, len, fua, plain(done)),
        Operation::Write { offset, data, fua } => write(edge, offset, data, fua, plain(done)),
        Operation::Zero { offset, len, flags } => zero(edge, offset, len, flags, plain(done)),
    }
}

fn admit(edge: &Edge, operation: &Operation) -> Result<()> {
    let Some((offset, len)) = operation.range() else { return Ok(()) };
    if let Operation::Status { context, .. } = operation {
        edge.check_context(context)?;
    }
    let what = operation.kind().name();
    if operation.changes() {
        edge.check_write(what, offset, len)
    } else {
        edge.check(what, offset, len)
    }
}

/// What a read of `len` bytes ended with.
fn of_length(outcome: Outcome, len: usize) -> Result<Outcome> {
    match outcome {
        Outcome::Read(buffer) if buffer.len() == len => Ok(Outcome::Read(buffer)),
        _ => Err(super::confused("read")),
    }
}

fn plain(done: Done) -> Then {
    Box::new(move |result| done(result.map(|()| Outcome::Done)))
}

fn read(edge: &Edge, offset: u64, buffer: Buffer, done: Done) {
    let min = edge.block();
    let len = buffer.len();
    let aligned = offset.is_multiple_of(min) && (len as u64).is_multiple_of(min);
    if len == 0 {
        return done(Ok(Outcome::Read(buffer)));
    }
    if aligned && len <= edge.longest() {
        return edge.0.device.submit(Operation::Read { offset, buffer }, done);
    }
    let (start, whole) = match edge.widen(offset, len as u64) {
        Ok(range) => range,
        Err(e) => return done(Err(e)),
    };
    let target = Arc::new(Mutex::new(Some(buffer)));
    let longest = edge.longest();
    let pieces = {
        let target = target.clone();
        cut(start, whole, longest).map(move |(at, n)| -> Piece {
            let target = target.clone();
            let arrival = move |outcome| {
                if let (Outcome::Read(piece), Some(buffer)) = (outcome, &mut *lock(&target)) {
                    overlay(buffer, offset, &piece, at);
                }
            };
            let operation = Operation::Read { offset: at, buffer: Buffer::zeroed(n) };
            (operation, Some(Box::new(arrival)))
        })
    };
    spread(edge, pieces, move |result| {
        let buffer = lock(&target).take();
        done(result.and_then(|()| buffer.map(Outcome::Read).ok_or_else(lost)));
    });
}

/// Copies to `to`, which begins at `to_at` of the disk, what `from`, which begins at `from_at`,
/// has of it.
fn overlay(to: &mut [u8], to_at: u64, from: &[u8], from_at: u64) {
    let start = to_at.max(from_at);
    let end = (to_at + to.len() as u64).min(from_at + from.len() as u64);
    let range = |base: u64| -> Option<std::ops::Range<usize>> {
        Some(usize::try_from(start.checked_sub(base)?).ok()?..usize::try_from(end - base).ok()?)
    };
    if start < end
        && let (Some(into), Some(out)) = (range(to_at), range(from_at))
    {
        to[into].copy_from_slice(&from[out]);
    }
}

/// The pieces of at most `longest` bytes of `len` bytes from `start`.
fn cut(start: u64, len: usize, longest: usize) -> impl Iterator<Item = (u64, usize)> + Send {
    (0..len).step_by(longest).map(move |at| (start + at as u64, longest.min(len - at)))
}

/// A question about a range; of no bytes there is `nothing` to say.
fn ask(edge: &Edge, question: Operation, nothing: Outcome, done: Done) {
    let (offset, len) = question.range().unwrap_or_default();
    if len == 0 {
        return done(Ok(nothing));
    }
    edge.0.device.submit(question, checked(edge, offset, len, done));
}

fn checked(edge: &Edge, offset: u64, len: u64, done: Done) -> Done {
    let me = edge.clone();
    Box::new(move |result| done(result.and_then(|outcome| me.checked(outcome, offset, len))))
}

fn take(edge: &Edge, operation: Operation, done: Done) {
    let Some(operation) = edge.whole_take(operation) else { return done(Ok(Outcome::Taken(0))) };
    let (offset, len) = operation.range().unwrap_or_default();
    let done = checked(edge, offset, len, done);
    if edge.block() == 1 {
        return edge.0.device.submit(operation, done);
    }
    let me = edge.clone();
    spawn(async move {
        let pass = me.0.gate.together().await;
        let then: Done = Box::new(move |result| {
            drop(pass);
            done(result);
        });
        me.0.device.submit(operation, then);
    });
}

fn trim(edge: &Edge, offset: u64, len: u64, fua: bool, then: Then) {
    let (start, len) = edge.whole_blocks(offset, len);
    let native = fua && edge.info().abilities.fua;
    let then = finally(edge, fua && !native, then);
    if len == 0 || !edge.info().abilities.trim {
        let wanted = native && !edge.needs_fua_each();
        return if wanted { flush(edge, then) } else { then(Ok(())) };
    }
    let me = edge.clone();
    let ended: Done = Box::new(move |result| match result {
        // A hint: nothing was done, and what came before may still have to be durable.
        Err(e) if e.is_unsupported() && me.needs_fua_each() => then(Ok(())),
        Err(e) if e.is_unsupported() && native => flush(&me, then),
        Err(e) if e.is_unsupported() => then(Ok(())),
        other => then(other.map(drop)),
    });
    edge.0.device.submit(Operation::Trim { offset: start, len, fua: native }, ended);
}

/// `then`, after a flush if the operation succeeds and `wanted`.
fn finally(edge: &Edge, wanted: bool, then: Then) -> Then {
    if !wanted {
        return then;
    }
    let edge = edge.clone();
    Box::new(move |result| match result {
        Ok(()) => flush(&edge, then),
        Err(e) => then(Err(e)),
    })
}

fn flush(edge: &Edge, then: Then) {
    edge.0.device.submit(Operation::Flush, Box::new(move |result| then(result.map(drop))));
}

fn write(edge: &Edge, offset: u64, data: Slice, fua: bool, then: Then) {
    if data.is_empty() {
        return if fua { flush(edge, then) } else { then(Ok(())) };
    }
    let native = fua && edge.info().abilities.fua;
    let then = finally(edge, fua && !native, then);
    if edge.block() == 1 {
        return put(edge, offset, data, native, then);
    }
    let me = edge.clone();
    if edge.is_whole(offset, data.len() as u64) {
        spawn(async move {
            let pass = me.0.gate.together().await;
            put(&me, offset, data, native, keeping(pass, then));
        });
    } else {
        spawn(async move {
            let pass = me.0.gate.alone().await;
            rewrite(&me, offset, data, native, keeping(pass, then));
        });
    }
}

/// `then`, with the gate held until it runs.
fn keeping(pass: Pass, then: Then) -> Then {
    Box::new(move |result| {
        drop(pass);
        then(result);
    })
}

/// Writes whole blocks, in pieces if need be, which are made durable by one flush, if they can be.
fn put(edge: &Edge, offset: u64, data: Slice, fua: bool, then: Then) {
    let longest = edge.longest();
    if data.len() <= longest {
        let ended: Done = Box::new(move |result| then(result.map(drop)));
        return edge.0.device.submit(Operation::Write { offset, data, fua }, ended);
    }
    let each = fua && edge.needs_fua_each();
    let then = finally(edge, fua && !each, then);
    let fua = each;
    let step = longest as u64;
    let pieces = data.into_pieces(longest).into_iter().zip(0u64..).map(move |(data, i)| -> Piece {
        (Operation::Write { offset: offset + i * step, data, fua }, None)
    });
    spread(edge, pieces, then);
}

/// Reads the blocks that are only touched, lays `data` over them, and writes them all.
fn rewrite(edge: &Edge, offset: u64, data: Slice, fua: bool, then: Then) {
    let (start, len) = match edge.widen(offset, data.len() as u64) {
        Ok(range) => range,
        Err(e) => return then(Err(e)),
    };
    let block = edge.block();
    let whole = Arc::new(Mutex::new(Some(Buffer::zeroed(len))));
    let end = start + len as u64;
    let last = (end - 1) - (end - 1) % block;
    let touched = if last == start { vec![start] } else { vec![start, last] };
    let pieces = {
        let whole = whole.clone();
        touched.into_iter().map(move |at| -> Piece {
            let n = usize::try_from(block.min(end - at)).unwrap_or(usize::MAX);
            let whole = whole.clone();
            let arrival = move |outcome| {
                if let (Outcome::Read(piece), Some(buffer)) = (outcome, &mut *lock(&whole)) {
                    overlay(buffer, start, &piece, at);
                }
            };
            let operation = Operation::Read { offset: at, buffer: Buffer::zeroed(n) };
            (operation, Some(Box::new(arrival)))
        })
    };
    let me = edge.clone();
    spread(edge, pieces, move |result| {
        let buffer = lock(&whole).take();
        match result.and_then(|()| buffer.ok_or_else(lost)) {
            Ok(mut buffer) => {
                overlay(&mut buffer, start, &data, offset);
                put(&me, start, buffer.into(), fua, then);
            }
            Err(e) => then(Err(e)),
        }
    });
}

fn zero(edge: &Edge, offset: u64, len: u64, flags: ZeroFlags, then: Then) {
    if len == 0 {
        return if flags.fua { flush(edge, then) } else { then(Ok(())) };
    }
    if edge.is_whole(offset, len) {
        if edge.block() == 1 {
            return zero_blocks(edge, offset, len, flags, then);
        }
        let me = edge.clone();
        return spawn(async move {
            let pass = me.0.gate.together().await;
            zero_blocks(&me, offset, len, flags, keeping(pass, then));
        });
    }
    if flags.fast_only {
        return then(Err(Error::not_fast().on(&edge.info().name).at(offset)));
    }
    zero_in_parts(edge, offset, len, flags, then);
}

/// The parts of blocks at both ends are written, the blocks between are zeroed.
fn zero_in_parts(edge: &Edge, offset: u64, len: u64, flags: ZeroFlags, then: Then) {
    let each = flags.fua && edge.needs_fua_each();
    let then = finally(edge, flags.fua && !each, then);
    let (inner, inner_len) = edge.whole_blocks(offset, len);
    let end = offset + len;
    let (head, tail) = match inner_len {
        0 => ((offset, len), (end, 0)),
        n => ((offset, inner - offset), (inner + n, end - inner - n)),
    };
    let zeroes = |(at, n): (u64, u64)| -> Option<Operation> {
        let data = to_usize(n).ok().filter(|n| *n > 0).map(Buffer::zeroed)?;
        Some(Operation::Write { offset: at, data: data.into(), fua: each })
    };
    let middle = (inner_len > 0).then(|| Operation::Zero {
        offset: inner,
        len: inner_len,
        flags: ZeroFlags { fua: each, ..flags },
    });
    let parts = [zeroes(tail), middle, zeroes(head)];
    one_by_one(edge.clone(), parts.into_iter().flatten().collect(), then);
}

/// Runs the last of `left`, then the others.
fn one_by_one(edge: Edge, mut left: Vec<Operation>, then: Then) {
    let Some(next) = left.pop() else { return then(Ok(())) };
    let me = edge.clone();
    let ended: Done = Box::new(move |result| match result {
        Ok(_) => one_by_one(me, left, then),
        Err(e) => then(Err(e)),
    });
    submit(&edge, next, ended);
}

/// Zeroes whole blocks: by the device, or, where it cannot, by writing. Never so when it must be
/// fast.
fn zero_blocks(edge: &Edge, offset: u64, len: u64, flags: ZeroFlags, then: Then) {
    let native = flags.fua && edge.info().abilities.fua;
    let then = finally(edge, flags.fua && !native, then);
    let me = edge.clone();
    let ended: Done = Box::new(move |result| match result {
        Err(e) if e.is_unsupported() && flags.fast_only => {
            then(Err(Error::not_fast().on(&me.info().name).at(offset)));
        }
        Err(e) if e.is_unsupported() => {
            write_zeroes(&me, offset, len, native, then);
        }
        other => then(other.map(drop)),
    });
    let flags = ZeroFlags { fua: native, ..flags };
    edge.0.device.submit(Operation::Zero { offset, len, flags }, ended);
}

/// Writes zeroes. One flush at the end costs less than FUA on every piece; a device that has only
/// FUA makes no more durable than the pieces themselves, so each of them has it.
fn write_zeroes(edge: &Edge, offset: u64, len: u64, fua: bool, then: Then) {
    let each = fua && edge.needs_fua_each();
    let then = finally(edge, fua && !each, then);
    spread_zeroes(edge, (offset, len), each, then);
}

fn lost() -> Error {
    Error::new(crate::ErrorKind::Io, crate::Fault::Us, "read: a buffer was lost; this is a defect")
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
