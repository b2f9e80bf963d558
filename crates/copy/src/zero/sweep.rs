//! Zeroing in advance: one fast zero over much of the target instead of a request for each hole.
//!
//! The cost is counted in requests. A sweep of the target takes as many as its length needs, and
//! [`PROBES`] more; zeroing each hole takes one a hole. Where the source has more holes than
//! that, or has no map, the target is swept; then neither its holes nor the zeroes found in its
//! data cost anything. A sweep never covers what is already handed out to workers, and nothing
//! beyond its start is handed out before it has ended: so no data can be overtaken by it.
//!
//! A target is swept only if it advertises that zeroing is fast. That is tested on a range that
//! must be zeroed anyway, or a small one: if a request three times as long takes much longer, and
//! so again on another range, the target is writing zeroes, and sweeping would write everything
//! twice. Then, or when a fast zero is refused (which changes nothing), each hole is zeroed by
//! itself.
//!
//! While the test runs, the units before and after the tested ranges are handed out, and those that
//! touch them are held back; if the target proves fast, the rest is swept.
//!
//! A sweep changes what the source was not asked about yet. So a target is swept only if the two
//! ends are proven to share no bytes ([`crate::Options::apart`]): the source may be an overlay over
//! the target, and shows its bytes wherever it has none of its own. No sample of their bytes can
//! show that it is not. Only a copy of the whole source sweeps: the ranges that a list leaves alone
//! lie between those to zero.
//!
//! A request of a sweep that is lost with its path is never repeated: a peer that is still alive
//! may execute it late, over data that was written meanwhile. Each hole is zeroed by itself then,
//! and what lies under the lost request is copied once more in the end.
//!
//! A sweep frees what the target occupies, as every zeroing does unless `--allocated` is asked
//! for; that sweeps too, but with requests that keep, or make, allocated what they zero. Nothing
//! outside the source's range, and nothing before the first hole, is touched.

use std::ops::Range;
use std::thread::Scope;

use device::{Extent, Result};

use super::act::Zeroes;
use super::known::TargetState;
use super::requests::Requests;
use super::speed::{TESTS, Test};
use crate::account::CopyAccount;
use crate::pair::Pair;
use crate::queue::{Push, WAITING};
use crate::unit::{Stretch, Unit};

/// Requests of a test, if the target is fast.
const PROBES: u64 = 2;
/// How much of the target's map is read before the copy begins, in requests and extents.
const MAP_REQUESTS: usize = 8;
const MAP_EXTENTS: usize = 1024;

/// What the planner knows of the source ahead.
pub(crate) struct Ahead<'a> {
    /// The next stretches.
    pub(crate) stretches: &'a [Stretch],
    /// They reach to the end of the source.
    pub(crate) all: bool,
    /// The source has no map; it may hold anything.
    pub(crate) blind: bool,
}

/// Decides whether to sweep, and does it; and hands units out to the workers as that allows. Runs
/// in the planner's thread.
pub(crate) struct Sweep<'scope, 'env> {
    requests: Requests<'scope>,
    scope: &'scope Scope<'scope, 'env>,
    /// Neither done nor found useless yet.
    open: bool,
    /// A test that runs, and the sweep that it is for.
    tested: Option<(Test, Plan)>,
    /// Units that wait for the end of the test.
    held: Vec<Unit>,
}

/// A sweep that may come.
struct Plan {
    end: u64,
    /// The holes that it covers, in order; none if they are not known.
    holes: Vec<Range<u64>>,
}

impl<'scope, 'env> Sweep<'scope, 'env> {
    /// For a copy of the `whole` source reads the beginning of the target's map; any other is not
    /// swept.
    pub(crate) fn new(
        pair: &'scope Pair,
        account: &'scope CopyAccount,
        zeroes: &'scope Zeroes,
        whole: bool,
        scope: &'scope Scope<'scope, 'env>,
    ) -> Result<Self> {
        let (requests, policy) = (Requests::new(pair, account, zeroes), &zeroes.policy);
        if whole && policy.asks() {
            survey(&requests)?;
        }
        let open = whole && pair.apart && !policy.skips() && policy.is_fast();
        Ok(Self { requests, scope, open, tested: None, held: Vec::new() })
    }

