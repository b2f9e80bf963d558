//! Which edges of the program inputs reach: what `fuzz/run --coverage` counts.
//!
//! The compiler gives each edge a counter and a pair of numbers, its address and some flags, in two tables that the linker
//! puts between names of its own. Prints a line for each edge: its address in the file, in hex, and 1 or 0.

use std::io::Write;
use std::path::{Path, PathBuf};

use hostile::Target;

/// Of an edge.
#[repr(C)]
struct Pair {
    address: usize,
    _flags: usize,
}

unsafe extern "C" {
    #[link_name = "__start___sancov_cntrs"]
    static mut COUNTERS: u8;
    #[link_name = "__stop___sancov_cntrs"]
    static mut COUNTERS_END: u8;
    #[link_name = "__start___sancov_pcs"]
    static PAIRS: Pair;
    #[link_name = "__executable_start"]
    static BASE: u8;
}

/// Runs all files in these directories, and prints what they reach.
pub(crate) fn print(target: &Target, directories: &str) -> std::io::Result<()> {
    let mut reached = vec![false; edges()];
    for path in files(directories)? {
        let bytes = std::fs::read(path)?;
        (target.run)(&bytes);
        take(&mut reached);
    }
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    for (index, reached) in reached.iter().enumerate() {
        writeln!(out, "{:#x} {}", address(index), u8::from(*reached))?;
    }
    out.flush()
}

fn files(directories: &str) -> std::io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for directory in directories.split(':').filter(|directory| Path::new(directory).is_dir()) {
        for entry in std::fs::read_dir(directory)? {
            found.push(entry?.path());
        }
    }
    Ok(found)
}

fn edges() -> usize {
    (&raw const COUNTERS_END).addr() - (&raw const COUNTERS).addr()
}

/// Adds what was counted, and begins to count anew: a counter of 256 is one of 0.
fn take(reached: &mut [bool]) {
    for (index, reached) in reached.iter_mut().enumerate() {
        // SAFETY: there are as many counters in a row as `edges` says. Another thread may count meanwhile: then
        // one more or less is lost, of a number of which only matters whether it is one.
        unsafe {
            let counter = (&raw mut COUNTERS).add(index);
            *reached |= counter.read_volatile() != 0;
            counter.write_volatile(0);
        }
    }
}

/// Of an edge, in the file of the program.
fn address(index: usize) -> usize {
    // SAFETY: there are as many pairs as counters, and nothing changes them.
    let pair = unsafe { &*(&raw const PAIRS).add(index) };
    pair.address - (&raw const BASE).addr()
}
