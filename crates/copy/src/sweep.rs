//! Zeroing in advance: one fast zero over much of the target instead of a request for each hole.
//!
//! The cost is counted in requests. A sweep of the target takes as many as its length needs, and
//! [`PROBES`] more; zeroing each hole takes one a hole. Where the source has more holes than
//! that, or has no map, the target is swept; then neither its holes nor the zeroes found in its
//! data cost anything. A sweep never covers what is already handed out to workers, and nothing
//! beyond its start is handed out before it has ended: so no data can be overtaken by it.
//!
//! Sweeping needs the target's word that zeroing is fast. The word is tested on a range that must
//! be zeroed anyway, or a small one: if a request three times as long takes much longer, and so
//! again on another range, the target is writing zeroes, and sweeping would write everything
//! twice. Then, or when a fast zero is refused (which changes nothing), each hole is zeroed by
//! itself.
//!
//! A target that may be the source under another name is not swept (see `canary`).
//!
//! A sweep frees what the target occupies, as every zeroing does unless `--allocated` is asked
//! for; that sweeps too, but with requests that keep, or make, allocated what they zero. Nothing
//! outside the source's range, and nothing before the first hole, is touched.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use device::{Error, ErrorKind, Extent, Operation, Outcome, Result, ZeroFlags};

use crate::canary;
use crate::job::{Job, LOOK};
use crate::known::What;
use crate::plan::Stretch;
use crate::worker::cancelled;

/// Requests that test the target's word, if it is true.
const PROBES: u64 = 2;
/// How often it is tested before it is held untrue: a busy machine makes anything look slow.
const TESTS: usize = 2;
/// The longest range to test it on.
const PROBE: u64 = 16 << 20;
/// The range to test it on where none is known that must be zeroed.
const BLIND_PROBE: u64 = 1 << 20;
/// An answer that comes sooner than this is fast, whatever it is compared with.
const SOON: Duration = Duration::from_millis(25);
/// Requests of a sweep under way at a time.
const AT_ONCE: usize = 16;
/// How much of the target's map is read before the copy begins, in requests and extents.
const MAP_REQUESTS: usize = 8;
const MAP_EXTENTS: usize = 1024;

/// What the planner knows of the source from the place it has come to.
pub(crate) struct Ahead<'a> {
    /// The next stretches.
    pub(crate) stretches: &'a [Stretch],
    /// They reach to the end of the source.
    pub(crate) all: bool,
    /// The source has no map; what it has may be anything.
    pub(crate) blind: bool,
}

/// Decides whether to sweep, and does it. Runs in the planner's thread.
pub(crate) struct Sweep<'a> {
    job: &'a Job,
    /// Not yet done, and not found useless.
    open: bool,
    /// Nothing is handed out to workers yet.
    alone: bool,
}

/// How a fast zero ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Swept {
    Done,
    /// Nothing was changed.
    Refused,
}

impl<'a> Sweep<'a> {
    /// Reads the beginning of the target's map.
    pub(crate) fn new(job: &'a Job) -> Result<Self> {
        if job.zero.asks() {
            survey(job)?;
        }
        Ok(Self { job, open: !job.zero.skips() && job.zero.is_fast(), alone: false })
    }

    /// Whether it may still happen, so that units must not be handed out far in advance.
    pub(crate) fn is_open(&self) -> bool {
        self.open
    }

    /// Before anything of `ahead` is handed out: sweeps if that takes fewer requests.
    pub(crate) fn before(&mut self, ahead: &Ahead<'_>) -> Result<()> {
        let Some(first) = ahead.stretches.first().filter(|_| self.open) else { return Ok(()) };
        self.alone = first.start == 0;
        let looks = self.job.sizes.granularity.is_some();
        if ahead.blind {
            let all = first.start..self.job.size;
            let places = canary::spread(self.job, &all);
            return if looks { self.sweep(all, &[], &places) } else { Ok(()) };
        }
        let mut holes = self.holes(ahead.stretches);
        let (Some(begin), Some(last)) = (holes.first(), holes.last()) else { return Ok(()) };
        let end = if ahead.all { last.end } else { self.job.size };
        let range = begin.start..end;
        if holes.len() as u64 <= self.cost(&range) {
            return Ok(());
        }
        holes.sort_by_key(|r| std::cmp::Reverse(r.end - r.start));
        holes.truncate(TESTS);
        self.sweep(range, &holes, &canary::places(ahead.stretches))
    }

    /// Before the unit that begins at `start` is handed out: sweeps if the workers have found
    /// many zeroes in data.
    pub(crate) fn among(&mut self, start: u64) -> Result<()> {
        let rest = start..self.job.size;
        self.alone = false;
        if self.open && self.job.ranges.found() as u64 > self.cost(&rest) {
            let places = canary::spread(self.job, &rest);
            return self.sweep(rest, &[], &places);
        }
        Ok(())
    }

