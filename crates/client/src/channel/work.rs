//! An operation as NBD requests: which request it needs next, and what a reply means.
//!
//! Most operations are one request. A range longer than one request is done in pieces, one after
//! the other; a request that the server refuses only for its length or its form is sent again,
//! shorter or simpler. An operation succeeds only when all of it was answered.

use device::{
    Buffer, Error, ErrorKind, Extent, ExtentKind, Fault, Operation, Outcome, Result, Slice,
    StatusRun, ZeroFlags,
};
use wire::constants::{BASE_ALLOCATION, allocation};
use wire::{
    Command, CommandFlags, ContextStatus, ErrorCode, Framing, Negotiated, ReplyError, StatusExtent,
    TransmissionFlags,
};

use super::failure;
use super::habits::Habits;

/// A request to be sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ask {
    pub(crate) command: Command,
    pub(crate) flags: CommandFlags,
    pub(crate) offset: u64,
    pub(crate) length: u64,
    /// For a block status: the one context that it is about, if the request can name it.
    pub(crate) context: Option<u32>,
}

impl Ask {
    fn new(command: Command, flags: CommandFlags, offset: u64, length: u64) -> Self {
        Self { command, flags, offset, length, context: None }
    }
}

/// An operation in flight.
#[derive(Debug)]
pub(crate) enum Work {
    Flush,
    /// Trim, zero or prefetch of `first..end`, done before `next`.
    Range {
        command: Command,
        flags: CommandFlags,
        first: u64,
        next: u64,
        end: u64,
        /// It is a fast zero: once begun it must not be called "not fast".
        fast: bool,
    },
    Read {
        offset: u64,
        buffer: Buffer,
    },
    /// The status of `offset..end` in a context.
    Status {
        context: u32,
        /// It is the map, and is returned as extents.
        is_map: bool,
        offset: u64,
        end: u64,
        max: usize,
    },
    Write {
        offset: u64,
        length: u64,
        fua: bool,
    },
}

/// The next step of an operation when it begins, or when one of its requests was answered.
#[derive(Debug)]
pub(crate) enum Step {
    Ended(Result<Outcome>),
    Go(Work),
}

const DONE: Step = Step::Ended(Ok(Outcome::Done));

fn failed(e: Error) -> Step {
    Step::Ended(Err(e))
}

/// Begins an operation; the second value is the payload of a write.
pub(crate) fn begin(operation: Operation, session: &Negotiated) -> (Step, Option<Slice>) {
    let offers = |flag| session.flags.contains(flag);
    if let Err(e) = check(&operation, session) {
        return (failed(e), None);
    }
    let step = match operation {
        Operation::Write { data, .. } if data.is_empty() => DONE,
        Operation::Write { offset, data, fua } => {
            let length = data.len() as u64;
            return (Step::Go(Work::Write { offset, length, fua }), Some(data));
        }
        // Some servers refuse empty requests, and there is nothing to do.
        Operation::Read { buffer, .. } if buffer.is_empty() => {
            Step::Ended(Ok(Outcome::Read(buffer)))
        }
        Operation::Read { offset, buffer } => Step::Go(Work::Read { offset, buffer }),
        Operation::Flush if offers(TransmissionFlags::SEND_FLUSH) => Step::Go(Work::Flush),
        // Nothing can have been written.
        Operation::Flush if offers(TransmissionFlags::READ_ONLY) => DONE,
        Operation::Flush => failed(Error::unsupported("flush: the server has no flush")),
        Operation::Prefetch { offset, len } => prefetch(offset, len, session),
        Operation::Resolve { offset, len, max } => resolve(offset, len, max, session),
        Operation::Status { context, offset, len, max } => {
            status(&context, (offset, len), max, session)
        }
        // A server cannot access a file of this machine.
        Operation::Take { .. } => Step::Ended(Ok(Outcome::Taken(0))),
        Operation::Trim { offset, len, fua } => trim(offset, len, fua, session),
        Operation::Zero { offset, len, flags } => zero(offset, len, flags, session),
    };
    (step, None)
}

/// Refuses requests that must never be sent, and FUA where the server does not advertise it.
fn check(operation: &Operation, session: &Negotiated) -> Result<()> {
    let Some((offset, len)) = operation.range() else { return Ok(()) };
    let what = operation.kind().name();
    if offset > session.size || len > session.size - offset {
        let action = format!("{what} {len} bytes beyond the end ({} bytes)", session.size);
        return Err(Error::new(ErrorKind::OutOfBounds, Fault::User, action).at(offset));
    }
    if operation.fua() && !session.flags.contains(TransmissionFlags::SEND_FUA) {
        return Err(Error::unsupported(format!("{what}: the server has no FUA")).at(offset));
    }
    Ok(())
}

