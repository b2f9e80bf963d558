//! Copies through filters.

use std::fs;

use blackbox::run::{ours, run};
use blackbox::temp::TempDir;

#[test]
fn a_copy_goes_through_filters_on_either_side() {
    let temp = TempDir::new();
    let target = temp.join("disk");
    let mut copy = ours(["copy", "--source-filter", "delay?rdelay=1us", "--target-filter=nozero"]);
    run(copy.args(["--target-filter", "delay?wdelay=1us", "sparse-random:8M?seed=3"]).arg(&target))
        .succeeded();
    run(ours(["copy"]).arg(&target).arg("sparse-random:8M?seed=3")).succeeded();
}

#[test]
fn a_file_that_is_there_keeps_what_a_filtered_copy_does_not_write() {
    let temp = TempDir::new();
    let target = temp.file("disk", &[7; 4096]);
    let copy = |filter: &str| {
        let source = temp.file("source", &[0; 1024]);
        let mut command = ours(["copy", "--target-filter", filter]);
        run(command.arg(&source).arg(&target))
    };
    // The value is wrong, which shows when the filter is opened.
    copy("nozero?zeromode=never").failed();
    assert_eq!(fs::read(&target).unwrap(), [7; 4096]);
    copy("nozero").succeeded();
    let content = fs::read(&target).unwrap();
    assert_eq!((&content[..1024], &content[1024..]), (&[0; 1024][..], &[7; 3072][..]));
}

#[test]
fn a_file_made_for_a_copy_whose_filter_refuses_is_removed() {
    let temp = TempDir::new();
    let target = temp.join("disk");
    let mut command = ours(["copy", "--target-filter=nozero?zeromode=never", "memory:1M"]);
    run(command.arg(&target)).failed();
    assert!(!target.exists());
}
