//! Operations on an image being made.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use device::{
    Buffer, Edge, Error, Extent, ExtentKind, Info, Operation, Outcome, Place, Result, Slice,
    ZeroFlags, merge_extent,
};
use runtime::where_there_is_time;

use super::clusters::plain;
use super::encoder::{self, CompressionLevel};
use super::packing::Sealed;
use super::{NewImage, Placement};
use crate::kit::{self, Layer};
use crate::qcow2::entry::{COMPRESSED, COPIED, ZERO};

/// Bytes that are contiguous in the disk and in the container of the data.
#[derive(Clone, Copy, Debug)]
struct Run {
    /// In the container of the data.
    at: u64,
    len: u64,
}

impl Layer for NewImage {
    fn info(&self) -> &Info {
        &self.info
    }

    fn below(&self) -> Vec<&Edge> {
        self.files().collect()
    }

    async fn run(self: Arc<Self>, operation: Operation) -> Result<Outcome> {
        match operation {
            Operation::Flush => self.flush().await.map(|()| Outcome::Done),
            Operation::Prefetch { .. } => Ok(Outcome::Done),
            Operation::Read { offset, buffer } => {
                self.read(offset, buffer).await.map(Outcome::Read)
            }
            Operation::Resolve { offset, len, max } => {
                Ok(Outcome::Extents(self.resolve(offset, len, max)))
            }
            Operation::Status { .. } => Err(Error::unsupported("say the status of a new image")),
            Operation::Take { offset, len, from, share_only } => {
                self.take((offset, len), from, share_only).await.map(Outcome::Taken)
            }
            Operation::Trim { .. } => Err(Error::unsupported("trim a new image")),
            Operation::Write { offset, data, .. } => {
                let data = self.padded(offset, data);
                let written = match self.options.level {
                    Some(level) => self.write_packed(level, offset, data).await,
                    None => self.write(offset, data).await,
                };
                written.map(|()| Outcome::Done)
            }
            Operation::Zero { offset, len, flags } => {
                self.zero(offset, len, flags).await.map(|()| Outcome::Done)
            }
        }
    }

    async fn finish(self: Arc<Self>) -> Result<()> {
        let end = self.write_tables().await?;
        where_there_is_time(&self.pool).await;
        self.finish_files(end)
    }
}

impl NewImage {
    /// The clusters that a range touches.
    fn clusters(&self, offset: u64, len: u64) -> Range<u64> {
        let bits = self.shape.geometry.cluster_bits;
        offset >> bits..(offset + len).div_ceil(self.shape.geometry.cluster())
    }

    /// The same, padded with zeroes if the disk ends inside the last cluster: for compressing whole
    /// clusters, and for places with old contents.
    fn padded(&self, offset: u64, data: Slice) -> Slice {
        let (cluster, len) = (self.shape.geometry.cluster(), data.len() as u64);
        let to_the_end = offset + len == self.shape.size;
        if !to_the_end || len.is_multiple_of(cluster) || self.info.blocks.minimum == 1 {
            return data;
        }
        if self.data.is_some() {
            return data;
        }
        let whole = usize::try_from(len.next_multiple_of(cluster)).unwrap_or(data.len());
        let mut buffer = Buffer::zeroed(whole);
        if let Some(start) = buffer.get_mut(..data.len()) {
            start.copy_from_slice(&data);
        }
        buffer.into()
    }

    /// The place of a range. Clusters without a place get one; neighbours get neighbouring places.
    fn place(&self, offset: u64, len: u64) -> Result<Vec<Run>> {
        let fixed = match self.placement {
            Placement::Fixed { base, marks: false, .. } => {
                return Ok(vec![Run { at: base + offset, len }]);
            }
            Placement::Fixed { base, .. } => Some(base),
            Placement::Appended => None,
        };
        let (cluster, end) = (self.shape.geometry.cluster(), offset + len);
        let mut clusters = self.clusters(offset, len);
        let mut runs: Vec<Run> = Vec::new();
        let state = &mut *self.state();
        while clusters.start < clusters.end {
            let first = clusters.start;
            let there = plain(state.clusters.get(first));
            let mut n = 1;
            let at = if let Some(at) = there {
                at
            } else {
                let is_new = |c: &u64| plain(state.clusters.get(*c)).is_none();
                n = clusters.clone().take_while(is_new).count() as u64;
                let at = match fixed {
                    Some(base) => base + first * cluster,
                    None => state.room.take(n)? * cluster,
                };
                for i in 0..n {
                    state.clusters.set(first + i, COPIED | (at + i * cluster));
                }
                at
            };
            let start = offset.max(first * cluster);
            let stop = end.min((first + n) * cluster);
            let run = Run { at: at + (start - first * cluster), len: stop - start };
            match runs.last_mut() {
                Some(last) if last.at + last.len == run.at => last.len += run.len,
                _ => runs.push(run),
            }
            clusters.start += n;
        }
        Ok(runs)
    }

