//! Writes, zeroes and trims of the disk.

use std::ops::Range;
use std::sync::Arc;

use device::{Buffer, Error, ErrorKind, Operation, Outcome, Result, Slice, ZeroFlags, below};
use runtime::{BlockAccess, Promised, StepBudget};

use super::super::entry::{Parts, SUBCLUSTERS};
use super::super::map::Map;
use super::super::tables::DataStore;
use super::link::{Becomes, Spot};
use super::{Writer, WrittenImage};
use crate::kit::room::Lease;
use crate::kit::{Layer as _, confused};

/// The most bytes that get new clusters at a time.
pub(super) const AT_ONCE: u64 = 4 << 20;

const IF_FAST: ZeroFlags =
    ZeroFlags { may_unmap: true, fast_only: true, written: false, fua: false };

/// The beginning of a write.
struct Begun {
    /// Bytes.
    len: u64,
    /// Into clusters that are there: the answer is owed.
    in_flight: Option<(Promised<Result<Outcome>>, Lease)>,
}

impl Writer {
    /// Where `at` is to be written, for a caller that waits.
    async fn spot_or_wait(&self, map: &Map, at: u64, end: u64) -> Result<Spot> {
        self.attempt(|_| self.spot(map, at, end)).await
    }
}

impl Writer {
    /// Makes a range of a data file read as zeroes.
    pub(super) async fn zero_file(&self, range: Range<u64>, flags: ZeroFlags) -> Result<()> {
        let DataStore { container, edge } = &self.data;
        // What is beyond its end is zero.
        let end = range.end.min(container.length());
        if range.start >= end {
            return Ok(());
        }
        below::zero(edge, range.start, end - range.start, flags).await
    }
}

impl WrittenImage {
    /// Writes at once where the image has the clusters for itself; false if it would have to wait.
    pub(super) fn try_write(&self, offset: u64, data: &[u8]) -> Result<bool> {
        let writer = &self.writer;
        let (_lease, len) = (writer.lease(), data.len() as u64);
        if !writer.try_track(offset, len) {
            return Ok(false);
        }
        // What goes wrong is said by the write that waits.
        match writer.spot(&self.map, offset, offset + len) {
            Ok(Spot::Here { offset: place, len: there })
                if there == len && !writer.state().is_corrupt =>
            {
                writer.data.edge.write_now(data, place, false)
            }
            _ => Ok(false),
        }
    }

    pub(super) async fn write(self: Arc<Self>, offset: u64, mut data: Slice) -> Result<()> {
        let writer = &self.writer;
        let (mut at, end) = (offset, offset + data.len() as u64);
        writer.track(offset, end - offset).await?;
        let (mut result, mut here) = (Ok(()), Vec::new());
        while at < end && result.is_ok() {
            let next = self.write_next(writer, at, share(&mut data, at - offset, end - at)?);
            match next.await {
                Ok(Begun { len, in_flight }) => {
                    at += len;
                    here.extend(in_flight);
                }
                Err(e) => result = Err(e),
            }
        }
        // Their leases end when they do, whatever went wrong beside them.
        for (write, _lease) in here {
            result = result.and(below::ended(write).await.map(drop));
        }
        result?;
        writer.save_much().await
    }

    /// Writes the beginning of `data`, or begins to.
    async fn write_next(
        self: &Arc<Self>,
        writer: &Writer,
        at: u64,
        mut data: Slice,
    ) -> Result<Begun> {
        let lease = writer.lease();
        let spot = writer.spot_or_wait(&self.map, at, at + data.len() as u64).await?;
        let (len, part) = (spot.len(), share(&mut data, 0, spot.len())?);
        let in_flight = match spot {
            Spot::Here { offset, .. } => {
                let write = Operation::Write { offset, data: part, fua: false };
                Some((below::submit(&writer.data.edge, write), lease))
            }
            Spot::New { .. } => {
                drop(lease);
                self.write_new(writer, at, part).await?;
                None
            }
        };
        Ok(Begun { len, in_flight })
    }

