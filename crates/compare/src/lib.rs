//! Whether two disks hold the same bytes, and if not, where they first differ.
//!
//! One thread walks both maps; where both read as zeroes nothing is read, and where one does only the
//! other. Several workers read both ends at the same time and compare them. What is told is what
//! comes first in the disks, whichever worker finds it first: a difference, or what could not be read.
//!
//! It opens nothing, changes nothing and prints nothing.

mod event;
mod run;
mod walk;
mod worker;

pub use event::{Difference, Doing, End, Failure, Options, Progress, Report};
pub use run::run;
