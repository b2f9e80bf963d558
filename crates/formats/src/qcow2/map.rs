//! The places of the bytes of the disk, as runs that are as long as possible.

use device::Result;
use runtime::WorkPool;

use super::corrupt;
use super::entry::{Entry, Geometry, Parts, l2_offset};
use super::region::Region;
use super::tables::{TableSlice, Tables};

/// The most steps on a thread with other work, or for a caller that may not wait. A step is a
/// slice, or as many L1 entries.
const ROW: usize = 64;
const L1_STEP: u64 = 4096;

/// Bytes of the disk that are all in one state.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Run {
    /// First byte, as an offset into the disk.
    pub(super) start: u64,
    /// Bytes; never 0.
    pub(super) len: u64,
    pub(super) what: What,
}

/// Where they are.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum What {
    /// Not in this image.
    Absent,
    /// They are zeroes.
    Zero,
    /// Zeroes, with space allocated at this offset.
    ZeroAt(u64),
    /// At this offset, as they are.
    Plain(u64),
    /// In a compressed cluster, which begins at `cluster` of the disk and is decompressed as a
    /// whole.
    Packed {
        cluster: u64,
        /// Where it is.
        offset: u64,
        /// Bytes there.
        len: u64,
    },
}

impl Run {
    /// The first byte after it.
    pub(super) fn end(&self) -> u64 {
        self.start + self.len
    }

    /// Extends it by `next`, if that continues it.
    fn extend(&mut self, next: Self) -> bool {
        let goes_on = match (self.what, next.what) {
            (What::Absent, What::Absent) | (What::Zero, What::Zero) => true,
            (What::ZeroAt(a), What::ZeroAt(b)) | (What::Plain(a), What::Plain(b)) => {
                a + self.len == b
            }
            _ => false,
        };
        if goes_on {
            self.len += next.len;
        }
        goes_on
    }
}

/// One map query: whether it may wait, and its steps so far.
pub(super) struct Walk<'a> {
    /// Where to continue long queries; `None`: they must answer now, or not at all.
    pool: Option<&'a WorkPool>,
    steps: usize,
}

impl<'a> Walk<'a> {
    /// One that waits.
    pub(super) fn waiting(pool: &'a WorkPool) -> Self {
        Self { pool: Some(pool), steps: 0 }
    }

    /// One that does not.
    pub(super) fn at_once() -> Self {
        Self { pool: None, steps: 0 }
    }

    pub(super) fn may_wait(&self) -> bool {
        self.pool.is_some()
    }

    /// Whether one more step may be made.
    pub(super) async fn step(&mut self) -> bool {
        self.steps += 1;
        if self.steps <= ROW {
            return true;
        }
        let Some(pool) = self.pool else { return false };
        self.steps = 0;
        runtime::where_there_is_time(pool).await;
        true
    }
}

/// The map of an image: its L1 table, and the L2 tables that it names.
pub(super) struct Map {
    pub(super) l1: Box<[u64]>,
    pub(super) tables: Tables,
    /// Bytes of the file with the uncompressed clusters.
    pub(super) data_size: u64,
}

impl Map {
    fn geometry(&self) -> Geometry {
        self.tables.geometry
    }

    /// The run that begins at `at`, up to `end` or as far as a few steps reach. `None`: that would
    /// have to wait.
    ///
    /// # Errors
    /// A table cannot be read, or is invalid.
    pub(super) async fn run(&self, at: u64, end: u64, walk: &mut Walk<'_>) -> Result<Option<Run>> {
        let mut found: Option<Run> = None;
        let mut at = at;
        while at < end {
            if !walk.step().await {
                break;
            }
            let (next, is_over) = match self.table_at(at)? {
                None => (self.nothing(at, end)?, false),
                Some(table) => {
                    let wanted = self.wanted(at, end);
                    let slice = self.tables.slice(table, wanted, walk.may_wait()).await?;
                    let Some(slice) = slice else { break };
                    self.run_in(&slice, at, end)?
                }
            };
            match &mut found {
                None => found = Some(next),
                Some(run) => {
                    if !run.extend(next) {
                        break;
                    }
                }
            }
            if is_over {
                break;
            }
            at = next.end();
        }
        found.map(|run| self.checked(run)).transpose()
    }

