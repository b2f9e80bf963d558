//! What a target holds already is proved, not assumed: a clean one costs its data and no more, one
//! full of old bytes becomes equal to the source, a false claim is an error, and blocks that can be
//! shared are.

mod blocks;
mod claims;
mod local;

use std::fs;
use std::path::PathBuf;

use blackbox::run::text;
use blackbox::temp::{TempDir, pattern};
use blackbox::{MIB, index};

/// The size of every disk here, in bytes.
const SIZE: u64 = 32 * MIB;
/// The bytes of data in a source.
const DATA: u64 = 8 * (256 << 10);

/// A disk of which every fourth MiB begins with a quarter of a MiB of data.
fn source(temp: &TempDir) -> PathBuf {
    let path = temp.sparse_file("source", SIZE);
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    for at in (0..SIZE).step_by(index(4 * MIB)) {
        std::os::unix::fs::FileExt::write_all_at(&file, &pattern(at, 256 << 10), at).unwrap();
    }
    path
}

/// How many times a call was answered without an error, and the sum of the answers.
fn answers(trace: &str, call: &str) -> (u64, u64) {
    let call = format!(" {call}(");
    let lines = trace.lines().filter(|line| line.contains(&call));
    let numbers = lines.filter_map(|line| {
        let (_, answer) = line.rsplit_once(" = ")?;
        answer.split_whitespace().next()?.parse::<u64>().ok()
    });
    numbers.fold((0, 0), |(count, sum), n| (count + 1, sum + n))
}
