//! `prealloc`, and files that are preallocated: the file system's own map afterwards, on ext4, xfs
//! and btrfs; what was there before; and what a kill, an interruption or a full disk leaves.

mod devices;
mod extents;
mod files;
mod requests;
mod stopped;
mod words;

use std::path::Path;

use blackbox::run::{Outcome, ours, run, text};

/// File systems that have a map with unwritten extents.
const KINDS: [&str; 3] = ["ext4", "xfs", "btrfs"];
/// The smallest size that mkfs.xfs takes.
const ROOM: u64 = 320 << 20;

fn ferry(words: &[&str]) -> Outcome {
    run(&mut ours(words))
}

/// The output of `prealloc --json`.
fn prealloc(path: &Path, words: &[&str]) -> serde_json::Value {
    let mut all = vec!["prealloc", "--json", text(path)];
    all.extend(words);
    serde_json::from_str(ferry(&all).succeeded()).unwrap()
}
