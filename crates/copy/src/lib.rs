//! The copy engine: raw bytes from any device to any device, and from a stream ([`stream()`]).
//!
//! A planner streams the map of the source once, or follows a list, and cuts it into units; workers
//! take units, each over a lane of its own to either end, and move every stretch by the cheapest
//! means both ends allow. Holes are never read, and zeroes are not written where the target is
//! known to read as zeroes, or, where zeroing would be writing, is found to. What a list leaves out
//! is left alone: never read, zeroed or swept.
//!
//! It promises that a copy reported as done is complete: the first failure stops everything and is
//! reported together with the ranges that are not known to be copied. It never takes a failed read
//! for zeroes. It reopens nothing, and repeats only what a device below that reconnects may have
//! lost: what a target may have forgotten is copied once more (`ledger`), and what was read of a
//! source that was then lost and came back is read again, and has to be the same (`again`). It
//! changes nothing before the beginning of the source has been read, and in a target that may be
//! the source itself only ranges that were read.
//!
//! A [`Witness`] sees every byte that is copied, also of what the target takes by reference.
//!
//! It opens nothing, creates nothing and prints nothing: that is up to its caller.

// The files are in layers, one a paragraph: a file uses those of earlier paragraphs, and no others.
// The same holds inside `zero`. `tests/copying/floors.rs` checks it.

mod depth;
mod held;
mod plan;
mod progress;
mod report;
mod witness;

mod options;

mod answer;
mod sums;
mod unit;

mod tickets;

mod cut;
mod ledger;
mod pair;
mod queue;

mod account;
mod share;

mod zero;

mod again;
mod job;
mod shown;

mod planner;
mod worker;

mod run;
mod stream;

pub use options::{Anew, Durably, Flush, Options, Reflink};
pub use plan::{CopyPlan, ListedRange, RangeFate};
pub use progress::{Cancel, CopyCounts, Progress};
pub use report::{FailedCopy, Report};
pub use run::run;
pub use stream::{ReadNext, stream};
pub use witness::{Watched, Witness};
