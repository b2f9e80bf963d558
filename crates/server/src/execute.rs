//! Running requests: at once what will not wait, elsewhere what may, and the reply for each.
//!
//! A request comes here after the session's rules have passed it. Every path ends in exactly one
//! complete reply, except when a place can no longer deliver what its header promised: then the
//! connection ends, which is what NBD asks for.

use std::sync::Arc;

use device::{
    Buffer, BufferPool, Edge, Error, ErrorKind, Extent, ExtentKind, Operation, Outcome, Place,
    Result, Wait, ZeroFlags,
};
use wire::constants::{BASE_ALLOCATION, allocation};
use wire::{Command, CommandFlags, ErrorCode, ReplyWriter, Request, Session, StatusExtent};

use crate::budget::{Budget, Share};
use crate::gather::Gather;
use crate::link::{Link, Out};
use crate::log::Voice;

/// Reads up to this many bytes are copied into the gathered reply; longer ones leave from their
/// place. An estimate, not a measurement: a copy of a few pages against a second system call.
const GATHER: u64 = 24 << 10;
/// Reads at least this long are looked up in the map, so that holes are not sent.
const LOOK: u64 = 32 << 10;
/// Work on more bytes than this is not done by a reactor, even if it never waits.
const LONG: u64 = 4 << 20;
/// Zeroes and trims of more bytes than this are not done by a reactor.
const LONG_ZERO: u64 = 64 << 20;
/// Extents looked up for one read.
const READ_EXTENTS: usize = 64;
/// Extents in one block status reply.
const STATUS_EXTENTS: usize = 2048;
/// A page of the page cache; the largest in common use would be 64 KiB, where this is only a guess.
const PAGE: u64 = 4096;
/// A buffered write to a disk of at most this many bytes is done at once: it waits only when the
/// system has too many dirty pages.
const SMALL_WRITE: u64 = 64 << 10;

/// A request that is run elsewhere counts at least as so many bytes against the limits: what it
/// costs to remember it.
const FLOOR: u64 = 8 << 10;
/// A block status counts as what its reply may take.
const STATUS_COST: u64 = 40 << 10;

/// What a connection serves, from the end of the handshake on.
#[derive(Debug)]
pub(crate) struct Served {
    pub(crate) session: Session,
    pub(crate) edge: Edge,
    pub(crate) budget: Arc<Budget>,
    pub(crate) buffers: BufferPool,
    pub(crate) pool: device::WorkPool,
    pub(crate) voice: Arc<Voice>,
}

impl Served {
    /// Tells the operator what the client is told as a number only.
    fn tell(&self, request: &Request, e: &Error) {
        // A fast zero that would be slow is no failure.
        if e.kind() != ErrorKind::NotFast {
            let (code, length, offset) = (error_code(e), request.length, request.offset);
            let kind = request.kind().unwrap_or(Command::Read);
            self.voice.failed(format_args!("{kind:?} {length} bytes at {offset}: {code}: {e}"));
        }
    }
}

/// The payload of a request.
pub(crate) enum Payload<'a> {
    None,
    /// In the reactor's receive buffer, for now.
    Slice(&'a [u8]),
    /// On its own.
    Owned(Buffer, Share),
}

impl Payload<'_> {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::None => &[],
            Self::Slice(b) => b,
            Self::Owned(b, _) => b,
        }
    }

    fn into_owned(self, served: &Served) -> (Buffer, Share) {
        match self {
            Self::Owned(buffer, share) => (buffer, share),
            borrowed => {
                let bytes = borrowed.bytes();
                let mut buffer = served.buffers.take(bytes.len());
                buffer.copy_from_slice(bytes);
                (buffer, Share::take(&served.budget, (bytes.len() as u64).max(FLOOR)))
            }
        }
    }
}

/// One request about to be run.
pub(crate) struct Run<'a> {
    pub(crate) served: &'a Arc<Served>,
    pub(crate) link: &'a Arc<Link>,
    pub(crate) gather: &'a mut Gather,
    pub(crate) request: Request,
    pub(crate) writer: ReplyWriter,
}

