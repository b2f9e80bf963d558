//! The copy engine against the model: every option, every way to fail.

#![allow(
    clippy::cast_possible_truncation,
    clippy::single_range_in_vec_init,
    clippy::unwrap_used,
    reason = "a test that fails here has failed"
)]

mod breaking;
mod bytes;
mod combs;
mod durable;
mod failing;
mod floors;
mod held;
mod hostile;
mod listed;
mod lying;
mod over_nbd;
mod pipes;
mod places;
mod returning;
mod same;
mod sizes;
mod slow_maps;
mod streams;
mod support;
mod sweeping;
mod unclean;
