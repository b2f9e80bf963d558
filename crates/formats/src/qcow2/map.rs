//! Where the bytes of the disk lie: its L1 table, and the L2 tables that it names.

use std::sync::atomic::{AtomicU64, Ordering};

use device::{Edge, Result, StatusRun, Stored};
use runtime::WorkPool;

use super::corrupt;
use super::dirty::{self, Dirty};
use super::entry::{Entry, Geometry, Parts, l2_offset};
use super::header::Compression;
use super::region::Region;
use super::tables::{TableSlice, Tables, Written};
use super::unpack::unpack;
use crate::kit::{Asks, Atlas, Later, Lies, Packed, Run, Runs, confused};

/// L1 entries that are looked at in one step.
const L1_STEP: u64 = 4096;

/// The map of an image. What moves in one that is written is seen under a lease.
pub(super) struct Map {
    pub(super) l1: Box<[AtomicU64]>,
    pub(super) tables: Tables,
    /// The file with the uncompressed clusters: the container or a data file.
    pub(super) data: Edge,
    /// `None`: the clusters are encrypted, and so none is compressed.
    pub(super) compression: Option<Compression>,
    pub(super) bitmaps: Vec<Dirty>,
    /// For long looks at bitmaps.
    pub(super) pool: WorkPool,
}

impl Runs for Map {
    async fn run(&self, at: u64, len: u64, may_wait: bool) -> Result<Option<Run>> {
        let end = at + len;
        let Some(table) = self.table_at(at)? else { return self.nothing(at, end).map(Some) };
        let wanted = self.wanted(at, end);
        let Some(slice) = self.tables.slice(table, wanted, may_wait).await? else {
            return Ok(None);
        };
        self.checked(at, self.run_in(&slice, at, end)?).map(Some)
    }
}

impl Atlas for Map {
    /// A step is a slice of a table.
    fn steps_now(&self) -> usize {
        64
    }

    fn file(&self, _: u64) -> Option<(u16, &Edge)> {
        Some((self.geometry().data_file.into(), &self.data))
    }

    fn files(&self) -> Vec<&Edge> {
        let data = Some(&self.data).filter(|_| self.geometry().data_file);
        std::iter::once(&self.tables.container).chain(data).collect()
    }

    fn length(&self, _: &Edge) -> u64 {
        self.data_size()
    }

    fn asks(&self, _: u64) -> Asks {
        Asks::Long
    }

    fn form(&self) -> Stored {
        if self.compression.is_some() { Stored::Plain } else { Stored::Encrypted }
    }

    fn unpack(&self, _: u64, packed: &[u8], unpacked: &mut [u8]) -> Result<()> {
        let compression = self.compression.ok_or_else(confused)?;
        unpack(compression, packed, unpacked)
    }

    fn status<'a>(
        &'a self,
        context: &'a str,
        range: (u64, u64),
        max: usize,
    ) -> Later<'a, Vec<StatusRun>> {
        Box::pin(async move {
            let bitmap = self.bitmaps.iter().find(|bitmap| *bitmap.context == *context);
            let bitmap =
                bitmap.ok_or_else(|| device::Error::unsupported("status of another context"))?;
            dirty::runs(&self.tables, bitmap, range, max, &self.pool).await
        })
    }
}

impl Map {
    fn geometry(&self) -> Geometry {
        self.tables.geometry
    }

    /// Bytes of the file with the uncompressed clusters.
    fn data_size(&self) -> u64 {
        match &self.tables.written {
            Some(Written { data, .. }) => data.container.length(),
            // Of an encrypted file the whole sectors.
            None if self.geometry().data_file || self.compression.is_none() => {
                self.data.info().size
            }
            None => self.tables.size(),
        }
    }

    /// An entry of the L1 table; 0 beyond its end.
    pub(super) fn l1_entry(&self, index: usize) -> u64 {
        self.l1.get(index).map_or(0, |entry| entry.load(Ordering::Acquire))
    }

    /// Changes an entry of the L1 table. The caller changes it in the container, too.
    pub(super) fn set_l1_entry(&self, index: usize, new: u64) {
        debug_assert!(index < self.l1.len(), "no L1 entry {index}");
        if let Some(entry) = self.l1.get(index) {
            entry.store(new, Ordering::Release);
        }
    }

    /// The L2 table for `at`, if there is one.
    fn table_at(&self, at: u64) -> Result<Option<u64>> {
        let index = usize::try_from(at / self.geometry().l2_covers()).unwrap_or(usize::MAX);
        l2_offset(self.l1_entry(index), self.geometry())
    }

    /// The run of a range without a table.
    fn nothing(&self, start: u64, end: u64) -> Result<Run> {
        let covers = self.geometry().l2_covers();
        let mut at = start;
        for _ in 0..L1_STEP {
            if at >= end || self.table_at(at)?.is_some() {
                break;
            }
            at = (at - at % covers).saturating_add(covers);
        }
        Ok(Run { len: at.min(end) - start, lies: Lies::Beneath })
    }