    /// Writes bytes whose clusters another task may be about to make.
    async fn write_new(self: &Arc<Self>, writer: &Writer, at: u64, mut data: Slice) -> Result<()> {
        let bits = writer.geometry.cluster_bits;
        let (offset, end) = (at, at + data.len() as u64);
        let clusters = offset >> bits..((end - 1) >> bits) + 1;
        let _own = writer.locks.take(clusters, BlockAccess::Own).await;
        let mut at = offset;
        while at < end {
            let spot = writer.spot_or_wait(&self.map, at, end).await?;
            match spot {
                Spot::Here { offset: place, len } => {
                    let part = share(&mut data, at - offset, len)?;
                    below::write(&writer.data.edge, place, part, false).await?;
                    at += len;
                }
                Spot::New { len } => {
                    let most = (at >> bits << bits) + AT_ONCE.max(1 << bits);
                    let part = share(&mut data, at - offset, len.min(most - at))?;
                    at += self.write_beginning(writer, at, part).await?;
                }
            }
        }
        Ok(())
    }

    /// Writes the beginning of `data` into new clusters; returns how many bytes.
    async fn write_beginning(
        self: &Arc<Self>,
        writer: &Writer,
        at: u64,
        mut data: Slice,
    ) -> Result<u64> {
        let (from, to) = self.whole_clusters(writer, at, at + data.len() as u64);
        if writer.packing.is_some() && from == at && to > at {
            if let Some(len) = self.write_packed(writer, at, &data).await? {
                return Ok(len);
            }
            let len = writer.geometry.cluster().min(data.len() as u64);
            let alone = share(&mut data, 0, len)?;
            return self.write_clusters(writer, at, alone).await;
        }
        if writer.geometry.extended {
            self.write_subclusters(writer, at, data).await
        } else {
            self.write_clusters(writer, at, data).await
        }
    }

    /// Writes the beginning of `data` into new clusters in a row; returns how many bytes. Their
    /// entries are in one block.
    async fn write_clusters(
        self: &Arc<Self>,
        writer: &Writer,
        at: u64,
        mut data: Slice,
    ) -> Result<u64> {
        let (bits, cluster) = (writer.geometry.cluster_bits, writer.geometry.cluster());
        let (first, end) = (at >> bits, at + data.len() as u64);
        let units = self.take(writer, first, ((end - 1) >> bits) + 1 - first).await?;
        let count = units.end - units.start;
        let end = end.min((first + count) << bits);
        let data = share(&mut data, 0, end - at)?;
        let place = units.start << bits;
        let written = self.fill(writer, place, (first << bits, count << bits), (at, data)).await;
        let linked = match written {
            Ok(()) => {
                let fate = |n| Becomes::At(place + n * cluster);
                writer.link(&self.map, first << bits, count, fate).await
            }
            Err(e) => Err(e),
        };
        if linked.is_err() {
            writer.give_back(units).await;
        }
        linked.map(|()| end - at)
    }

    /// The same with subclusters: whole clusters, or what the first one lacks of them.
    async fn write_subclusters(
        self: &Arc<Self>,
        writer: &Writer,
        at: u64,
        mut data: Slice,
    ) -> Result<u64> {
        let (cluster, part) = (writer.geometry.cluster(), writer.geometry.part());
        let (within, end) = (at % cluster, at + data.len() as u64);
        let to_end = (cluster - within).min(end - at);
        // The last cluster may be cut off.
        let (_, whole) = self.whole_clusters(writer, at, end);
        if within == 0 && whole > at {
            let data = share(&mut data, 0, whole.min(end) - at)?;
            return self.write_clusters(writer, at, data).await;
        }
        let data = share(&mut data, 0, to_end)?;
        let known = writer.attempt(|_| writer.parts(&self.map, at)).await?;
        let Some(parts) = known else { return self.write_clusters(writer, at, data).await };
        let (start, end) = (at - within, at + to_end);
        let (from, to) = (at - at % part, end.next_multiple_of(part));
        let new = match parts.offset {
            Some(_) => None,
            None => Some(self.take(writer, start >> writer.geometry.cluster_bits, 1).await?),
        };
        let taken = new.as_ref().map(|new| new.start << writer.geometry.cluster_bits);
        let place = parts.offset.or(taken).ok_or_else(confused)?;
        let written = self.fill(writer, place + (from - start), (from, to - from), (at, data));
        let linked = match written.await {
            Ok(()) => {
                let mask = parts_before((to - start) / part) & !parts_before((from - start) / part);
                let (here, zero) = (parts.here | mask, parts.zero & !mask);
                let fate = Becomes::PartlyAt(place, Parts { here, zero, ..parts });
                writer.link(&self.map, start, 1, |_| fate).await
            }
            Err(e) => Err(e),
        };
        if linked.is_err()
            && let Some(new) = new
        {
            writer.give_back(new).await;
        }
        linked.map(|()| to_end)
    }

