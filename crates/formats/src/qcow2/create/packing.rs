//! Compressed clusters, packed without gaps across the clusters of the container.
//!
//! They are gathered and written many at a time. Bytes that could not be written are kept, since
//! their writers were told that they are written; the flush that makes them durable tries again.

use std::sync::Arc;

use device::{Buffer, BufferPool, Error, ErrorKind, Fault, Result, Slice};

use super::clusters::Room;
use super::layout::Shape;

/// Bytes gathered, and space allocated, at a time.
const GATHERED: usize = 1 << 20;
/// Bytes of buffers kept for reuse: fresh memory costs more than the copy into it.
const KEPT: usize = 8 * GATHERED;
/// Writes end at multiples of this, so that no partial block has to be read first.
const ALIGN: u64 = 4096;

/// Bytes on their way to the container, and their offset.
#[derive(Debug)]
pub(super) struct Sealed {
    pub(super) offset: u64,
    pub(super) bytes: Slice,
}

/// Where the next one goes.
#[derive(Debug)]
pub(super) struct Packer {
    shape: Shape,
    /// Where the first of the gathered bytes goes.
    start: u64,
    gathered: Buffer,
    /// How many bytes of it those are.
    filled: usize,
    pool: BufferPool,
    /// The end of the allocated space: a multiple of the cluster.
    end: u64,
    /// How many compressed clusters share the container cluster in which the next one begins.
    sharing: u16,
    /// Bytes that could not be written.
    failed: Vec<Sealed>,
}

impl Packer {
    pub(super) fn new(shape: Shape) -> Self {
        let (gathered, pool, failed) = (Buffer::zeroed(0), BufferPool::new(KEPT), Vec::new());
        Self { shape, start: 0, gathered, filled: 0, pool, end: 0, sharing: 0, failed }
    }

    fn at(&self) -> u64 {
        self.start + self.filled as u64
    }

    /// Adds a compressed cluster, and returns its entry. Appends bytes that are due to `out`.
    pub(super) fn add(
        &mut self,
        bytes: &[u8],
        room: &mut Room,
        out: &mut Vec<Sealed>,
    ) -> Result<u64> {
        let (cluster, len) = (self.shape.geometry.cluster(), bytes.len() as u64);
        if self.sharing == self.shape.most() {
            // The refcount of this cluster is at its maximum: use the next one.
            let next = self.at().next_multiple_of(cluster);
            self.pad(next);
        }
        if len > self.end - self.at() {
            self.make_room(len, room, out)?;
        }
        let offset = self.at();
        let entry = self.shape.geometry.packed(offset, len).ok_or_else(too_far)?;
        if let Some(room) = self.more(bytes.len()) {
            room.copy_from_slice(bytes);
        }
        let (last, next) = ((offset + len - 1) / cluster, self.at() / cluster);
        // Of the cluster that the next one begins in: none, this one alone, or one more.
        self.sharing = match (next == last, last == offset / cluster) {
            (false, _) => 0,
            (true, false) => 1,
            (true, true) => self.sharing + 1,
        };
        if self.filled >= GATHERED {
            let keep = self.at() % ALIGN;
            self.seal(keep, out);
        }
        Ok(entry)
    }

    fn pad(&mut self, to: u64) {
        let zeroes = usize::try_from(to - self.at()).unwrap_or(0);
        if let Some(room) = self.more(zeroes) {
            room.fill(0);
        }
        self.sharing = 0;
    }

    /// Gathers so many more bytes, for the caller to fill: they are not initialised.
    fn more(&mut self, len: usize) -> Option<&mut [u8]> {
        let (had, end) = (self.filled, self.filled.saturating_add(len));
        if end > self.gathered.len() {
            let cluster = usize::try_from(self.shape.geometry.cluster()).unwrap_or(0);
            // Nothing more is gathered before it is sealed.
            let mut longer = self.pool.take(end.max(GATHERED + 2 * cluster));
            if let (Some(to), Some(from)) = (longer.get_mut(..had), self.gathered.get(..had)) {
                to.copy_from_slice(from);
            }
            self.gathered = longer;
        }
        self.filled = end;
        self.gathered.get_mut(had..end)
    }

    /// Allocates `len` more bytes, right after the current space if possible.
    fn make_room(&mut self, len: u64, room: &mut Room, out: &mut Vec<Sealed>) -> Result<()> {
        let bits = self.shape.geometry.cluster_bits;
        let wanted = len.max(GATHERED as u64).div_ceil(self.shape.geometry.cluster());
        // Near the end of a small container there may be just enough space.
        let least = len.div_ceil(self.shape.geometry.cluster());
        let (first, taken) = match room.take(wanted) {
            Ok(first) => (first, wanted),
            Err(_) => (room.take(least)?, least),
        };
        if first << bits != self.end {
            self.seal(0, out);
            // The rest of the old space was never written, except the current cluster.
            let unused = self.start.next_multiple_of(self.shape.geometry.cluster());
            room.give_back(unused >> bits..self.end >> bits);
            self.start = first << bits;
            self.sharing = 0;
        }
        self.end = (first + taken) << bits;
        Ok(())
    }