    /// The bytes of its table for `at` up to `end`.
    fn wanted(&self, at: u64, end: u64) -> (u64, u64) {
        let geometry = self.geometry();
        let covers = geometry.l2_covers();
        let first = at % covers / geometry.cluster() * geometry.entry_len();
        let clusters = (end - (at - at % geometry.cluster())).div_ceil(geometry.cluster());
        (first, first.saturating_add(clusters.saturating_mul(geometry.entry_len())))
    }

    /// The run that begins at `at`, as far as the slice reaches.
    fn run_in(&self, slice: &TableSlice, start: u64, end: u64) -> Result<Run> {
        let geometry = self.geometry();
        let cluster = geometry.cluster();
        let (mut found, mut at): (Option<Run>, _) = (None, start);
        while at < end {
            let place = at % geometry.l2_covers() / cluster * geometry.entry_len();
            let has_passed = found.is_some() && place == 0;
            if place >= slice.end() || has_passed {
                break;
            }
            let entry = slice.number(place).ok_or_else(|| corrupt("a table is cut off"))?;
            let parts = if geometry.extended { slice.number(place + 8).unwrap_or(0) } else { 0 };
            let entry = Entry::decode(entry, parts, geometry)?;
            let next = piece(entry, at, end, geometry);
            match &mut found {
                None => found = Some(next),
                Some(run) => {
                    if !run.extend(next) {
                        break;
                    }
                }
            }
            at += next.len;
        }
        found.ok_or_else(|| corrupt("a table is cut off"))
    }

    /// The run, cut at the end of the file that it lies in.
    fn checked(&self, start: u64, run: Run) -> Result<Run> {
        match run.lies {
            Lies::Beneath | Lies::Hole | Lies::Zero(_) => Ok(run),
            Lies::Packed(_) if self.compression.is_none() => {
                Err(corrupt("a cluster is compressed, and the image is encrypted"))
            }
            Lies::Packed(Packed { offset, len, .. }) => {
                let size = self.tables.size();
                if offset >= size {
                    return Err(beyond(offset, size));
                }
                self.tables.check_free("a compressed cluster", Region { offset, len })?;
                Ok(run)
            }
            Lies::At(offset) => self.checked_plain(start, run, offset),
        }
    }

    fn checked_plain(&self, start: u64, run: Run, offset: u64) -> Result<Run> {
        let geometry = self.geometry();
        if geometry.data_file {
            if offset != start {
                let action = "a cluster lies elsewhere in the data file than on the disk";
                return Err(corrupt(action).at(offset));
            }
        } else {
            self.tables.check_free("data", Region { offset, len: run.len })?;
        }
        // The last cluster of a file may be cut off.
        let size = self.data_size();
        let begun = size.next_multiple_of(geometry.cluster());
        let there = begun.checked_sub(offset).filter(|there| *there > 0);
        let there = there.ok_or_else(|| beyond(offset, size))?;
        Ok(Run { len: run.len.min(there), ..run })
    }
}

fn beyond(offset: u64, size: u64) -> device::Error {
    corrupt(format!("a cluster lies beyond the end of the file ({size} bytes)")).at(offset)
}

/// The run that an entry gives from `at` on, in its cluster and before `end`.
fn piece(entry: Entry, at: u64, end: u64, geometry: Geometry) -> Run {
    let within = at % geometry.cluster();
    let start = at - within;
    let run = |lies, to: u64| Run { len: (start + to).min(end) - at, lies };
    let whole = |lies| run(lies, geometry.cluster());
    match entry {
        Entry::Absent => whole(Lies::Beneath),
        Entry::Zero => whole(Lies::Hole),
        Entry::ZeroAt(offset) => whole(Lies::Zero(offset + within)),
        Entry::Plain(offset) => whole(Lies::At(offset + within)),
        Entry::Packed { offset, len } => {
            whole(Lies::Packed(Packed { start, size: geometry.cluster(), offset, len }))
        }
        Entry::Parts(parts) => {
            let first = within / geometry.part();
            let state = |part: u64| (parts.here >> part & 1, parts.zero >> part & 1);
            let last = (first..u64::from(super::entry::SUBCLUSTERS))
                .find(|part| state(*part) != state(first));
            let to = last.map_or(geometry.cluster(), |part| part * geometry.part());
            run(lies(parts, state(first), within), to)
        }
    }
}

fn lies(parts: Parts, state: (u32, u32), within: u64) -> Lies {
    match (parts.offset, state) {
        (Some(offset), (1, _)) => Lies::At(offset + within),
        (Some(offset), (_, 1)) => Lies::Zero(offset + within),
        (None, (_, 1)) => Lies::Hole,
        _ => Lies::Beneath,
    }
}
