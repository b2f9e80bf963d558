//! The copy engine: raw bytes from any device to any device.
//!
//! A planner streams the map of the source once and cuts it into units; workers take units,
//! each over a lane of its own to either end, and move every stretch by the cheapest means both
//! ends allow. Holes are never read, and zeroes are not written where the target is known to
//! read as zeroes. It promises that a copy reported as done is complete: the first failure
//! stops everything and is reported together with the ranges that are not known to be copied.
//! It never takes a failed read for zeroes and never retries.
//! It changes nothing before the beginning of the source has been read, and of a target that may
//! be the source itself nothing but what was read.
//!
//! It opens nothing, creates nothing and prints nothing: that is its caller's part.

mod canary;
mod depth;
mod end;
mod job;
mod known;
mod mover;
mod options;
mod plan;
mod progress;
mod queue;
mod ranges;
mod report;
mod sweep;
mod ticket;
mod units;
mod worker;
mod zero_policy;

pub use job::run;
pub use options::{Ends, Flush, Options};
pub use progress::{Cancel, Progress, Snapshot};
pub use report::{Failure, Report};
