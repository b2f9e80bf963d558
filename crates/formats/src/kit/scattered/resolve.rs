//! The map for callers: kind, layer and place of each range.

use std::time::Instant;

use device::{
    Abilities, Edge, Extent, ExtentKind, Home, Info, Operation, Outcome, Place, Result, StatusRun,
    Stored, merge_extent, merge_run,
};

use super::{Asks, Lies, Packed, Run, STEPS, Scattered, Walk};
use crate::kit::{ask, confused, resolve};

/// The context with the depth in the chain, as in qemu-nbd: 0 nowhere, 1 here.
pub(crate) const DEPTH: &str = "qemu:allocation-depth";
/// Stretches of at least so many bytes are worth a request below.
const WORTH_ASKING: u64 = 4 << 20;
/// Extents to ask for below at a time: as many as a memory disk returns at once.
const BELOW: usize = 64;

impl Scattered {
    /// The map of a range: at most `max` (≥ 1) extents, perhaps not to its end. `None`: that would
    /// have to wait.
    pub(super) async fn resolve(
        &self,
        (offset, len): (u64, u64),
        max: usize,
        walk: &mut Walk,
    ) -> Result<Option<Vec<Extent>>> {
        let (mut found, mut at, end) = (Vec::new(), offset, offset + len);
        // One more than wanted shows that the last one has ended.
        while at < end && found.len() <= max {
            let known = match self.run(at, end - at, walk).await? {
                Some(run) => self.extents(at, run, max, walk.may_wait).await?,
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
        at: u64,
        run: Run,
        max: usize,
        may_wait: bool,
    ) -> Result<Option<Vec<Extent>>> {
        let one = |kind| Extent::new(at, run.len, kind);
        let (kind, offset, stored) = match run.lies {
            Lies::Hole => return Ok(Some(vec![one(ExtentKind::Hole)])),
            Lies::Beneath => return self.resolve_backing(at, run.len, max, may_wait).await,
            Lies::Zero(offset) => (ExtentKind::Zero, offset, self.atlas.form()),
            Lies::At(offset) => (ExtentKind::Data, offset, self.atlas.form()),
            Lies::Packed(Packed { offset, len, .. }) => {
                let len = u32::try_from(len).unwrap_or(u32::MAX);
                (ExtentKind::Data, offset, Stored::Packed { len })
            }
        };
        let (number, file) = self.atlas.file(at).ok_or_else(confused)?;
        let home = Some(Home { file: number, offset, stored });
        let all = Extent { home, ..one(kind) };
        match (run.lies, self.atlas.asks(at)) {
            (Lies::At(_), Asks::AsItIs) => resolve_raw(all, file, offset, max, may_wait).await,
            (Lies::At(_), asks) => self.resolve_plain(all, (file, offset), asks, may_wait).await,
            _ => Ok(Some(vec![all])),
        }
    }

    async fn resolve_backing(
        &self,
        at: u64,
        len: u64,
        max: usize,
        may_wait: bool,
    ) -> Result<Option<Vec<Extent>>> {
        let Some((backing, there)) = self.backed(at, len) else {
            // In the context, the range beyond the end of a shorter backing image counts as in it.
            let depth = u16::from(self.backing.is_some() && has_depth(&self.info));
            let hole = Extent { depth, ..Extent::new(at, len, ExtentKind::Hole) };
            return Ok(Some(vec![hole.absent()]));
        };
        let found = resolve(backing, (at, there), max, may_wait).await?;
        Ok(found.map(|found| found.into_iter().map(Extent::deeper).collect()))
    }

    /// The map of plain bytes at `offset`: with their place, and without space that is only
    /// reserved.
    async fn resolve_plain(
        &self,
        all: Extent,
        (file, offset): (&Edge, u64),
        asks: Asks,
        may_wait: bool,
    ) -> Result<Option<Vec<Extent>>> {
        let there = self.stored(file, offset, all.len);
        let split = all.start + there;
        let beyond = all.part(split, all.end());
        let beyond = beyond.map(|part| Extent { kind: ExtentKind::Zero, ..part });
        let Some(all) = all.part(all.start, split) else {
            return Ok(Some(beyond.into_iter().collect()));
        };
        let Abilities { extents, observed, .. } = file.info().abilities;
        let flat = file.info().flat.as_ref().map(|flat| flat.advanced(offset));
        let (is_asked, must_know) = match asks {
            Asks::Always => (true, true),
            // A slow map below that returns next to nothing is not asked again.
            Asks::Long => {
                let is_long = there >= WORTH_ASKING;
                (is_long || flat.is_none(), is_long)
            }
            Asks::Never | Asks::AsItIs => (false, false),
        };
        let is_asked = is_asked && extents && !observed;
        if !is_asked || asks == Asks::Long && self.cost.pass(there) >= there {
            return Ok(Some(std::iter::once(all.at(flat)).chain(beyond).collect()));
        }
        let began = Instant::now();
        // If it has to wait, a short stretch is not worth it.
        let below = resolve(file, (offset, there), BELOW, may_wait && must_know).await?;
        let Some(pieces) = below else {
            let all = std::iter::once(all.at(flat)).chain(beyond);
            return Ok((!must_know).then(|| all.collect()));
        };
        if asks == Asks::Long {
            self.cost.told(began.elapsed(), &pieces);
        }
        let part = |piece: Extent| {
            let start = all.start + piece.start.checked_sub(offset)?;
            let part = all.part(start, start.saturating_add(piece.len))?;
            let kind = if piece.kind.reads_zero() { ExtentKind::Zero } else { ExtentKind::Data };
            let known = flat.as_ref().map(|flat| flat.advanced(start - all.start));
            let place: Option<Place> = piece.place.or(known);
            Some(Extent { kind, ..part }.at(place.filter(|_| kind == ExtentKind::Data)))
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
        if context != DEPTH {
            return self.atlas.status(context, (offset, len), max).await;
        }
        let (mut at, end, mut found) = (offset, offset + len, Vec::new());
        let mut walk = Walk::new(true, STEPS);
        while at < end && found.len() <= max {
            let Some(run) = self.run(at, end - at, &mut walk).await? else { break };
            let known = match run.lies {
                Lies::Beneath => self.depth_below(at, run.len, max).await?,
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
    async fn depth_below(&self, at: u64, len: u64, max: usize) -> Result<Vec<StatusRun>> {
        let Some((backing, there)) = self.backed(at, len) else {
            let value = if self.backing.is_some() { 2 } else { 0 };
            return Ok(vec![StatusRun { len, value }]);
        };
        if !has_depth(backing.info()) {
            // A disk that is no image: all of it is allocated.
            return Ok(vec![StatusRun { len: there, value: 2 }]);
        }
        let status = Operation::Status { context: DEPTH.into(), offset: at, len: there, max };
        let Outcome::Status(found) = ask(backing, status).await? else {
            return Err(confused());
        };
        let deeper = |run: StatusRun| {
            let value = if run.value == 0 { 0 } else { run.value.saturating_add(1) };
            StatusRun { value, ..run }
        };
        Ok(found.into_iter().map(deeper).collect())
    }
}

fn has_depth(info: &Info) -> bool {
    info.contexts.iter().any(|context| &**context == DEPTH)
}

/// The map of bytes that are as in a raw disk: only the file knows its holes.
async fn resolve_raw(
    all: Extent,
    file: &Edge,
    offset: u64,
    max: usize,
    may_wait: bool,
) -> Result<Option<Vec<Extent>>> {
    let found = resolve(file, (offset, all.len), max, may_wait).await?;
    let above = |extent: Extent| {
        let by = extent.start.checked_sub(offset)?;
        let home = all.home.map(|home| home.advanced(by));
        Some(Extent { start: all.start + by, depth: 0, home, ..extent })
    };
    Ok(found.map(|found| found.into_iter().filter_map(above).collect()))
}
