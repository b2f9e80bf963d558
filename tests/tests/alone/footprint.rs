//! What costs nothing must cost nothing: huge empty disks, in little memory.

use blackbox::MIB;
use blackbox::launch::Serve;
use blackbox::run::{Outcome, measured, ours};
use blackbox::temp::TempDir;

fn ferry<S: AsRef<std::ffi::OsStr>>(words: impl IntoIterator<Item = S>) -> Outcome {
    measured(&ours(words))
}

#[test]
fn a_tebibyte_of_nothing_is_copied_in_64_mib() {
    let server = Serve::memory("1T").start();
    let uri = server.uri("");
    let outcome = ferry(["copy", &uri, "null:"]);
    outcome.fits_in(64 * MIB).succeeded();
    let grown = server.peak_memory();
    assert!(grown < 64 * MIB, "the server used {grown} bytes");
}

#[test]
fn a_tebibyte_of_nothing_becomes_a_sparse_file() {
    let temp = TempDir::new();
    let target = temp.join("copy");
    let server = Serve::memory("1T").start();
    let outcome = measured(ours(["copy", &server.uri("")]).arg(&target));
    outcome.fits_in(64 * MIB).succeeded();
    assert_eq!(std::fs::metadata(&target).unwrap().len(), 1 << 40);
    let allocated = blackbox::launch::allocated(&target);
    assert!(allocated < MIB, "{allocated} bytes on disk");
}

#[test]
fn a_tebibyte_of_nothing_goes_from_server_to_server() {
    let (one, two) = (Serve::memory("1T").start(), Serve::memory("1T").start());
    let outcome = ferry(["copy", &one.uri(""), &two.uri("")]);
    outcome.fits_in(64 * MIB).succeeded();
    let grown = two.peak_memory();
    assert!(grown < 64 * MIB, "the server used {grown} bytes");
}

#[test]
fn much_data_needs_no_more_memory_than_little() {
    let server = Serve::device(["pattern", "1G"]).start();
    let outcome = ferry(["copy", &server.uri(""), "null:"]);
    outcome.fits_in(128 * MIB).succeeded();
}

#[test]
fn a_map_of_many_extents_needs_little_memory() {
    let server = Serve::device(["sparse-random", "4G", "percent=50", "runlength=4096"]).start();
    let outcome = ferry(["map", "--totals", &server.uri("")]);
    outcome.fits_in(256 * MIB).succeeded();
}

#[test]
fn info_of_the_largest_disk() {
    let server = Serve::memory("9223372036854775807").start();
    let outcome = ferry(["info", &server.uri("")]);
    outcome.fits_in(64 * MIB).succeeded();
    let outcome = ferry(["map", "--totals", &server.uri("")]);
    outcome.fits_in(64 * MIB).succeeded();
}
