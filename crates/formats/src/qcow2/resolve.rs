//! The map for callers: kind, layer and place of each range.

use std::time::Instant;

use device::{
    Abilities, Extent, ExtentKind, Home, Operation, Outcome, Place, Result, StatusRun, Stored,
    merge_extent, merge_run,
};

use super::dirty;
use super::image::Qcow2Image;
use super::map::{Run, Walk, What};
use crate::kit::{self, confused};

/// The context with the depth in the chain, as in qemu-nbd: 0 nowhere, 1 here.
pub(super) const DEPTH: &str = "qemu:allocation-depth";
/// Stretches of at least so many bytes are looked up below too, to find reserved but unwritten
/// space. Shorter ones are not worth a request each.
const WORTH_ASKING: u64 = 4 << 20;
/// Extents to ask for below at a time: as many as a memory disk returns at once.
const BELOW: usize = 64;

impl Qcow2Image {
    /// The map of a range: at most `max` (≥ 1) extents, perhaps not to its end. `None`: that would
    /// have to wait.
    pub(super) async fn resolve(
        &self,
        (offset, len): (u64, u64),
        max: usize,
        walk: &mut Walk<'_>,
    ) -> Result<Option<Vec<Extent>>> {
        let (mut found, end) = (Vec::new(), offset + len);
        let mut at = offset;
        // One more than wanted shows that the last one has ended.
        while at < end && found.len() <= max {
            let known = match self.map.run(at, end, walk).await? {
                Some(run) => self.extents(run, max, walk).await?,
                None => None,
            };
            let Some(known) = known.filter(|known| !known.is_empty()) else {
                // The part known already is an answer too.
                return Ok((!found.is_empty()).then_some(found));
            };
            at = known.last().map_or(end, Extent::end);
            known.into_iter().for_each(|extent| merge_extent(&mut found, extent));
        }
        found.truncate(max);
        Ok(Some(found))
    }

    /// A run as extents, of at least its beginning.
    async fn extents(
        &self,
        run: Run,
        max: usize,
        walk: &mut Walk<'_>,
    ) -> Result<Option<Vec<Extent>>> {
        let Run { start, len, what } = run;
        let one = |kind| Extent::new(start, len, kind);
        let at = |kind, file, offset, stored| {
            let home = Home { file, offset, stored };
            Extent { home: Some(home), ..one(kind) }
        };
        let file = self.home_file();
        Ok(Some(match what {
            What::Absent => return self.resolve_backing(run, max, walk).await,
            What::Zero => vec![one(ExtentKind::Hole)],
            What::ZeroAt(offset) => vec![at(ExtentKind::Zero, file, offset, Stored::Plain)],
            What::Packed { offset, len: packed, .. } => {
                let len = u32::try_from(packed).unwrap_or(u32::MAX);
                vec![at(ExtentKind::Data, 0, offset, Stored::Packed { len })]
            }
            What::Plain(offset) => {
                let all = at(ExtentKind::Data, file, offset, Stored::Plain);
                return self.resolve_plain(all, offset, walk).await;
            }
        }))
    }

    async fn resolve_backing(
        &self,
        run: Run,
        max: usize,
        walk: &mut Walk<'_>,
    ) -> Result<Option<Vec<Extent>>> {
        let hole = Extent::new(run.start, run.len, ExtentKind::Hole);
        let Some((backing, there)) = self.backed(run.start, run.len) else {
            // The range beyond the end of a shorter backing image counts as in it.
            let depth = u16::from(self.backing.is_some());
            return Ok(Some(vec![Extent { depth, ..hole }.absent()]));
        };
        let found = kit::resolve(backing, (run.start, there), max, walk.may_wait()).await?;
        Ok(found.map(|found| found.into_iter().map(Extent::deeper).collect()))
    }

