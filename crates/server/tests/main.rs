//! The server, by its clients.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod client;
mod dropped;
mod fetching;
mod images;
mod leases;
mod names;
mod panicking;
mod scattered;
mod scripted;
mod unplaced;
