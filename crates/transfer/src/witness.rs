//! Sees what is copied of a disk or a shard of it, and has the digests of each stretch when that is
//! durable: so each byte of the source is read once, whatever is killed.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use copy::Witness;
use device::Result;
use runtime::{Mutex, RangeSet};

use crate::digest::{ContentDigest, DigestKind, DigestedRange, Digester};

/// A stretch that is durable, or several adjoining ones that are zero.
pub(crate) struct DurableStretch {
    /// With its digest, as if it were a disk.
    pub(crate) range: DigestedRange,
    /// The digests of its blocks, one after the other; none of zeroes.
    pub(crate) blocks: Vec<u8>,
}

/// The digests of the stretches of a shard that are being copied.
pub(crate) struct StretchWitness {
    kind: DigestKind,
    /// Bytes in a stretch.
    stretch: u64,
    /// The shard, or all of a disk.
    range: Range<u64>,
    /// The digest of a stretch of zeroes.
    zero: ContentDigest,
    state: Mutex<State>,
}

runtime::debug_as!(StretchWitness);

#[derive(Default)]
struct State {
    /// By their first byte, those of which data was seen, or a part.
    open: BTreeMap<u64, Arc<Digester>>,
    /// Whole stretches that are zero by the map.
    zero: RangeSet,
    /// What is durable, and not noted.
    durable: RangeSet,
    /// What is noted.
    noted: RangeSet,
}

impl StretchWitness {
    /// Of a shard, of which this much is noted already.
    pub(crate) fn new(
        kind: DigestKind,
        (stretch, range): (u64, Range<u64>),
        noted: RangeSet,
    ) -> Result<Self> {
        let zero = zero_digest(kind, stretch)?;
        let state = State { noted, ..State::default() };
        Ok(Self { kind, stretch, range, zero, state: Mutex::new(state) })
    }

    /// The stretch that a byte lies in.
    fn around(&self, byte: u64) -> Range<u64> {
        let start = byte / self.stretch * self.stretch;
        start..start.saturating_add(self.stretch).min(self.range.end)
    }

    /// The digester of a stretch, unless that is noted.
    fn digester(&self, stretch: &Range<u64>) -> Option<Arc<Digester>> {
        let mut state = self.state.lock();
        if state.noted.covering(stretch.start).is_some() {
            return None;
        }
        let new = || Arc::new(Digester::new(self.kind).keeping_blocks());
        Some(state.open.entry(stretch.start).or_insert_with(new).clone())
    }

    /// These ranges have become durable: the stretches that now are as a whole, which are to be
    /// noted.
    pub(crate) fn durable(&self, ranges: &RangeSet) -> Result<Vec<DurableStretch>> {
        let mut state = self.state.lock();
        state.durable.add_all(ranges);
        let mut found = Vec::new();
        let starts: Vec<u64> = state.open.keys().copied().collect();
        for start in starts {
            let stretch = self.around(start);
            let covered = state.durable.covering(start).is_some_and(|all| all.end >= stretch.end);
            let Some(digester) = covered.then(|| state.open.remove(&start)).flatten() else {
                continue;
            };
            let len = stretch.end - stretch.start;
            let digest = digester.finish(len)?;
            let digest = (digest != self.zero_of(len)?).then_some(digest);
            state.close(&stretch);
            let blocks = digest.map(|_| digester.take_blocks()).unwrap_or_default();
            found.push(DurableStretch { range: DigestedRange { range: stretch, digest }, blocks });
        }
        let zero: Vec<_> = state.zero.iter().collect();
        for range in zero {
            let durable: Vec<_> = state.durable.within(range.clone()).collect();
            for part in durable {
                let start = part.start.next_multiple_of(self.stretch);
                let end = match part.end == self.range.end {
                    true => part.end,
                    false => part.end / self.stretch * self.stretch,
                };
                if start < end {
                    state.close(&(start..end));
                    state.zero.remove(start..end);
                    let range = DigestedRange { range: start..end, digest: None };
                    found.push(DurableStretch { range, blocks: Vec::new() });
                }
            }
        }
        Ok(found)
    }

    /// All that was to be copied is durable.
    pub(crate) fn rest(&self) -> Result<Vec<DurableStretch>> {
        self.durable(&std::iter::once(self.range.clone()).filter(|all| !all.is_empty()).collect())
    }

    /// Whether all is noted.
    pub(crate) fn is_whole(&self) -> bool {
        self.state.lock().noted.gaps(self.range.clone()).next().is_none()
    }