impl Run<'_> {
    /// Runs the request.
    pub(crate) fn execute(&mut self, payload: Payload<'_>) {
        let r = self.request;
        let fua = r.flags.contains(CommandFlags::FUA);
        match r.kind() {
            Some(Command::Read) => self.read(),
            Some(Command::Write) => self.write(payload, fua),
            Some(Command::Flush) => self.plain(Operation::Flush, 0),
            Some(Command::Trim) => {
                let op = Operation::Trim { offset: r.offset, len: r.length, fua };
                self.ranged(op, r.length);
            }
            Some(Command::Cache) => {
                self.ranged(Operation::Prefetch { offset: r.offset, len: r.length }, r.length);
            }
            Some(Command::WriteZeroes) => {
                let flags = ZeroFlags {
                    may_unmap: !r.flags.contains(CommandFlags::NO_HOLE),
                    fast_only: r.flags.contains(CommandFlags::FAST_ZERO),
                    fua,
                };
                self.ranged(Operation::Zero { offset: r.offset, len: r.length, flags }, r.length);
            }
            Some(Command::BlockStatus) => self.block_status(payload.bytes()),
            Some(Command::Disconnect | Command::Resize) | None => {
                self.fail(ErrorCode::EINVAL, "unknown command");
            }
        }
    }

    fn wait(&self) -> Wait {
        self.served.edge.info().wait
    }

    fn fail(&mut self, error: ErrorCode, message: &str) {
        let writer = self.writer;
        self.gather.put(self.link, |out| writer.error(error, message, out));
    }

    /// What the device failed with, or the end of the connection if that is what it asks for.
    fn failed(&mut self, e: &Error) {
        if is_drop(e) {
            // What was done before was done, and is said.
            self.gather.flush(self.link, false);
            return self.link.abandon();
        }
        self.served.tell(&self.request, e);
        self.fail(error_code(e), &e.to_string());
    }

    fn done(&mut self) {
        let writer = self.writer;
        self.gather.put(self.link, |out| writer.done(out));
    }

    /// The reply to an operation that was run here.
    fn answer(&mut self, result: Result<Outcome>) {
        match result {
            Ok(_) => self.done(),
            Err(e) => self.failed(&e),
        }
    }

    /// Zero, trim and prefetch: nothing for an empty range, elsewhere for a long one.
    fn ranged(&mut self, operation: Operation, len: u64) {
        if len == 0 {
            return self.done();
        }
        self.plain(operation, len);
    }

    fn plain(&mut self, operation: Operation, len: u64) {
        if self.wait() == Wait::Never && len <= LONG_ZERO {
            let result = self.served.edge.run(operation);
            return self.answer(result);
        }
        self.elsewhere(operation, 0, None);
    }

    fn write(&mut self, payload: Payload<'_>, fua: bool) {
        let (offset, len) = (self.request.offset, self.request.length);
        if len == 0 {
            return self.done();
        }
        let at_once = match self.wait() {
            Wait::Never => len <= LONG,
            Wait::Disk => !fua && len <= SMALL_WRITE && self.needs_no_read(offset, len),
            Wait::Outside => false,
        };
        if at_once {
            let edge = &self.served.edge;
            let result = match payload {
                Payload::Owned(data, _share) => {
                    edge.run(Operation::Write { offset, data: data.into(), fua })
                }
                borrowed => edge.write(borrowed.bytes(), offset, fua).map(|()| Outcome::Done),
            };
            return self.answer(result);
        }
        let (data, share) = payload.into_owned(self.served);
        self.elsewhere(Operation::Write { offset, data: data.into(), fua }, len, Some(share));
    }

    /// Whether a buffered write can be done without reading the rest of its pages first.
    fn needs_no_read(&self, offset: u64, len: u64) -> bool {
        let whole = offset.is_multiple_of(PAGE) && len.is_multiple_of(PAGE);
        whole || self.served.edge.device().is_hot(offset, len)
    }

    /// Submits an operation; the reply follows when it ends.
    fn elsewhere(&mut self, operation: Operation, bytes: u64, share: Option<Share>) {
        // Replies that are ready do not wait for one that is not.
        self.gather.flush(self.link, false);
        let ending = Ending::begin(self, bytes, share);
        let edge = self.served.edge.clone();
        if edge.info().wait == Wait::Never {
            // Long work on a device that never waits: not on a reactor.
            return self.served.pool.run(move || ending.finish(edge.run(operation)));
        }
        let ended = Box::new(move |result| ending.finish(result));
        if self.request.length > LONG_ZERO {
            // What a filter starts may be done by the time it is started, or never.
            return self.served.pool.run(move || edge.submit(operation, ended));
        }
        edge.submit(operation, ended);
    }

    fn read(&mut self) {
        let len = self.request.length;
        if len == 0 {
            return self.done();
        }
        match self.wait() {
            Wait::Outside => self.read_outside(),
            wait if len <= GATHER && self.read_small(wait) => {}
            Wait::Never if len <= LONG => {
                if !self.read_placed() {
                    match read_all(self.served, &self.writer, &self.request) {
                        Ok(reply) => self.gather.put_pieces(self.link, reply),
                        Err(e) => self.failed(&e),
                    }
                }
            }
            Wait::Disk if self.is_hot() && self.read_placed() => {}
            Wait::Never if self.read_placed() => {}
            _ => self.read_in_pool(),
        }
    }

    fn is_hot(&self) -> bool {
        self.served.edge.device().is_hot(self.request.offset, self.request.length)
    }

    /// Reads into the gathered reply. False: it would have to wait.
    fn read_small(&mut self, wait: Wait) -> bool {
        let (edge, writer, r) = (&self.served.edge, self.writer, self.request);
        let Ok(len) = u32::try_from(r.length) else { return false };
        let start = self.gather.len();
        // Header and data are in one piece of the gather buffer, so that they can be taken back.
        let wanted = len as usize + 64;
        if self.gather.room(self.link, wanted).is_none() {
            return false;
        }
        let start = if self.gather.len() == 0 { 0 } else { start };
        self.gather.put(self.link, |out| writer.read_data(r.offset, len, true, out));
        let Some(room) = self.gather.room(self.link, len as usize) else { return false };
        let read = match wait {
            Wait::Never => edge.read(room, r.offset).map(|()| true),
            _ if edge.info().blocks.minimum == 1 => edge.device().read_now(room, r.offset),
            _ => Ok(false),
        };
        match read {
            Ok(true) => {
                self.gather.fill(len as usize);
                true
            }
            Ok(false) => {
                self.gather.take_back(start);
                false
            }
            Err(e) => {
                self.gather.take_back(start);
                self.failed(&e);
                true
            }
        }
    }

    /// Sends data from its place and holes as holes. False: it has no place.
    fn read_placed(&mut self) -> bool {
        let (device, r) = (self.served.edge.device(), self.request);
        let Some(place) = device.place(r.offset) else { return false };
        let extents = look_up(self.served, &self.writer, &r);
        if extents.iter().all(|e| !e.kind.reads_zero()) {
            self.put_placed(r.offset, r.length, place, true);
            return true;
        }
        let end = r.offset + r.length;
        for extent in &extents {
            let last = extent.end() == end;
            if extent.kind.reads_zero() {
                self.put_hole(extent, last);
            } else {
                let place = place.advanced(extent.start - r.offset);
                self.put_placed(extent.start, extent.len, place, last);
            }
        }
        true
    }

    fn put_placed(&mut self, offset: u64, len: u64, place: Place, last: bool) {
        let writer = self.writer;
        let narrow = u32::try_from(len).unwrap_or(u32::MAX);
        self.gather.put(self.link, |out| writer.read_data(offset, narrow, last, out));
        self.gather.put_pieces(self.link, [Out::Place(place, len)]);
    }

    fn put_hole(&mut self, extent: &Extent, last: bool) {
        let writer = self.writer;
        let narrow = u32::try_from(extent.len).unwrap_or(u32::MAX);
        self.gather.put(self.link, |out| writer.read_hole(extent.start, narrow, last, out));
    }

    fn read_in_pool(&mut self) {
        self.gather.flush(self.link, false);
        let ending = Ending::begin(self, self.request.length, None);
        let request = self.request;
        self.served.pool.run(move || {
            let reply = read_all(&ending.served, &ending.writer, &request);
            ending.reply(reply);
        });
    }

    fn read_outside(&mut self) {
        let Ok(len) = usize::try_from(self.request.length) else { return };
        let share = Share::take(&self.served.budget, self.request.length);
        let buffer = self.served.buffers.take(len);
        let operation = Operation::Read { offset: self.request.offset, buffer };
        self.elsewhere(operation, self.request.length, Some(share));
    }

    fn block_status(&mut self, payload: &[u8]) {
        let query = match self.served.session.status_query(&self.request, payload) {
            Ok(query) => query,
            Err(refusal) => {
                let writer = self.writer;
                return self.gather.put(self.link, |out| writer.refuse(&refusal, out));
            }
        };
        self.writer = self.writer.with_length(query.length);
        let one = self.request.flags.contains(CommandFlags::REQ_ONE);
        let max = if one { 1 } else { STATUS_EXTENTS };
        let operation = Operation::Resolve { offset: self.request.offset, len: query.length, max };
        if self.wait() != Wait::Never {
            self.gather.flush(self.link, false);
            let ending =
                Ending { contexts: query.contexts, ..Ending::begin(self, STATUS_COST, None) };
            let edge = self.served.edge.clone();
            return edge.submit(operation, Box::new(move |result| ending.finish(result)));
        }
        let result = self.served.edge.run(operation);
        if let Err(e) = &result {
            return self.failed(e);
        }
        let (served, writer) = (self.served.clone(), self.writer);
        self.gather.put(self.link, |out| {
            encode_status(&served.session, &writer, &query.contexts, result, out);
        });
    }
}