fn block(session: &Negotiated) -> u64 {
    u64::from(session.blocks.minimum.max(1))
}

/// The blocks that a range touches.
fn outward(offset: u64, len: u64, session: &Negotiated) -> (u64, u64) {
    let block = block(session);
    let start = offset - offset % block;
    (start, (offset + len).next_multiple_of(block).min(session.size))
}

/// The whole blocks of a range; the last may be the short one at the end of the export.
fn inward(offset: u64, len: u64, session: &Negotiated) -> (u64, u64) {
    let block = block(session);
    let end = offset + len;
    let start = offset.next_multiple_of(block).min(end);
    (start, if end == session.size { end } else { (end - end % block).max(start) })
}

fn range(command: Command, flags: CommandFlags, (first, end): (u64, u64)) -> Step {
    if first == end {
        return DONE;
    }
    let fast = flags.contains(CommandFlags::FAST_ZERO);
    Step::Go(Work::Range { command, flags, first, next: first, end, fast })
}

fn prefetch(offset: u64, len: u64, session: &Negotiated) -> Step {
    if len == 0 || !session.flags.contains(TransmissionFlags::SEND_CACHE) {
        return DONE;
    }
    range(Command::Cache, CommandFlags::NONE, outward(offset, len, session))
}

fn trim(offset: u64, len: u64, fua: bool, session: &Negotiated) -> Step {
    if !session.flags.contains(TransmissionFlags::SEND_TRIM) {
        // Nothing was changed, so there is nothing to make durable, either.
        return DONE;
    }
    let flags = if fua { CommandFlags::FUA } else { CommandFlags::NONE };
    range(Command::Trim, flags, inward(offset, len, session))
}

fn zero(offset: u64, len: u64, how: ZeroFlags, session: &Negotiated) -> Step {
    let offers = |flag| session.flags.contains(flag);
    let block = block(session);
    let whole =
        offset.is_multiple_of(block) && (len.is_multiple_of(block) || len == session.size - offset);
    if how.fast_only && !(offers(TransmissionFlags::SEND_FAST_ZERO) && whole) {
        return failed(not_fast(offset));
    }
    if !offers(TransmissionFlags::SEND_WRITE_ZEROES) || !whole {
        return failed(Error::unsupported("zero: the server has no write zeroes").at(offset));
    }
    let mut flags = CommandFlags::NONE;
    for (wanted, flag) in [
        (!how.may_unmap, CommandFlags::NO_HOLE),
        (how.fast_only, CommandFlags::FAST_ZERO),
        (how.fua, CommandFlags::FUA),
    ] {
        if wanted {
            flags = flags.with(flag);
        }
    }
    range(Command::WriteZeroes, flags, (offset, offset + len))
}

fn not_fast(offset: u64) -> Error {
    let action = "zero fast: the server does not advertise it";
    Error::new(ErrorKind::NotFast, Fault::User, action).at(offset)
}

/// The server cannot zero after all. A caller of a fast zero that was done in part must not take
/// that for "nothing was changed".
fn cannot_zero(begun_fast: bool) -> Error {
    if begun_fast {
        let action = "zero fast: the server refuses to finish a zero that it began";
        return Error::new(ErrorKind::Io, Fault::Peer, action);
    }
    Error::unsupported("zero: the server cannot")
}

fn resolve(offset: u64, len: u64, max: usize, session: &Negotiated) -> Step {
    if len == 0 {
        return Step::Ended(Ok(Outcome::Extents(Vec::new())));
    }
    let Some(context) = session.context(BASE_ALLOCATION) else {
        let all = Extent::new(offset, len, ExtentKind::Data);
        return Step::Ended(Ok(Outcome::Extents(vec![all])));
    };
    let max = max.max(1);
    Step::Go(Work::Status { context, is_map: true, offset, end: offset + len, max })
}

fn status(name: &str, (offset, len): (u64, u64), max: usize, session: &Negotiated) -> Step {
    if len == 0 {
        return Step::Ended(Ok(Outcome::Status(Vec::new())));
    }
    let Some(context) = session.context(name) else {
        let action = format!("status: the server no longer has the context `{name}`");
        return failed(Error::new(ErrorKind::Changed, Fault::Peer, action).at(offset));
    };
    let max = max.max(1);
    Step::Go(Work::Status { context, is_map: false, offset, end: offset + len, max })
}

/// Whether a block status can name some of the selected contexts only.
fn takes_contexts(session: &Negotiated) -> bool {
    session.mode == Framing::Extended
        && session.flags.contains(TransmissionFlags::BLOCK_STATUS_PAYLOAD)
}

