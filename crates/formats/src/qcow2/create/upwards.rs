//! An image written once in ascending order, into a pipe. The map of the disk is known in advance,
//! so all tables come before the clusters, which are in the order of the disk.
//!
//! Zeroes in a range that the map calls data are written as zeroes. Data in a range that the map
//! calls zero is an error: there is no room for it.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use device::{
    Abilities, BlockSizes, Device, Edge, Error, ErrorKind, Fault, Info, Operation, Order, Outcome,
    Result, Slice, ZeroFlags, is_zero,
};

use super::finish::{SequentialWriter, encode_counts};
use super::heading;
use super::layout::{Layout, Shape};
use super::options::{CreateOptions, Qcow2Preallocation};
use crate::format::{DiskMap, Making};
use crate::kit::{self, Layer, Layered};
use crate::qcow2::entry::COPIED;

/// The most runs to keep; everything after them counts as data.
const MOST: usize = 4 << 20;
/// The second half of an extended entry: all subclusters are there.
const ALL: u64 = 0xffff_ffff;

/// Whether an image with these options goes into a pipe. The length of compressed clusters is not
/// known in advance, and an image with a backing image needs to know which clusters it has.
pub(super) fn piped(making: &Making<'_>) -> Result<bool> {
    let options = CreateOptions::read(making.options, making.compress)?;
    let is_plain = options.level.is_none() && options.encryption.is_none();
    Ok(is_plain && options.data_file.is_none() && options.backing.is_none())
}

struct Upwards {
    info: Info,
    /// Bytes that the caller writes; the disk has whole sectors.
    size: u64,
    container: Edge,
    options: CreateOptions,
    shape: Shape,
    layout: Layout,
    runs: Runs,
    /// A thread has begun to write the metadata.
    begun: AtomicBool,
}

pub(super) fn open(
    container: Edge,
    making: &Making<'_>,
    map: DiskMap<'_>,
) -> Result<Arc<dyn Device>> {
    let options = CreateOptions::read(making.options, making.compress)?;
    let shape = Shape::new(&options, making.size)?;
    heading::check(&options, shape)?;
    let runs = match options.preallocation {
        Qcow2Preallocation::Off => Runs::of(map, shape)?,
        _ => Runs::all(shape),
    };
    let tables = (0..shape.l1_entries()).filter(|table| runs.meet(shape.clusters_of(*table)));
    let layout = shape.in_front_of(tables.count() as u64, runs.total())?;
    let cluster = u32::try_from(shape.geometry.cluster()).unwrap_or(u32::MAX);
    let info = Info {
        blocks: BlockSizes { preferred: cluster.max(4096), ..BlockSizes::ANY },
        abilities: Abilities {
            write: true,
            flush: container.info().abilities.flush,
            zero: true,
            ..Abilities::READ
        },
        order: Order::Upwards,
        ..Info::new(&*container.info().name, making.size)
    };
    let begun = AtomicBool::new(false);
    let size = making.size;
    let image = Upwards { info, size, container, options, shape, layout, runs, begun };
    Ok(Layered::device(image))
}

impl Layer for Upwards {
    fn info(&self) -> &Info {
        &self.info
    }

    fn below(&self) -> Vec<&Edge> {
        vec![&self.container]
    }

    async fn run(self: Arc<Self>, operation: Operation) -> Result<Outcome> {
        match operation {
            Operation::Flush => kit::flush(&self.container).await?,
            Operation::Prefetch { .. } | Operation::Trim { .. } => {}
            Operation::Take { .. } => return Ok(Outcome::Taken(0)),
            Operation::Read { offset, .. } | Operation::Resolve { offset, .. } => {
                return Err(Error::unsupported("read what went into a pipe").at(offset));
            }
            Operation::Status { .. } => return Err(Error::unsupported("status")),
            Operation::Write { offset, data, .. } => {
                self.begin().await?;
                self.write(offset, data).await?;
            }
            Operation::Zero { flags, .. } if flags.fast_only => return Err(Error::not_fast()),
            Operation::Zero { offset, len, .. } => {
                self.begin().await?;
                self.zero(offset, len).await?;
            }
        }
        Ok(Outcome::Done)
    }

