//! The planner: streams the ranges to copy once, cut into units of work.
//!
//! It asks the source for its map, many extents a request and ahead of the copying, and follows a
//! list where there is one. Workers never see what it leaves out. A map that costs more than it
//! saves is queried no more, or seldom: ranges that are not queried are read. So is a file, also
//! one that this machine serves, in which holes of a few KiB lie between data: one long read costs
//! less than many short ones, and the zeroes are found in what was read.

use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::Scope;
use std::time::Instant;

use device::{Extent, ExtentKind, MapCost, Result};

use crate::cut::{Cutter, Grid};
use crate::job::Job;
use crate::plan::Span;
use crate::queue::Push;
use crate::unit::Stretch;
use crate::zero::canary;
use crate::zero::sweep::{Ahead, Sweep};

/// Extents asked for at a time: few at first, so that the workers start.
const FIRST: usize = 64;
const MANY: usize = 1024;
/// Bytes read to measure what reading costs.
const SAMPLE: u64 = 256 << 10;
/// Most answers that are merged.
const SHORT: usize = 8;
/// Bytes of an extent, on average, up to which holes of a file are cheaper to read than to leave
/// out: a read and two searches of the file are saved for each.
const TOOTH: u64 = 8 << 10;
/// Most bytes that are read without the map because of that: a long hole may begin there.
const COMB: u64 = 16 << 20;

/// Streams the units into the queue until the end or until the copy stops, and has the target
/// zeroed in advance where that pays.
pub(crate) fn plan(job: &Job) -> Result<()> {
    std::thread::scope(|scope| Planner::new(job, scope)?.run())
}

struct Planner<'scope, 'env> {
    job: &'scope Job,
    sweep: Sweep<'scope, 'env>,
    cutter: Cutter,
    /// Found, and not handed out.
    stretches: Vec<Stretch>,
    /// Nothing has been handed out yet.
    first: bool,
    /// What the source's map costs.
    cost: MapCost,
    comb: Comb,
}

/// A file whose last answers were of short extents.
#[derive(Debug, Default)]
struct Comb {
    /// Bytes to be read before the map is asked again.
    left: u64,
    /// How many they were the last time.
    last: u64,
}

impl Comb {
    /// Of the next `len` bytes, how many are read without asking.
    fn pass(&mut self, len: u64) -> u64 {
        let passed = self.left.min(len);
        self.left -= passed;
        passed
    }

    /// The map said this. What it is trusted to go on like that doubles each time that it did.
    fn told(&mut self, extents: &[Extent]) {
        let bytes = extents.iter().map(|extent| extent.len).fold(0, u64::saturating_add);
        let is_comb = extents.len() >= FIRST && bytes / extents.len() as u64 <= TOOTH;
        self.last = if is_comb { self.last.saturating_mul(2).max(bytes).min(COMB) } else { 0 };
        self.left = self.last;
    }
}

impl<'scope, 'env> Planner<'scope, 'env> {
    fn new(job: &'scope Job, scope: &'scope Scope<'scope, 'env>) -> Result<Self> {
        Ok(Self {
            job,
            sweep: Sweep::new(&job.pair, &job.account, &job.zeroes, job.whole, scope)?,
            cutter: Cutter::new(job.pair.sizes.unit, job.zeroes.policy.writes()),
            stretches: Vec::new(),
            first: true,
            cost: MapCost::default(),
            comb: Comb::default(),
        })
    }

    fn run(mut self) -> Result<()> {
        for span in &self.job.spans {
            let went = if span.zero { self.zero(span) } else { self.look_at(&span.range) };
            if let Push::Stopped = went? {
                return Ok(());
            }
        }
        self.sweep.end()?;
        self.job.account.queue.close();
        Ok(())
    }

    /// A span that the list says reads as zeroes.
    fn zero(&mut self, span: &Span) -> Result<Push> {
        if self.first
            && let Some(data) = self.job.spans.iter().find(|s| !s.zero)
        {
            canary::read_first(&self.job.pair, &self.job.account.cancel, data.range.clone())?;
        }
        let Range { start, end } = span.range;
        self.found(Stretch { start, len: end - start, zero: true, place: None });
        self.hand_out()
    }

