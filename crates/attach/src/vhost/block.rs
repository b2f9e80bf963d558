//! What a guest asks of its disk (virtio 1.2, 5.2 "Block Device"), and its configuration.

use std::sync::Arc;

use device::{ErrorKind, Info, Operation, OperationKind, Outcome, ZeroFlags};
use runtime::to_usize;

use super::long::LongCopies;
use super::protocol;
use super::queue::{DescriptorChain, GuestRange, Virtqueue};
use super::session::VhostSession;
use crate::client::PendingRequest;
use crate::fields::{FieldBytes, Fields};
use crate::mapping::SharedParts;
use crate::point::SERIAL;

/// Bytes of a sector, by which a guest counts whatever the disk's blocks are.
pub(super) const SECTOR: u64 = 512;
/// Bytes of a request's data, at most.
const MOST: u64 = 32 << 20;
/// Parts of a request's data, at most: with header and status, what fits in a queue of the length
/// that QEMU makes.
const SEGMENTS: u32 = 126;
/// Bytes of a read or write that other threads do, too, where more requests wait; such a read is
/// copied out of its file where it can.
const LONG_COPY: u64 = 64 << 10;
/// Bytes of a request's header: its type, a reserved word and the sector.
const HEADER: usize = 16;
/// Sectors of a discard or a zero, at most.
const LONG: u32 = 1 << 22;

/// Bits of the features that a disk may have.
pub(super) mod feature {
    pub(in super::super) const SEG_MAX: u64 = 1 << 2;
    pub(in super::super) const READ_ONLY: u64 = 1 << 5;
    pub(in super::super) const BLK_SIZE: u64 = 1 << 6;
    pub(in super::super) const FLUSH: u64 = 1 << 9;
    pub(in super::super) const TOPOLOGY: u64 = 1 << 10;
    pub(in super::super) const SEVERAL_QUEUES: u64 = 1 << 12;
    pub(in super::super) const DISCARD: u64 = 1 << 13;
    pub(in super::super) const WRITE_ZEROES: u64 = 1 << 14;
}

/// The type of a request for what the disk is known by.
const IDENTITY: u32 = 8;

/// What other requests ask for, by their type.
fn kind_of(request: u32) -> Option<OperationKind> {
    match request {
        0 => Some(OperationKind::Read),
        1 => Some(OperationKind::Write),
        4 => Some(OperationKind::Flush),
        11 => Some(OperationKind::Trim),
        13 => Some(OperationKind::Zero),
        _ => None,
    }
}

/// What a disk offers a guest.
pub(super) fn features(info: &Info, is_read_only: bool) -> u64 {
    let mut offered = feature::SEG_MAX | feature::BLK_SIZE | feature::FLUSH;
    offered |= feature::SEVERAL_QUEUES | feature::TOPOLOGY;
    offered |= match is_read_only {
        true => feature::READ_ONLY,
        false if info.abilities.trim => feature::DISCARD | feature::WRITE_ZEROES,
        false => feature::WRITE_ZEROES,
    };
    offered
}

/// `struct virtio_blk_config`.
pub(super) fn configuration(info: &Info, size: u64, queues: u16) -> Vec<u8> {
    let block = info.blocks.minimum.max(512);
    // A physical block and the best size in logical ones; the first also as a power of two.
    let physical = (info.granules.physical.max(block) / block).max(1);
    let power = u16::try_from(physical.ilog2()).unwrap_or(0);
    let physical = u16::try_from(physical).unwrap_or(u16::MAX);
    let best = (info.blocks.preferred / block).max(1);
    let alignment = info.granules.trim.max(block) / 512;
    // Behind `size_max`; before the geometry.
    let words = FieldBytes::default().u64((size / SECTOR).to_le()).zeroes(4).u32(SEGMENTS.to_le());
    let words = words.zeroes(4).u32(block.to_le());
    let words = words.u16(power.to_le()).u16(physical.to_le()).u32(best.to_le());
    // Behind `writeback`. One range a discard, and a zero, which may free its room.
    let words = words.zeroes(2).u16(queues.to_le());
    let words = words.u32(LONG.to_le()).u32(1_u32.to_le()).u32(alignment.to_le());
    words.u32(LONG.to_le()).u32(1_u32.to_le()).u32(1_u32.to_le()).0
}

/// A request that is being done. Dropped, it has failed.
struct GuestRequest {
    queue: Arc<Virtqueue>,
    chain: DescriptorChain,
    /// Where its status is written.
    status: u64,
    /// Bytes of its data.
    bytes: u64,
    in_flight: Option<PendingRequest>,
}

fn total(ranges: &[GuestRange]) -> u64 {
    ranges.iter().map(|range| u64::from(range.len)).sum()
}