    async fn finish(self: Arc<Self>) -> Result<()> {
        self.begin().await?;
        let cluster = self.shape.geometry.cluster();
        let (end, whole) = (self.size, self.shape.disk() * cluster);
        // The disk may end within its last cluster, and what was written within the disk's last
        // sector.
        if end < whole {
            self.zero(end, whole - end).await?;
        }
        self.container.device().resize(self.layout.end * cluster)?;
        self.container.device().finish()
    }
}

impl Upwards {
    /// Writes the metadata, unless a thread does already.
    async fn begin(&self) -> Result<()> {
        if self.begun.swap(true, SeqCst) {
            return Ok(());
        }
        let mut stream = SequentialWriter::new(&self.container, self.shape, 0);
        stream
            .add(&heading::heading(&self.options, self.shape, Some(self.layout)).encode())
            .await?;
        stream.pad().await?;
        let is_there = |table: &u64| self.runs.meet(self.shape.clusters_of(*table));
        stream.add_l1(self.layout, |table| is_there(&table)).await?;
        for table in (0..self.shape.l1_entries()).filter(is_there) {
            stream.add(&self.encode_l2(table)).await?;
        }
        let (mut left, counts) = (self.layout.end, self.shape.counts());
        let ones = vec![1; usize::try_from(counts).unwrap_or(0)];
        for _ in 0..self.layout.refcounts.blocks {
            let n = usize::try_from(left.min(counts)).unwrap_or(0);
            stream.add(&encode_counts(ones.get(..n).unwrap_or_default(), self.shape)).await?;
            left -= n as u64;
        }
        stream.add_refcount_table(self.layout).await?;
        stream.end().await
    }

    fn encode_l2(&self, table: u64) -> Vec<u8> {
        let geometry = self.shape.geometry;
        let mut bytes = Vec::with_capacity(usize::try_from(geometry.cluster()).unwrap_or(0));
        let first = table * geometry.l2_entries();
        let (mut cluster, end) = (first, first + geometry.l2_entries());
        while cluster < end {
            let (rank, n) = self.runs.find(cluster, end);
            for i in 0..n {
                let at = rank.map(|rank| (self.layout.disk + rank + i) << geometry.cluster_bits);
                bytes.extend(at.map_or(0, |at| COPIED | at).to_be_bytes());
                if geometry.extended {
                    bytes.extend(at.map_or(0, |_| ALL).to_be_bytes());
                }
            }
            cluster += n;
        }
        bytes
    }

    /// The place of the start of a range in the container, if it has room, and how much of the
    /// range fits.
    fn place(&self, offset: u64, end: u64) -> (Option<u64>, u64) {
        let (bits, cluster) = (self.shape.geometry.cluster_bits, self.shape.geometry.cluster());
        let (first, last) = (offset >> bits, end.div_ceil(cluster));
        let (rank, n) = self.runs.find(first, last);
        let at = rank.map(|rank| ((self.layout.disk + rank) << bits) + offset % cluster);
        (at, end.min((first + n) << bits) - offset)
    }

    async fn write(&self, offset: u64, mut data: Slice) -> Result<()> {
        let (mut at, end) = (offset, offset + data.len() as u64);
        while at < end {
            let (place, len) = self.place(at, end);
            let from = usize::try_from(at - offset).map_err(|_| kit::confused())?;
            let n = usize::try_from(len).map_err(|_| kit::confused())?;
            match place {
                Some(place) => {
                    let part = data.share(from, n).ok_or_else(kit::confused)?;
                    kit::write(&self.container, place, part, false).await?;
                }
                None if data.get(from..from + n).is_some_and(is_zero) => {}
                None => {
                    let action = "the disk was zero here when its map was read, and is not any \
                                  more: it was changed during the copy";
                    return Err(Error::new(ErrorKind::Changed, Fault::File, action).at(at));
                }
            }
            at += len;
        }
        Ok(())
    }

    async fn zero(&self, offset: u64, len: u64) -> Result<()> {
        let (mut at, end) = (offset, offset + len);
        while at < end {
            let (place, len) = self.place(at, end);
            if let Some(place) = place {
                let flags = ZeroFlags { may_unmap: true, ..ZeroFlags::default() };
                kit::zero(&self.container, place, len, flags).await?;
            }
            at += len;
        }
        Ok(())
    }
}

