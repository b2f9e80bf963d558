//! `readonly`: refuses changes, always or while a file exists.
//!
//! Each change checks in the pool whether the file exists, since a file system may block. If the
//! check fails, the change is refused.

use runtime::WorkPool;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use device::{
    Done, Error, ErrorKind, Fault, Filter, Filtered, Operation, Over, Passes, Result, param,
};

use crate::FilterKind;

pub(crate) const KIND: FilterKind = FilterKind {
    word: "readonly",
    summary: "refuses changes, always or while a file exists",
    keeps_disk: false,
    params: &[param("readonly-file", "PATH", "refuse only while this exists (default always)")],
    example: "serve --filter=readonly memory 1M \
              --run 'nbdinfo --is read-only \"$uri\" && echo read-only'",
    open: |params, below, context| {
        let file = params.get("readonly-file").map(absolute).transpose()?;
        Ok(Filtered::device(ReadOnly { file, pool: context.pool.clone() }, below))
    },
    ..FilterKind::PLAIN
};

/// The program may change its working directory later.
fn absolute(path: &str) -> Result<Arc<Path>> {
    let action = || format!("readonly-file={path}");
    let path = std::path::absolute(PathBuf::from(path)).map_err(|e| Error::os(action(), e))?;
    Ok(path.into())
}

struct ReadOnly {
    file: Option<Arc<Path>>,
    pool: WorkPool,
}

impl ReadOnly {
    fn change(&self, over: &Over, operation: Operation, done: Done) {
        let name = over.info.name.clone();
        let Some(file) = self.file.clone() else { return done(Err(refusal(&name))) };
        let below = over.below.clone();
        self.pool.run(move || match file.try_exists() {
            Ok(false) => below.submit(operation, done),
            Ok(true) => done(Err(refusal(&name))),
            Err(e) => {
                let action = format!("look for the file {}", file.display());
                done(Err(Error::os(action, e).on(&name)));
            }
        });
    }
}

fn refusal(name: &str) -> Error {
    let action = "change refused: the filter `readonly` forbids it";
    Error::new(ErrorKind::ReadOnly, Fault::User, action).on(name)
}

impl Filter for ReadOnly {
    fn describe(&self, over: &mut Over) {
        over.info.abilities.write &= self.file.is_some();
        over.passes = Passes::READS;
    }

    fn run(&self, over: &Over, operation: Operation, done: Done) {
        if operation.changes() {
            self.change(over, operation, done);
        } else {
            over.below.submit(operation, done);
        }
    }
}

#[cfg(test)]
mod tests {
    use device::ZeroFlags;
    use device::model::Model;

    use super::*;
    use crate::kit::tested::{put, simple};
    use trial::BlockingCalls as _;

    #[test]
    fn without_a_file_nothing_can_be_changed_ever() {
        let model = Arc::new(Model::new(4096));
        let disk = put("readonly", simple(model.clone()), &[]).unwrap();
        assert!(!disk.info().abilities.write);
        let zero = ZeroFlags::default();
        for refused in [disk.write(&[1], 0, false), disk.zero(0, 1, zero), disk.trim(0, 1, false)] {
            assert_eq!(refused.unwrap_err().kind(), ErrorKind::ReadOnly);
        }
        // Nor by a caller that ignores the disk's abilities.
        assert!(disk.device().write_at(&[1], 0, false).is_err());
        assert!(model.log().is_empty());
    }

    #[test]
    fn with_a_file_changes_are_refused_while_it_exists() {
        let scratch = trial::Scratch::new("/tmp");
        let file = scratch.path("ro");
        let model = Arc::new(Model::new(4096));
        let word = format!("readonly-file={}", file.display());
        let disk = put("readonly", simple(model.clone()), &[&word]).unwrap();
        assert!(disk.info().abilities.write);
        disk.write(&[1], 0, false).unwrap();
        std::fs::write(&file, "").unwrap();
        assert_eq!(disk.write(&[2], 0, false).unwrap_err().kind(), ErrorKind::ReadOnly);
        let zeroed = disk.zero(0, 1, ZeroFlags { fast_only: true, ..ZeroFlags::default() });
        assert_eq!(zeroed.unwrap_err().kind(), ErrorKind::ReadOnly);
        assert!(disk.trim(0, 4096, false).is_err());
        std::fs::remove_file(&file).unwrap();
        disk.write(&[3], 1, false).unwrap();
        assert_eq!(model.bytes()[..2], [1, 3]);
    }
}
