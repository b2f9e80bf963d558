//! `checkwrite`: accepts only writes of what the disk has already. Any disk can thus verify a copy
//! of itself.
//!
//! The filter never writes below. Zeroes and trims are accepted where the disk reads as zeroes,
//! whether they are holes or not: a copy may be more or less sparse than its source.

use device::{
    Abilities, Done, Edge, Error, ErrorKind, Fault, Filter, Filtered, Operation, Outcome, Over,
    Passes, Result,
};

use crate::FilterKind;
use crate::kit::below;
use crate::kit::compare::{first_difference, first_nonzero};

pub(crate) const KIND: FilterKind = FilterKind {
    word: "checkwrite",
    summary: "accepts only writes that match the existing data; writes nothing",
    reads_only: true,
    keeps_disk: false,
    example: "serve --filter=checkwrite random 10M seed=1 \
              --run 'diskferry copy \"random:10M?seed=1\" \"$uri\"'",
    open: |_, below, _| Ok(Filtered::device(CheckWrite, below)),
    ..FilterKind::PLAIN
};

struct CheckWrite;

/// Compares a change with what is there.
async fn compare(below: Edge, change: Operation) -> Result<Outcome> {
    let (offset, len) = change.range().unwrap_or_default();
    let all = offset..offset + len;
    let all = std::slice::from_ref(&all);
    let differs = match &change {
        Operation::Write { data, .. } => first_difference(&below, all, offset, data).await?,
        Operation::Zero { flags, .. } if flags.fast_only => {
            if first_nonzero(&below, all, true).await?.is_some() {
                return Err(Error::not_fast().on(&below.info().name).at(offset));
            }
            None
        }
        _ => first_nonzero(&below, all, false).await?,
    };
    let Some(at) = differs else { return Ok(Outcome::Done) };
    let what = change.kind().name();
    let action = format!("{what}: the data does not match the disk");
    Err(Error::new(ErrorKind::Mismatch, Fault::User, action).on(&below.info().name).at(at))
}

impl Filter for CheckWrite {
    fn describe(&self, over: &mut Over) {
        over.info.abilities = Abilities {
            write: true,
            flush: true,
            fua: true,
            trim: true,
            zero: true,
            // The map below answers it, or it is refused at once.
            fast_zero: true,
            take: false,
            multi_conn: true,
            hides_zero: false,
            hides_fua: false,
            ..over.info.abilities
        };
        over.info.longest_effect = u64::MAX;
        over.passes = Passes::READS;
    }

    fn run(&self, over: &Over, operation: Operation, done: Done) {
        match operation {
            Operation::Flush => done(Ok(Outcome::Done)),
            // The write that replaces it is compared.
            Operation::Take { .. } => done(Ok(Outcome::Taken(0))),
            change if change.changes() => {
                let below = over.below.clone();
                below::complete(done, async move { compare(below, change).await });
            }
            other => over.below.submit(other, done),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use device::model::Model;
    use device::{BlockSizes, ZeroFlags};

    use super::*;
    use crate::kit::tested::{put, simple};
    use device::Blocking as _;

    fn checked(model: Arc<Model>) -> Edge {
        put("checkwrite", simple(model), &[]).unwrap()
    }

    fn filled(extents: bool) -> Arc<Model> {
        let all = Model::new(1).info().abilities;
        let model = Model::with(1 << 20, Abilities { extents, ..all }, BlockSizes::ANY);
        model.write_at(&[7; 4096], 8192, false).unwrap();
        model.write_at(&[0; 4096], 65536, false).unwrap();
        Arc::new(model)
    }

    #[test]
    fn what_is_there_may_be_written_and_one_changed_byte_may_not() {
        let model = filled(true);
        let (disk, before) = (checked(model.clone()), model.log());
        disk.write(&[7; 4096], 8192, true).unwrap();
        disk.write(&[0; 4096], 0, false).unwrap();
        let mut data = vec![7; 4096];
        data[77] = 8;
        let error = disk.write(&data, 8192, false).unwrap_err();
        assert_eq!((error.kind(), error.offset()), (ErrorKind::Mismatch, Some(8192 + 77)));
        disk.flush().unwrap();
        assert_eq!(model.log(), before);
    }

    #[test]
    fn zeroes_are_accepted_where_the_disk_reads_as_zeroes_allocated_or_not() {
        for extents in [true, false] {
            let model = filled(extents);
            let (disk, before) = (checked(model.clone()), model.log());
            let flags = ZeroFlags::default();
            disk.zero(0, 8192, flags).unwrap();
            disk.zero(12288, 100_000, flags).unwrap();
            disk.trim(12288, 100_000, false).unwrap();
            for (offset, len) in [(0, 8193), (12287, 1), (8000, 1 << 18)] {
                let error = disk.zero(offset, len, flags).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Mismatch);
                assert_eq!(error.offset(), Some(8192.max(offset)));
                assert_eq!(disk.trim(offset, len, false).unwrap_err().kind(), ErrorKind::Mismatch);
            }
            assert_eq!(model.log(), before);
        }
    }

    #[test]
    fn a_fast_zero_is_answered_from_the_map_or_refused() {
        let disk = checked(filled(true));
        let fast = ZeroFlags { fast_only: true, ..ZeroFlags::default() };
        disk.zero(0, 8192, fast).unwrap();
        for (offset, len) in [(0, 8193), (65536, 1)] {
            assert_eq!(disk.zero(offset, len, fast).unwrap_err().kind(), ErrorKind::NotFast);
        }
    }
}