    /// The ranges that need a request each.
    fn holes(&self, stretches: &[Stretch]) -> Vec<Range<u64>> {
        let mut holes: Vec<Range<u64>> = Vec::new();
        for stretch in stretches.iter().filter(|s| s.zero) {
            let parts = self.job.zero.parts(stretch.start..stretch.end());
            let mut needed = parts.iter().filter(|p| !matches!(p.what, What::Zero(_)));
            let Some(first) = needed.next() else { continue };
            let end = needed.next_back().unwrap_or(first).end;
            match holes.last_mut() {
                Some(hole) if hole.end == first.start => hole.end = end,
                _ => holes.push(first.start..end),
            }
        }
        holes
    }

    /// How many requests a sweep takes.
    fn cost(&self, range: &Range<u64>) -> u64 {
        let probes = if self.job.test_fast_zero { PROBES } else { 0 };
        (range.end - range.start).div_ceil(self.longest()) + probes
    }

    fn longest(&self) -> u64 {
        let block = u64::from(self.job.target.info().blocks.minimum).max(1);
        let longest = self.job.target.device().longest_effect();
        (longest - longest % block).max(block)
    }

    /// Zeroes all of a range, if that is fast; `holes` are the ranges to see it on. Not if the
    /// bytes at `places` leave it open whether the target is the source itself.
    fn sweep(
        &mut self,
        range: Range<u64>,
        holes: &[Range<u64>],
        places: &[Range<u64>],
    ) -> Result<()> {
        self.open = false;
        let Some(range) = self.trimmed(range) else { return Ok(()) };
        if !canary::are_apart(self.job, places)? {
            return Ok(());
        }
        if self.job.test_fast_zero && !self.is_fast(&range, holes)? {
            self.job.zero.not_fast();
            return Ok(());
        }
        self.all(&range)
    }

    /// Whether the target is as fast as it says, seen on holes, or on the beginning of the range
    /// to be swept.
    fn is_fast(&self, range: &Range<u64>, holes: &[Range<u64>]) -> Result<bool> {
        let short = |start: u64, len, end: u64| start..end.min(start.saturating_add(len));
        let mut probes: Vec<_> =
            holes.iter().filter_map(|hole| self.trimmed(hole.clone())).collect();
        probes.iter_mut().for_each(|probe| *probe = short(probe.start, PROBE, probe.end));
        if probes.is_empty() {
            let first = short(range.start, BLIND_PROBE, range.end);
            let second = short(first.end, BLIND_PROBE, range.end);
            probes = vec![first, second];
        }
        for probe in probes.iter().filter(|probe| !probe.is_empty()) {
            match self.look_at(probe)? {
                Some((first, second)) if !is_fast(first, second) => {}
                answer => return Ok(answer.is_some()),
            }
        }
        Ok(false)
    }

    /// Whole blocks of the target, without the zeroes that it is known to begin and end with.
    fn trimmed(&self, range: Range<u64>) -> Option<Range<u64>> {
        let info = self.job.target.info();
        let block = u64::from(info.blocks.minimum);
        let start = range.start.next_multiple_of(block);
        let end = if range.end >= info.size { info.size } else { range.end - range.end % block };
        if start >= end {
            return None;
        }
        let parts = self.job.zero.parts(start..end);
        let mut needed = parts.iter().filter(|p| !matches!(p.what, What::Zero(_)));
        let first = needed.next()?;
        Some(first.start..needed.next_back().unwrap_or(first).end)
    }

    /// Zeroes a range in two requests, and how long they took; `None` if one was refused.
    fn look_at(&self, range: &Range<u64>) -> Result<Option<(Duration, Duration)>> {
        let cut = quarter(range, u64::from(self.job.target.info().blocks.minimum));
        let mut took = [Duration::ZERO; 2];
        for (took, part) in took.iter_mut().zip([range.start..cut, cut..range.end]) {
            if part.is_empty() {
                continue;
            }
            let begin = Instant::now();
            if self.run(vec![part].into())? != Swept::Done {
                return Ok(None);
            }
            *took = begin.elapsed();
        }
        Ok(Some((took[0], took[1])))
    }

    /// Zeroes all of a range, whatever it takes.
    fn all(&self, range: &Range<u64>) -> Result<()> {
        let mut parts = VecDeque::new();
        let (mut start, longest) = (range.start, self.longest());
        while start < range.end {
            let end = range.end.min(start.saturating_add(longest));
            parts.push_back(start..end);
            start = end;
        }
        if self.run(parts)? == Swept::Refused {
            self.job.zero.not_fast();
        }
        Ok(())
    }

