//! A copy with a journal whose target loses its power: what was not flushed is forgotten, in any
//! order, and the next run makes it right all the same.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use copy::{Cancel, CopyPlan, Durably, ListedRange, Options, Progress, RangeFate};
use device::Edge;
use disk::Named;
use runtime::{Mutex, RangeSet};
use transfer::{CopyJournal, DiskIdentity, Progressed};
use trial::{PowerCut, Scratch, TestDice};

const SIZE: usize = 1 << 20;
/// A flush comes after so many bytes.
const EVERY: u64 = 64 << 10;
/// Moments at which the power is cut.
const MOMENTS: u64 = 50;

/// Data, zeroes, and ranges of both that are shorter than a request.
fn source(dice: &mut TestDice) -> Vec<u8> {
    let mut bytes = vec![0; SIZE];
    for _ in 0..40 {
        let start = usize::try_from(dice.below(SIZE as u64 - 512)).unwrap();
        let len = usize::try_from(dice.below(60_000)).unwrap().min(SIZE - start);
        let byte = u8::try_from(dice.below(256)).unwrap();
        bytes[start..start + len].fill(byte);
    }
    bytes
}

/// How long the journal was after so many steps of the target.
type Lengths = Arc<Mutex<Vec<(usize, u64)>>>;

/// Copies what the journal leaves. Returns whether it left anything.
fn copy(source: &Edge, target: &PowerCut, journal: &Path, lengths: &Lengths) -> bool {
    let named = |word| Named::parse(word).unwrap();
    let from = DiskIdentity::of_source(&named("memory:1M"), source, None).unwrap();
    let to = DiskIdentity::of_target(&named("null:"));
    let noted = Arc::new(CopyJournal::open(journal).unwrap());
    let edge = target.edge();
    let durable = match noted.relate((&from, source), (&to, &edge), None).unwrap() {
        Progressed::Begun => RangeSet::default(),
        Progressed::Has(durable) => durable,
        Progressed::Done => return false,
    };
    let length = {
        let journal = journal.to_owned();
        move || std::fs::metadata(&journal).unwrap().len()
    };
    lengths.lock().push((target.steps(), length()));
    let (note, then, disk) = (noted.clone(), lengths.clone(), target.clone());
    let durably = Durably::new(EVERY, move |ranges| {
        // What follows the flush is in the target at the earliest when the line is.
        note.durable(ranges)?;
        then.lock().push((disk.steps(), length()));
        Ok(())
    });
    let options = Options {
        durably: Some(durably),
        apart: false,
        request_size: 16 << 10,
        bulk: false,
        threads: Some(2),
        ..Options::default()
    };
    let whole = |range: Range<u64>| ListedRange { range, kind: RangeFate::Data };
    let left = CopyPlan::List(durable.gaps(0..SIZE as u64).map(whole).collect());
    copy::run(source, &edge, &left, &options, &Progress::default(), &Cancel::default()).unwrap();
    noted.done().unwrap();
    true
}

#[test]
fn a_target_that_forgets_what_was_not_flushed_is_right_after_the_next_run() {
    let scratch = Scratch::new(std::env::temp_dir());
    for moment in 0..MOMENTS {
        let mut dice = TestDice(moment);
        let wanted = source(&mut dice);
        let from = PowerCut::new(wanted.clone(), false).edge();
        let journal = scratch.path(&format!("journal-{moment}"));
        let mut target = PowerCut::new(vec![0xee; SIZE], false);
        for _ in 0..=dice.below(3) {
            let lengths = Lengths::default();
            if !copy(&from, &target, &journal, &lengths) {
                break;
            }
            assert!(target.bytes() == wanted, "{moment}: before any cut");
            // As it was then: of the journal all that had been synced.
            let steps = usize::try_from(dice.below(target.steps() as u64 + 1)).unwrap();
            let kept = lengths.lock().iter().rfind(|(then, _)| *then <= steps).map(|(_, len)| *len);
            let file = std::fs::File::options().write(true).open(&journal).unwrap();
            file.set_len(kept.unwrap_or(0)).unwrap();
            target = PowerCut::new(target.cut(steps, &mut dice), false);
        }
        copy(&from, &target, &journal, &Lengths::default());
        assert!(target.bytes() == wanted, "{moment}");
    }
}
