//! Further connections to a server that does not advertise multi-conn, where nothing is written.
//!
//! It may have one client at a time, and refuse the second or leave it waiting; it may give each
//! client a disk of its own. So after a failure no other attempt is made as long as there is a
//! connection, and a new connection is used only if it has the same bytes as another one: at the
//! beginning, where disks have their headers, at the end, and at places between, which are
//! different ones each time. All that is done in the background. Two disks that differ elsewhere
//! are not told apart: such a server has to be read over one connection.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use device::{Error, ErrorKind, Fault, Outcome};

use super::Shared;
use super::connection::SharedConnection;
use super::reconnecting::{PROOF, Refused, ask, wait_for};

/// Bytes at the beginning that are compared, in pieces.
const BEGINNING: u64 = 128 << 10;
/// Bytes in a piece, and how many pieces there are between the beginning and the end.
const PIECE: u64 = 4 << 10;
const BETWEEN: u64 = 30;

impl Shared {
    /// How long an attempt may take, where multi-conn is not advertised: one that waits for a
    /// server with one client at a time would block one that is needed.
    pub(super) fn at_most(&self) -> Option<Duration> {
        let is_extra = !self.promised && self.choose().is_some_and(|one| !one.is_over());
        is_extra.then_some(PROOF)
    }

    /// Judges a failed attempt to add a connection: without multi-conn, as long as another one
    /// works, no failure is worth another attempt.
    pub(super) fn doubted(&self, refused: Refused) -> Refused {
        if self.promised || self.choose().is_none_or(|connection| connection.is_over()) {
            return refused;
        }
        Refused::Alone(refused.error())
    }

    /// Of lost connections replaces one, if there is no other: further ones come when they help,
    /// and are compared then.
    pub(super) fn forget_others(&self, lost: &mut Vec<Arc<SharedConnection>>) {
        let mut list = self.list.lock();
        let lives = list.iter().any(|connection| !connection.is_over());
        let others = lost.split_off(usize::from(!lives).min(lost.len()));
        list.retain(|one| !others.iter().any(|other| Arc::ptr_eq(one, other)));
        drop(list);
        others.iter().for_each(|other| other.close());
    }

    /// Checks that the new connection has the same bytes as another one. If none is left, the
    /// canaries were the only check. Returns whether the reactor watches it by now.
    pub(super) fn compare(&self, new: &Arc<SharedConnection>) -> Result<bool, Refused> {
        if self.promised {
            return Ok(false);
        }
        let Some(old) = self.choose().filter(|old| !old.is_over()) else { return Ok(false) };
        // They have no lane's thread to drive them.
        self.watch().map_err(Refused::Useless)?;
        if !self.reconnects() {
            let watch = self.upstream.reactor().and_then(|reactor| reactor.add(new));
            watch.map_err(Refused::Useless)?;
        }
        let block = u64::from(self.session.blocks.minimum.max(1));
        let ranges = places(self.session.size, block, &RandomState::new());
        let until = Instant::now() + PROOF;
        let asked = [&old, new].map(|connection| ask(connection, ranges.clone()));
        let [mut theirs, mut ours] = [Vec::new(), Vec::new()];
        for (answers, asked) in [&mut theirs, &mut ours].into_iter().zip(&asked) {
            *answers = wait_for(asked, ranges.len(), until).map_err(Refused::Useless)?;
            answers.sort_by_key(|(at, _)| *at);
        }
        for ((_, was), (_, is)) in theirs.into_iter().zip(ours) {
            match (was, is) {
                (Ok(Outcome::Read(was)), Ok(Outcome::Read(is))) if *was == *is => {}
                (Ok(_), Ok(_)) => {
                    let action = "connect: the server gives each connection a different disk";
                    let error = Error::new(ErrorKind::Changed, Fault::Peer, action);
                    return Err(Refused::Alone(error.on(self.name())));
                }
                (Err(e), _) | (_, Err(e)) => return Err(Refused::Useless(e)),
            }
        }
        Ok(true)
    }
}

/// The ranges to compare, of an export of this many bytes in blocks of this many. One is at a
/// random place in each of [`BETWEEN`] equal parts, by `chance`: on many disks round offsets would
/// all be empty.
fn places(size: u64, block: u64, chance: &RandomState) -> Vec<Range<u64>> {
    let piece = PIECE.next_multiple_of(block);
    let last = size.saturating_sub(piece) / block * block;
    let beginning = (0..BEGINNING.div_ceil(piece)).map(|n| n * piece);
    let part = last / BETWEEN;
    let between =
        (0..BETWEEN).map(|n| (part * n + chance.hash_one(n) % part.max(1)) / block * block);
    let mut starts: Vec<_> = beginning.chain(between).chain([last]).collect();
    starts.sort_unstable();
    starts.dedup();
    let ranges = starts.into_iter().map(|start| start..size.min(start.saturating_add(piece)));
    ranges.filter(|range| range.start < range.end).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_beginning_and_the_end_are_compared_and_what_is_asked_for_is_there() {
        for (size, block) in
            [(0, 1), (1, 1), (5000, 1), (1 << 20, 512), (1 << 40, 4096), (1 << 30, 65536)]
        {
            let places = places(size, block, &RandomState::new());
            assert!(places.len() <= 63 && places.is_empty() == (size == 0), "{size}");
            for place in &places {
                assert!(place.start < place.end && place.end <= size);
                assert_eq!(place.start % block, 0);
            }
            let covered = |at: u64| places.iter().any(|place| place.contains(&at));
            assert!(size == 0 || covered(0) && covered(size - 1), "{size}");
            assert!(size < BEGINNING || (0..BEGINNING).step_by(512).all(covered), "{size}");
        }
    }

    #[test]
    fn other_places_are_compared_each_time_in_all_parts_of_the_disk() {
        const GIB: u64 = 1 << 30;
        let all = || places(GIB, 512, &RandomState::new()).into_iter();
        let far = || all().filter(|place| place.start >= GIB / 10).collect::<Vec<_>>();
        let (some, others) = (far(), far());
        assert!(some.iter().filter(|place| others.contains(place)).count() < 3, "{some:?}");
        for part in 1..10 {
            let here = |place: &Range<u64>| place.start / (GIB / 10) == part;
            assert!(some.iter().any(here) && others.iter().any(here), "{part}");
        }
    }
}