impl Work {
    /// The request to send next.
    pub(crate) fn ask(&self, session: &Negotiated, habits: &Habits) -> Ask {
        let none = CommandFlags::NONE;
        match *self {
            Self::Flush => Ask::new(Command::Flush, none, 0, 0),
            Self::Range { command, flags, next, end, .. } => {
                // QEMU accepts no longer prefetches than reads.
                let most = match command {
                    Command::Cache => habits.effect(session).min(session.max_payload()),
                    _ => habits.effect(session),
                };
                let most = most.max(block(session));
                let length = (end - next).min(most - most % block(session));
                Ask::new(command, flags, next, length)
            }
            Self::Read { offset, ref buffer } => {
                let flags = if habits.whole_reads { CommandFlags::DF } else { none };
                Ask::new(Command::Read, flags, offset, buffer.len() as u64)
            }
            Self::Status { context, offset, end, max, .. } => {
                let (start, end) = outward(offset, end - offset, session);
                let length = (end - start).min(habits.status(max, session));
                let flags = if max == 1 { CommandFlags::REQ_ONE } else { none };
                let one = session.contexts.len() > 1 && takes_contexts(session);
                let context = one.then_some(context);
                Ask { context, ..Ask::new(Command::BlockStatus, flags, start, length) }
            }
            Self::Write { offset, length, fua } => {
                let flags = if fua { CommandFlags::FUA } else { none };
                Ask::new(Command::Write, flags, offset, length)
            }
        }
    }

    /// Whether it must never be repeated: a disk is swept with a fast zero before data are written
    /// to it, and a first try that is executed late would zero them.
    pub(crate) fn is_once(&self) -> bool {
        matches!(self, Self::Range { fast: true, .. })
    }

    /// The unanswered rest of the operation; `payload` are the bytes of a write.
    pub(crate) fn undone(self, payload: Option<Slice>, session: &Negotiated) -> Option<Operation> {
        Some(match self {
            Self::Flush => Operation::Flush,
            Self::Read { offset, buffer } => Operation::Read { offset, buffer },
            Self::Write { offset, fua, .. } => Operation::Write { offset, data: payload?, fua },
            Self::Status { offset, end, max, is_map: true, .. } => {
                Operation::Resolve { offset, len: end - offset, max }
            }
            Self::Status { context, offset, end, max, .. } => {
                let (_, name) = session.contexts.iter().find(|(id, _)| *id == context)?;
                let context = name.as_str().into();
                Operation::Status { context, offset, len: end - offset, max }
            }
            // It must neither be repeated nor be called "not fast".
            Self::Range { first, next, fast: true, .. } if next > first => return None,
            Self::Range { command, flags, next, end, .. } => {
                let (offset, len) = (next, end - next);
                let fua = flags.contains(CommandFlags::FUA);
                match command {
                    Command::Cache => Operation::Prefetch { offset, len },
                    Command::Trim => Operation::Trim { offset, len, fua },
                    _ => {
                        let may_unmap = !flags.contains(CommandFlags::NO_HOLE);
                        let fast_only = flags.contains(CommandFlags::FAST_ZERO);
                        let flags = ZeroFlags { may_unmap, fast_only, fua, ..ZeroFlags::default() };
                        Operation::Zero { offset, len, flags }
                    }
                }
            }
        })
    }

    /// Where the data of a read go.
    pub(crate) fn buffer(&mut self) -> Option<&mut Buffer> {
        match self {
            Self::Read { buffer, .. } => Some(buffer),
            _ => None,
        }
    }

    /// Its error, with the offset that it has come to.
    pub(crate) fn located(&self, error: Error) -> Error {
        match *self {
            Self::Flush => error,
            Self::Range { next: offset, .. }
            | Self::Read { offset, .. }
            | Self::Status { offset, .. }
            | Self::Write { offset, .. } => error.at(offset),
        }
    }

    /// Interprets the reply to `ask`.
    pub(crate) fn answered(
        self,
        ask: &Ask,
        answer: std::result::Result<Vec<ContextStatus>, ReplyError>,
        session: &Negotiated,
        habits: &mut Habits,
    ) -> Step {
        match answer {
            Ok(statuses) => self.succeeded(ask, &statuses, session, habits),
            Err(e) => self.refused(ask, e, session, habits),
        }
    }