/// What is needed to answer a request when its operation ends elsewhere.
struct Ending {
    served: Arc<Served>,
    link: Arc<Link>,
    writer: ReplyWriter,
    request: Request,
    contexts: Vec<u32>,
    bytes: u64,
    /// Of the bytes that were allocated when the request came; goes on with the reply's data.
    share: Option<Share>,
}

impl Ending {
    fn begin(run: &Run<'_>, bytes: u64, share: Option<Share>) -> Self {
        let bytes = bytes.max(FLOOR);
        run.link.begin(bytes);
        let share = share.or_else(|| Some(Share::take(&run.served.budget, bytes)));
        Self {
            served: run.served.clone(),
            link: run.link.clone(),
            writer: run.writer,
            request: run.request,
            contexts: Vec::new(),
            bytes,
            share,
        }
    }

    fn finish(self, result: Result<Outcome>) {
        let mut head = Vec::with_capacity(64);
        let data = match result {
            Ok(Outcome::Read(buffer)) => {
                let len = u32::try_from(buffer.len()).unwrap_or(u32::MAX);
                self.writer.read_data(self.request.offset, len, true, &mut head);
                Some(buffer)
            }
            Ok(Outcome::Done) => {
                self.writer.done(&mut head);
                None
            }
            Ok(Outcome::Extents(extents)) => {
                let result = Ok(Outcome::Extents(extents));
                encode_status(
                    &self.served.session,
                    &self.writer,
                    &self.contexts,
                    result,
                    &mut head,
                );
                None
            }
            Err(e) if is_drop(&e) => {
                self.link.abandon();
                None
            }
            Err(e) => {
                self.served.tell(&self.request, &e);
                self.writer.error(error_code(&e), &e.to_string(), &mut head);
                None
            }
        };
        let budget = &self.served.budget;
        let data = data.map(|buffer| {
            let share = self.share.unwrap_or_else(|| Share::take(budget, buffer.len() as u64));
            Out::Data(buffer, share)
        });
        self.link.end(self.bytes, std::iter::once(Out::Bytes(head)).chain(data));
    }