    fn pair(&self) -> &'scope Pair {
        self.requests.pair
    }

    fn zeroes(&self) -> &'scope Zeroes {
        self.requests.zeroes
    }

    /// Whether it may still happen, so that units must not be handed out far in advance.
    pub(crate) fn is_open(&self) -> bool {
        self.open || self.tested.is_some()
    }

    /// Before anything of `ahead` is handed out: sweeps if that takes fewer requests.
    pub(crate) fn before(&mut self, ahead: &Ahead<'_>) -> Result<()> {
        let Some(first) = ahead.stretches.first().filter(|_| self.open) else { return Ok(()) };
        let looks = self.pair().sizes.granularity.is_some();
        if ahead.blind {
            let all = first.start..self.pair().size;
            return if looks { self.sweep(all, Vec::new()) } else { Ok(()) };
        }
        let holes = self.holes(ahead.stretches);
        let (Some(begin), Some(last)) = (holes.first(), holes.last()) else { return Ok(()) };
        let end = if ahead.all { last.end } else { self.pair().size };
        let range = begin.start..end;
        if holes.len() as u64 <= self.cost(&range) {
            return Ok(());
        }
        self.sweep(range, holes)
    }

    /// Gives a unit to the workers, unless it must wait for the end of a test; before that, sweeps
    /// from there on if the workers have found many zeroes in data, or a test succeeded. While a
    /// sweep may still come, only a few units wait.
    pub(crate) fn hand_out(&mut self, unit: Unit) -> Result<Push> {
        self.judge(unit.start, false)?;
        let rest = unit.start..self.pair().size;
        if self.open && self.zeroes().waiting.found() as u64 > self.cost(&rest) {
            self.sweep(rest, Vec::new())?;
        }
        if self.tested.as_ref().is_some_and(|(test, _)| test.meets(unit.start, unit.end)) {
            self.requests.account.queue.hold(&unit);
            self.held.push(unit);
            return Ok(Push::Taken);
        }
        self.requests.not_alone();
        let few = self.pair().sizes.workers.saturating_mul(2);
        Ok(self.requests.account.queue.push(unit, if self.is_open() { few } else { WAITING }))
    }

    /// Everything was handed out, except what a test still holds back.
    pub(crate) fn end(mut self) -> Result<()> {
        self.judge(self.pair().size, true)
    }

    /// If the test has ended, or after waiting for it: releases what it held back, and sweeps what
    /// is not handed out, from `start` on, if the target is fast and that still pays.
    fn judge(&mut self, start: u64, wait: bool) -> Result<()> {
        let Some((test, _)) = &self.tested else { return Ok(()) };
        let Some(verdict) = test.verdict(wait) else { return Ok(()) };
        let plan = self.tested.take().map(|(_, plan)| plan);
        if !self.held.is_empty() {
            self.requests.not_alone();
        }
        let fast = verdict?;
        self.requests.account.queue.release(std::mem::take(&mut self.held));
        if !fast {
            self.zeroes().policy.not_fast();
            return Ok(());
        }
        plan.map_or(Ok(()), |plan| self.rest(&plan, start))
    }

    /// Sweeps what is left of a plan.
    fn rest(&self, plan: &Plan, start: u64) -> Result<()> {
        let range = start..plan.end.max(start);
        let (left, range) = if plan.holes.is_empty() {
            (u64::MAX, range)
        } else {
            let left = plan.holes.iter().filter_map(|h| self.trimmed(h.start.max(start)..h.end));
            let left: Vec<Range<u64>> = left.collect();
            let begin = left.first().map_or(range.end, |hole| hole.start);
            (left.len() as u64, begin..range.end)
        };
        let Some(range) = self.trimmed(range) else { return Ok(()) };
        let needed = (range.end - range.start).div_ceil(self.requests.longest());
        if left > needed { self.requests.all(&range) } else { Ok(()) }
    }

    /// The ranges that need a request each.
    fn holes(&self, stretches: &[Stretch]) -> Vec<Range<u64>> {
        let mut holes: Vec<Range<u64>> = Vec::new();
        for stretch in stretches.iter().filter(|s| s.zero) {
            let parts = self.zeroes().policy.parts(stretch.start..stretch.end());
            let mut needed = parts.iter().filter(|p| !matches!(p.what, TargetState::Zero(_)));
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
        let probes = if self.zeroes().policy.tests { PROBES } else { 0 };
        (range.end - range.start).div_ceil(self.requests.longest()) + probes
    }

    /// Zeroes all of a range, to cover `holes`, if that is fast: at once, or when a test has shown
    /// it.
    fn sweep(&mut self, range: Range<u64>, holes: Vec<Range<u64>>) -> Result<()> {
        self.open = false;
        let Some(range) = self.trimmed(range) else { return Ok(()) };
        if !self.zeroes().policy.tests {
            return self.requests.all(&range);
        }
        let mut longest: Vec<_> = holes.iter().filter_map(|h| self.trimmed(h.clone())).collect();
        longest.sort_by_key(|r| std::cmp::Reverse(r.end - r.start));
        longest.truncate(TESTS);
        let test = Test::start(&self.requests, &range, longest, self.scope)?;
        test.wait_a_moment();
        let start = range.start;
        self.tested = Some((test, Plan { end: range.end, holes }));
        self.judge(start, false)
    }

    /// The whole blocks of a range, without known zeroes at its beginning and end.
    fn trimmed(&self, range: Range<u64>) -> Option<Range<u64>> {
        let info = self.pair().target.info();
        let block = u64::from(info.blocks.minimum);
        let start = range.start.next_multiple_of(block);
        let end = if range.end >= info.size { info.size } else { range.end - range.end % block };
        if start >= end {
            return None;
        }
        let parts = self.zeroes().policy.parts(start..end);
        let mut needed = parts.iter().filter(|p| !matches!(p.what, TargetState::Zero(_)));
        let first = needed.next()?;
        Some(first.start..needed.next_back().unwrap_or(first).end)
    }
}

/// Reads the target's map from its beginning, as far as a few requests reach.
fn survey(requests: &Requests<'_>) -> Result<()> {
    let (pair, policy) = (requests.pair, &requests.zeroes.policy);
    let info = pair.target.info();
    let block = u64::from(info.blocks.minimum);
    let end = pair.size.next_multiple_of(block).min(info.size);
    let (mut at, mut count) = (0, 0);
    for _ in 0..MAP_REQUESTS {
        if at >= end || count >= MAP_EXTENTS {
            break;
        }
        let mut extents: Vec<Extent> = Vec::new();
        match pair.target.resolve(at, end - at, MAP_EXTENTS, &mut extents) {
            Ok(()) => {}
            // A map that cannot be read proves nothing.
            Err(e) if e.is_unsupported() => break,
            Err(e) => return Err(e.on(&info.name).at(at)),
        }
        count += extents.len();
        for extent in &extents {
            policy.mapped(extent.start..extent.end(), extent.kind.reads_zero(), block);
            at = extent.end();
        }
    }
    Ok(())
}
