//! What the kernel asks, and what it is told. Each request gets one reply, but for those that have
//! none (FORGET).

use std::cell::Cell;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use device::{
    Buffer, Error, ErrorKind, ExtentKind, Operation, OperationKind, Outcome, Result, ZeroFlags,
};
use rustix::io::Errno;

use super::abi::{
    self, DSYNC, HEAD, HEADER, Header, MAJOR, MINOR, MOST, OLDEST, ROOT, SET_OWNERSHIP, SET_SIZE,
    falloc, init, op, opened,
};
use super::calls::{ReceivedRequest, reply};
use super::session::FuseSession;
use crate::client::PendingRequest;
use crate::fields::{FieldBytes, Fields};

/// Requests that the kernel hands out at a time of those that no program waits for, at most.
const BACKGROUND: u16 = 64;
/// Bytes up to which the data of a write that waits is copied out of the buffer for requests.
const COPIED: usize = 64 << 10;
/// Extents that are asked for at a time.
const EXTENTS: usize = 64;
/// How long the kernel may believe what it was told of the file, in seconds: for ever, unless the
/// disk may get another size.
const FOREVER: u64 = 1 << 30;
const AWHILE: u64 = 1;

/// A request that is being answered.
struct Ask<'a> {
    session: &'a Arc<FuseSession>,
    connection: &'a Arc<OwnedFd>,
    unique: u64,
    /// Until it is answered, or is given on.
    flight: Cell<Option<PendingRequest>>,
}

/// A request that is answered later, on whichever thread ends it; with an error if that never
/// happens.
struct Ending {
    connection: Arc<OwnedFd>,
    session: Arc<FuseSession>,
    unique: u64,
    flight: Option<PendingRequest>,
}

/// What a request is counted as, and for how many bytes, as it says itself.
pub(super) fn weigh(received: &ReceivedRequest) -> (Option<OperationKind>, u64) {
    let (in_head, in_payload) = received.len;
    let head = received.head.get(..in_head).unwrap_or_default();
    let Some(header) = Header::read(head).filter(|header| header.node == ROOT) else {
        return (None, 0);
    };
    let mut args = Fields(head.get(HEADER..).unwrap_or_default());
    let mut behind_offset = || args.u64().and_then(|_| args.u64()).map(|_| args);
    match header.opcode {
        op::READ => {
            let len = behind_offset().and_then(|mut args| args.u32());
            (Some(OperationKind::Read), u64::from(len.unwrap_or(0)).min(MOST as u64))
        }
        op::WRITE => (Some(OperationKind::Write), in_payload as u64),
        op::FALLOCATE => {
            let len = behind_offset().and_then(|mut args| args.u64());
            (Some(OperationKind::Zero), len.unwrap_or(0))
        }
        op::FSYNC => (Some(OperationKind::Flush), 0),
        op::LSEEK => (Some(OperationKind::Resolve), 0),
        _ => (None, 0),
    }
}

/// Runs a request.
pub(super) fn run(
    session: &Arc<FuseSession>,
    connection: &Arc<OwnedFd>,
    received: &ReceivedRequest,
    payload: &mut Buffer,
    flight: PendingRequest,
) {
    let (in_head, in_payload) = received.len;
    let head = received.head.get(..in_head).unwrap_or_default();
    let Some(header) = Header::read(head) else { return };
    let ask = Ask { session, connection, unique: header.unique, flight: Cell::new(Some(flight)) };
    if usize::try_from(header.len) != Ok(in_head + in_payload) {
        return ask.fail(Errno::IO);
    }
    let args = Fields(head.get(HEADER..).unwrap_or_default());
    if header.opcode != op::INIT && session.client.is_stopping() {
        return ask.fail(Errno::NOTCONN);
    }
    let done = match header.opcode {
        op::INIT => ask.init(args),
        _ if header.node != ROOT => {
            ask.outside(header.opcode);
            Some(())
        }
        // The kernel refuses them before, on a mount that is read-only.
        op::WRITE | op::FALLOCATE if session.client.is_read_only => {
            ask.fail(Errno::ROFS);
            Some(())
        }
        op::SETATTR => ask.set_attributes(args),
        op::OPEN => ask.open(args),
        op::READ => ask.read(args),
        op::WRITE => ask.write(args, payload, in_payload),
        op::FALLOCATE => ask.fallocate(args),
        op::LSEEK => ask.seek(args),
        opcode => {
            ask.plain(opcode);
            Some(())
        }
    };
    if done.is_none() {
        // Shorter than its kind is.
        ask.fail(Errno::INVAL);
    }
}

