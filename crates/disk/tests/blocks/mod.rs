//! Formats whose disks lie in blocks: written in any order, and as no peer here makes them. What
//! peers make, and make of ours, is in tests/tests/disks/formats, and untrusted images are in
//! crates/hostile.

mod both_ways;
mod creating;
mod laid;
mod packed;
mod vhdx;
