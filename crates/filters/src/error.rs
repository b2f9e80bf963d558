//! `error`: makes operations fail, each kind at a rate of its own, to test clients.
//!
//! An operation that is to fail does not start: it reads and changes nothing. It never fails with
//! "unsupported" or "not fast", which others would answer with a fallback.

use std::hash::{BuildHasher, RandomState};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use device::{
    Done, Error, ErrorKind, Fault, Filter, Filtered, Operation, Over, Params, Result, param, values,
};

use crate::FilterKind;
use crate::kit::chance::{Dice, probability};
use crate::kit::kind::{ByKind, Kind};
use crate::kit::params::absolute;

const RATE: &str = "10%|0.1|1:10";
const CODE: &str = "EPERM|EIO|ENOMEM|EINVAL|ENOSPC|ESHUTDOWN";

pub(crate) const KIND: FilterKind = FilterKind {
    word: "error",
    summary: "injects errors, at a separate rate for each kind of operation",
    keeps_disk: false,
    params: &[
        param("error", CODE, "the error (default EIO)"),
        param("error-rate", RATE, "how many operations fail (default 0)"),
        param("error-file", "FILE", "nothing fails unless this file exists"),
        param("error-pread", CODE, "the error of reads"),
        param("error-pread-rate", RATE, "how many reads fail"),
        param("error-pread-file", "FILE", "no read fails unless this file exists"),
        param("error-pwrite", CODE, "the error of writes"),
        param("error-pwrite-rate", RATE, "how many writes fail"),
        param("error-pwrite-file", "FILE", "no write fails unless this file exists"),
        param("error-trim", CODE, "the error of trims"),
        param("error-trim-rate", RATE, "how many trims fail"),
        param("error-trim-file", "FILE", "no trim fails unless this file exists"),
        param("error-zero", CODE, "the error of zeroes"),
        param("error-zero-rate", RATE, "how many zeroes fail"),
        param("error-zero-file", "FILE", "no zero fails unless this file exists"),
        param("error-extents", CODE, "the error of block status"),
        param("error-extents-rate", RATE, "how many block status requests fail"),
        param("error-extents-file", "FILE", "no block status fails unless this file exists"),
        param("error-cache", CODE, "the error of prefetching"),
        param("error-cache-rate", RATE, "how many prefetches fail"),
        param("error-cache-file", "FILE", "no prefetch fails unless this file exists"),
        param("error-flush", CODE, "the error of flushes"),
        param("error-flush-rate", RATE, "how many flushes fail (default 0, whatever error-rate)"),
        param("error-flush-file", "FILE", "no flush fails unless this file exists"),
        param("error-seed", "N", "fail in the same places each time (default: chance)"),
    ],
    example: "serve --filter=error memory 1M error=ENOSPC error-pwrite-rate=100% \
              --run 'nbdsh -u \"$uri\" -c \"h.pread(1, 0)\"'",
    open: |params, below, _| Ok(Filtered::device(Failing::read(params)?, below)),
    ..FilterKind::PLAIN
};

/// When and how operations of one kind fail.
#[derive(Debug)]
struct Injection {
    error: ErrorKind,
    code: &'static str,
    /// The probability: from 0 (never) to 1 (always).
    rate: f64,
    file: Option<PathBuf>,
}

#[derive(Debug)]
struct Failing {
    rules: ByKind<Injection>,
    /// Decides by the number of each operation that may fail.
    seed: u64,
    count: AtomicU64,
}

impl Failing {
    fn read(params: &Params) -> Result<Self> {
        let seed = values::number(params, "error-seed")?;
        Ok(Self {
            rules: ByKind::new(|kind| Injection::read(params, kind))?,
            seed: seed.unwrap_or_else(|| RandomState::new().hash_one("error")),
            count: AtomicU64::new(0),
        })
    }

    /// The next random number, from 0 up to, not including, 1.
    fn throw(&self) -> f64 {
        Dice::of(self.seed, self.count.fetch_add(1, Ordering::Relaxed)).fraction()
    }
}

impl Injection {
    /// The rule for operations of a kind: its own, or the one for all.
    fn read(params: &Params, kind: Kind) -> Result<Self> {
        let own = match kind {
            Kind::Read | Kind::Write => format!("error-p{}", kind.name()),
            other => format!("error-{}", other.name()),
        };
        let code = code(params, &own)?.map_or_else(|| code(params, "error"), |c| Ok(Some(c)))?;
        let (code, error) = code.unwrap_or(("EIO", ErrorKind::Io));
        let common = if kind == Kind::Flush { None } else { probability(params, "error-rate")? };
        let rate = probability(params, &format!("{own}-rate"))?.or(common).unwrap_or(0.0);
        let file = params.get(&format!("{own}-file")).or_else(|| params.get("error-file"));
        Ok(Self { error, code, rate, file: file.map(absolute).transpose()? })
    }