    /// New clusters for those of the disk from `first` on. Where there are none, those in
    /// quarantine may be. In a data file each has its own place.
    pub(super) async fn take(&self, writer: &Writer, first: u64, most: u64) -> Result<Range<u64>> {
        if writer.geometry.data_file {
            return Ok(first..first + most);
        }
        let taken = writer.attempt(|state| writer.take(state, most)).await;
        match taken {
            Err(e) if e.kind() == ErrorKind::NoSpace && writer.state().room.owes() => {
                writer.flush().await?;
                writer.attempt(|state| writer.take(state, most)).await
            }
            taken => taken,
        }
    }

    /// Writes new clusters at `place`: those of the disk in `whole` (start and length), of which
    /// `data` is new, and the rest is as it was.
    async fn fill(
        self: &Arc<Self>,
        writer: &Writer,
        place: u64,
        (start, len): (u64, u64),
        (at, data): (u64, Slice),
    ) -> Result<()> {
        let end = at + data.len() as u64;
        let (head, tail) = ((start, at), (end, start + len));
        let is_whole = head.0 == head.1 && tail.0 == tail.1;
        let is_blank = !writer.is_encrypted
            && writer.data.container.is_untouched(place)
            && self.is_zero(head).await?
            && self.is_zero(tail).await?;
        if is_whole || is_blank {
            return below::write(&writer.data.edge, place + (at - start), data, false).await;
        }
        let mut bytes = Buffer::zeroed(usize::try_from(len).map_err(|_| confused())?);
        for (from, to) in [head, tail] {
            // What is behind the end of the disk is zero.
            let to = to.min(self.disk.info().size);
            if from < to && !self.is_zero((from, to)).await? {
                let old = Buffer::zeroed(usize::try_from(to - from).map_err(|_| confused())?);
                let old = self.disk.clone().read(from, old).await?;
                put(&mut bytes, from - start, &old)?;
            }
        }
        put(&mut bytes, at - start, &data)?;
        below::write(&writer.data.edge, place, bytes.into(), false).await
    }

    /// Whether a range, as far as the disk goes, is known to be zero without reading it.
    pub(super) async fn is_zero(&self, (start, end): (u64, u64)) -> Result<bool> {
        self.disk.is_zero((start, end.min(self.disk.info().size))).await
    }

    /// Makes a range read as zeroes and gives up its room.
    pub(super) async fn zero(
        self: Arc<Self>,
        offset: u64,
        len: u64,
        flags: ZeroFlags,
    ) -> Result<()> {
        let (writer, end) = (&self.writer, offset + len);
        writer.track(offset, len).await?;
        if writer.is_raw {
            return self.zero_raw(writer, offset..end, flags).await;
        }
        let not_so = || match flags.fast_only {
            true => Error::not_fast(),
            false => Error::unsupported("zero"),
        };
        if !flags.may_unmap || !writer.geometry.zeroes {
            return Err(not_so());
        }
        let (from, to) = self.whole_clusters(writer, offset, end);
        let ends =
            if from < to { [(offset, from), (to, end)] } else { [(offset, end), (end, end)] };
        let mut parts = Vec::new();
        for part in ends {
            if part.0 < part.1 && !self.is_zero(part).await? {
                if flags.fast_only {
                    return Err(not_so());
                }
                parts.push(part);
            }
        }
        for (start, end) in parts {
            let zeroes = Buffer::zeroed(usize::try_from(end - start).map_err(|_| confused())?);
            self.clone().write(start, zeroes.into()).await?;
        }
        if from < to { self.give_up(writer, from..to, self.nothing()).await } else { Ok(()) }
    }

