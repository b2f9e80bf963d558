//! What a guest asks of its disk (virtio 1.2, 5.2 "Block Device"), and its configuration.

use std::sync::Arc;

use device::{ErrorKind, Info, Operation, OperationKind, Outcome, ZeroFlags};
use runtime::to_usize;

use super::protocol;
use super::queue::{DescriptorChain, GuestRange, Virtqueue};
use super::session::VhostSession;
use crate::client::PendingRequest;
use crate::point::SERIAL;

/// Bytes of a sector, by which a guest counts whatever the disk's blocks are.
pub(super) const SECTOR: u64 = 512;
/// Bytes of a request's data, at most.
const MOST: u64 = 32 << 20;
/// Parts of a request's data, at most: with header and status, what fits in a queue of the length
/// that QEMU makes.
const SEGMENTS: u32 = 126;
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

/// Types of requests.
mod kind {
    pub(super) const READ: u32 = 0;
    pub(super) const WRITE: u32 = 1;
    pub(super) const FLUSH: u32 = 4;
    pub(super) const IDENTITY: u32 = 8;
    pub(super) const DISCARD: u32 = 11;
    pub(super) const ZEROES: u32 = 13;
}

/// What a request is counted as.
fn counted(kind: u32) -> Option<OperationKind> {
    match kind {
        kind::READ => Some(OperationKind::Read),
        kind::WRITE => Some(OperationKind::Write),
        kind::FLUSH => Some(OperationKind::Flush),
        kind::DISCARD => Some(OperationKind::Trim),
        kind::ZEROES => Some(OperationKind::Zero),
        _ => None,
    }
}

