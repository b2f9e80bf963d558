//! `noextents`: reports the whole disk as data.
//!
//! For devices whose map is slow, and for tests of clients. It changes every status context of the
//! disk, never its data.

use device::{
    Done, Edge, Error, Extent, ExtentKind, Filter, Filtered, Operation, Outcome, Over, Passes,
    Result,
};

use crate::FilterKind;

pub(crate) const KIND: FilterKind = FilterKind {
    word: "noextents",
    summary: "hides the disk's map: all of it is reported as data",
    keeps_disk: false,
    example: "serve --filter=noextents memory 1M --run 'diskferry map \"$uri\"'",
    open: |_, below, _| Ok(Filtered::device(NoExtents, below)),
    ..FilterKind::PLAIN
};

struct NoExtents;

fn all(below: &Edge, offset: u64, len: u64) -> Extent {
    let place = below.info().flat.as_ref().map(|flat| flat.advanced(offset));
    Extent::new(offset, len, ExtentKind::Data).at(place)
}

impl Filter for NoExtents {
    fn describe(&self, over: &mut Over) {
        over.info.abilities.extents = false;
        over.info.contexts.clear();
        over.passes = Passes::ALL;
    }

    fn run(&self, over: &Over, operation: Operation, done: Done) {
        match operation {
            Operation::Resolve { offset, len, max: _ } => {
                done(Ok(Outcome::Extents(vec![all(&over.below, offset, len)])));
            }
            Operation::Status { .. } => done(Err(Error::unsupported("status: it is hidden"))),
            other => over.below.submit(other, done),
        }
    }

    fn resolve_now(
        &self,
        over: &Over,
        (offset, len): (u64, u64),
        _max: usize,
        out: &mut Vec<Extent>,
    ) -> Result<bool> {
        out.push(all(&over.below, offset, len));
        Ok(true)
    }
}