    /// What becomes of a cluster that is to read as zeroes and have no room.
    fn nothing(&self) -> Becomes {
        if self.is_over { Becomes::Zero } else { Becomes::Absent }
    }

    /// Makes a range of a data file that is a raw disk read as zeroes. What the tables say of it
    /// stays true.
    async fn zero_raw(&self, writer: &Writer, range: Range<u64>, flags: ZeroFlags) -> Result<()> {
        let bits = writer.geometry.cluster_bits;
        let units = range.start >> bits..((range.end - 1) >> bits) + 1;
        let _own = writer.locks.take(units, BlockAccess::Own).await;
        writer.zero_file(range, flags).await
    }

    /// Gives up the room of whole clusters that are no longer needed.
    pub(super) async fn trim(self: Arc<Self>, offset: u64, len: u64) -> Result<()> {
        let writer = &self.writer;
        writer.track(offset, len).await?;
        if writer.is_raw {
            return not_needed(self.zero_raw(writer, offset..offset + len, IF_FAST).await);
        }
        let (from, to) = self.whole_clusters(writer, offset, offset + len);
        // Without clusters of zeroes the bytes below would come back.
        let is_possible = writer.geometry.zeroes || !self.is_over;
        if from >= to || !is_possible {
            return Ok(());
        }
        self.give_up(writer, from..to, self.nothing()).await
    }

    /// The clusters that are all in a range; that at the end of the disk may be cut off.
    fn whole_clusters(&self, writer: &Writer, offset: u64, end: u64) -> (u64, u64) {
        let cluster = writer.geometry.cluster();
        let to = if end == self.disk.info().size { end.next_multiple_of(cluster) } else { end };
        (offset.next_multiple_of(cluster), to - to % cluster)
    }

    /// Gives up the room of clusters.
    pub(super) async fn give_up(
        &self,
        writer: &Writer,
        range: Range<u64>,
        fate: Becomes,
    ) -> Result<()> {
        let bits = writer.geometry.cluster_bits;
        let (units, mut budget) = (range.start >> bits..range.end >> bits, StepBudget::default());
        let _own = writer.locks.take(units, BlockAccess::Own).await;
        let mut at = range.start;
        while at < range.end {
            budget.spend(&self.disk.pool).await;
            if matches!(fate, Becomes::Absent)
                && let Some(end) = writer.end_without_table(&self.map, at)
            {
                at = end;
                continue;
            }
            let to = range.end.min(writer.end_of_block(at));
            writer.link(&self.map, at, (to - at) >> bits, |_| fate).await?;
            if writer.geometry.data_file {
                // Whatever the power leaves of this, it is old or zero.
                not_needed(writer.zero_file(at..to, IF_FAST).await)?;
            }
            writer.save_much().await?;
            at = to;
        }
        Ok(())
    }
}

/// The end of what was only worth it if it was fast.
fn not_needed(zeroed: Result<()>) -> Result<()> {
    zeroed.or_else(|e| if e.kind() == ErrorKind::NotFast { Ok(()) } else { Err(e) })
}

/// The bits of the first `count` (≤ 32) subclusters.
fn parts_before(count: u64) -> u32 {
    debug_assert!(count <= SUBCLUSTERS.into());
    u32::try_from((1u64 << count) - 1).unwrap_or(u32::MAX)
}

fn share(data: &mut Slice, start: u64, len: u64) -> Result<Slice> {
    let range = usize::try_from(start).ok().zip(usize::try_from(len).ok());
    range.and_then(|(start, len)| data.share(start, len)).ok_or_else(confused)
}

fn put(to: &mut Buffer, at: u64, bytes: &[u8]) -> Result<()> {
    let room = usize::try_from(at).ok().and_then(|at| to.get_mut(at..)?.get_mut(..bytes.len()));
    room.ok_or_else(confused)?.copy_from_slice(bytes);
    Ok(())
}