/// What a guest is told of a request.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
enum RequestStatus {
    Done = 0,
    Failed = 1,
    Unsupported = 2,
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
pub(super) fn configuration(info: &Info, size: u64, queues: u16) -> [u8; 60] {
    let block = info.blocks.minimum.max(512);
    let mut at = 0;
    let mut config = [0; 60];
    let mut put = |skip: usize, bytes: &[u8]| {
        at += skip;
        if let Some(to) = config.get_mut(at..at + bytes.len()) {
            to.copy_from_slice(bytes);
        }
        at += bytes.len();
    };
    put(0, &(size / SECTOR).to_le_bytes());
    // Behind `size_max`; before the geometry.
    put(4, &SEGMENTS.to_le_bytes());
    put(4, &block.to_le_bytes());
    // The topology, in blocks: a physical one as a power of two, and none of them is shifted.
    let physical = info.granules.physical.max(block);
    let in_blocks = (physical / block).max(1);
    put(0, &[u8::try_from(in_blocks.ilog2()).unwrap_or(0), 0]);
    put(0, &u16::try_from(in_blocks).unwrap_or(u16::MAX).to_le_bytes());
    put(0, &(info.blocks.preferred / block).max(1).to_le_bytes());
    // Behind `writeback`.
    put(2, &queues.to_le_bytes());
    let alignment = info.granules.trim.max(block) / 512;
    for alignment in [Some(alignment), None] {
        put(0, &LONG.to_le_bytes());
        put(0, &1_u32.to_le_bytes());
        if let Some(sectors) = alignment {
            put(0, &sectors.to_le_bytes());
        }
    }
    put(0, &[1]);
    config
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

/// Does a request, or begins to.
///
/// # Errors
/// It has no header, or no room for a status: the queue is of no use any more.
pub(super) fn run(
    session: &Arc<VhostSession>,
    queue: &Arc<Virtqueue>,
    chain: DescriptorChain,
) -> device::Result<()> {
    let request = GuestRequest::new(session, queue, chain);
    let (request, kind, sector) =
        request.ok_or_else(|| protocol("the guest's queue: a request has no header"))?;
    request.begin(session, kind, sector);
    Ok(())
}

impl GuestRequest {
    fn new(
        session: &Arc<VhostSession>,
        queue: &Arc<Virtqueue>,
        mut chain: DescriptorChain,
    ) -> Option<(Self, u32, u64)> {
        let head = chain.head;
        let mut header = [0; HEADER];
        let found = gather(queue, &mut chain.readable, &mut header).and_then(|()| {
            while chain.writable.pop_if(|range| range.len == 0).is_some() {}
            let last = chain.writable.last_mut()?;
            last.len -= 1;
            last.address.checked_add(u64::from(last.len))
        });
        let Some(status) = found else {
            queue.complete(head, 0, 0);
            return None;
        };
        let bytes = (total(&chain.readable) + total(&chain.writable)).min(MOST);
        let (kind, rest) = header.split_at(4);
        let kind = u32::from_le_bytes(kind.try_into().unwrap_or_default());
        let sector = rest.get(4..).and_then(|rest| rest.try_into().ok()).unwrap_or_default();
        let in_flight = Some(session.client.admit(counted(kind), bytes));
        let request = Self { queue: queue.clone(), chain, status, bytes, in_flight };
        Some((request, kind, u64::from_le_bytes(sector)))
    }

    fn begin(mut self, session: &Arc<VhostSession>, kind: u32, sector: u64) {
        let is_write = matches!(kind, kind::WRITE | kind::DISCARD | kind::ZEROES);
        let begun = match kind {
            _ if is_write && session.client.is_read_only => Err(RequestStatus::Failed),
            kind::READ => self.read(session, sector),
            kind::WRITE => self.write(session, sector),
            kind::FLUSH => Ok(Operation::Flush),
            kind::DISCARD | kind::ZEROES => self.range(session, kind),
            kind::IDENTITY => {
                let mut name = [0; SERIAL];
                name.iter_mut().zip(session.serial.bytes()).for_each(|(to, from)| *to = from);
                let written = self.scatter(&name);
                return self.end(RequestStatus::Done, written);
            }
            _ => Err(RequestStatus::Unsupported),
        };
        match begun {
            Ok(operation) => {
                let own = session.clone();
                session.client.perform(operation, move |result| self.finish(&own, result));
            }
            Err(status) => self.end(status, 0),
        }
    }

    /// Where a range of sectors begins, in bytes, all `len` bytes of which are in the disk.
    fn checked(
        session: &VhostSession,
        sector: u64,
        len: u64,
        most: u64,
    ) -> Result<u64, RequestStatus> {
        let size = session.client.edge.size();
        let offset = sector.checked_mul(SECTOR).filter(|offset| {
            let is_good = len > 0 && len <= most && len.is_multiple_of(SECTOR);
            is_good && *offset <= size && len <= size - *offset
        });
        offset.ok_or(RequestStatus::Failed)
    }

    fn read(&self, session: &VhostSession, sector: u64) -> Result<Operation, RequestStatus> {
        let len = total(&self.chain.writable);
        let offset = Self::checked(session, sector, len, MOST)?;
        Ok(Operation::Read { offset, buffer: session.client.buffers.take(to_usize(len)) })
    }

    fn write(&mut self, session: &VhostSession, sector: u64) -> Result<Operation, RequestStatus> {
        let len = total(&self.chain.readable);
        let offset = Self::checked(session, sector, len, MOST)?;
        let mut data = session.client.buffers.take(to_usize(len));
        gather(&self.queue, &mut self.chain.readable, &mut data).ok_or(RequestStatus::Failed)?;
        // A guest that knows no flush takes what is acknowledged for durable.
        let fua = !session.knows_flush();
        Ok(Operation::Write { offset, data: data.into(), fua })
    }

    /// A discard or a zero of one range: `struct virtio_blk_discard_write_zeroes`.
    fn range(&mut self, session: &VhostSession, kind: u32) -> Result<Operation, RequestStatus> {
        if total(&self.chain.readable) != HEADER as u64 {
            return Err(RequestStatus::Unsupported);
        }
        let mut words = [0; HEADER];
        gather(&self.queue, &mut self.chain.readable, &mut words).ok_or(RequestStatus::Failed)?;
        let number = |at: usize| {
            let word = words.get(at..at + 4).and_then(|word| word.try_into().ok());
            u32::from_le_bytes(word.unwrap_or_default())
        };
        let sector = u64::from(number(0)) | u64::from(number(4)) << 32;
        let (sectors, flags) = (number(8), number(12));
        let may_unmap = flags & 1 != 0;
        if flags > 1 || kind == kind::DISCARD && may_unmap {
            return Err(RequestStatus::Unsupported);
        }
        let len = u64::from(sectors) * SECTOR;
        let offset = Self::checked(session, sector, len, u64::from(LONG) * SECTOR)?;
        let fua = !session.knows_flush();
        Ok(match kind {
            kind::DISCARD => Operation::Trim { offset, len, fua },
            _ => {
                let flags = ZeroFlags { may_unmap, fua, ..ZeroFlags::default() };
                Operation::Zero { offset, len, flags }
            }
        })
    }

    /// Tells the guest what became of it.
    fn finish(&mut self, session: &VhostSession, result: device::Result<Outcome>) {
        match result {
            Ok(Outcome::Read(data)) => match self.scatter(&data) {
                written if written as usize == data.len() => self.end(RequestStatus::Done, written),
                _ => self.end(RequestStatus::Failed, 0),
            },
            Ok(_) => self.end(RequestStatus::Done, 0),
            Err(e) => {
                session.client.complain(&e);
                self.end(RequestStatus::Failed, 0);
            }
        }
    }

    /// Copies what was read to the guest; how many bytes of it.
    fn scatter(&self, mut data: &[u8]) -> u32 {
        let mut written = 0;
        for range in &self.chain.writable {
            let len = usize::try_from(range.len).unwrap_or(usize::MAX).min(data.len());
            let (now, later) = data.split_at(len);
            if self.queue.memory.write(range.address, now).is_none() {
                break;
            }
            written += u32::try_from(len).unwrap_or(0);
            data = later;
        }
        written
    }

    fn end(&mut self, status: RequestStatus, written: u32) {
        if let Some(in_flight) = self.in_flight.take() {
            match status {
                RequestStatus::Done => {}
                RequestStatus::Failed => in_flight.failed(ErrorKind::Io),
                RequestStatus::Unsupported => in_flight.failed(ErrorKind::Unsupported),
            }
            // A status that lies nowhere: the guest waits for it, and for nothing else.
            let _ = self.queue.memory.write(self.status, &[status as u8]);
            // First: what waits for an idle queue goes on when that is.
            drop(in_flight);
            self.queue.complete(self.chain.head, self.bytes, written.saturating_add(1));
        }
    }
}

impl Drop for GuestRequest {
    fn drop(&mut self) {
        self.end(RequestStatus::Failed, 0);
    }
}

/// Copies the first bytes of these ranges, which are taken off them.
fn gather(queue: &Virtqueue, ranges: &mut Vec<GuestRange>, mut to: &mut [u8]) -> Option<()> {
    let mut taken = 0;
    for range in ranges.iter_mut() {
        let len = usize::try_from(range.len).ok()?.min(to.len());
        let (now, later) = to.split_at_mut(len);
        queue.memory.read(range.address, now)?;
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
