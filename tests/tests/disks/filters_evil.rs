//! Corruption is found where it must be: a random disk that was read through `evil` is not
//! accepted as a copy of itself, and one that was read without it is.

use blackbox::run::{ours, run};

const DISK: &str = "random:10M?seed=1";
const EVIL: &str = "evil?evil-probability=1e-6&evil-seed=1";

#[test]
fn a_copy_of_what_evil_corrupted_is_not_accepted() {
    let filter = format!("--source-filter={EVIL}");
    let outcome = run(&mut ours(["copy", &filter, DISK, DISK]));
    let said = outcome.failed();
    assert!(said.contains("what was written is not what this disk holds"), "{said}");
    run(&mut ours(["copy", DISK, DISK])).succeeded();
}

#[test]
fn checkwrite_makes_a_judge_of_any_disk() {
    let evil = format!("--source-filter={EVIL}");
    let outcome = run(&mut ours(["copy", &evil, "--target-filter=checkwrite", DISK, DISK]));
    let said = outcome.failed();
    assert!(said.contains("what was written is not what the disk holds"), "{said}");
    run(&mut ours(["copy", "--target-filter=checkwrite", DISK, DISK])).succeeded();
}