    fn zero_of(&self, len: u64) -> Result<ContentDigest> {
        if len == self.stretch { Ok(self.zero) } else { zero_digest(self.kind, len) }
    }
}

/// The digest of so many zeroes.
fn zero_digest(kind: DigestKind, len: u64) -> Result<ContentDigest> {
    let digester = Digester::new(kind);
    digester.zeroes(0..len);
    digester.finish(len)
}

impl State {
    fn close(&mut self, range: &Range<u64>) {
        self.durable.remove(range.clone());
        self.noted.add(range.clone());
    }
}

impl Witness for StretchWitness {
    fn data(&self, offset: u64, bytes: &[u8]) {
        let (mut at, mut rest) = (offset, bytes);
        while !rest.is_empty() {
            let stretch = self.around(at);
            let room = usize::try_from(stretch.end.saturating_sub(at)).unwrap_or(usize::MAX);
            let (now, later) = rest.split_at(room.clamp(1, rest.len()));
            if let Some(digester) = self.digester(&stretch) {
                digester.data(at - stretch.start, now);
            }
            at += now.len() as u64;
            rest = later;
        }
    }

    fn zeroes(&self, range: Range<u64>) {
        let end = range.end.min(self.range.end);
        let mut at = range.start;
        while at < end {
            let stretch = self.around(at);
            // As many whole stretches as there are, of which nothing else was seen.
            if at == stretch.start && end >= stretch.end {
                let last =
                    if end == self.range.end { end } else { end / self.stretch * self.stretch };
                let mut state = self.state.lock();
                let met = state.open.range(at..last).next().map_or(last, |(start, _)| *start);
                if met > at {
                    let news: Vec<_> = state.noted.gaps(at..met).collect();
                    for gap in news {
                        state.zero.add(gap);
                    }
                    at = met;
                    continue;
                }
            }
            let part = stretch.end.min(end);
            if let Some(digester) = self.digester(&stretch) {
                digester.zeroes(at - stretch.start..part - stretch.start);
            }
            at = part;
        }
    }
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init, reason = "ranges are what is compared")]
mod tests {
    use super::*;

    const STRETCH: u64 = 4 << 20;

    fn kind() -> DigestKind {
        DigestKind::default()
    }

    fn set(ranges: &[Range<u64>]) -> RangeSet {
        ranges.iter().cloned().collect()
    }

    fn whole(bytes: &[u8]) -> ContentDigest {
        let digester = Digester::new(kind());
        digester.data(0, bytes);
        digester.finish(bytes.len() as u64).unwrap()
    }

    #[test]
    fn a_stretch_is_noted_once_when_all_of_it_is_durable() {
        let range = STRETCH..6 * STRETCH - 100;
        let witness =
            StretchWitness::new(kind(), (STRETCH, range.clone()), RangeSet::default()).unwrap();
        let bytes: Vec<u8> = (0..STRETCH).map(|n| u8::try_from(n % 251).unwrap()).collect();
        // In two parts, the second of which comes first, and shares its bytes with the next
        // stretch.
        let half = usize::try_from(STRETCH / 2).unwrap();
        witness.zeroes(2 * STRETCH + 100..5 * STRETCH + 10);
        witness.data(STRETCH + STRETCH / 2, &[&bytes[half..], &[0; 100]].concat());
        assert!(witness.durable(&set(&[STRETCH..2 * STRETCH - 1])).unwrap().is_empty());
        witness.data(STRETCH, &bytes[..half]);
        let found = witness.durable(&set(&[2 * STRETCH - 1..3 * STRETCH])).unwrap();
        assert_eq!(found[0].range.range, STRETCH..2 * STRETCH);
        assert_eq!(found[0].range.digest, Some(whole(&bytes)));
        assert_eq!(found[0].blocks.len(), 64 * 32);
        let zero = DigestedRange { range: 2 * STRETCH..3 * STRETCH, digest: None };
        assert_eq!(found[1].range, zero);
        assert!(!witness.is_whole());
        // What is shown once more changes nothing.
        witness.data(STRETCH, &[7; 512]);
        witness.data(5 * STRETCH + 10, &vec![9; usize::try_from(STRETCH - 110).unwrap()]);
        let found = witness.rest().unwrap();
        let ranges: Vec<_> = found.iter().map(|found| found.range.range.clone()).collect();
        assert_eq!(ranges, [5 * STRETCH..range.end, 3 * STRETCH..5 * STRETCH]);
        assert!(found[0].range.digest.is_some() && found[1].range.digest.is_none());
        assert!(witness.is_whole());
        assert!(witness.rest().unwrap().is_empty());
    }
}
