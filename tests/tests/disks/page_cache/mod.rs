//! The page cache: what the verb `cache` reports of files and does to them, and what copies and
//! servers leave there, by `cache=`. Other programs (fincore, strace, the control groups) are the
//! witnesses.

mod calls;
mod groups;
mod modes;
mod verb;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use blackbox::MIB;
use blackbox::peers::{find, peer};
use blackbox::run::{Outcome, ours, run};
use blackbox::storage::Mounted;
use blackbox::temp::TempDir;

/// Pages of a MiB.
const PAGES: u64 = MIB / 4096;

/// Pages of a file that lie in memory, as util-linux counts them.
fn resident(path: &Path) -> u64 {
    let mut fincore = Command::new(find("fincore").expect("fincore of util-linux"));
    let outcome = run(fincore.args(["-b", "-n", "-o", "PAGES"]).arg(path));
    outcome.succeeded().trim().parse().unwrap()
}

/// Lets go of all pages of a file.
fn drop_pages(path: &Path) {
    let mut dd = Command::new(find("dd").unwrap());
    let mut input = OsString::from("if=");
    input.push(path);
    let mut output = OsString::from("of=");
    output.push(path);
    // What is dirty is written first.
    run(dd.args(["conv=notrunc,fdatasync", "count=0", "status=none"]).arg(output)).succeeded();
    let mut dd = Command::new(find("dd").unwrap());
    run(dd.args(["iflag=nocache", "count=0", "status=none"]).arg(input)).succeeded();
    let left = resident(path);
    assert!(left < 64, "{left} pages of {} stay", path.display());
}

/// A file of `len` bytes that are not zero, of which nothing is in memory.
fn cold(directory: &Path, name: &str, len: u64) -> PathBuf {
    let path = directory.join(name);
    run(ours(["copy", &format!("random:{len}?seed=5")]).arg(&path)).succeeded();
    drop_pages(&path);
    path
}

/// `file:PATH?cache=MODE`.
fn named(path: &Path, mode: &str) -> OsString {
    let mut name = OsString::from("file:");
    name.push(path);
    name.push(format!("?cache={mode}"));
    name
}

fn copy(
    options: &[&str],
    from: impl AsRef<std::ffi::OsStr>,
    to: impl AsRef<std::ffi::OsStr>,
) -> Outcome {
    run(ours(["copy"]).args(options).arg(from.as_ref()).arg(to.as_ref()))
}

fn is_same(one: &Path, other: &Path) -> bool {
    std::fs::read(one).unwrap() == std::fs::read(other).unwrap()
}

/// A directory on a disk, and file systems of other kinds, where they can be had.
fn grounds() -> Vec<(&'static str, PathBuf, Option<Mounted>, Option<TempDir>)> {
    let temp = TempDir::new();
    let mut all = vec![("disk", temp.path().to_owned(), None, Some(temp))];
    for kind in ["ext4", "xfs", "btrfs", "tmpfs"] {
        if let Some(mounted) = Mounted::new(kind, 400 * MIB) {
            all.push((kind, mounted.path().to_owned(), Some(mounted), None));
        }
    }
    all
}

/// Whether the tools of others are there.
fn has_tools() -> bool {
    ["fincore", "dd"].iter().all(|tool| peer(tool).is_some())
}
