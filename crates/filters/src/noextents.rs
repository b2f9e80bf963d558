//! `noextents`: reports the whole disk as data.
//!
//! For devices whose map is slow, and for tests of clients. It changes every status context of the
//! disk, never its data.

use device::{
    Admission, Client, Done, Edge, Error, Extent, ExtentKind, Filter, Filtered, Info, Operation,
    Outcome, Passes, Result,
};

use crate::FilterKind;

pub(crate) const KIND: FilterKind = FilterKind {
    word: "noextents",
    summary: "hides the map of the disk: all of it is reported as data",
    reads_only: false,
    keeps_disk: false,
    params: &[],
    reaches: device::Reach::nothing,
    example: "serve --filter=noextents memory 1M --run 'diskferry map \"$uri\"'",
    open: |_, below, _| Ok(Filtered::device(NoExtents::new(below))),
};

struct NoExtents {
    info: Info,
    below: Edge,
}

impl NoExtents {
    fn new(below: Edge) -> Self {
        let mut info = Info::over(&below);
        info.abilities.extents = false;
        info.contexts.clear();
        Self { info, below }
    }

    fn all(&self, offset: u64, len: u64) -> Extent {
        let place = self.below.info().flat.as_ref().map(|flat| flat.advanced(offset));
        Extent::new(offset, len, ExtentKind::Data).at(place)
    }
}

impl Filter for NoExtents {
    fn info(&self) -> &Info {
        &self.info
    }

    fn below(&self) -> &Edge {
        &self.below
    }

    fn run(&self, operation: Operation, done: Done) {
        match operation {
            Operation::Resolve { offset, len, max: _ } => {
                done(Ok(Outcome::Extents(vec![self.all(offset, len)])));
            }
            Operation::Status { .. } => done(Err(Error::unsupported("status: it is hidden"))),
            other @ (Operation::Flush
            | Operation::Prefetch { .. }
            | Operation::Read { .. }
            | Operation::Take { .. }
            | Operation::Trim { .. }
            | Operation::Write { .. }
            | Operation::Zero { .. }) => self.below.submit(other, done),
        }
    }

    fn for_client(&self, below: Edge, _client: &Client, _admission: Admission) -> Self {
        Self::new(below)
    }

    fn passes(&self) -> Passes {
        Passes::ALL
    }

    fn resolve_now(&self, at: u64, len: u64, _max: usize, out: &mut Vec<Extent>) -> Result<bool> {
        out.push(self.all(at, len));
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use device::model::Model;

    use super::*;
    use crate::kit::tested::put;

    #[test]
    fn a_hole_is_reported_as_data() {
        let disk = put("noextents", crate::kit::tested::simple(Arc::new(Model::new(1 << 20))), &[])
            .unwrap();
        assert!(!disk.info().abilities.extents);
        let mut map = Vec::new();
        disk.resolve(100, 1000, 5, &mut map).unwrap();
        assert_eq!((map.len(), map[0].start, map[0].len), (1, 100, 1000));
        assert!(map[0].kind == ExtentKind::Data);
    }
}