    fn reply(self, reply: Result<Vec<Out>>) {
        match reply {
            Ok(pieces) => self.link.end(self.bytes, pieces),
            Err(e) => self.finish(Err(e)),
        }
    }
}

/// The map of a read's range, if holes are worth looking for; otherwise all of it as data.
fn look_up(served: &Served, writer: &ReplyWriter, r: &Request) -> Vec<Extent> {
    let mut extents = Vec::new();
    let worth = writer.may_fragment()
        && r.length >= LOOK
        && served.edge.info().abilities.extents
        && served.edge.resolve(r.offset, r.length, READ_EXTENTS, &mut extents).is_ok();
    if !worth {
        extents.clear();
    }
    let end = r.offset + r.length;
    let known = extents.last().map_or(r.offset, Extent::end);
    if known < end {
        device::merge_extent(&mut extents, Extent::new(known, end - known, ExtentKind::Data));
    }
    extents
}

/// A whole read reply, read into memory. May wait.
fn read_all(served: &Served, writer: &ReplyWriter, r: &Request) -> Result<Vec<Out>> {
    let extents = look_up(served, writer, r);
    let end = r.offset + r.length;
    let mut reply = Vec::with_capacity(2 * extents.len());
    let mut head = Vec::with_capacity(64);
    for extent in &extents {
        let last = extent.end() == end;
        let narrow = u32::try_from(extent.len).unwrap_or(u32::MAX);
        if extent.kind.reads_zero() {
            writer.read_hole(extent.start, narrow, last, &mut head);
            continue;
        }
        let mut buffer = served.buffers.take(narrow as usize);
        served.edge.read(&mut buffer, extent.start)?;
        writer.read_data(extent.start, narrow, last, &mut head);
        reply.push(Out::Bytes(std::mem::take(&mut head)));
        let share = Share::take(&served.budget, buffer.len() as u64);
        reply.push(Out::Data(buffer, share));
    }
    if !head.is_empty() {
        reply.push(Out::Bytes(head));
    }
    Ok(reply)
}

