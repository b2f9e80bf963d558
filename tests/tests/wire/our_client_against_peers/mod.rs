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
use blackbox::run::{Outcome, ours, run};
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
    let outcome = run(&mut ours(["info", "--json", uri]));
    let text = outcome.succeeded();
    serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"))
}

/// The size that `info` prints, in bytes: nbdinfo's key, wherever it is.
#[track_caller]
fn size(uri: &str) -> u64 {
    let info = info(uri);
    let export = info.get("exports").map_or(&info, |list| &list[0]);
    export["export-size"].as_u64().unwrap_or_else(|| panic!("no export-size in {info:#}"))
}

/// `map --json` as (offset, length, type).
#[track_caller]
fn map(uri: &str) -> Vec<(u64, u64, u64)> {
    let outcome = run(&mut ours(["map", "--json", uri]));
    let text = outcome.succeeded();
    let json: Value = serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"));
    let number = |e: &Value, key| e[key].as_u64().unwrap_or_else(|| panic!("no {key} in {e}"));
    let list = json.as_array().unwrap_or_else(|| panic!("not a list: {json}"));
    list.iter().map(|e| (number(e, "offset"), number(e, "length"), number(e, "type"))).collect()
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