    fn strikes(&self, throw: impl FnOnce() -> f64) -> bool {
        // Checking whether a file exists costs about a memory access.
        self.rate > 0.0
            && throw() < self.rate
            && self.file.as_ref().is_none_or(|file| file.exists())
    }

    fn error(&self, what: &str, offset: Option<u64>) -> Error {
        let action = format!("{what}: {} is injected by the filter `error`", self.code);
        let error = Error::new(self.error, Fault::User, action);
        offset.into_iter().fold(error, Error::at)
    }
}

fn code(params: &Params, key: &str) -> Result<Option<(&'static str, ErrorKind)>> {
    const KINDS: [ErrorKind; 6] = [
        ErrorKind::PermissionDenied,
        ErrorKind::Io,
        ErrorKind::NoMemory,
        ErrorKind::InvalidInput,
        ErrorKind::NoSpace,
        ErrorKind::Shutdown,
    ];
    let codes = KINDS.map(|kind| (kind.errno().1, kind));
    let words = codes.map(|(word, _)| word);
    Ok(values::choice(params, key, &words)?.and_then(|i| codes.get(i).copied()))
}

impl Filter for Failing {
    fn describe(&self, over: &mut Over) {
        over.info.observe();
    }

    fn run(&self, over: &Over, operation: Operation, done: Done) {
        let rule = &self.rules[Kind::of(&operation)];
        if rule.strikes(|| self.throw()) {
            let (what, offset) = (operation.kind().name(), operation.range().map(|(at, _)| at));
            return done(Err(rule.error(what, offset).on(&over.info.name)));
        }
        over.below.submit(operation, done);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use device::ZeroFlags;
    use device::model::Model;

    use super::*;
    use crate::kit::tested::{put, simple};
    use device::Edge;

    fn failing(words: &[&str]) -> (Edge, Arc<Model>) {
        let model = Arc::new(Model::new(1 << 20));
        (put("error", simple(model.clone()), words).unwrap(), model)
    }

    #[test]
    fn an_operation_that_fails_is_not_begun_and_a_zero_is_not_written_instead() {
        let (disk, model) = failing(&["error-rate=100%", "error-flush-rate=1"]);
        let flags = [false, true].map(|fast_only| ZeroFlags { fast_only, ..Default::default() });
        let results = [
            disk.read(&mut [0; 10], 0),
            disk.write(&[1; 10], 0, true),
            disk.zero(0, 4096, flags[0]),
            disk.zero(0, 4096, flags[1]),
            disk.trim(0, 4096, false),
            disk.prefetch(0, 10),
            disk.resolve(0, 10, 1, &mut Vec::new()),
            disk.flush(),
        ];
        for result in results {
            assert_eq!(result.unwrap_err().kind(), ErrorKind::Io);
        }
        assert!(model.log().is_empty() && model.flushes() == 0);
    }

    #[test]
    fn each_kind_has_its_own_error_and_rate_and_what_is_not_named_follows_the_common_ones() {
        let words = ["error=ENOSPC", "error-pwrite-rate=1", "error-zero=ENOMEM", "error-rate=0"];
        let (disk, _) = failing(&words);
        disk.read(&mut [0; 10], 0).unwrap();
        disk.zero(0, 10, ZeroFlags::default()).unwrap();
        let e = disk.write(&[0; 10], 512, false).unwrap_err();
        assert_eq!((e.kind(), e.offset()), (ErrorKind::NoSpace, Some(512)));
        let (disk, _) = failing(&["error-rate=1:1"]);
        disk.flush().unwrap();
    }

    #[test]
    fn about_as_many_fail_as_the_rate_says_and_the_same_ones_for_the_same_seed() {
        let run = |rate: &str, seed: &str| -> Vec<bool> {
            let words = [format!("error-rate={rate}"), format!("error-seed={seed}")];
            let (disk, _) = failing(&[&words[0], &words[1]]);
            (0..2000).map(|_| disk.read(&mut [0; 1], 0).is_err()).collect()
        };
        let count = |all: &[bool]| all.iter().filter(|failed| **failed).count();
        let tenth = run("10%", "7");
        assert!((140..=260).contains(&count(&tenth)), "{}", count(&tenth));
        assert_eq!(tenth, run("0.1", "7"));
        assert_eq!(tenth, run("1:10", "7"));
        assert_ne!(tenth, run("10%", "8"));
        assert_eq!((count(&run("0", "1")), count(&run("1", "1"))), (0, 2000));
    }
}
