//! Our client (`info`, `list`, `map`, `copy`) against other projects' servers. Every copy is
//! compared byte by byte.

mod chains;
mod nbd_server;
mod nbdkit;
mod one_client;
mod qemu;

use std::ffi::OsStr;
use std::fs;
use std::path::Path;

use blackbox::MIB;
use blackbox::index;
use blackbox::run::{Outcome, extents, ferry, json, ours, run};
use blackbox::temp::{TempDir, pattern};
use serde_json::Value;

/// Runs our `copy`, which must succeed.
#[track_caller]
fn copy(source: impl AsRef<OsStr>, target: impl AsRef<OsStr>) {
    copy_with(&[], source, target).succeeded();
}

fn copy_with(options: &[&str], source: impl AsRef<OsStr>, target: impl AsRef<OsStr>) -> Outcome {
    run(ours(["copy"]).args(options).arg(source).arg(target))
}

/// `info --json` of something that opens.
#[track_caller]
fn info(uri: &str) -> Value {
    json(ferry(["info", "--json", uri]).succeeded())
}

/// The size that `info` prints, in bytes: nbdinfo's key, wherever it is.
#[track_caller]
fn size(uri: &str) -> u64 {
    let info = info(uri);
    let export = info.get("exports").map_or(&info, |list| &list[0]);
    export["export-size"].as_u64().unwrap_or_else(|| panic!("no export-size in {info:#}"))
}

/// What `map` prints.
#[track_caller]
fn map(uri: &str) -> Vec<(u64, u64, u64)> {
    extents(ferry(["map", "--json", uri]).succeeded())
}

/// What our copy of a disk to a file holds.
#[track_caller]
fn fetch(uri: &str) -> Vec<u8> {
    let temp = TempDir::new();
    let target = temp.join("fetched");
    copy(uri, &target);
    fs::read(&target).unwrap()
}

/// Some disk: 6 MiB with data and zeroes, whose size is a multiple of what any peer wants.
fn disk() -> Vec<u8> {
    let mut content = pattern(0, index(6 * MIB));
    content[1_000_000..3_500_000].fill(0);
    content[5 * index(MIB)..5 * index(MIB) + 70_000].fill(0);
    content
}

/// Copies `content` into a disk that has stale bytes, and out again.
#[track_caller]
fn there_and_back(uri: &str, content: &[u8]) {
    there_and_back_with(&[], uri, content);
}

#[track_caller]
fn there_and_back_with(options: &[&str], uri: &str, content: &[u8]) {
    let temp = TempDir::new();
    let stale = temp.file("stale", &vec![0xd1; content.len()]);
    let source = temp.file("source", content);
    copy_with(options, &stale, uri).succeeded();
    copy_with(options, &source, uri).succeeded();
    assert!(fetch(uri) == content, "there and back it changed");
}

/// Panics unless two files hold the same bytes.
#[track_caller]
fn assert_same(one: &Path, two: &Path) {
    assert!(fs::read(one).unwrap() == fs::read(two).unwrap(), "{one:?} and {two:?} differ");
}
