//! Compares two disks: whether they hold the same bytes, and if not, where they first differ.
//!
//! One thread walks both maps: if both are zero there, nothing is read, and if one is, only the
//! other. Several workers read both disks at the same time and compare them. The result is the
//! first difference or read error by offset, whichever worker finds it first.
//!
//! It opens nothing, changes nothing and prints nothing.

mod event;
mod run;
mod walk;
mod worker;

pub use event::{Difference, Doing, FailedComparison, Options, Progress, Report, Side};
pub use run::run;