    /// Fast zeroes, several under way at a time, until one is refused. Returns when none is
    /// under way; if the copy stops at once, with an error, so that nothing is handed out that one
    /// of them could overtake.
    fn run(&self, mut parts: VecDeque<Range<u64>>) -> Result<Swept> {
        let answers = Arc::<Answers>::default();
        let (mut under_way, mut refused, mut failed) = (0, false, None);
        loop {
            while under_way < AT_ONCE
                && !refused
                && failed.is_none()
                && let Some(part) = parts.pop_front()
            {
                self.start(part, &answers);
                under_way += 1;
            }
            if under_way == 0 {
                break;
            }
            for (part, outcome) in answers.take() {
                under_way -= 1;
                match outcome {
                    Ok(_) => self.job.zero.made(part),
                    Err(e) if is_refusal(&e) => refused = true,
                    Err(e) => {
                        failed.get_or_insert(e.on(&self.job.target.info().name).at(part.start));
                    }
                }
            }
            if self.job.cancel.is_cancelled() || self.job.queue.is_stopped() {
                return Err(cancelled());
            }
        }
        match failed {
            Some(e) => Err(e),
            None if refused => Ok(Swept::Refused),
            None => Ok(Swept::Done),
        }
    }

    fn start(&self, part: Range<u64>, answers: &Arc<Answers>) {
        let flags = ZeroFlags { fast_only: true, ..self.job.zero.flags() };
        let (offset, len) = (part.start, part.end - part.start);
        let answers = answers.clone();
        let (touch, alone) = (self.job.progress.touching(), self.alone);
        self.job.target.submit(
            Operation::Zero { offset, len, flags },
            Box::new(move |outcome| {
                if alone && outcome.as_ref().is_err_and(is_refusal) {
                    touch.was_nothing();
                }
                answers.put(part, outcome);
            }),
        );
    }
}

fn is_refusal(e: &Error) -> bool {
    e.kind() == ErrorKind::NotFast || e.is_unsupported()
}

/// Whether a target is believed whose answers took so long, the second for three times as much.
fn is_fast(first: Duration, second: Duration) -> bool {
    second < SOON || second < first.saturating_mul(2)
}

/// About a quarter into a range, at a multiple of the largest piece that divides it well; its
/// end if it is too short to be cut.
fn quarter(range: &Range<u64>, block: u64) -> u64 {
    let quarter = (range.end - range.start) / 4;
    let grain = [256 << 10, 64 << 10, 4 << 10, 512, 1].into_iter();
    let grain = grain.map(|g: u64| g.max(block)).find(|g| *g <= quarter);
    grain.map_or(range.end, |grain| range.start + quarter - quarter % grain)
}

/// What came of requests, for the thread that waits for them.
#[derive(Default)]
struct Answers {
    list: Mutex<Vec<(Range<u64>, Result<Outcome>)>>,
    more: Condvar,
}

impl Answers {
    fn put(&self, part: Range<u64>, outcome: Result<Outcome>) {
        self.list.lock().unwrap_or_else(PoisonError::into_inner).push((part, outcome));
        self.more.notify_one();
    }

    /// What has come; waits a moment if nothing has.
    fn take(&self) -> Vec<(Range<u64>, Result<Outcome>)> {
        let mut list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        if list.is_empty() {
            list = self.more.wait_timeout(list, LOOK).unwrap_or_else(PoisonError::into_inner).0;
        }
        std::mem::take(&mut list)
    }
}

/// Reads the target's map from its beginning, as far as a few requests reach.
fn survey(job: &Job) -> Result<()> {
    let info = job.target.info();
    let block = u64::from(info.blocks.minimum);
    let end = job.size.next_multiple_of(block).min(info.size);
    let (mut at, mut count) = (0, 0);
    let mut extents: Vec<Extent> = Vec::new();
    for _ in 0..MAP_REQUESTS {
        if at >= end || count >= MAP_EXTENTS {
            break;
        }
        extents.clear();
        match job.target.resolve(at, end - at, MAP_EXTENTS, &mut extents) {
            Ok(()) => {}
            // A map that cannot be had proves nothing.
            Err(e) if e.is_unsupported() => break,
            Err(e) => return Err(e.on(&info.name).at(at)),
        }
        count += extents.len();
        for extent in &extents {
            job.zero.mapped(extent.start..extent.end(), extent.kind.reads_zero(), block);
            at = extent.end();
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_whose_time_grows_with_the_length_is_not_believed() {
        let ms = Duration::from_millis;
        assert!(is_fast(ms(5), ms(5)), "5 ms for anything");
        assert!(!is_fast(ms(20), ms(60)), "80 ms for a MiB");
        assert!(is_fast(ms(100), ms(120)), "far away");
        assert!(is_fast(ms(1), ms(24)), "too short to tell");
        assert!(!is_fast(ms(1), ms(500)));
    }

    #[test]
    fn a_probe_is_cut_where_the_target_likes_it() {
        let mib = 1 << 20;
        assert_eq!(quarter(&(mib..2 * mib), 1), mib + (256 << 10));
        assert_eq!(quarter(&(0..100_000), 1), 24_576);
        assert_eq!(quarter(&(4096..8192), 4096), 8192);
        assert_eq!(quarter(&(10..12), 1), 12);
    }
}
