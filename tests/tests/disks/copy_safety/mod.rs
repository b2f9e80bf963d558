//! What a copy must never lose: the source when it is the target too, what a file held where it is
//! written over, and what was reported as done.

mod below;
mod durable;
mod forgotten;
mod itself;
mod lost;
mod over;

use std::path::Path;

use blackbox::run::{Outcome, ours, run};

/// Runs `copy` with these options from one disk to another.
fn copy(options: &[&str], from: impl AsRef<Path>, to: impl AsRef<Path>) -> Outcome {
    run(ours(["copy"]).args(options).arg(from.as_ref()).arg(to.as_ref()))
}
