//! What costs nothing must cost nothing: huge empty disks, in little memory.

use blackbox::MIB;
use blackbox::launch::Serve;
use blackbox::run::{measured, ours};
use blackbox::temp::TempDir;

#[test]
fn what_holds_nothing_takes_little_memory_at_either_end() {
    let (nothing, largest) = (&["memory", "1T"][..], &["memory", "9223372036854775807"]);
    let other = Serve::memory("1T").start();
    let uri = other.uri("");
    for (device, words, behind, limit) in [
        (nothing, &["copy"][..], Some("null:"), 64 * MIB),
        (nothing, &["copy"], Some(&*uri), 64 * MIB),
        (largest, &["info"], None, 64 * MIB),
        (largest, &["map", "--totals"], None, 64 * MIB),
        (&["pattern", "1G"], &["copy"], Some("null:"), 128 * MIB),
        (
            &["sparse-random", "4G", "percent=50", "runlength=4096"],
            &["map", "--totals"],
            None,
            256 * MIB,
        ),
    ] {
        let server = Serve::device(device.iter().copied()).start();
        let outcome = measured(ours(words).arg(server.uri("")).args(behind));
        outcome.fits_in(limit).succeeded();
        for server in [&server, &other].into_iter().filter(|_| device == nothing) {
            let grown = server.peak_memory();
            assert!(grown < 64 * MIB, "{words:?}: the server used {grown} bytes");
        }
    }
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