    /// A span that the source's map describes.
    fn look_at(&mut self, range: &Range<u64>) -> Result<Push> {
        let (pair, skips) = (&self.job.pair, self.job.zeroes.policy.skips());
        let no_map = self.job.no_extents || !pair.source.info().abilities.extents;
        let mut blind = no_map;
        let mut grid = Grid::new(pair.sizes.grid, range);
        let (mut at, mut extents) = (range.start, Vec::new());
        while at < range.end {
            let first = self.first && !skips;
            // While a sweep may still come, short answers are merged, to see further ahead.
            for _ in 0..if self.sweep.is_open() || first { SHORT } else { 1 } {
                blind = self.look(no_map, at..range.end, &mut extents)?;
                for extent in extents.drain(..) {
                    at = extent.end();
                    grid.align(extent).into_iter().flatten().for_each(|s| self.found(s));
                }
                let enough = self.stretches.len() >= FIRST / 2;
                let data = self.stretches.iter().any(|s| !s.zero);
                if at >= range.end || enough || !self.sweep.is_open() && data {
                    break;
                }
            }
            let data = self.stretches.iter().find(|s| !s.zero);
            if first
                && self.stretches.iter().any(|s| s.zero)
                && let Some(data) = data
            {
                // A hole may be zeroed before any data is read, but not if the source cannot be
                // read.
                canary::read_first(pair, &self.job.account.cancel, data.start..data.end())?;
            }
            let all = at >= range.end;
            self.sweep.before(&Ahead { stretches: &self.stretches, all, blind })?;
            if let Push::Stopped = self.hand_out()? {
                return Ok(Push::Stopped);
            }
        }
        Ok(Push::Taken)
    }

    /// The extents at the beginning of a range; true if the source was not asked.
    fn look(&mut self, no_map: bool, range: Range<u64>, out: &mut Vec<Extent>) -> Result<bool> {
        let (start, len) = (range.start, range.end - range.start);
        let source = &self.job.pair.source;
        let unasked = if no_map { len } else { self.cost.pass(len).max(self.comb.pass(len)) };
        if unasked > 0 {
            let flat = source.info().flat.as_ref();
            let place = flat.map(|flat| flat.advanced(start));
            out.push(Extent::new(start, unasked, ExtentKind::Data).at(place));
            return Ok(true);
        }
        let max = if self.first || self.comb.last > 0 { FIRST } else { MANY };
        let (began, epoch) = (Instant::now(), source.device().epoch());
        let mut extents: Vec<Extent> = Vec::new();
        let asked = source.resolve(start, len, max, &mut extents);
        asked.map_err(|e| e.on(&source.info().name).at(start))?;
        if let Some(sums) = &self.job.sums {
            let holes = extents.iter().filter(|extent| extent.kind.reads_zero());
            holes.for_each(|hole| sums.saw(hole.start..hole.end(), epoch, source.device().epoch()));
        }
        self.cost.told(began.elapsed(), &extents);
        if self.finds_teeth() {
            self.comb.told(&extents);
        }
        if self.cost.wants_rate()
            && let Some(data) = extents.iter().find(|extent| !extent.kind.reads_zero())
        {
            self.measure(data)?;
        }
        out.extend(extents);
        Ok(false)
    }

    /// Whether the source is a file, in which reading a hole costs no more than zeroing memory, or
    /// near, and holes that are read are found again. Elsewhere each byte that is read is moved.
    fn finds_teeth(&self) -> bool {
        let (pair, source) = (&self.job.pair, self.job.pair.source.info());
        let is_cheap = source.flat.is_some() || source.abilities.near;
        is_cheap && pair.sizes.granularity.is_some_and(|g| g <= TOOTH)
    }

    /// Measures what reading costs, before a map is judged to cost more.
    fn measure(&self, data: &Extent) -> Result<()> {
        let len = data.len.min(SAMPLE);
        let began = Instant::now();
        let source = &self.job.pair.source;
        let read = source.read(&mut vec![0; usize::try_from(len).unwrap_or(0)], data.start);
        read.map_err(|e| e.on(&source.info().name).at(data.start))?;
        self.cost.read(len, began.elapsed());
        Ok(())
    }

    /// Notes a stretch. One that continues the last one, in its file too, is merged with it.
    fn found(&mut self, stretch: Stretch) {
        if let Some(witness) = self.job.witness.as_ref().filter(|_| stretch.zero) {
            witness.zeroes(stretch.start..stretch.end());
        }
        match self.stretches.last_mut() {
            Some(last) if last.goes_on(&stretch) => last.len += stretch.len,
            _ => self.stretches.push(stretch),
        }
    }

    /// Hands out all that was found: the next answer may take a while.
    fn hand_out(&mut self) -> Result<Push> {
        self.first = false;
        for stretch in self.stretches.drain(..) {
            let shares = self.job.shares.load(Relaxed);
            for unit in self.cutter.add(stretch, shares) {
                if let Push::Stopped = self.sweep.hand_out(unit)? {
                    return Ok(Push::Stopped);
                }
            }
        }
        match self.cutter.finish() {
            Some(unit) => self.sweep.hand_out(unit),
            None => Ok(Push::Taken),
        }
    }
}