/// The status of every context asked for.
fn encode_status(
    session: &Session,
    writer: &ReplyWriter,
    contexts: &[u32],
    result: Result<Outcome>,
    out: &mut Vec<u8>,
) {
    let extents = match result {
        Ok(Outcome::Extents(extents)) => extents,
        Ok(_) => Vec::new(),
        Err(e) => return writer.error(error_code(&e), &e.to_string(), out),
    };
    let start = out.len();
    for (i, id) in contexts.iter().enumerate() {
        let known = session.contexts.iter().any(|(c, name)| c == id && name == BASE_ALLOCATION);
        let list = extents.iter().map(|e| StatusExtent {
            length: e.len,
            flags: if known { allocation_flags(e.kind) } else { 0 },
        });
        let last = i + 1 == contexts.len();
        if writer.block_status(*id, list, STATUS_EXTENTS, last, out) == 0 {
            out.truncate(start);
            return writer.error(ErrorCode::EIO, "nothing is known of this range", out);
        }
    }
}

fn allocation_flags(kind: ExtentKind) -> u64 {
    match kind {
        ExtentKind::Data => 0,
        ExtentKind::Hole => allocation::HOLE | allocation::ZERO,
        ExtentKind::Zero => allocation::ZERO,
    }
}

/// Whether the device wants the client to be dropped instead of answered.
fn is_drop(e: &Error) -> bool {
    e.kind() == ErrorKind::Dropped
}

/// The NBD error for a failure of the device.
fn error_code(e: &Error) -> ErrorCode {
    match e.kind() {
        ErrorKind::PermissionDenied | ErrorKind::ReadOnly => ErrorCode::EPERM,
        ErrorKind::NoMemory => ErrorCode::ENOMEM,
        ErrorKind::NoSpace => ErrorCode::ENOSPC,
        ErrorKind::NotFast => ErrorCode::ENOTSUP,
        ErrorKind::InvalidInput | ErrorKind::OutOfBounds | ErrorKind::Unsupported => {
            ErrorCode::EINVAL
        }
        ErrorKind::Shutdown => ErrorCode::ESHUTDOWN,
        _ => ErrorCode::EIO,
    }
}