/// Does a request, or begins to; a long copy is left to `long`.
///
/// # Errors
/// It has no header, or no room for a status: the queue is of no use any more.
pub(super) fn run(
    session: &Arc<VhostSession>,
    queue: &Arc<Virtqueue>,
    long: &Arc<LongCopies>,
    mut chain: DescriptorChain,
) -> device::Result<()> {
    let Some((request, sector, status)) = begin(queue, &mut chain) else {
        queue.complete(chain.head, 0, 0);
        return Err(protocol("the guest's queue: a request has no header"));
    };
    let bytes = (total(&chain.readable) + total(&chain.writable)).min(MOST);
    let kind = kind_of(request);
    let in_flight = Some(session.client.admit(kind, bytes));
    let mut guest = GuestRequest { queue: queue.clone(), chain, status, bytes, in_flight };
    let operation = match kind {
        Some(OperationKind::Read) => {
            guest.read(session, long, sector);
            return Ok(());
        }
        Some(OperationKind::Flush) => Ok(Operation::Flush),
        Some(_) if session.client.is_read_only => Err(ErrorKind::Io),
        Some(OperationKind::Write) => guest.write(session, sector),
        Some(kind) => guest.range(session, kind),
        None if request == IDENTITY => {
            let mut name = [0; SERIAL];
            name.iter_mut().zip(session.serial.bytes()).for_each(|(to, from)| *to = from);
            guest.end(guest.scatter(&name));
            return Ok(());
        }
        None => Err(ErrorKind::Unsupported),
    };
    match operation {
        Ok(operation @ Operation::Write { .. }) if bytes >= LONG_COPY => {
            guest.copy(session, long, true, |guest, own| guest.perform(own, operation));
        }
        Ok(operation) => guest.perform(session, operation),
        Err(kind) => guest.end(Err(kind)),
    }
    Ok(())
}

/// The type of a request, its sector, and where its status is written, which are taken off it.
fn begin(queue: &Virtqueue, chain: &mut DescriptorChain) -> Option<(u32, u64, u64)> {
    let mut header = [0; HEADER];
    gather(queue, &mut chain.readable, &mut header)?;
    while chain.writable.pop_if(|range| range.len == 0).is_some() {}
    let last = chain.writable.last_mut()?;
    last.len -= 1;
    let status = last.address.checked_add(u64::from(last.len))?;
    let mut fields = Fields(&header);
    let (request, _, sector) = (fields.u32()?, fields.u32()?, fields.u64()?);
    Some((u32::from_le(request), u64::from_le(sector), status))
}

/// Where a range of sectors begins, in bytes, all `len` bytes of which are in the disk.
fn checked(session: &VhostSession, sector: u64, len: u64, most: u64) -> Result<u64, ErrorKind> {
    let size = session.client.edge.size();
    let offset = sector.checked_mul(SECTOR).filter(|offset| {
        let is_good = len > 0 && len <= most && len.is_multiple_of(SECTOR);
        is_good && *offset <= size && len <= size - *offset
    });
    offset.ok_or(ErrorKind::Io)
}

impl GuestRequest {
    /// Reads a range; a long one out of the file in which it lies, if it can.
    fn read(mut self, session: &Arc<VhostSession>, long: &Arc<LongCopies>, sector: u64) {
        let len = total(&self.chain.writable);
        let read = move |guest: Self, own: &Arc<VhostSession>, offset| {
            let buffer = own.client.buffers.take_whole(to_usize(len));
            guest.perform(own, Operation::Read { offset, buffer });
        };
        match checked(session, sector, len, MOST) {
            Ok(offset) if len < LONG_COPY => read(self, session, offset),
            Ok(offset) => self.copy(session, long, false, move |mut guest, own| {
                match guest.fill(own, offset) {
                    Some(done) => guest.end(Ok(done)),
                    None => read(guest, own, offset),
                }
            }),
            Err(kind) => self.end(Err(kind)),
        }
    }

    /// Leaves to `long` what copies many bytes.
    fn copy(
        self,
        session: &Arc<VhostSession>,
        long: &Arc<LongCopies>,
        is_write: bool,
        work: impl FnOnce(Self, &Arc<VhostSession>) + Send + 'static,
    ) {
        let (own, has_more) = (session.clone(), self.queue.has_more());
        // A panic fails the request, as it is dropped.
        let copy = move || _ = own.client.run(|| work(self, &own));
        long.add(session.client.edge.pool(), (is_write, has_more), copy);
    }

    fn write(&mut self, session: &VhostSession, sector: u64) -> Result<Operation, ErrorKind> {
        let len = total(&self.chain.readable);
        let offset = checked(session, sector, len, MOST)?;
        let mut data = session.client.buffers.take(to_usize(len));
        gather(&self.queue, &mut self.chain.readable, &mut data).ok_or(ErrorKind::Io)?;
        // A guest that knows no flush takes what is acknowledged for durable.
        Ok(Operation::Write { offset, data: data.into(), fua: !session.knows_flush() })
    }