    async fn write(&self, offset: u64, mut data: Slice) -> Result<()> {
        let runs = self.place(offset, data.len() as u64)?;
        if let [run] = runs[..] {
            return put(self.home(), run.at, data).await;
        }
        let mut from = 0;
        for run in runs {
            let len = usize::try_from(run.len).unwrap_or(usize::MAX);
            let part = data.share(from, len).ok_or_else(kit::confused)?;
            put(self.home(), run.at, part).await?;
            from += len;
        }
        Ok(())
    }

    /// Writes whole clusters, compressed if that is shorter.
    async fn write_packed(
        &self,
        level: CompressionLevel,
        offset: u64,
        mut data: Slice,
    ) -> Result<()> {
        where_there_is_time(&self.pool).await;
        let _together = self.packing.together().await;
        let len = usize::try_from(self.shape.geometry.cluster()).unwrap_or(usize::MAX);
        let first = offset >> self.shape.geometry.cluster_bits;
        let mut sealed = Vec::new();
        // Adjacent clusters to write uncompressed.
        let mut row = 0..0;
        for (cluster, start) in (first..).zip((0..data.len()).step_by(len)) {
            let bytes = data.get(start..start + len).ok_or_else(kit::confused)?;
            let packed = self.pack(level, cluster, bytes, &mut sealed);
            // This comes first: it has bytes that others were told are written.
            self.put_all(std::mem::take(&mut sealed)).await?;
            if packed? {
                self.write_row(offset, &mut data, std::mem::replace(&mut row, 0..0)).await?;
            } else {
                row = if row.is_empty() { start..start + len } else { row.start..start + len };
            }
        }
        self.write_row(offset, &mut data, row).await
    }

    async fn write_row(&self, offset: u64, data: &mut Slice, row: Range<usize>) -> Result<()> {
        if row.is_empty() {
            return Ok(());
        }
        let part = data.share(row.start, row.len()).ok_or_else(kit::confused)?;
        self.write(offset + row.start as u64, part).await
    }

    /// Compresses a cluster; returns whether it did.
    fn pack(
        &self,
        level: CompressionLevel,
        cluster: u64,
        bytes: &[u8],
        sealed: &mut Vec<Sealed>,
    ) -> Result<bool> {
        if plain(self.state().clusters.get(cluster)).is_some() {
            return Ok(false);
        }
        encoder::packed(level, bytes, |packed| {
            let Some(packed) = packed else { return Ok(false) };
            let state = &mut *self.state();
            // An earlier compressed version stays where it is, unreferenced.
            let entry = state.packer.add(packed, &mut state.room, sealed)?;
            state.clusters.set(cluster, entry);
            Ok(true)
        })
    }

    /// Writes all of it, and keeps bytes that cannot be written. Returns the first failure.
    async fn put_all(&self, sealed: Vec<Sealed>) -> Result<()> {
        let mut outcome = Ok(());
        for sealed in sealed {
            let written = self.put_sealed(sealed).await;
            outcome = outcome.and(written);
        }
        outcome
    }

    async fn put_sealed(&self, mut sealed: Sealed) -> Result<()> {
        let bytes = sealed.bytes.same();
        let written = put(&self.container, sealed.offset, bytes).await;
        if written.is_err() {
            self.state().packer.keep(sealed);
        }
        written
    }

    /// Writes all that was gathered.
    pub(super) async fn write_gathered(&self) -> Result<()> {
        let _alone = self.packing.alone().await;
        let rest = self.state().packer.rest();
        self.put_all(rest).await
    }

