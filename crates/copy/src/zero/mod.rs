//! Zeroes: how ranges of the target are made to read as zeroes, by as little work as is safe.
//!
//! Holes of the source and zeroes found in its data come here alike (`act`). What is *known* of the
//! target decides, with the *policy*, whether a range is skipped, zeroed by a request, read first,
//! or written; neighbours are *coalesced*. What the user says of the target is a *claim*, and
//! checked. Much of the target may be zeroed in advance, before any data is written (`sweep`), if
//! the two ends are known to share no bytes and a test of its *speed* shows that it is as fast as
//! it advertises. Nothing is changed before a *canary* of the source was read.

// Layers, as in the crate: a file uses those of earlier paragraphs.

mod coalesce;
mod known;

mod policy;

mod act;
pub(crate) mod canary;

pub(crate) mod claim;
mod requests;

mod speed;

pub(crate) mod sweep;

pub(crate) use act::Zeroes;
pub(crate) use coalesce::Coalescer;
pub(crate) use policy::ZeroBy;
