//! Canaries: digests of a few ranges that were read or written, by which a disk is recognised after
//! a reconnect.
//!
//! A canary is *firm* when its bytes are known to be durable, and must then be there whatever
//! happened to the server. One that is not durable may be lost: if it differs, that is a loss, and
//! not another disk. A range that is about to be changed stops being a canary.

use std::collections::hash_map::DefaultHasher;
use std::hash::Hasher;
use std::ops::Range;

use runtime::Mutex;

/// Canaries at most.
const MOST: usize = 64;
/// Bytes of a range in the digest, unless the smallest block is longer.
const LONG: u64 = 4 << 10;

/// The canaries of an export.
#[derive(Debug)]
pub(crate) struct Canaries {
    long: u64,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    canaries: Vec<Canary>,
    /// Changes in flight, with their ranges.
    changes: Vec<(u64, Range<u64>)>,
    next: u64,
    /// How many ranges could have been canaries.
    seen: usize,
    /// How many changes were begun, and how many of them are known to be durable.
    begun: u64,
    durable: u64,
    /// How often non-durable changes were in doubt.
    doubts: u64,
}

/// What is known of a canary.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Known {
    /// Nothing yet: the read or write is in flight. Afterwards it is firm, or not.
    Nothing {
        firm: bool,
    },
    /// Its bytes, unless the server lost them.
    Soft,
    Firm,
}

/// A range, and the digest of its bytes.
#[derive(Clone, Debug)]
pub(crate) struct Canary {
    id: u64,
    range: Range<u64>,
    digest: u64,
    known: Known,
}

/// A flush in flight: what it makes durable.
#[derive(Debug)]
pub(crate) struct Flushing {
    ids: Vec<u64>,
    begun: Option<u64>,
    doubts: u64,
}

fn digest(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(bytes);
    hasher.finish()
}

fn meet(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.start < b.end && b.start < a.end
}

impl Canary {
    /// Its range.
    pub(crate) fn range(&self) -> Range<u64> {
        self.range.clone()
    }

    /// Whether these are the right bytes.
    pub(crate) fn is(&self, bytes: &[u8]) -> bool {
        self.digest == digest(bytes)
    }

    pub(crate) fn is_firm(&self) -> bool {
        self.known == Known::Firm
    }
}

impl Canaries {
    /// For an export whose smallest block has this many bytes.
    pub(crate) fn new(block: u64) -> Self {
        Self { long: LONG.max(block), state: Mutex::default() }
    }

    fn short<'a>(&self, bytes: &'a [u8]) -> &'a [u8] {
        let long = usize::try_from(self.long).unwrap_or(usize::MAX);
        bytes.get(..long).unwrap_or(bytes)
    }

    /// A read begins. Returns the number of the canary that it becomes, if any.
    pub(crate) fn read(&self, offset: u64, len: u64) -> Option<u64> {
        let mut state = self.state.lock();
        let range = offset..offset.saturating_add(len.min(self.long));
        if range.is_empty() || !state.samples() || state.is_changing(&range) {
            return None;
        }
        if state.canaries.iter().any(|canary| meet(&canary.range, &range)) {
            return None;
        }
        let known = Known::Nothing { firm: state.begun == state.durable };
        let id = state.number();
        state.add(Canary { id, range, digest: 0, known });
        Some(id)
    }

    /// The read returned these bytes.
    pub(crate) fn fill(&self, id: u64, bytes: &[u8]) {
        let digest = digest(self.short(bytes));
        if let Some(canary) = self.state.lock().canaries.iter_mut().find(|canary| canary.id == id) {
            canary.digest = digest;
            canary.known = if canary.known == (Known::Nothing { firm: true }) {
                Known::Firm
            } else {
                Known::Soft
            };
        }
    }

    /// A change begins, with these bytes as its result, if known. Returns its number.
    pub(crate) fn change(&self, offset: u64, len: u64, bytes: Option<&[u8]>) -> u64 {
        let mut state = self.state.lock();
        let range = offset..offset.saturating_add(len);
        state.canaries.retain(|canary| !meet(&canary.range, &range));
        let alone = !state.is_changing(&range);
        let id = state.number();
        state.begun += 1;
        state.changes.push((id, range));
        if let Some(bytes) = bytes.filter(|bytes| alone && !bytes.is_empty())
            && state.samples()
        {
            let range = offset..offset.saturating_add(len.min(self.long));
            let (digest, known) = (digest(self.short(bytes)), Known::Nothing { firm: false });
            state.add(Canary { id, range, digest, known });
        }
        id
    }

    /// The change was acknowledged; it is durable by itself, or not.
    pub(crate) fn changed(&self, id: u64, durable: bool) {
        let mut state = self.state.lock();
        state.end_change(id);
        if let Some(canary) = state.canaries.iter_mut().find(|canary| canary.id == id) {
            canary.known = if durable { Known::Firm } else { Known::Soft };
        }
    }

    /// The operation with that number failed.
    pub(crate) fn forget(&self, id: u64) {
        let mut state = self.state.lock();
        state.end_change(id);
        state.canaries.retain(|canary| canary.id != id);
    }

    /// A flush begins.
    pub(crate) fn flush(&self) -> Flushing {
        let state = self.state.lock();
        let soft = state.canaries.iter().filter(|canary| canary.known == Known::Soft);
        let ids = soft.map(|canary| canary.id).collect();
        // Changes in flight may come after it.
        let begun = state.changes.is_empty().then_some(state.begun);
        Flushing { ids, begun, doubts: state.doubts }
    }

    /// The flush has succeeded.
    pub(crate) fn flushed(&self, flushing: &Flushing) {
        let mut state = self.state.lock();
        if state.doubts != flushing.doubts {
            return;
        }
        state.durable = flushing.begun.unwrap_or(0).max(state.durable);
        for canary in &mut state.canaries {
            if canary.known == Known::Soft && flushing.ids.contains(&canary.id) {
                canary.known = Known::Firm;
            }
        }
    }

    /// Non-durable changes may be lost. A flush in flight no longer proves anything.
    pub(crate) fn doubt(&self) {
        self.state.lock().doubts += 1;
    }

    /// Those that can be checked.
    pub(crate) fn all(&self) -> Vec<Canary> {
        let state = self.state.lock();
        let known = state.canaries.iter().filter(|c| !matches!(c.known, Known::Nothing { .. }));
        known.cloned().collect()
    }

    /// This one was lost.
    pub(crate) fn lost(&self, canary: &Canary) {
        self.state.lock().canaries.retain(|one| one.id != canary.id);
    }

    /// Whether it can still be checked: nothing was changed there meanwhile.
    pub(crate) fn still_has(&self, canary: &Canary) -> bool {
        self.state.lock().canaries.iter().any(|one| one.id == canary.id)
    }
}