    /// A discard or a zero of one range: `struct virtio_blk_discard_write_zeroes`.
    fn range(&mut self, of: &VhostSession, kind: OperationKind) -> Result<Operation, ErrorKind> {
        if total(&self.chain.readable) != HEADER as u64 {
            return Err(ErrorKind::Unsupported);
        }
        let mut words = [0; HEADER];
        gather(&self.queue, &mut self.chain.readable, &mut words).ok_or(ErrorKind::Io)?;
        let mut fields = Fields(&words);
        let (sector, sectors, flags) = (fields.u64(), fields.u32(), fields.u32());
        let flags = u32::from_le(flags.unwrap_or(u32::MAX));
        let len = u64::from(u32::from_le(sectors.unwrap_or(0))) * SECTOR;
        let (may_unmap, fua) = (flags == 1, !of.knows_flush());
        if flags > 1 || kind == OperationKind::Trim && may_unmap {
            return Err(ErrorKind::Unsupported);
        }
        let sector = u64::from_le(sector.unwrap_or(u64::MAX));
        let offset = checked(of, sector, len, u64::from(LONG) * SECTOR)?;
        let flags = ZeroFlags { may_unmap, fua, ..ZeroFlags::default() };
        Ok(match kind {
            OperationKind::Trim => Operation::Trim { offset, len, fua },
            _ => Operation::Zero { offset, len, flags },
        })
    }

    /// Does what is asked for, or begins to.
    fn perform(mut self, session: &Arc<VhostSession>, operation: Operation) {
        let own = session.clone();
        session.client.perform(operation, move |result| self.finish(&own, result));
    }

    /// Has the kernel copy what lies in memory at `offset` of the disk to the guest, with no buffer
    /// in between; how many bytes. `None`: the disk is to be asked, also for an error.
    fn fill(&self, session: &VhostSession, offset: u64) -> Option<u32> {
        let len = total(&self.chain.writable);
        let mut done = 0;
        for (place, len) in session.client.edge.resident(offset, len)? {
            let read = self.room(done, len)?.fill(place.fd(), place.offset()).ok()?;
            if read as u64 != len {
                return None;
            }
            done += len;
        }
        u32::try_from(len).ok()
    }

    /// `len` bytes of the guest's room from the byte `skip` on.
    fn room(&self, mut skip: u64, mut len: u64) -> Option<SharedParts<'_>> {
        let mut room = SharedParts::new();
        for range in &self.chain.writable {
            let from = skip.min(range.len.into());
            let now = (u64::from(range.len) - from).min(len);
            let address = range.address.checked_add(from)?;
            self.queue.parts.memory.add(address, to_usize(now), &mut room)?;
            (skip, len) = (skip - from, len - now);
        }
        (len == 0).then_some(room)
    }

    /// Tells the guest what became of it.
    fn finish(&mut self, session: &VhostSession, result: device::Result<Outcome>) {
        let written = match result {
            Ok(Outcome::Read(data)) => match self.scatter(&data) {
                Ok(written) if to_usize(u64::from(written)) != data.len() => Err(ErrorKind::Io),
                written => written,
            },
            Ok(_) => Ok(0),
            Err(e) => {
                session.client.complain(&e);
                Err(ErrorKind::Io)
            }
        };
        self.end(written);
    }

    /// Copies what was read to the guest, as far as there is room; how many bytes of it.
    fn scatter(&self, mut data: &[u8]) -> Result<u32, ErrorKind> {
        let mut written = 0;
        for range in &self.chain.writable {
            let len = usize::try_from(range.len).unwrap_or(usize::MAX).min(data.len());
            let (now, later) = data.split_at(len);
            self.queue.parts.memory.write(range.address, now).ok_or(ErrorKind::Io)?;
            written += u32::try_from(len).unwrap_or(0);
            data = later;
        }
        Ok(written)
    }

    /// Tells the guest how many bytes were written to it, or that it has failed.
    fn end(&mut self, written: Result<u32, ErrorKind>) {
        let Some(in_flight) = self.in_flight.take() else { return };
        if let Err(kind) = written {
            in_flight.failed(kind);
        }
        let status = match written {
            Ok(_) => 0,
            Err(ErrorKind::Unsupported) => 2,
            Err(_) => 1,
        };
        // A status that lies nowhere: the guest waits for it, and for nothing else.
        let _ = self.queue.parts.memory.write(self.status, &[status]);
        // First: what waits for an idle queue goes on when that is.
        drop(in_flight);
        let written = written.unwrap_or(0).saturating_add(1);
        self.queue.complete(self.chain.head, self.bytes, written);
    }
}

impl Drop for GuestRequest {
    fn drop(&mut self) {
        self.end(Err(ErrorKind::Io));
    }
}

/// Copies the first bytes of these ranges, which are taken off them.
fn gather(queue: &Virtqueue, ranges: &mut Vec<GuestRange>, mut to: &mut [u8]) -> Option<()> {
    let mut taken = 0;
    for range in ranges.iter_mut() {
        let len = usize::try_from(range.len).ok()?.min(to.len());
        let (now, later) = to.split_at_mut(len);
        queue.parts.memory.read(range.address, now)?;
        to = later;
        range.address = range.address.checked_add(len as u64)?;
        range.len -= u32::try_from(len).ok()?;
        taken += usize::from(range.len == 0);
        if to.is_empty() {
            break;
        }
    }
    ranges.drain(..taken);
    to.is_empty().then_some(())
}