    /// Moves the gathered bytes to `out`, except the last `keep`.
    fn seal(&mut self, keep: u64, out: &mut Vec<Sealed>) {
        let keep = usize::try_from(keep).unwrap_or(0);
        let Some(len) = self.filled.checked_sub(keep).filter(|len| *len > 0) else { return };
        let whole = Arc::new(std::mem::replace(&mut self.gathered, Buffer::zeroed(0)));
        let (Some(bytes), Some(rest)) = (Slice::part(&whole, 0, len), whole.get(len..self.filled))
        else {
            return;
        };
        out.push(Sealed { offset: self.start, bytes });
        self.filled = 0;
        if let Some(room) = self.more(rest.len()) {
            room.copy_from_slice(rest);
        }
        self.start += len as u64;
    }

    /// All bytes not written yet.
    pub(super) fn rest(&mut self) -> Vec<Sealed> {
        let mut out = std::mem::take(&mut self.failed);
        self.seal(0, &mut out);
        out
    }

    /// Returns the unused space.
    pub(super) fn end(&mut self, room: &mut Room) {
        let bits = self.shape.geometry.cluster_bits;
        let unused = self.at().next_multiple_of(self.shape.geometry.cluster());
        room.give_back(unused >> bits..self.end >> bits);
        (self.start, self.end, self.sharing) = (unused, unused, 0);
    }

    /// Keeps bytes that could not be written.
    pub(super) fn keep(&mut self, failed: Sealed) {
        self.failed.push(failed);
    }
}

fn too_far() -> Error {
    let action = "put a compressed cluster so far into the image";
    Error::new(ErrorKind::NoSpace, Fault::File, action)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::qcow2::entry::{Entry, Geometry};

    fn shape(cluster_bits: u32, refcount_order: u32) -> Shape {
        let geometry = Geometry { cluster_bits, extended: false, zeroes: true, data_file: false };
        Shape { geometry, refcount_order, size: 1 << 30 }
    }

    #[test]
    fn clusters_lie_side_by_side_and_no_cluster_is_shared_more_often_than_can_be_counted() {
        for (bits, order) in [(9, 0), (9, 1), (12, 2), (16, 0), (16, 3), (16, 4), (21, 4)] {
            let shape = shape(bits, order);
            let (mut packer, mut room) = (Packer::new(shape), Room::new(shape, u64::MAX));
            // Old contents of the buffers must not show.
            for _ in 0..3 {
                packer.pool.take(GATHERED + (2 << bits)).fill(0xEE);
            }
            let (mut out, mut at, mut shared) = (Vec::new(), 0, std::collections::BTreeMap::new());
            let mut container = Vec::new();
            for i in 0..2000u64 {
                let len = (i * 37 % ((1 << bits) - 1)).clamp(1, 9000);
                let bytes = vec![i.to_le_bytes()[0] | 1; usize::try_from(len).unwrap()];
                if i % 500 == 250 {
                    // Another thread takes the next bytes.
                    room.take(1).unwrap();
                }
                let entry = packer.add(&bytes, &mut room, &mut out).unwrap();
                let Entry::Packed { offset, len: sectors } =
                    Entry::decode(entry, 0, shape.geometry).unwrap()
                else {
                    panic!()
                };
                assert!(offset >= at && sectors >= len);
                at = offset + len;
                let start = usize::try_from(offset).unwrap();
                container.resize(start, 0);
                container.extend(&bytes);
                for cluster in offset >> bits..=(offset + sectors - 1) >> bits {
                    *shared.entry(cluster).or_insert(0u16) += 1;
                }
            }
            assert!(shared.values().all(|n| *n <= shape.most()), "{bits} {order}");
            out.extend(packer.rest());
            packer.end(&mut room);
            let mut written = vec![0; container.len()];
            for Sealed { offset, bytes } in &out {
                let start = usize::try_from(*offset).unwrap();
                written.resize(written.len().max(start + bytes.len()), 0);
                written[start..start + bytes.len()].copy_from_slice(bytes);
            }
            container.resize(written.len(), 0);
            assert!(written == container, "{bits} {order}: each byte lies where its entry says");
            assert!(room.end() >= at >> bits && out.iter().map(|s| s.offset).is_sorted());
            if order == 4 {
                let sum: usize = out.iter().map(|s| s.bytes.len()).sum();
                assert!(out.len() < 2 + 4 + sum / GATHERED, "{} writes", out.len());
            }
        }
    }
}