    fn succeeded(
        mut self,
        ask: &Ask,
        statuses: &[ContextStatus],
        session: &Negotiated,
        habits: &mut Habits,
    ) -> Step {
        match self {
            Self::Flush | Self::Write { .. } => DONE,
            Self::Read { buffer, .. } => Step::Ended(Ok(Outcome::Read(buffer))),
            Self::Range { ref mut next, end, .. } => {
                *next += ask.length;
                if *next >= end { DONE } else { Step::Go(self) }
            }
            Self::Status { context, is_map, offset, end, max } => {
                let status = statuses.iter().find(|s| s.context == context);
                let Some(status) = status else {
                    // `PendingReply` has checked that no context is missing.
                    return failed(odd("block status without its context").at(offset));
                };
                habits.told(&status.extents, max);
                let said = (ask.offset, &*status.extents);
                let range = (offset, end);
                Step::Ended(if is_map {
                    Ok(Outcome::Extents(map(said, range, max, session)))
                } else {
                    runs(said, range, max).map(Outcome::Status).map_err(|e| e.at(offset))
                })
            }
        }
    }

    fn refused(
        mut self,
        ask: &Ask,
        e: ReplyError,
        session: &Negotiated,
        habits: &mut Habits,
    ) -> Step {
        let code = match &e {
            ReplyError::Remote(remote) => Some(remote.code),
            ReplyError::Protocol(_) => None,
        };
        let form = matches!(code, Some(ErrorCode::EINVAL | ErrorCode::EOVERFLOW));
        match self {
            Self::Read { .. } if form && ask.flags.contains(CommandFlags::DF) => {
                habits.whole_reads = false;
                return Step::Go(self);
            }
            Self::Range { .. } if form && habits.shorten(ask.length, session) => {
                return Step::Go(self);
            }
            // Also for EINVAL to a request that has no other form: some servers advertise zeroes
            // and refuse them. Writing zeroes instead is right, whatever was done.
            Self::Range {
                command: Command::WriteZeroes, ref mut flags, first, next, fast, ..
            } if form || code == Some(ErrorCode::ENOTSUP) => {
                if !flags.contains(CommandFlags::FAST_ZERO) {
                    return failed(cannot_zero(fast && next > first).at(next));
                }
                if next == first {
                    return failed(not_fast(next));
                }
                // "Not fast" means that nothing was changed, which is no longer true.
                *flags = flags.without(CommandFlags::FAST_ZERO);
                return Step::Go(self);
            }
            _ => {}
        }
        failed(self.located(failure::reply(ask.command, e)))
    }
}

fn odd(what: &str) -> Error {
    Error::new(ErrorKind::Protocol, Fault::Peer, format!("resolve: {what}"))
}

/// At most `max` runs of `from..end`, from a server's extents from `at` on, with their flags
/// translated by `meaning`.
fn told<K: Copy + PartialEq>(
    (mut at, told): (u64, &[StatusExtent]),
    (from, end): (u64, u64),
    max: usize,
    meaning: impl Fn(u64) -> K,
) -> Vec<(u64, u64, K)> {
    let mut list: Vec<(u64, u64, K)> = Vec::new();
    for extent in told {
        let reaches = at.saturating_add(extent.length);
        let (start, stop) = (at.max(from), reaches.min(end));
        at = reaches;
        if start >= stop {
            continue;
        }
        let (what, is_full) = (meaning(extent.flags), list.len() >= max);
        match list.last_mut() {
            Some((_, len, same)) if *same == what => *len += stop - start,
            _ if is_full => break,
            _ => list.push((start, stop - start, what)),
        }
    }
    list
}

fn map(
    said: (u64, &[StatusExtent]),
    (offset, end): (u64, u64),
    max: usize,
    session: &Negotiated,
) -> Vec<Extent> {
    let list = told(said, (offset, end), max, |flags| (kind(flags), is_roomless(flags)));
    let extent = |(at, len, (kind, roomless))| Extent::new(at, len, kind).without_room(roomless);
    let mut list: Vec<_> = list.into_iter().map(extent).collect();
    if list.is_empty() {
        // It described only the part of the first block before the range, and would do so again:
        // the rest of that block may be anything.
        let (_, block_end) = outward(offset, 1, session);
        list.push(Extent::new(offset, end.min(block_end) - offset, ExtentKind::Data));
    }
    list
}

fn runs(said: (u64, &[StatusExtent]), range: (u64, u64), max: usize) -> Result<Vec<StatusRun>> {
    let list = told(said, range, max, |flags| flags).into_iter();
    let list: Vec<_> = list.map(|(_, len, value)| StatusRun { len, value }).collect();
    if list.is_empty() {
        return Err(odd("block status outside of the requested range"));
    }
    Ok(list)
}

fn is_roomless(flags: u64) -> bool {
    flags & allocation::HOLE != 0
}

/// A hole that is not marked as zero may hold anything.
fn kind(flags: u64) -> ExtentKind {
    match (flags & allocation::ZERO != 0, flags & allocation::HOLE != 0) {
        (true, true) => ExtentKind::Hole,
        (true, false) => ExtentKind::Zero,
        (false, _) => ExtentKind::Data,
    }
}