    async fn flush(&self) -> Result<()> {
        self.write_gathered().await?;
        if let Some(data) = &self.data {
            kit::flush(data).await?;
        }
        kit::flush(&self.container).await
    }

    async fn zero(&self, offset: u64, len: u64, flags: ZeroFlags) -> Result<()> {
        let all = matches!(self.placement, Placement::Fixed { all: true, .. });
        if all && self.backing.is_none() {
            // If everything will be written at the end, zeroes are written as data now.
            let marks = matches!(self.placement, Placement::Fixed { marks: true, .. });
            if marks || !flags.may_unmap {
                return Err(Error::unsupported("zero what is to be written"));
            }
            let Placement::Fixed { base, .. } = self.placement else { return Ok(()) };
            return zero_at(self.home(), Run { at: base + offset, len }, flags).await;
        }
        if !flags.may_unmap || !self.info.abilities.zero {
            return Err(Error::unsupported("zero and keep the room"));
        }
        for run in self.make_zero(offset, len) {
            zero_at(self.home(), run, flags).await?;
        }
        Ok(())
    }

    /// Makes clusters zero that are not plain; the caller handles plain ones and parts.
    fn make_zero(&self, offset: u64, len: u64) -> Vec<Run> {
        let cluster = self.shape.geometry.cluster();
        let (mut clusters, end) = (self.clusters(offset, len), offset + len);
        let state = &mut *self.state();
        let mut runs: Vec<Run> = Vec::new();
        while clusters.start < clusters.end {
            let first = clusters.start;
            let next = state.clusters.next_known(first, clusters.end);
            if next > first {
                if self.backing.is_some() {
                    state.clusters.set_zero(first..next);
                }
                clusters.start = next;
                continue;
            }
            let entry = state.clusters.get(first);
            if let Some(at) = plain(entry) {
                let (start, stop) = (offset.max(first * cluster), end.min((first + 1) * cluster));
                let run = Run { at: at + (start - first * cluster), len: stop - start };
                match runs.last_mut() {
                    Some(last) if last.at + last.len == run.at => last.len += run.len,
                    _ => runs.push(run),
                }
            } else if self.backing.is_some() {
                state.clusters.set(first, ZERO);
            } else if entry != 0 {
                state.clusters.set(first, 0);
            }
            clusters.start += 1;
        }
        runs
    }

    async fn take(&self, (offset, len): (u64, u64), from: Place, share_only: bool) -> Result<u64> {
        let cluster = self.shape.geometry.cluster();
        if let Placement::Fixed { base, marks: false, .. } = self.placement {
            return kit::take(self.home(), (base + offset, len), from, share_only).await;
        }
        let to_the_end = offset + len == self.shape.size;
        let len = if to_the_end { len } else { len - len % cluster };
        if !self.takes.load(Relaxed) || !offset.is_multiple_of(cluster) || len == 0 {
            return Ok(0);
        }
        let first = offset / cluster;
        let (at, len) = {
            let state = &mut *self.state();
            let is_new = |c: &u64| plain(state.clusters.get(*c)).is_none();
            let n = self.clusters(offset, len).take_while(is_new).count() as u64;
            let at = match self.placement {
                Placement::Fixed { base, .. } => base + offset,
                Placement::Appended => state.room.take(n)? * cluster,
            };
            (at, len.min(n * cluster))
        };
        if len == 0 {
            return Ok(0);
        }
        let taken = kit::take(self.home(), (at, len), from, share_only).await.unwrap_or(0);
        // Only whole clusters, if the rest of a cluster is not known to be zero.
        let whole = taken == len || self.info.blocks.minimum == 1;
        let taken = if whole { taken } else { taken - taken % cluster };
        if taken == 0 && len >= cluster {
            self.takes.store(false, Relaxed);
        }
        self.keep_taken(first, at, (taken, len)).await;
        Ok(taken)
    }