    /// The L2 table for `at`, if there is one.
    fn table_at(&self, at: u64) -> Result<Option<u64>> {
        let index = usize::try_from(at / self.geometry().l2_covers()).ok();
        let entry = index.and_then(|index| self.l1.get(index)).copied();
        l2_offset(entry.unwrap_or(0), self.geometry())
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
        Ok(Run { start, len: at.min(end) - start, what: What::Absent })
    }

    /// The bytes of its table for `at` up to `end`.
    fn wanted(&self, at: u64, end: u64) -> (u64, u64) {
        let geometry = self.geometry();
        let covers = geometry.l2_covers();
        let first = at % covers / geometry.cluster() * geometry.entry_len();
        let clusters = (end - (at - at % geometry.cluster())).div_ceil(geometry.cluster());
        (first, first.saturating_add(clusters.saturating_mul(geometry.entry_len())))
    }

    /// The run that begins at `at`, as far as the slice reaches; and whether another run follows in
    /// it.
    fn run_in(&self, slice: &TableSlice, at: u64, end: u64) -> Result<(Run, bool)> {
        let geometry = self.geometry();
        let cluster = geometry.cluster();
        let (mut found, mut at): (Option<Run>, _) = (None, at);
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
                        return Ok((*run, true));
                    }
                }
            }
            at = next.end();
        }
        found.map(|run| (run, false)).ok_or_else(|| corrupt("a table is cut off"))
    }

    /// The run, cut at the end of the file that it lies in.
    fn checked(&self, run: Run) -> Result<Run> {
        match run.what {
            What::Absent | What::Zero | What::ZeroAt(_) => Ok(run),
            What::Packed { offset, len, .. } => {
                let size = self.tables.container.info().size;
                if offset >= size {
                    return Err(beyond(offset, size));
                }
                self.tables.check_free("a compressed cluster", Region { offset, len })?;
                Ok(run)
            }
            What::Plain(offset) => self.checked_plain(run, offset),
        }
    }

    fn checked_plain(&self, run: Run, offset: u64) -> Result<Run> {
        let geometry = self.geometry();
        let cluster = geometry.cluster();
        if geometry.data_file {
            if offset != run.start {
                let action = "a cluster lies elsewhere in the data file than on the disk";
                return Err(corrupt(action).at(offset));
            }
        } else {
            self.tables.check_free("data", Region { offset, len: run.len })?;
        }
        // The last cluster of a file may be cut off.
        let begun = self.data_size.next_multiple_of(cluster);
        let there = begun.checked_sub(offset).filter(|there| *there > 0);
        let there = there.ok_or_else(|| beyond(offset, self.data_size))?;
        Ok(Run { len: run.len.min(there), ..run })
    }
}

fn beyond(offset: u64, size: u64) -> device::Error {
    corrupt(format!("a cluster lies beyond the end of the file ({size} bytes)")).at(offset)
}

/// The run that an entry gives from `at` on, in its cluster and before `end`.
fn piece(entry: Entry, at: u64, end: u64, geometry: Geometry) -> Run {
    let within = at % geometry.cluster();
    let cluster = at - within;
    let run = |what, to: u64| Run { start: at, len: (cluster + to).min(end) - at, what };
    let whole = |what| run(what, geometry.cluster());
    match entry {
        Entry::Absent => whole(What::Absent),
        Entry::Zero => whole(What::Zero),
        Entry::ZeroAt(offset) => whole(What::ZeroAt(offset + within)),
        Entry::Plain(offset) => whole(What::Plain(offset + within)),
        Entry::Packed { offset, len } => whole(What::Packed { cluster, offset, len }),
        Entry::Parts(parts) => {
            let first = within / geometry.part();
            let state = |part: u64| (parts.here >> part & 1, parts.zero >> part & 1);
            let last = (first..u64::from(super::entry::SUBCLUSTERS))
                .find(|part| state(*part) != state(first));
            let to = last.map_or(geometry.cluster(), |part| part * geometry.part());
            run(what_of(parts, state(first), within), to)
        }
    }
}

fn what_of(parts: Parts, state: (u32, u32), within: u64) -> What {
    match (parts.offset, state) {
        (Some(offset), (1, _)) => What::Plain(offset + within),
        (Some(offset), (_, 1)) => What::ZeroAt(offset + within),
        (None, (_, 1)) => What::Zero,
        _ => What::Absent,
    }
}
