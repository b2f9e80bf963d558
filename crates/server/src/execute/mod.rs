//! Runs requests: those that will not wait at once, the others elsewhere; and sends the reply for
//! each.
//!
//! A request comes here after the session's rules have passed it. Every path ends in exactly one
//! complete reply, except when a place can no longer deliver what its header promised: then the
//! connection ends, as NBD demands.
//!
//! A reactor neither waits nor computes for long: what may wait for a disk, a lock of a file or a
//! peer, and what is long (many extents, many bytes), is done elsewhere. A request whose client has
//! gone before it begins elsewhere is not begun.

mod blocks;
mod elsewhere;
mod known;
mod reading;
mod status;
mod zeroes;

use std::sync::Arc;
use std::time::Instant;

use device::{
    Buffer, BufferPool, Edge, Error, ErrorKind, Operation, OperationKind, Result, ZeroFlags,
};
use runtime::Mutex;
use serving::{HeldExport, MemoryAccount, Share, Tally, Voice};
use wire::{Command, CommandFlags, ErrorCode, Negotiated, ReplyWriter, Request};

use crate::gather::Gather;
use crate::link::Link;
use elsewhere::Ending;
pub(crate) use elsewhere::start;
use known::KnownData;

/// Work on more bytes than this is not done by a reactor, even if it never waits.
const LONG: u64 = 4 << 20;
/// A request that is run elsewhere counts at least as this many bytes against the limits: its own
/// bookkeeping.
const FLOOR: u64 = 8 << 10;

/// What a connection serves, from the end of the handshake on.
#[derive(Debug)]
pub(crate) struct Served {
    pub(crate) session: Negotiated,
    pub(crate) edge: Edge,
    /// The export ends when no client has it.
    pub(crate) export: Arc<HeldExport>,
    pub(crate) account: Arc<MemoryAccount>,
    pub(crate) buffers: BufferPool,
    pub(crate) voice: Arc<Voice>,
    pub(crate) tally: Arc<Tally>,
    pub(crate) known: Mutex<KnownData>,
}

impl Served {
    /// Counts a request that begins.
    pub(crate) fn begun(&self, request: &Request) {
        let (kind, len) = (kind(request), request.length);
        self.tally.begun(kind, len);
        self.voice.asked(kind, len);
        self.export.flow().begun(kind, len);
    }

    /// Counts a reply that is an error.
    pub(crate) fn refused(&self, error: ErrorCode) {
        self.tally.failed(error.name());
        self.voice.refused();
    }

    /// Logs for the operator what the client gets only as a number.
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
pub(crate) struct RequestRun<'a> {
    pub(crate) served: &'a Arc<Served>,
    pub(crate) link: &'a Arc<Link>,
    pub(crate) gather: &'a mut Gather,
    pub(crate) request: Request,
    pub(crate) writer: ReplyWriter,
    /// When the turn began in which it came.
    pub(crate) begun: Instant,
    /// It ends here and now; otherwise elsewhere and later.
    pub(crate) ends: bool,
}

impl RequestRun<'_> {
    /// Runs the request; whether it is answered.
    pub(crate) fn execute(&mut self, payload: Payload<'_>) -> bool {
        let r = self.request;
        self.served.begun(&r);
        self.run(payload);
        self.ends
    }

    fn run(&mut self, payload: Payload<'_>) {
        let r = self.request;
        let fua = r.flags.contains(CommandFlags::FUA);
        match r.kind() {
            Some(Command::Read) => self.read(),
            Some(Command::Write) => self.write(payload, fua),
            Some(Command::Flush) => self.plain(Operation::Flush),
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
                    written: false,
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

    fn fail(&mut self, error: ErrorCode, message: &str) {
        self.served.refused(error);
        let writer = self.writer;
        self.gather.put(self.link, |out| writer.error(error, message, out));
    }

    /// The device's failure, or the end of the connection if the device asks for that.
    fn failed(&mut self, e: &Error) {
        if is_drop(e) {
            // Earlier requests were done, so their replies are sent.
            self.gather.flush(self.link);
            return self.link.abandon();
        }
        self.served.tell(&self.request, e);
        self.fail(error_code(e), &e.without_names());
    }

    fn done(&mut self) {
        let writer = self.writer;
        self.gather.put(self.link, |out| writer.done(out));
    }

    /// Zero, trim and prefetch: nothing for an empty range, elsewhere for a long one.
    fn ranged(&mut self, operation: Operation, len: u64) {
        if len == 0 {
            return self.done();
        }
        if matches!(operation, Operation::Zero { .. } | Operation::Trim { .. }) {
            self.served.known.lock().forget();
        }
        self.plain(operation);
    }

    fn plain(&mut self, operation: Operation) {
        Ending::begin(self, 0, None).submit(operation);
    }

    fn write(&mut self, payload: Payload<'_>, fua: bool) {
        if self.request.length == 0 {
            return self.done();
        }
        let (offset, len) = (self.request.offset, self.request.length);
        match self.write_here(payload.bytes(), fua) {
            Ok(true) => return self.done(),
            Ok(false) => {}
            Err(e) => return self.failed(&e),
        }
        let (data, share) = payload.into_owned(self.served);
        let operation = Operation::Write { offset, data: data.into(), fua };
        Ending::begin(self, len, Some(share)).submit(operation);
    }

    /// Writes, if that needs no waiting and does not take long.
    fn write_here(&self, data: &[u8], fua: bool) -> Result<bool> {
        let r = &self.request;
        Ok(r.length <= LONG && self.served.edge.write_now(data, r.offset, fua)?)
    }
}

/// As what a request is counted; `None`: as none.
pub(crate) fn kind(request: &Request) -> Option<OperationKind> {
    Some(match request.kind()? {
        Command::Read => OperationKind::Read,
        Command::Write => OperationKind::Write,
        Command::Flush => OperationKind::Flush,
        Command::Trim => OperationKind::Trim,
        Command::Cache => OperationKind::Prefetch,
        Command::WriteZeroes => OperationKind::Zero,
        Command::BlockStatus => OperationKind::Resolve,
        Command::Disconnect | Command::Resize => return None,
    })
}

/// Whether the device wants the client to be dropped instead of answered.
fn is_drop(e: &Error) -> bool {
    e.kind() == ErrorKind::Dropped
}

/// The NBD error for a failure of the device.
fn error_code(e: &Error) -> ErrorCode {
    ErrorCode::from_errno(e.kind().errno().0)
}