impl State {
    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn is_changing(&self, range: &Range<u64>) -> bool {
        self.changes.iter().any(|(_, other)| meet(other, range))
    }

    fn end_change(&mut self, id: u64) {
        if let Some(at) = self.changes.iter().position(|(other, _)| *other == id) {
            self.changes.swap_remove(at);
        }
    }

    /// Whether the next range is to be a canary: all at first, then fewer and fewer, so that they
    /// lie apart in time.
    fn samples(&mut self) -> bool {
        self.seen = self.seen.wrapping_add(1);
        self.seen.is_multiple_of(self.apart())
    }

    fn apart(&self) -> usize {
        (self.seen / MOST).max(1).next_power_of_two()
    }

    fn add(&mut self, canary: Canary) {
        if self.canaries.len() >= MOST {
            let place = (self.seen / self.apart()) % MOST;
            if let Some(old) = self.canaries.get_mut(place) {
                *old = canary;
            }
            return;
        }
        self.canaries.push(canary);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn firm(canaries: &Canaries) -> Vec<(u64, bool)> {
        canaries.all().iter().map(|c| (c.range.start, c.is_firm())).collect()
    }

    #[test]
    fn what_is_written_is_firm_when_a_flush_that_began_later_has_succeeded() {
        let canaries = Canaries::new(1);
        let first = canaries.change(0, 512, Some(&[1; 512]));
        let early = canaries.flush();
        assert!(canaries.all().is_empty());
        canaries.changed(first, false);
        canaries.flushed(&early);
        assert_eq!(firm(&canaries), [(0, false)]);
        let flushing = canaries.flush();
        let second = canaries.change(4096, 512, Some(&[1; 512]));
        canaries.changed(second, false);
        canaries.flushed(&flushing);
        assert_eq!(firm(&canaries), [(0, true), (4096, false)]);
        let third = canaries.change(8192, 512, Some(&[1; 512]));
        canaries.changed(third, true);
        assert_eq!(firm(&canaries).last(), Some(&(8192, true)), "FUA");
        let flushing = canaries.flush();
        canaries.doubt();
        canaries.flushed(&flushing);
        assert_eq!(firm(&canaries).get(1), Some(&(4096, false)), "the server came back meanwhile");
    }

    #[test]
    fn what_is_changed_is_a_canary_no_more() {
        let canaries = Canaries::new(1);
        let read = canaries.read(0, 1 << 20).unwrap();
        canaries.fill(read, &[0; 1 << 20]);
        assert_eq!(firm(&canaries), [(0, true)]);
        let zero = canaries.change(4095, 1, None);
        assert!(canaries.all().is_empty());
        assert!(canaries.read(0, 4096).is_none(), "it may be the old bytes or the new");
        canaries.changed(zero, false);
        let read = canaries.read(0, 4096).unwrap();
        canaries.fill(read, &[0; 4096]);
        assert_eq!(firm(&canaries), [(0, false)], "a server may forget the zeroes");
        // Of overlapping writes in flight it is not known which comes last.
        let one = canaries.change(0, 10, Some(&[1; 10]));
        let other = canaries.change(5, 10, Some(&[2; 10]));
        canaries.changed(one, false);
        canaries.changed(other, false);
        assert!(canaries.all().is_empty());
    }

    #[test]
    fn there_are_64_at_most_from_all_over_the_time() {
        let canaries = Canaries::new(1);
        for i in 0..100_000u64 {
            if let Some(id) = canaries.read(i << 20, 4096) {
                canaries.fill(id, &[7; 4096]);
            }
        }
        let all = canaries.all();
        assert_eq!(all.len(), MOST);
        assert!(all.iter().any(|c| c.range.start > 60_000 << 20));
        assert!(all.iter().any(|c| c.range.start < 60_000 << 20));
        assert!(all.iter().all(|c| c.is(&[7; 4096]) && !c.is(&[8; 4096])));
    }
}
