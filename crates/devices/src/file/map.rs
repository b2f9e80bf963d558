//! The map of a file by SEEK_DATA and SEEK_HOLE, which remembers runs of data.
//!
//! There is no lock around the calls: they move the file position, which is not used, and each
//! call is one answer. Runs of data are remembered, because SEEK_HOLE walks all of a run before
//! it answers (on tmpfs, page by page), and a resolve inside a run that is known then costs no
//! system call. Holes are never remembered: another process may fill one at any time, and a stale
//! hole would lose its data, while stale data only costs a read of zeroes.

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use device::residency::is_cached;
use device::{Extent, ExtentKind, Keeper, Place, merge_extent};
use runtime::Mutex;
use rustix::fs::fstat;
use rustix::io::Errno;

use super::system::{seek_data, seek_hole};

/// How many runs are remembered: one for each of a few threads that work at different places.
const RUNS: usize = 8;

/// From this offset on nothing is called a hole: in the last page before 2^63 the kernel's
/// arithmetic (`mapping_seek_hole_data`) overflows and finds no data where there is. A page may be
/// as large as 1 GiB.
const FAR: u64 = (1 << 63) - (1 << 30);

/// Bytes of data of a file in memory that one resolve looks at: the kernel walks it page by page,
/// 5 ms for a GiB, and the caller may be a reactor.
const WALK: u64 = 256 << 20;

/// Bytes of a run in memory that are looked at first.
const FIRST_PIECE: u64 = 1 << 20;

/// What is remembered of a file's map.
pub(crate) struct Map {
    known: Mutex<Known>,
    /// The filesystem has no map: everything is data.
    blind: AtomicBool,
    /// The file lies in memory, see [`Map::in_memory`].
    in_memory: bool,
    /// The keeper of its pages, if it has one.
    keeper: Option<Arc<dyn Keeper>>,
}

#[derive(Debug)]
struct Known {
    /// Counts the holes that we punched, so that an older answer is not remembered afterwards.
    generation: u64,
    /// First byte, first byte after; equal in an empty slot.
    runs: [(u64, u64); RUNS],
    oldest: usize,
}

/// How far all of `at..end` is cached, at least: up to the piece that is not. Pieces grow, so that
/// short runs cost little and long ones few calls.
fn cached_until(file: BorrowedFd<'_>, at: u64, end: u64) -> u64 {
    let (mut known, mut piece) = (at, FIRST_PIECE);
    while known < end {
        let len = piece.min(end - known);
        if !is_cached(file, known, len) {
            break;
        }
        known += len;
        piece = piece.saturating_mul(2);
    }
    known
}

/// What lies at an offset, and where it ends.
struct Found {
    kind: ExtentKind,
    end: u64,
}

/// What a walk through the map has seen: what it need not ask again.
#[derive(Clone, Copy, Default)]
struct Step {
    /// There are holes, if the file lies in memory.
    has_holes: bool,
    /// The last run of data was short.
    is_short: bool,
    /// Here data begins: a hole ended.
    at_data: bool,
}

impl Step {
    fn after(self, at: u64, found: &Found) -> Self {
        match found.kind {
            ExtentKind::Data => {
                let is_short = found.end.saturating_sub(at) < FIRST_PIECE;
                Self { has_holes: true, is_short, at_data: false }
            }
            _ => Self { has_holes: true, at_data: true, ..self },
        }
    }
}

impl Map {
    pub(crate) fn new() -> Self {
        let known = Known { generation: 0, runs: [(0, 0); RUNS], oldest: 0 };
        let known = Mutex::new(known);
        Self { known, blind: AtomicBool::new(false), in_memory: false, keeper: None }
    }

    /// A map whose places have a keeper.
    pub(crate) fn kept_by(keeper: Arc<dyn Keeper>) -> Self {
        Self { keeper: Some(keeper), ..Self::new() }
    }

    /// A map for a file in tmpfs, where SEEK_HOLE walks a run page by page (5 ms for a GiB) and no
    /// call says where a run began: one fstat shows that a file with all its blocks is all data. On
    /// a disk that would hide what is allocated but never written.
    pub(crate) fn in_memory() -> Self {
        Self { in_memory: true, ..Self::new() }
    }

    /// Where `offset` lies, in a file that is the disk, byte for byte.
    pub(crate) fn place(&self, file: &Arc<OwnedFd>, offset: u64) -> Place {
        let place = Place::new(file.clone(), offset);
        match &self.keeper {
            _ if self.in_memory => place.in_memory(),
            Some(keeper) => place.kept_by(keeper.clone()),
            None => place,
        }
    }

    /// To be called after a range may have become a hole by our own doing.
    pub(crate) fn forget(&self, offset: u64, len: u64) {
        let end = offset.saturating_add(len);
        let mut known = self.known.lock();
        known.generation = known.generation.wrapping_add(1);
        for run in &mut known.runs {
            // What lies before the range, or else after it, is data as before.
            if run.0 < end && offset < run.1 {
                let (before, after) = ((run.0, offset), (end, run.1));
                *run = if before.0 < before.1 { before } else { after };
                if run.0 >= run.1 {
                    *run = (0, 0);
                }
            }
        }
    }

