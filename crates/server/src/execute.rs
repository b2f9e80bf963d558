//! Running requests: at once what will not wait, elsewhere what may, and the reply for each.
//!
//! A request comes here after the session's rules have passed it. Every path ends in exactly one
//! complete reply, except when a place can no longer deliver what its header promised: then the
//! connection ends, which is what NBD asks for.
//!
//! A reactor waits for nothing and works on nothing long: what may wait for a disk, a lock of a
//! file or a peer, and what is long (many extents, many bytes), is done elsewhere. A request whose
//! client has gone before it begins elsewhere is not begun.

use runtime::contained;
use std::sync::Arc;

use device::{
    Buffer, BufferPool, Edge, Error, ErrorKind, Extent, ExtentKind, Fault, Operation, Outcome,
    Place, Result, Wait, ZeroFlags,
};
use wire::constants::{BASE_ALLOCATION, allocation};
use wire::{Command, CommandFlags, ErrorCode, ReplyWriter, Request, Session, StatusExtent};

use crate::budget::{Account, Share};
use crate::gather::Gather;
use crate::link::{Link, Out, Placed};
use crate::log::Voice;
use crate::status::whole_blocks;

/// Reads up to this many bytes are copied into the gathered reply; longer ones leave from their
/// place. An estimate, not a measurement: a copy of a few pages against a second system call.
const GATHER: u64 = 24 << 10;
/// Reads at least this long are looked up in the map, so that holes are not sent.
const LOOK: u64 = 32 << 10;
/// Work on more bytes than this is not done by a reactor, even if it never waits.
const LONG: u64 = 4 << 20;
/// Zeroes and trims of more bytes than this are not done by a reactor.
const LONG_ZERO: u64 = 16 << 20;
/// Extents looked up for one read.
const READ_EXTENTS: usize = 64;
/// Extents in one block status reply.
const STATUS_EXTENTS: usize = 2048;
/// Extents that a reactor looks up for one; more are looked up elsewhere.
const FEW_EXTENTS: usize = 64;

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
    pub(crate) account: Arc<Account>,
    pub(crate) buffers: BufferPool,
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
                (buffer, Share::take(&served.account, (bytes.len() as u64).max(FLOOR)))
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
        if self.request.length == 0 {
            return self.done();
        }
        match payload {
            Payload::Owned(data, share) => self.write_owned(data, share, fua),
            borrowed => match self.write_here(borrowed.bytes(), fua) {
                Ok(true) => self.done(),
                Ok(false) => {
                    let (data, share) = borrowed.into_owned(self.served);
                    self.write_elsewhere(data, share, fua);
                }
                Err(e) => self.failed(&e),
            },
        }
    }

    fn write_owned(&mut self, data: Buffer, share: Share, fua: bool) {
        let (offset, len) = (self.request.offset, self.request.length);
        if self.wait() == Wait::Never && len <= LONG {
            let operation = Operation::Write { offset, data: data.into(), fua };
            let result = self.served.edge.run(operation);
            return self.answer(result);
        }
        self.write_elsewhere(data, share, fua);
    }

    /// Writes bytes of the receive buffer, if that needs no waiting.
    fn write_here(&self, data: &[u8], fua: bool) -> Result<bool> {
        let (offset, len) = (self.request.offset, self.request.length);
        let edge = &self.served.edge;
        match self.wait() {
            Wait::Never if len <= LONG => edge.write(data, offset, fua).map(|()| true),
            Wait::Disk if !fua => edge.write_now(data, offset),
            Wait::Never | Wait::Disk | Wait::Outside => Ok(false),
        }
    }

    fn write_elsewhere(&mut self, data: Buffer, share: Share, fua: bool) {
        let (offset, len) = (self.request.offset, self.request.length);
        self.elsewhere(Operation::Write { offset, data: data.into(), fua }, len, Some(share));
    }

    /// Submits an operation; the reply follows when it ends.
    fn elsewhere(&mut self, operation: Operation, bytes: u64, share: Option<Share>) {
        // Replies that are ready do not wait for one that is not.
        self.gather.flush(self.link, false);
        let ending = Ending::begin(self, bytes, share);
        self.submit(operation, ending);
    }

    fn submit(&mut self, operation: Operation, ending: Ending) {
        let edge = self.served.edge.clone();
        // Flushes that wait may become one, so they take no thread before that.
        let alone = !matches!(operation, Operation::Flush);
        if edge.info().wait != Wait::Outside && alone {
            // Long work on a device that never waits is not done on a reactor either.
            return ending.run_in_pool(move || edge.run(operation));
        }
        let link = self.link.clone();
        let ended = Box::new(move |result| ending.finish(result));
        if self.request.length > LONG_ZERO {
            // What a filter starts may be done by the time it is started, or never.
            let pool = edge.pool().clone();
            return pool.run(move || {
                if !link.is_broken() {
                    edge.submit(operation, ended);
                }
            });
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
            // A short one that could not be had now may have met a lock, which sendfile would wait for.
            Wait::Disk if len > GATHER && self.is_hot() && self.read_placed() => {}
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

    /// Sends data from its place and holes as holes. False: it has no place, or the map is not known
    /// without waiting.
    fn read_placed(&mut self) -> bool {
        let (device, r) = (self.served.edge.device(), self.request);
        let Some(place) = device.place(r.offset) else { return false };
        let Some(extents) = look_up(self.served, &self.writer, &r, Look::Now) else { return false };
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
        let placed = Placed::new(place, len, self.served, offset);
        self.gather.put_pieces(self.link, [Out::Place(placed)]);
    }

    fn put_hole(&mut self, extent: &Extent, last: bool) {
        let writer = self.writer;
        let narrow = u32::try_from(extent.len).unwrap_or(u32::MAX);
        self.gather.put(self.link, |out| writer.read_hole(extent.start, narrow, last, out));
    }

    fn read_in_pool(&mut self) {
        self.gather.flush(self.link, false);
        let ending = Ending::begin(self, self.request.length, None);
        ending.reply_from_pool(read_all);
    }

    fn read_outside(&mut self) {
        let Ok(len) = usize::try_from(self.request.length) else { return };
        let share = Share::take(&self.served.account, self.request.length);
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
        self.request.length = query.length;
        let one = self.request.flags.contains(CommandFlags::REQ_ONE);
        let max = if one { 1 } else { STATUS_EXTENTS };
        match self.status_here(query.length, max.min(FEW_EXTENTS), max) {
            Ok(Some(extents)) => {
                let (served, writer, request) = (self.served.clone(), self.writer, self.request);
                let result = Ok(Outcome::Extents(extents));
                self.gather.put(self.link, |out| {
                    encode_status(&served, &request, &writer, &query.contexts, result, out);
                });
            }
            Ok(None) => {
                self.gather.flush(self.link, false);
                let operation =
                    Operation::Resolve { offset: self.request.offset, len: query.length, max };
                let mut ending = Ending::begin(self, STATUS_COST, None);
                ending.contexts = query.contexts;
                self.submit(operation, ending);
            }
            Err(e) => self.failed(&e),
        }
    }

    /// The extents of a range, if they are to be had at once and are few, or all that is wanted.
    fn status_here(&self, len: u64, few: usize, max: usize) -> Result<Option<Vec<Extent>>> {
        let (edge, offset) = (&self.served.edge, self.request.offset);
        let mut extents = Vec::new();
        let known = match self.wait() {
            // Who asks for much at once is not looked up for here only to begin again elsewhere.
            Wait::Never if self.link.has_work() => false,
            Wait::Never => edge.resolve(offset, len, few, &mut extents).map(|()| true)?,
            Wait::Disk => edge.resolve_now(offset, len, few, &mut extents)?,
            Wait::Outside => false,
        };
        let covered = extents.last().is_some_and(|e| e.end() - offset >= len);
        Ok((known && (covered || few >= max)).then_some(extents))
    }
}

/// What is needed to answer a request when its operation ends elsewhere. A request whose `Ending` is
/// dropped without an answer (a panic ended its work) is answered with an error.
struct Ending {
    served: Arc<Served>,
    link: Arc<Link>,
    writer: ReplyWriter,
    request: Request,
    contexts: Vec<u32>,
    bytes: u64,
    /// Of the bytes that were allocated when the request came; goes on with the reply's data.
    share: Option<Share>,
    answered: bool,
}

impl Ending {
    fn begin(run: &Run<'_>, bytes: u64, share: Option<Share>) -> Self {
        let bytes = bytes.max(FLOOR);
        run.link.begin(bytes);
        let share = share.or_else(|| Some(Share::take(&run.served.account, bytes)));
        Self {
            served: run.served.clone(),
            link: run.link.clone(),
            writer: run.writer,
            request: run.request,
            contexts: Vec::new(),
            bytes,
            share,
            answered: false,
        }
    }

    /// Runs `work` in the pool and answers with what came of it.
    fn run_in_pool(self, work: impl FnOnce() -> Result<Outcome> + Send + 'static) {
        let pool = self.served.edge.pool().clone();
        pool.run(move || {
            if !self.is_moot() {
                let result = contained("a request", work).unwrap_or_else(|panic| Err(panic.into()));
                self.finish(result);
            }
        });
    }

    /// Makes the reply in the pool.
    fn reply_from_pool(self, make: fn(&Arc<Served>, &ReplyWriter, &Request) -> Result<Vec<Out>>) {
        let pool = self.served.edge.pool().clone();
        pool.run(move || {
            if !self.is_moot() {
                let made =
                    contained("a request", || make(&self.served, &self.writer, &self.request));
                match made.unwrap_or_else(|panic| Err(panic.into())) {
                    Ok(pieces) => self.end(pieces),
                    Err(e) => self.finish(Err(e)),
                }
            }
        });
    }

    /// Whether the client has gone. Then what it asked for is not begun: a client that came back
    /// may have asked for it again, and for something else since.
    fn is_moot(&self) -> bool {
        self.link.is_broken()
    }

    fn finish(mut self, result: Result<Outcome>) {
        let pieces = self.pieces(result);
        self.end(pieces);
    }

    fn pieces(&mut self, result: Result<Outcome>) -> Vec<Out> {
        let mut head = Vec::with_capacity(64);
        let mut data = None;
        match result {
            Ok(Outcome::Read(buffer)) => {
                let len = u32::try_from(buffer.len()).unwrap_or(u32::MAX);
                self.writer.read_data(self.request.offset, len, true, &mut head);
                let len = buffer.len() as u64;
                let share =
                    self.share.take().unwrap_or_else(|| Share::take(&self.served.account, len));
                data = Some(Out::Data(buffer, share));
            }
            Ok(Outcome::Done) => self.writer.done(&mut head),
            Ok(Outcome::Extents(extents)) => {
                let (served, result) = (&self.served, Ok(Outcome::Extents(extents)));
                let (request, writer) = (&self.request, &self.writer);
                encode_status(served, request, writer, &self.contexts, result, &mut head);
            }
            Ok(Outcome::Status(_) | Outcome::Taken(_)) => {
                self.writer.error(ErrorCode::EIO, "an answer to another question", &mut head);
            }
            Err(e) if is_drop(&e) => self.link.abandon(),
            Err(e) => {
                self.served.tell(&self.request, &e);
                self.writer.error(error_code(&e), &e.to_string(), &mut head);
            }
        }
        std::iter::once(Out::Bytes(head)).chain(data).collect()
    }

    fn end(mut self, pieces: Vec<Out>) {
        self.answered = true;
        self.link.end(self.bytes, pieces);
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        if !self.answered {
            let lost = Error::new(ErrorKind::Io, Fault::Us, "the request was given up");
            let pieces = if self.is_moot() { Vec::new() } else { self.pieces(Err(lost)) };
            self.link.end(self.bytes, pieces);
        }
    }
}

/// How the map may be asked for.
#[derive(Clone, Copy, Eq, PartialEq)]
enum Look {
    /// Without waiting.
    Now,
    MayWait,
}

/// The map of a read's range, if holes are worth looking for; otherwise all of it as data. `None`:
/// it cannot be had without waiting.
fn look_up(served: &Served, writer: &ReplyWriter, r: &Request, look: Look) -> Option<Vec<Extent>> {
    let mut extents = Vec::new();
    let edge = &served.edge;
    if writer.may_fragment() && r.length >= LOOK && edge.info().abilities.extents {
        let (offset, len) = (r.offset, r.length);
        let known = if look == Look::MayWait || edge.info().wait == Wait::Never {
            edge.resolve(offset, len, READ_EXTENTS, &mut extents).map(|()| true)
        } else {
            edge.resolve_now(offset, len, READ_EXTENTS, &mut extents)
        };
        match known {
            Ok(true) => {}
            Ok(false) => return None,
            Err(_) => extents.clear(),
        }
    }
    let end = r.offset + r.length;
    let known = extents.last().map_or(r.offset, Extent::end);
    if known < end {
        device::merge_extent(&mut extents, Extent::new(known, end - known, ExtentKind::Data));
    }
    Some(extents)
}

/// A whole read reply, read into memory. May wait.
fn read_all(served: &Arc<Served>, writer: &ReplyWriter, r: &Request) -> Result<Vec<Out>> {
    let extents = look_up(served, writer, r, Look::MayWait).unwrap_or_default();
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
        if let Some(placed) = hot_place(served, extent) {
            writer.read_data(extent.start, narrow, last, &mut head);
            reply.push(Out::Bytes(std::mem::take(&mut head)));
            reply.push(Out::Place(placed));
            continue;
        }
        let share = Share::take(&served.account, extent.len);
        let mut buffer = served.buffers.take(narrow as usize);
        served.edge.read(&mut buffer, extent.start)?;
        writer.read_data(extent.start, narrow, last, &mut head);
        reply.push(Out::Bytes(std::mem::take(&mut head)));
        reply.push(Out::Data(buffer, share));
    }
    if !head.is_empty() {
        reply.push(Out::Bytes(head));
    }
    Ok(reply)
}

/// Where the data of a long read lie, if they are in memory.
fn hot_place(served: &Arc<Served>, extent: &Extent) -> Option<Placed> {
    let device = served.edge.device();
    if extent.len <= GATHER || !device.is_hot(extent.start, extent.len) {
        return None;
    }
    let place = device.place(extent.start)?;
    Some(Placed::new(place, extent.len, served, extent.start))
}

/// The status of every context asked for.
fn encode_status(
    served: &Served,
    request: &Request,
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
    let told = served.edge.info().advertised.map_or(1, |sizes| u64::from(sizes.minimum));
    let extents = whole_blocks(extents, request.offset.saturating_add(request.length), told);
    let start = out.len();
    for (i, id) in contexts.iter().enumerate() {
        let known =
            served.session.contexts.iter().any(|(c, name)| c == id && name == BASE_ALLOCATION);
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
    ErrorCode::from_errno(e.kind().errno().0)
}