impl Shape {
    /// The clusters that an L2 table covers.
    fn clusters_of(self, table: u64) -> Range<u64> {
        let entries = self.geometry.l2_entries();
        table * entries..(table + 1) * entries
    }
}

/// Clusters in a row that have data.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Run {
    start: u64,
    end: u64,
    /// How many clusters with data precede it.
    rank: u64,
}

/// The clusters with data, in order.
#[derive(Debug)]
struct Runs(Vec<Run>);

impl Runs {
    fn all(shape: Shape) -> Self {
        let all = Run { start: 0, end: shape.disk(), rank: 0 };
        Self((all.end > 0).then_some(all).into_iter().collect())
    }

    fn of(map: DiskMap<'_>, shape: Shape) -> Result<Self> {
        let mut runs = Self(Vec::new());
        let cluster = shape.geometry.cluster();
        for extent in map {
            let extent = extent?;
            if extent.kind.reads_zero() || extent.len == 0 {
                continue;
            }
            let full = runs.0.len() == MOST;
            let end = if full { shape.disk() } else { extent.end().div_ceil(cluster) };
            runs.add(extent.start / cluster, end.min(shape.disk()));
            if full {
                break;
            }
        }
        Ok(runs)
    }

    fn add(&mut self, start: u64, end: u64) {
        let rank = match self.0.last_mut() {
            Some(last) if start <= last.end => {
                last.end = last.end.max(end);
                return;
            }
            Some(last) => last.rank + (last.end - last.start),
            None => 0,
        };
        if start < end {
            self.0.push(Run { start, end, rank });
        }
    }

    fn total(&self) -> u64 {
        self.0.last().map_or(0, |last| last.rank + (last.end - last.start))
    }

    /// How many clusters with data precede `cluster`, if it has data; and how many from there up to
    /// `end` are the same.
    fn find(&self, cluster: u64, end: u64) -> (Option<u64>, u64) {
        let at = self.0.partition_point(|run| run.end <= cluster);
        match self.0.get(at) {
            Some(run) if run.start <= cluster => {
                (Some(run.rank + (cluster - run.start)), run.end.min(end) - cluster)
            }
            Some(run) => (None, run.start.min(end) - cluster),
            None => (None, end - cluster),
        }
    }

    fn meet(&self, clusters: Range<u64>) -> bool {
        let (rank, n) = self.find(clusters.start, clusters.end);
        rank.is_some() || n < clusters.end - clusters.start
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::qcow2::entry::Geometry;
    use device::ExtentKind;

    #[test]
    fn clusters_are_counted_once_however_many_extents_touch_them() {
        let geometry =
            Geometry { cluster_bits: 16, extended: false, zeroes: true, data_file: false };
        let shape = Shape { geometry, refcount_order: 4, size: 100 << 16 };
        let data = |start: u64, len| Ok(device::Extent::new(start, len, ExtentKind::Data));
        let hole = |start: u64, len| Ok(device::Extent::new(start, len, ExtentKind::Hole));
        let map = [
            data(100, 50),
            hole(150, 1000),
            data(1150, 70_000),
            hole(80_000, 5 << 16),
            data(10 << 16, 3 << 16),
            data((99 << 16) + 5, 1),
        ];
        let runs = Runs::of(&mut map.into_iter(), shape).unwrap();
        let run = |start, end, rank| Run { start, end, rank };
        assert_eq!(runs.0, [run(0, 2, 0), run(10, 13, 2), run(99, 100, 5)]);
        assert_eq!(runs.total(), 6);
        assert_eq!(runs.find(1, 100), (Some(1), 1));
        assert_eq!(runs.find(2, 100), (None, 8));
        assert_eq!(runs.find(2, 5), (None, 3));
        assert_eq!(runs.find(12, 100), (Some(4), 1));
        assert_eq!(runs.find(100, 120), (None, 20));
        assert!(runs.meet(9..11) && !runs.meet(2..10) && !runs.meet(13..99));
        assert_eq!(Runs::all(shape).total(), 100);
        assert_eq!(Runs::all(Shape { size: 0, ..shape }).total(), 0);
    }
}
