//! `nofilter`: passes everything unchanged. For tests, and to measure the cost of a filter itself.

use device::{Filter, Filtered, Over, Passes};

use crate::FilterKind;

pub(crate) const KIND: FilterKind = FilterKind {
    word: "nofilter",
    summary: "passes everything through unchanged",
    keeps_disk: false,
    example: "serve --filter=nofilter memory 1M --run 'nbdinfo --size \"$uri\"'",
    open: |_, below, _| Ok(Filtered::device(NoFilter, below)),
    ..FilterKind::PLAIN
};

struct NoFilter;

impl Filter for NoFilter {
    fn describe(&self, over: &mut Over) {
        over.passes = Passes::ALL;
    }
}