    /// Notes the clusters that were shared, and returns the others.
    async fn keep_taken(&self, first: u64, at: u64, (taken, len): (u64, u64)) {
        let cluster = self.shape.geometry.cluster();
        let (kept, all) = (taken.div_ceil(cluster), len.div_ceil(cluster));
        for i in 0..kept {
            self.state().clusters.set(first + i, COPIED | (at + i * cluster));
        }
        if kept == all || self.placement != Placement::Appended {
            return;
        }
        // A part may have been shared before the failure.
        let unused = Run { at: at + kept * cluster, len: (all - kept) * cluster };
        let flags = ZeroFlags { may_unmap: true, ..ZeroFlags::default() };
        if zero_at(self.home(), unused, flags).await.is_ok() {
            let start = unused.at / cluster;
            self.state().room.give_back(start..start + (all - kept));
        }
    }

    /// The map of a range: for a request to zero it.
    fn resolve(&self, offset: u64, len: u64, max: usize) -> Vec<Extent> {
        let (cluster, end) = (self.shape.geometry.cluster(), offset + len);
        let untouched = match (&self.backing, self.placement) {
            (Some(_), _) | (None, Placement::Fixed { marks: false, .. }) => ExtentKind::Data,
            (None, _) => ExtentKind::Hole,
        };
        let mut found = Vec::new();
        let mut clusters = self.clusters(offset, len);
        let state = self.state();
        while clusters.start < clusters.end {
            let first = clusters.start;
            let next = state.clusters.next_known(first, clusters.end);
            let (kind, next) = match state.clusters.get(first) {
                _ if next > first => (untouched, next),
                0 => (untouched, first + 1),
                ZERO => (ExtentKind::Zero, first + 1),
                _ => (ExtentKind::Data, first + 1),
            };
            let (start, stop) = (offset.max(first * cluster), end.min(next * cluster));
            if found.len() == max && found.last().is_some_and(|e: &Extent| e.kind != kind) {
                break;
            }
            merge_extent(&mut found, Extent::new(start, stop - start, kind));
            clusters.start = next;
        }
        found
    }

    /// Reads written data, to rewrite a part of a cluster. It does not decompress clusters: only a
    /// writer that ignores the block sizes rewrites a part of one.
    async fn read(&self, offset: u64, mut buffer: Buffer) -> Result<Buffer> {
        let (cluster, end) = (self.shape.geometry.cluster(), offset + buffer.len() as u64);
        for c in self.clusters(offset, buffer.len() as u64) {
            let (start, stop) = (offset.max(c * cluster), end.min((c + 1) * cluster));
            let range = usize::try_from(start - offset).unwrap_or(usize::MAX)
                ..usize::try_from(stop - offset).unwrap_or(usize::MAX);
            let part = buffer.get_mut(range).ok_or_else(kit::confused)?;
            let entry = self.state().clusters.get(c);
            let from = match (plain(entry), self.placement) {
                (Some(at), _) => Some((self.home(), at + (start - c * cluster), part.len())),
                (None, Placement::Fixed { base, marks: false, .. }) => {
                    Some((self.home(), base + start, part.len()))
                }
                (None, _) if entry & COMPRESSED != 0 => {
                    let action = "read a compressed cluster of an image that is being made";
                    return Err(Error::unsupported(action));
                }
                (None, _) if entry != 0 => None,
                (None, _) => self.backing.as_ref().map(|backing| {
                    let there = backing.info().size.saturating_sub(start);
                    let len = usize::try_from(there).unwrap_or(usize::MAX).min(part.len());
                    (backing, start, len)
                }),
            };
            let (head, tail) = part.split_at_mut(from.map_or(0, |(_, _, len)| len));
            tail.fill(0);
            if let Some((edge, at, len)) = from.filter(|(_, _, len)| *len > 0) {
                let read = kit::read(edge, at, len, true).await?;
                head.copy_from_slice(&read.ok_or_else(kit::confused)?);
            }
        }
        Ok(buffer)
    }
}

/// Writes bytes, at once if that need not wait.
pub(super) async fn put(edge: &Edge, at: u64, data: Slice) -> Result<()> {
    if edge.write_now(&data, at, false)? {
        return Ok(());
    }
    kit::write(edge, at, data, false).await
}

async fn zero_at(edge: &Edge, run: Run, flags: ZeroFlags) -> Result<()> {
    kit::zero(edge, run.at, run.len, flags).await
}
