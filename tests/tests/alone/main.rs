//! What is counted or measured of a whole process or machine: memory, threads, descriptors, system
//! calls, whose turn it is. These tests have the machine to themselves: nothing else runs beside
//! this binary, and its tests run one after the other (`scripts/test`, `.config/nextest.toml`).
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod costs;
mod crowd;
mod fairness;
mod fast_zero;
mod footprint;
mod hostile_crowd;
mod long_way;
mod soak;
mod syscalls;
