//! File to file: the kernel copies where that changes nothing, and only there.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use copy::{Options, Reflink};

use crate::support::*;

const SIZE: usize = 3_000_123;

fn files() -> (Arc<Filed>, Arc<Filed>, File, File) {
    let dir = std::env::temp_dir();
    let make = |name: &str| {
        let path = dir.join(format!("copy-places-{}-{name}-{:p}", std::process::id(), &name));
        let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        file
    };
    let (mut a, mut b) = (make("a"), make("b"));
    let bytes: Vec<u8> =
        (0..SIZE).map(|i| if i / 50_000 % 2 == 0 { 0 } else { (i % 251) as u8 }).collect();
    a.write_all(&bytes).unwrap();
    b.write_all(&vec![0xee; SIZE]).unwrap();
    (Filed::new(a.try_clone().unwrap()), Filed::new(b.try_clone().unwrap()), a, b)
}

fn same(a: &File, b: &File) -> bool {
    let (mut x, mut y) = (vec![0; SIZE], vec![1; SIZE]);
    a.read_exact_at(&mut x, 0).unwrap();
    b.read_exact_at(&mut y, 0).unwrap();
    x == y
}

#[test]
fn without_a_search_for_zeroes_the_kernel_copies() {
    let (source, target, a, b) = files();
    let options = Options { sparse: None, ..Options::default() };
    let report = run(&edge(source.clone()), &edge(target.clone()), &options).unwrap();
    assert!(same(&a, &b));
    assert_eq!(report.copied, SIZE as u64);
    assert_eq!(source.read_or_written.load(SeqCst) + target.read_or_written.load(SeqCst), 0);
}

#[test]
fn what_the_kernel_copies_is_read_for_a_witness_and_not_written() {
    let (source, target, a, b) = files();
    let mut bytes = vec![0; SIZE];
    a.read_exact_at(&mut bytes, 0).unwrap();
    let (seen, witness) = Notes::of(SIZE);
    let options = Options { sparse: None, witness, ..Options::default() };
    let report = run(&edge(source.clone()), &edge(target.clone()), &options).unwrap();
    assert!(same(&a, &b));
    seen.check(&bytes, "taken");
    assert_eq!(report.copied, SIZE as u64);
    assert_eq!(source.read_or_written.load(SeqCst), SIZE as u64);
    assert_eq!(target.read_or_written.load(SeqCst), 0);
}

#[test]
fn with_a_search_for_zeroes_all_is_looked_at() {
    let (source, target, a, b) = files();
    let report = run(&edge(source.clone()), &edge(target), &Options::default()).unwrap();
    assert!(same(&a, &b));
    assert!(report.zeroed > 1_000_000);
    assert_eq!(source.read_or_written.load(SeqCst), SIZE as u64);
}

#[test]
fn allocated_blocks_are_written_and_never_shared() {
    let (source, target, a, b) = files();
    let options = Options { sparse: None, allocated: true, ..Options::default() };
    run(&edge(source), &edge(target.clone()), &options).unwrap();
    assert!(same(&a, &b));
    assert_eq!(target.read_or_written.load(SeqCst), SIZE as u64);
}

#[test]
fn nothing_is_taken_where_nothing_is_to_be_shared_or_every_byte_is_to_be_written() {
    let never = Options { sparse: None, reflink: Reflink::Never, ..Options::default() };
    let wipe = Options { wipe: true, ..Options::default() };
    for options in [never, wipe] {
        let (source, target, a, b) = files();
        run(&edge(source), &edge(target.clone()), &options).unwrap();
        assert!(same(&a, &b));
        assert_eq!(target.read_or_written.load(SeqCst), SIZE as u64, "{options:?}");
    }
}

#[test]
fn a_copy_that_must_share_and_cannot_changes_nothing() {
    let (source, target, _, b) = files();
    let options = Options { reflink: Reflink::Always, ..Options::default() };
    let failed = run(&edge(source), &edge(target.clone()), &options).unwrap_err();
    assert!(failed.error.is_unsupported() && !failed.report.touched, "{failed}");
    assert_eq!(target.read_or_written.load(SeqCst), 0);
    let mut bytes = vec![0; SIZE];
    b.read_exact_at(&mut bytes, 0).unwrap();
    assert!(bytes.iter().all(|byte| *byte == 0xee));
}
