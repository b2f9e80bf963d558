//! Which edges of the program inputs reach: what `fuzz/run --coverage` counts.
//!
//! The compiler gives each edge a counter and a pair of numbers, its address and some flags, in two
//! tables that the linker puts between names of its own. Prints a line for each edge: its address
//! in the file, in hex, and 1 or 0.

use std::io::Write;
use std::path::{Path, PathBuf};

use hostile::FuzzTarget;

/// Of an edge.
#[repr(C)]
struct Pair {
    address: usize,
    _flags: usize,
}

// Declared here they would clash with the compiler's own declarations of them, and nothing would be
// counted.
std::arch::global_asm!(
    ".pushsection .data.rel.ro.diskferry_edges, \"aw\"",
    ".balign 8",
    ".globl diskferry_edges",
    "diskferry_edges: .quad __start___sancov_cntrs, __stop___sancov_cntrs, __start___sancov_pcs",
    ".popsection",
);

/// Where the tables are.
#[repr(C)]
struct Edges {
    counters: *mut u8,
    counters_end: *mut u8,
    pairs: *const Pair,
}

unsafe extern "C" {
    #[link_name = "diskferry_edges"]
    static EDGES: Edges;
}

/// Runs all files in these directories, and prints what they reach.
pub(crate) fn print(target: &FuzzTarget, directories: &str) -> std::io::Result<()> {
    let mut reached = vec![false; edges()];
    for path in files(directories)? {
        let bytes = std::fs::read(path)?;
        (target.run)(&bytes);
        take(&mut reached);
    }
    let base = base()?;
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    for (index, reached) in reached.iter().enumerate() {
        writeln!(out, "{:#x} {}", address(index, base), u8::from(*reached))?;
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
    // SAFETY: the linker has set it, and nothing changes it.
    unsafe { EDGES.counters_end.addr() - EDGES.counters.addr() }
}

/// Adds what was counted, and resets the counters: a counter of 256 is one of 0.
fn take(reached: &mut [bool]) {
    for (index, reached) in reached.iter_mut().enumerate() {
        // SAFETY: there are as many counters in a row as `edges` says. Another thread may count
        // meanwhile: then an increment may be lost, of a number of which only matters whether it is
        // 0.
        unsafe {
            let counter = EDGES.counters.add(index);
            *reached |= counter.read_volatile() != 0;
            counter.write_volatile(0);
        }
    }
}

/// Of an edge, in the file of the program, which lies at `base`.
fn address(index: usize, base: usize) -> usize {
    // SAFETY: there are as many pairs as counters, and nothing changes them.
    let pair = unsafe { &*EDGES.pairs.add(index) };
    pair.address.saturating_sub(base)
}

/// Where the program lies in memory: its first piece has the first line.
fn base() -> std::io::Result<usize> {
    let maps = std::fs::read_to_string("/proc/self/maps")?;
    let first = maps.split('-').next().and_then(|start| usize::from_str_radix(start, 16).ok());
    first.ok_or_else(|| std::io::Error::other("/proc/self/maps has no address"))
}