/// Answers a request of which it is not known whether it was answered: the kernel takes one reply.
pub(super) fn give_up(connection: &Arc<OwnedFd>, received: &ReceivedRequest) {
    if let Some(header) = Header::read(&received.head) {
        reply(connection, header.unique, Errno::IO.raw_os_error(), &[]);
    }
}

impl Ask<'_> {
    fn done(&self, data: &[u8]) {
        reply(self.connection, self.unique, 0, data);
    }

    fn fail(&self, errno: Errno) {
        self.refuse(ErrorKind::from_errno(errno.raw_os_error()), errno.raw_os_error());
    }

    fn failed(&self, e: &Error) {
        self.session.client.complain(e);
        self.refuse(e.kind(), number(e));
    }

    fn refuse(&self, kind: ErrorKind, number: i32) {
        let flight = self.flight.take();
        if let Some(flight) = &flight {
            flight.failed(kind);
        }
        reply(self.connection, self.unique, number, &[]);
    }

    /// What concerns no node, or one that there is not.
    fn outside(&self, opcode: u32) {
        match opcode {
            op::FORGET | op::BATCH_FORGET | op::INTERRUPT => {}
            op::DESTROY => self.done(&[]),
            _ => self.fail(Errno::NOENT),
        }
    }

    /// What says nothing more than its kind.
    fn plain(&self, opcode: u32) {
        match opcode {
            op::GETATTR => self.attributes(),
            op::FSYNC => self.submit(Operation::Flush),
            op::STATFS => self.statfs(),
            op::RELEASE => self.done(&[]),
            op::FORGET | op::BATCH_FORGET | op::INTERRUPT | op::DESTROY => self.outside(opcode),
            _ => self.fail(Errno::NOSYS),
        }
    }

    fn init(&self, mut args: Fields<'_>) -> Option<()> {
        let (major, minor) = (args.u32()?, args.u32()?);
        let (ahead, low) = (args.u32()?, args.u32()?);
        if major != MAJOR || minor < OLDEST {
            self.fail(Errno::PROTO);
            return Some(());
        }
        let offered = u64::from(low) | u64::from(args.u32().unwrap_or(0)) << 32;
        let mut wanted = init::ASYNC_READ | init::BIG_WRITES | init::ASYNC_DIO | init::MAX_PAGES;
        wanted |= init::EXT | init::DIRECT_IO_ALLOW_MMAP;
        let passes = offered & init::PASSTHROUGH != 0;
        let agreed = offered & (wanted | if passes { init::PASSTHROUGH } else { 0 });
        let (low, high) = (agreed & u64::from(u32::MAX), agreed >> 32);
        let page = rustix::param::page_size();
        let (most, pages) = (u32::try_from(MOST).ok()?, u16::try_from(MOST / page).ok()?);
        let out = FieldBytes::default().u32(MAJOR).u32(MINOR.min(minor)).u32(ahead.min(most));
        let out = out.u32(u32::try_from(low).ok()?).u16(BACKGROUND).u16(BACKGROUND / 4 * 3);
        let out = out.u32(most).u32(1).u16(pages).u16(0).u32(u32::try_from(high).ok()?);
        // One file system below another: the file may lie on any that is not stacked itself.
        let out = out.u32(u32::from(passes)).zeroes(24);
        self.done(&out.0);
        Some(())
    }

    /// The size of the disk, which is looked at again where a range ends behind it.
    fn size(&self, offset: u64, len: u64) -> u64 {
        let edge = &self.session.client.edge;
        let size = edge.size();
        if offset.saturating_add(len) > size { edge.look() } else { size }
    }

    /// `fuse_attr`.
    fn described(&self, out: FieldBytes) -> FieldBytes {
        let (session, edge) = (self.session, &self.session.client.edge);
        let (info, size) = (edge.info(), edge.look());
        let mode = 0o100_000 | if session.client.is_read_only { 0o400 } else { 0o600 };
        let (user, group) = (rustix::process::geteuid(), rustix::process::getegid());
        let out = out.u64(ROOT).u64(size).u64(size / 512);
        let out = out.u64(session.since).u64(session.since).u64(session.since).zeroes(12);
        let out = out.u32(mode).u32(1).u32(user.as_raw()).u32(group.as_raw()).u32(0);
        let block = info.blocks.preferred.max(info.granules.physical);
        out.u32(block.clamp(4096, 1 << 20)).u32(0)
    }

    fn attributes(&self) {
        let is_fixed = self.session.client.edge.device().size_now().is_none();
        let validity = if is_fixed { FOREVER } else { AWHILE };
        self.done(&self.described(FieldBytes::default().u64(validity).u64(0)).0);
    }

    /// Times are not kept, and whatever was asked of them is done; another length, mode or owner
    /// is refused.
    fn set_attributes(&self, mut args: Fields<'_>) -> Option<()> {
        let (valid, _, _) = (args.u32()?, args.u32()?, args.u64()?);
        let size = args.u64()?;
        let is_other_size = valid & SET_SIZE != 0 && size != self.session.client.edge.look();
        if is_other_size || valid & SET_OWNERSHIP != 0 {
            self.fail(Errno::PERM);
        } else {
            self.attributes();
        }
        Some(())
    }

    fn open(&self, mut args: Fields<'_>) -> Option<()> {
        let flags = args.u32()?;
        let session = self.session;
        // O_ACCMODE: whatever is not for reading only.
        if session.client.is_read_only && flags & 0o3 != 0 {
            self.fail(Errno::ROFS);
            return Some(());
        }
        let backing = session.backing();
        let how = match (backing, session.is_cached) {
            (1.., _) => opened::PASSTHROUGH,
            (0, true) => opened::KEEP_CACHE,
            (0, false) => opened::DIRECT_IO | opened::PARALLEL_DIRECT_WRITES,
        };
        self.done(&FieldBytes::default().u64(0).u32(how | opened::NO_FLUSH).u32(backing).0);
        Some(())
    }

    fn read(&self, mut args: Fields<'_>) -> Option<()> {
        let (_, offset, len) = (args.u64()?, args.u64()?, args.u32()?);
        let left = self.size(offset, len.into()).saturating_sub(offset);
        // What is beyond the end is not there.
        let len = usize::try_from(u64::from(len).min(left)).ok()?.min(MOST);
        if len == 0 {
            self.done(&[]);
            return Some(());
        }
        let mut buffer = self.session.client.buffers.take_whole(len);
        match self.session.client.edge.read_now(&mut buffer, offset) {
            Ok(true) => self.done(&buffer),
            Ok(false) => self.submit(Operation::Read { offset, buffer }),
            Err(e) => self.failed(&e),
        }
        Some(())
    }

    fn write(&self, mut args: Fields<'_>, payload: &mut Buffer, came: usize) -> Option<()> {
        let (_, offset, len) = (args.u64()?, args.u64()?, args.u32()?);
        let (_, _, flags) = (args.u32()?, args.u64()?, args.u32()?);
        let len = usize::try_from(len).ok()?;
        if len != came {
            self.fail(Errno::INVAL);
            return Some(());
        }
        let (size, bytes) = (self.size(offset, came as u64), came as u64);
        if offset > size || bytes > size - offset {
            // As a block device: a disk does not grow.
            self.fail(Errno::NOSPC);
            return Some(());
        }
        let fua = flags & DSYNC != 0;
        let wrote = FieldBytes::default().u32(u32::try_from(len).ok()?).u32(0).0;
        match self.session.client.edge.write_now(payload.get(..len)?, offset, fua) {
            Ok(true) => self.done(&wrote),
            Ok(false) => {
                let data = self.owned(payload, len);
                let operation = Operation::Write { offset, data: data.into(), fua };
                self.submit_with(operation, wrote);
            }
            Err(e) => self.failed(&e),
        }
        Some(())
    }

    /// The data of a write in a buffer of its own.
    fn owned(&self, payload: &mut Buffer, len: usize) -> Buffer {
        if len <= COPIED {
            let mut own = self.session.client.buffers.take(len);
            own.copy_from_slice(payload.get(..len).unwrap_or_default());
            return own;
        }
        let mut own = std::mem::replace(payload, self.session.client.buffers.take(MOST));
        own.truncate(len);
        own
    }

    fn fallocate(&self, mut args: Fields<'_>) -> Option<()> {
        let (_, offset, len, mode) = (args.u64()?, args.u64()?, args.u64()?, args.u32()?);
        let may_unmap = mode & falloc::PUNCH_HOLE != 0;
        if !may_unmap && mode & falloc::ZERO_RANGE == 0 || mode & !known_modes() != 0 {
            // Among others, room that is to be kept free: no disk promises that.
            self.fail(Errno::OPNOTSUPP);
            return Some(());
        }
        let size = self.size(offset, len);
        if !may_unmap && mode & falloc::KEEP_SIZE == 0 && (offset > size || len > size - offset) {
            self.fail(Errno::NOSPC);
            return Some(());
        }
        let len = len.min(size.saturating_sub(offset));
        if len == 0 {
            self.done(&[]);
            return Some(());
        }
        let flags = ZeroFlags { may_unmap, ..ZeroFlags::default() };
        self.submit(Operation::Zero { offset, len, flags });
        Some(())
    }

    /// SEEK_DATA and SEEK_HOLE, by the map.
    fn seek(&self, mut args: Fields<'_>) -> Option<()> {
        let (_, offset, whence) = (args.u64()?, args.u64()?, args.u32()?);
        let wants_data = match whence {
            3 => true,
            4 => false,
            _ => {
                self.fail(Errno::INVAL);
                return Some(());
            }
        };
        let size = self.size(offset, 1);
        if offset >= size {
            self.fail(Errno::NXIO);
            return Some(());
        }
        match self.next(offset, size, wants_data) {
            Ok(Some(at)) => self.done(&FieldBytes::default().u64(at).0),
            Ok(None) => self.fail(Errno::NXIO),
            Err(e) => self.failed(&e),
        }
        Some(())
    }

    /// Where the next data or hole begins; the end counts as a hole.
    fn next(&self, from: u64, size: u64, wants_data: bool) -> Result<Option<u64>> {
        let mut at = from;
        let mut extents = Vec::new();
        while at < size {
            extents.clear();
            self.session.client.edge.resolve(at, size - at, EXTENTS, &mut extents)?;
            let is_it = |kind: ExtentKind| (kind == ExtentKind::Data) == wants_data;
            if let Some(found) = extents.iter().find(|extent| is_it(extent.kind)) {
                return Ok(Some(found.start));
            }
            at = extents.last().map_or(size, device::Extent::end);
        }
        Ok((!wants_data).then_some(size))
    }

    fn statfs(&self) {
        let blocks = self.session.client.edge.size() / 4096;
        let out = FieldBytes::default().u64(blocks).u64(0).u64(0).u64(1).u64(0);
        self.done(&out.u32(4096).u32(255).u32(4096).zeroes(4 + 24).0);
    }

    fn submit(&self, operation: Operation) {
        self.submit_with(operation, Vec::new());
    }

    /// Starts an operation; the reply follows when it ends: what was read, or `done`.
    fn submit_with(&self, operation: Operation, done: Vec<u8>) {
        let flight = self.flight.take();
        let (connection, session) = (self.connection.clone(), self.session.clone());
        let ending = Ending { connection, session, unique: self.unique, flight };
        self.session
            .client
            .edge
            .submit(operation, Box::new(move |result| ending.finish(result, &done)));
    }
}

fn known_modes() -> u32 {
    falloc::KEEP_SIZE | falloc::PUNCH_HOLE | falloc::ZERO_RANGE
}

impl Ending {
    fn finish(mut self, result: Result<Outcome>, done: &[u8]) {
        match result {
            Ok(Outcome::Read(data)) => reply(&self.connection, self.unique, 0, &data),
            Ok(_) => reply(&self.connection, self.unique, 0, done),
            Err(e) => {
                self.session.client.complain(&e);
                self.refuse(e.kind(), number(&e));
            }
        }
        self.flight = None;
    }

    fn refuse(&self, kind: ErrorKind, number: i32) {
        if let Some(flight) = &self.flight {
            flight.failed(kind);
        }
        reply(&self.connection, self.unique, number, &[]);
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        if self.flight.is_some() {
            self.refuse(ErrorKind::Io, Errno::IO.raw_os_error());
        }
    }
}

/// The number that a program gets for a failure.
fn number(e: &Error) -> i32 {
    match e.kind() {
        ErrorKind::Unsupported => Errno::OPNOTSUPP.raw_os_error(),
        kind => kind.errno().0,
    }
}

const _: () = assert!(HEAD == 80 && abi::HEADER == 40);