    /// [`device::Blocking::resolve`] for a file that is the disk, byte for byte. Every extent has
    /// its place. An error comes with the offset it happened at.
    pub(crate) fn resolve(
        &self,
        file: &Arc<OwnedFd>,
        size: u64,
        offset: u64,
        len: u64,
        max: usize,
        out: &mut Vec<Extent>,
    ) -> Result<(), (u64, io::Error)> {
        let end = offset.saturating_add(len);
        let before = out.len();
        let mut at = offset;
        let (mut walked, mut step) = (0, Step::default());
        while at < end && walked < WALK {
            let found = self.find(file, size, at..end, step).map_err(|e| {
                out.truncate(before);
                (at, e)
            })?;
            step = step.after(at, &found);
            let stop = found.end.clamp(at + 1, end);
            if self.in_memory && found.kind == ExtentKind::Data {
                walked += stop - at;
            }
            let next = Extent::new(at, stop - at, found.kind).at(Some(self.place(file, at)));
            if out.len() == before {
                out.push(next);
            } else {
                merge_extent(out, next);
            }
            if out.len() - before > max {
                out.truncate(before + max);
                break;
            }
            at = stop;
        }
        Ok(())
    }

    /// [`Map::resolve`] as far as it is remembered from `offset` on, without a system call; false
    /// if nothing is. `len` is at least 1.
    pub(crate) fn resolve_known(
        &self,
        file: &Arc<OwnedFd>,
        offset: u64,
        len: u64,
        out: &mut Vec<Extent>,
    ) -> bool {
        let end = offset.saturating_add(len);
        let known = if self.blind.load(Ordering::Relaxed) {
            Some(end)
        } else {
            self.known.lock().runs.iter().find(|r| r.0 <= offset && offset < r.1).map(|r| r.1)
        };
        let Some(known) = known else { return false };
        let len = known.min(end) - offset;
        let place = Some(self.place(file, offset));
        out.push(Extent::new(offset, len, ExtentKind::Data).at(place));
        true
    }

    /// What lies where `range` begins. Its end bounds what is asked, not what is answered.
    fn find(
        &self,
        file: &OwnedFd,
        size: u64,
        Range { start: at, end }: Range<u64>,
        step: Step,
    ) -> io::Result<Found> {
        let data = |end| Found { kind: ExtentKind::Data, end };
        if at >= FAR || self.blind.load(Ordering::Relaxed) {
            return Ok(data(end));
        }
        let end = end.min(FAR);
        let generation = {
            let known = self.known.lock();
            if let Some(run) = known.runs.iter().find(|r| r.0 <= at && at < r.1) {
                return Ok(data(run.1));
            }
            known.generation
        };
        if self.in_memory && !step.has_holes && is_full(file, size)? {
            self.remember(generation, 0, size.min(FAR));
            return Ok(data(end));
        }
        // What was data a moment ago may be a hole by now; then it is read, as zeroes.
        let data_at = if step.at_data { Ok(at) } else { seek_data(file.as_fd(), at) };
        match data_at {
            Ok(next) if next > at => Ok(Found { kind: ExtentKind::Hole, end: next.min(FAR) }),
            Ok(_) => {
                let near = end.min(at.saturating_add(WALK));
                // Where runs are short, the kernel has walked one sooner than it was asked whether
                // all of a long one is there.
                let looks = self.in_memory && !step.is_short;
                let known = if looks { cached_until(file.as_fd(), at, near) } else { at };
                if known > at && known == near {
                    self.remember(generation, at, near);
                    return Ok(data(near));
                }
                let hole = match seek_hole(file.as_fd(), known) {
                    Ok(hole) if hole > at => hole,
                    // Another program shortened it, or punched a hole, between the two calls: in
                    // doubt, data.
                    Ok(_) | Err(Errno::NXIO) => return Ok(data(end)),
                    Err(e) => return Err(e.into()),
                };
                self.remember(generation, at, hole);
                Ok(data(hole))
            }
            Err(Errno::NXIO) => after_the_last_data(file, size, end),
            Err(Errno::INVAL | Errno::OPNOTSUPP | Errno::NOSYS) => {
                self.blind.store(true, Ordering::Relaxed);
                Ok(data(end))
            }
            Err(e) => Err(e.into()),
        }
    }

    fn remember(&self, generation: u64, start: u64, end: u64) {
        let mut known = self.known.lock();
        if known.generation != generation {
            return;
        }
        // A run that grew, or that was entered further on, takes its own slot again.
        let same = known.runs.iter().position(|r| r.0 < r.1 && r.0 <= end && start <= r.1);
        let slot = same.unwrap_or(known.oldest);
        if same.is_none() {
            known.oldest = (slot + 1) % RUNS;
        }
        if let Some(run) = known.runs.get_mut(slot) {
            *run = match same {
                Some(_) => (run.0.min(start), run.1.max(end)),
                None => (start, end),
            };
        }
    }
}

/// Whether the kernel says that all of `start..end` (not empty) is a hole of the file. In doubt,
/// no.
pub(crate) fn is_hole(file: BorrowedFd<'_>, start: u64, end: u64) -> bool {
    end <= FAR
        && match seek_data(file, start) {
            Ok(data) => data >= end,
            // The last hole; a file that was cut short has none.
            Err(Errno::NXIO) => {
                fstat(file).is_ok_and(|stat| u64::try_from(stat.st_size).is_ok_and(|n| n >= end))
            }
            Err(_) => false,
        }
}

/// Whether the file has a block for every byte, and so no hole.
fn is_full(file: &OwnedFd, size: u64) -> io::Result<bool> {
    let stat = fstat(file)?;
    let blocks = u64::try_from(stat.st_blocks).unwrap_or(0);
    Ok(size > 0 && blocks >= size.div_ceil(512))
}

/// There is no data from here on: a hole, unless another program cut the file short; then reading
/// must fail and not return zeroes.
fn after_the_last_data(file: &OwnedFd, size: u64, end: u64) -> io::Result<Found> {
    let now = fstat(file)?.st_size;
    let whole = u64::try_from(now).is_ok_and(|now| now >= size);
    let kind = if whole { ExtentKind::Hole } else { ExtentKind::Data };
    Ok(Found { kind, end })
}
