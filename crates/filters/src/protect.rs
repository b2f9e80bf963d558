//! `protect`: protects ranges of the disk from changes.
//!
//! A change that touches a protected range gets through only if a read shows that it would change
//! nothing there. A trim never reaches a protected range, since its result is unknown; a fast zero
//! that touches one is not fast. The filter does not see writes that reach the device below another
//! way.

use std::ops::Range;

use device::{
    BlockSizes, Done, Edge, Error, ErrorKind, Fault, Filter, Filtered, Operation, Outcome, Over,
    Params, Passes, Result, repeated, values,
};
use runtime::RangeSet;

use crate::FilterKind;
use crate::kit::below;
use crate::kit::compare::{first_difference, first_nonzero};
use crate::kit::params::c_number;

const KEY: &str = "protect";
/// Parts of one request that are trimmed at a time.
const TRIMS: usize = 4;

pub(crate) const KIND: FilterKind = FilterKind {
    word: "protect",
    summary: "refuses writes that would change protected ranges of the disk",
    keeps_disk: false,
    params: &[repeated(
        KEY,
        "START-END",
        "protect these bytes, both included; ~START-END: all others",
    )],
    example: "serve --filter=protect memory 1M protect=0-511 \
              --run 'diskferry zero --offset=0 --length=4096 \"$uri\" && echo zero already'",
    open: |params, below, _| {
        let ranges = Ranges::read(params, below.info().size)?;
        Ok(Filtered::device(Protect(ranges), below))
    },
    ..FilterKind::PLAIN
};

/// The protected ranges.
#[derive(Debug, Eq, PartialEq)]
struct Ranges(RangeSet);

impl Ranges {
    fn read(params: &Params, size: u64) -> Result<Self> {
        let (mut all, mut is_given) = (RangeSet::default(), false);
        for text in params.all(KEY) {
            let range = || values::not_a(KEY, text, "START-END, as in 0-0x1bd");
            let (complement, bare) =
                text.strip_prefix('~').map_or((false, text), |rest| (true, rest));
            let (start, last) = bare.split_once('-').ok_or_else(range)?;
            let number = |text: &str, default| match text {
                "" => Ok(default),
                text => c_number(text).ok_or_else(range),
            };
            let (start, last) = (number(start, 0)?, number(last, u64::MAX)?);
            if last < start {
                return Err(values::wrong(KEY, format!("{text} ends before it starts")));
            }
            let end = last.saturating_add(1);
            if complement {
                all.add(0..start);
                all.add(end..u64::MAX);
            } else {
                all.add(start..end);
            }
            is_given = true;
        }
        if !is_given {
            return Err(Error::invalid("`protect` is missing; for example protect=0-511"));
        }
        Ok(Self(all.within(0..size).collect()))
    }

    /// The protected parts of `len` bytes from `offset`.
    fn within(&self, offset: u64, len: u64) -> Vec<Range<u64>> {
        self.0.within(offset..offset.saturating_add(len)).collect()
    }
}

struct Protect(Ranges);

/// Carries out a change that touches these protected parts if it changes nothing there. A trim goes
/// round them.
async fn change(
    below: Edge,
    change: Operation,
    touched: Vec<Range<u64>>,
    free: Vec<Range<u64>>,
) -> Result<Outcome> {
    let changed = match &change {
        Operation::Write { offset, data, .. } => {
            first_difference(&below, &touched, *offset, data).await?
        }
        _ => first_nonzero(&below, &touched, false).await?,
    };
    if let Some(at) = changed {
        let what = change.kind().name();
        let action = format!("{what} refused: it would change a protected range");
        let error = Error::new(ErrorKind::PermissionDenied, Fault::User, action);
        return Err(error.on(&below.info().name).at(at));
    }
    let Operation::Trim { fua, .. } = change else { return below::ask(&below, change).await };
    let trims = free.into_iter().map(|part| Operation::Trim {
        offset: part.start,
        len: part.end - part.start,
        fua: false,
    });
    below::ask_all(&below, trims, TRIMS).await?;
    if fua {
        below::flush(&below).await?;
    }
    Ok(Outcome::Done)
}

impl Filter for Protect {
    fn describe(&self, over: &mut Over) {
        // The edge above must not carry out parts of a request that is then refused.
        let blocks = &mut over.info.blocks;
        blocks.minimum = 1;
        blocks.maximum = blocks.maximum.max(BlockSizes::ANY.maximum);
        over.passes = Passes::READS;
    }

