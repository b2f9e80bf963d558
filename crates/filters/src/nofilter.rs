//! `nofilter`: passes everything unchanged. For tests, and to measure the cost of a filter itself.

use device::{Admission, Client, Done, Edge, Filter, Filtered, Info, Operation, Passes};

use crate::FilterKind;

pub(crate) const KIND: FilterKind = FilterKind {
    word: "nofilter",
    summary: "lets everything pass as it is",
    reads_only: false,
    keeps_disk: false,
    params: &[],
    reaches: device::Reach::nothing,
    example: "serve --filter=nofilter memory 1M --run 'nbdinfo --size \"$uri\"'",
    open: |_, below, _| Ok(Filtered::device(NoFilter { info: Info::over(&below), below })),
};

struct NoFilter {
    info: Info,
    below: Edge,
}

impl Filter for NoFilter {
    fn info(&self) -> &Info {
        &self.info
    }

    fn below(&self) -> &Edge {
        &self.below
    }

    fn run(&self, operation: Operation, done: Done) {
        // Whatever it is.
        self.below.submit(operation, done);
    }

    fn for_client(&self, below: Edge, _client: &Client, _admission: Admission) -> Self {
        Self { info: Info::over(&below), below }
    }

    fn passes(&self) -> Passes {
        Passes::ALL
    }
}