    /// The map of plain bytes at `offset`: with their place, and without space that is only
    /// reserved.
    async fn resolve_plain(
        &self,
        all: Extent,
        offset: u64,
        walk: &mut Walk<'_>,
    ) -> Result<Option<Vec<Extent>>> {
        let there = self.stored(offset, all.len);
        let split = all.start + there;
        let beyond = all.part(split, all.end());
        let beyond = beyond.map(|part| Extent { kind: ExtentKind::Zero, ..part });
        let Some(all) = all.part(all.start, split) else {
            return Ok(Some(beyond.into_iter().collect()));
        };
        let Abilities { extents, observed, .. } = self.data.info().abilities;
        let flat = self.data.info().flat.as_ref().map(|flat| flat.advanced(offset));
        let asks = extents && !observed && (there >= WORTH_ASKING || flat.is_none());
        // A slow map below that returns next to nothing is not asked again.
        let asks = asks && self.below.pass(there) < there;
        let began = Instant::now();
        if !asks {
            return Ok(Some(std::iter::once(all.at(flat)).chain(beyond).collect()));
        }
        // If it has to wait, a short stretch is not worth it.
        let may_wait = walk.may_wait() && there >= WORTH_ASKING;
        let below = kit::resolve(&self.data, (offset, there), BELOW, may_wait).await?;
        let Some(pieces) = below else {
            let short = there < WORTH_ASKING;
            return Ok(short.then(|| std::iter::once(all.at(flat)).chain(beyond).collect()));
        };
        self.below.told(began.elapsed(), &pieces);
        let part = |piece: Extent| {
            let start = all.start + piece.start.checked_sub(offset)?;
            let part = all.part(start, start.saturating_add(piece.len))?;
            let kind = if piece.kind.reads_zero() { ExtentKind::Zero } else { ExtentKind::Data };
            let place = match (piece.place, &flat) {
                (Some(place), _) => Some(place),
                (None, Some(flat)) => Some(flat.advanced(start - all.start)),
                (None, None) => None,
            };
            let place: Option<Place> = place.filter(|_| kind == ExtentKind::Data);
            Some(Extent { kind, ..part }.at(place))
        };
        let mut found: Vec<_> = pieces.into_iter().filter_map(part).collect();
        if found.last().is_some_and(|last| last.end() == split) {
            found.extend(beyond);
        }
        Ok(Some(found))
    }

    /// The status of a range in a context.
    pub(super) async fn status(
        &self,
        context: &str,
        (offset, len): (u64, u64),
        max: usize,
    ) -> Result<Vec<StatusRun>> {
        let mut walk = Walk::waiting(&self.pool);
        if let Some(bitmap) = self.bitmaps.iter().find(|bitmap| *bitmap.context == *context) {
            return dirty::runs(&self.map.tables, bitmap, (offset, len), max, &mut walk).await;
        }
        if context != DEPTH {
            return Err(device::Error::unsupported("status of another context"));
        }
        let (mut at, end, mut found) = (offset, offset + len, Vec::new());
        while at < end && found.len() <= max {
            let run = self.map.run(at, end, &mut walk).await?.ok_or_else(confused)?;
            let known = match run.what {
                What::Absent => self.depth_below(run, max).await?,
                _ => vec![StatusRun { len: run.len, value: 1 }],
            };
            for run in known {
                at += run.len;
                merge_run(&mut found, run);
            }
        }
        found.truncate(max);
        Ok(found)
    }

    /// The depth in the chain of an unallocated range.
    async fn depth_below(&self, run: Run, max: usize) -> Result<Vec<StatusRun>> {
        let here = |value| vec![StatusRun { len: run.len, value }];
        let Some((backing, there)) = self.backed(run.start, run.len) else {
            return Ok(here(if self.backing.is_some() { 2 } else { 0 }));
        };
        if !backing.info().contexts.iter().any(|context| &**context == DEPTH) {
            // A disk that is no image: all of it is allocated.
            return Ok(vec![StatusRun { len: there, value: 2 }]);
        }
        let status =
            Operation::Status { context: DEPTH.into(), offset: run.start, len: there, max };
        let Outcome::Status(found) = kit::ask(backing, status).await? else {
            return Err(confused());
        };
        let deeper = |run: StatusRun| {
            let value = if run.value == 0 { 0 } else { run.value.saturating_add(1) };
            StatusRun { value, ..run }
        };
        Ok(found.into_iter().map(deeper).collect())
    }
}