    fn run(&self, over: &Over, operation: Operation, done: Done) {
        let (offset, len) = operation.range().unwrap_or_default();
        let touched = if operation.changes() { self.0.within(offset, len) } else { Vec::new() };
        match operation {
            other if touched.is_empty() => over.below.submit(other, done),
            // It is compared, as writes.
            Operation::Take { .. } => done(Ok(Outcome::Taken(0))),
            Operation::Zero { flags, .. } if flags.fast_only => {
                done(Err(Error::not_fast().on(&over.info.name).at(offset)));
            }
            other => {
                let (below, range) = (over.below.clone(), offset..offset + len);
                let free = self.0.0.gaps(range).collect();
                below::complete(done, async move { change(below, other, touched, free).await });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use device::model::Model;
    use proptest::prelude::*;

    use trial::TestDevice;

    use super::*;
    use crate::kit::tested::{put, simple};
    use device::Blocking as _;
    use device::ZeroFlags;
    use std::sync::Arc;

    fn ranges(words: &[&str], size: u64) -> Result<Vec<(u64, u64)>> {
        let params = Params::parse(words.iter().copied()).unwrap();
        let pair = |range: Range<u64>| (range.start, range.end);
        Ranges::read(&params, size).map(|ranges| ranges.0.iter().map(pair).collect())
    }

    #[test]
    fn ranges_are_read_as_nbdkit_reads_them() {
        assert_eq!(ranges(&["protect=0-511"], 1000).unwrap(), [(0, 512)]);
        assert_eq!(ranges(&["protect=0x10-0x1F"], 1000).unwrap(), [(16, 32)]);
        assert_eq!(ranges(&["protect=010-020"], 1000).unwrap(), [(8, 17)]);
        assert_eq!(ranges(&["protect=5-"], 1000).unwrap(), [(5, 1000)]);
        assert_eq!(ranges(&["protect=-5"], 1000).unwrap(), [(0, 6)]);
        assert_eq!(ranges(&["protect=-"], 1000).unwrap(), [(0, 1000)]);
        assert_eq!(ranges(&["protect=~10-19"], 1000).unwrap(), [(0, 10), (20, 1000)]);
        assert_eq!(ranges(&["protect=~-"], 1000).unwrap(), []);
        assert_eq!(ranges(&["protect=9-9", "protect=0-4"], 1000).unwrap(), [(0, 5), (9, 10)]);
        assert_eq!(ranges(&["protect=2000-3000"], 1000).unwrap(), []);
        assert_eq!(ranges(&["protect=0-18446744073709551615"], 9).unwrap(), [(0, 9)]);
        for wrong in ["", "5", "5-3", "~5-2", "1k-2k", "a-b", "+1-2", "08-09", "0x-1", "--"] {
            assert!(ranges(&[&format!("protect={wrong}")], 1000).is_err(), "{wrong}");
        }
        assert!(ranges(&[], 1000).is_err());
    }

    #[test]
    fn a_protected_hole_is_not_read_to_be_known_as_zero() {
        let below = TestDevice::new(1 << 20);
        let disk = put("protect", below.clone(), &["protect=0-"]).unwrap();
        disk.zero(0, 1 << 20, ZeroFlags::default()).unwrap();
        assert_eq!(below.asked(), ["resolve 0+1048576", "zero 0+1048576"]);
    }

    #[test]
    fn a_trim_goes_round_what_is_protected() {
        let below = TestDevice::new(1 << 20);
        let disk = put("protect", below.clone(), &["protect=4096-8191"]).unwrap();
        disk.trim(0, 16384, false).unwrap();
        assert_eq!(below.asked(), ["resolve 4096+4096", "trim 0+4096", "trim 8192+8192"]);
    }

    #[test]
    fn a_fast_zero_that_touches_a_protected_range_is_refused_at_once() {
        let below = TestDevice::new(1 << 20);
        let disk = put("protect", below.clone(), &["protect=4096-8191"]).unwrap();
        let fast = ZeroFlags { fast_only: true, ..ZeroFlags::default() };
        assert_eq!(disk.zero(0, 8192, fast).unwrap_err().kind(), ErrorKind::NotFast);
        assert!(below.asked().is_empty());
        disk.zero(8192, 8192, fast).unwrap();
    }

    const SIZE: usize = 4096;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        /// Protected ranges never change, the rest changes as on a bare disk, and only requests
        /// that would change something protected are refused.
        #[test]
        fn what_is_protected_stays_as_it_is(
            start in 0..SIZE, len in 1..SIZE, complement in any::<bool>(), blocks in any::<bool>(),
            ops in prop::collection::vec((0..SIZE, 0..SIZE, 0u8..3, 0..3u8), 1..12),
        ) {
            let last = (start + len - 1).min(SIZE - 1);
            let word = format!("protect={}{start}-{last}", if complement { "~" } else { "" });
            let is_protected = |i: usize| (start..=last).contains(&i) != complement;
            let all = Model::new(1).info().abilities;
            let small = BlockSizes { minimum: 512, preferred: 512, maximum: 1024 };
            let sizes = if blocks { small } else { BlockSizes::ANY };
            let model = Arc::new(Model::with(SIZE, all, sizes));
            // Data to protect: zeroes and ones.
            let mut bytes = [0; SIZE];
            for at in [100, 1000, 3000] {
                bytes[at..at + 300].fill(1);
            }
            for (at, piece) in (0..).step_by(1024).zip(bytes.chunks(1024)) {
                model.write_at(piece, at, false).unwrap();
            }
            let disk = put("protect", simple(model.clone()), &[&word]).unwrap();
            for (offset, len, byte, kind) in ops {
                let len = len.min(SIZE - offset);
                let before = model.bytes();
                let (at, n) = (offset as u64, len as u64);
                let byte = if kind == 0 { byte } else { 0 };
                let result = match kind {
                    0 => disk.write(&vec![byte; len], at, false),
                    1 => disk.zero(at, n, ZeroFlags::default()),
                    _ => disk.trim(at, n, false),
                };
                let range = offset..offset + len;
                let changes = range.clone().any(|i| is_protected(i) && before[i] != byte);
                prop_assert_eq!(result.is_err(), changes);
                if let Err(e) = result {
                    prop_assert_eq!(e.kind(), ErrorKind::PermissionDenied);
                }
                let after = model.bytes();
                let trimmed = |i: usize| kind == 2 && after[i] == before[i];
                for i in 0..SIZE {
                    let same = is_protected(i) || changes || !range.contains(&i);
                    let expected = if same { before[i] } else { byte };
                    prop_assert!(after[i] == expected || trimmed(i));
                }
            }
        }
    }
}
