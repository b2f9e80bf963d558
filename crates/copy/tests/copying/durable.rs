//! A caller that keeps a journal is told what is durable: after a flush, once, and in the end all.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use copy::{Durably, Options};
use device::model::Model;
use device::{Abilities, Error, ErrorKind, Fault, OperationKind};
use runtime::RangeSet;

use crate::support::*;

const SIZE: usize = 8 << 20;

fn source() -> Arc<Model> {
    let model = Arc::new(Model::new(SIZE));
    random_disk(&model, &mut Random(11), 512);
    model
}

fn options(durably: Durably) -> Options {
    let durably = Some(durably);
    Options { durably, threads: Some(2), request_size: 64 << 10, bulk: false, ..Options::default() }
}

#[test]
fn all_that_is_durable_is_told_once_and_after_a_flush() {
    let (source, target) = (source(), watched(Arc::new(Model::new(SIZE)), 0));
    let told = Arc::new(Mutex::new(RangeSet::default()));
    let (seen, device) = (told.clone(), target.clone());
    let durably = Durably::new(256 << 10, move |ranges| {
        let mut told = seen.lock().unwrap();
        assert!(device.count(OperationKind::Flush) > 0, "told before a flush");
        assert!(!ranges.iter().any(|range| told.has_some_of(&range)), "told twice");
        told.add_all(ranges);
        Ok(())
    });
    run(&edge(source), &edge(target.clone()), &options(durably)).unwrap();
    let told: Vec<_> = told.lock().unwrap().iter().map(|range| (range.start, range.end)).collect();
    assert_eq!(told, [(0, SIZE as u64)]);
    assert!(target.count(OperationKind::Flush) > 5, "a flush now and then");
}

#[test]
fn a_journal_that_cannot_be_written_ends_the_copy() {
    let durably = Durably::new(256 << 10, |_| {
        Err(Error::new(ErrorKind::NoSpace, Fault::File, "write the journal"))
    });
    let target = edge(Arc::new(Model::new(SIZE)));
    let failed = run(&edge(source()), &target, &options(durably)).unwrap_err();
    assert_eq!(failed.error.kind(), ErrorKind::NoSpace);
}

#[test]
fn a_target_that_makes_nothing_durable_is_refused_untouched() {
    let abilities = Abilities { flush: false, ..all_abilities() };
    let target = Arc::new(Model::with(SIZE, abilities, blocks(1, 4096, 32 << 20)));
    let durably = Durably::new(1 << 20, |_| Ok(()));
    let failed = run(&edge(source()), &edge(target), &options(durably)).unwrap_err();
    assert!(failed.error.is_unsupported() && !failed.report.touched, "{failed}");
}

#[test]
fn no_more_is_written_than_two_flushes_cover_while_one_is_noted() {
    const EVERY: u64 = 256 << 10;
    let (source, target) = (source(), watched(Arc::new(Model::new(SIZE)), 0));
    let noted = Arc::new(Mutex::new(0));
    let (so_far, device) = (noted.clone(), target.clone());
    let durably = Durably::new(EVERY, move |ranges| {
        // Long enough for all the rest to be written.
        std::thread::sleep(Duration::from_millis(20));
        let written: u64 = device.seen_of(OperationKind::Write).iter().map(|it| it.len).sum();
        let mut noted = so_far.lock().unwrap();
        // What is in flight in two threads comes on top.
        assert!(written <= *noted + 2 * EVERY + (1 << 20), "{written} written, {noted} noted");
        *noted += ranges.len();
        Ok(())
    });
    let options = Options { queue_size: Some(256 << 10), ..options(durably) };
    run(&edge(source), &edge(target), &options).unwrap();
    assert_eq!(*noted.lock().unwrap(), SIZE as u64);
}
