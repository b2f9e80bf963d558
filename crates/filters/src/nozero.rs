//! `nozero`: sets how zero and fast-zero requests appear to clients.
//!
//! For tests of clients, and for devices whose zeroing is worse than writing. `ignore` breaks the
//! promise of a fast zero on purpose; the others are honest.

use device::{
    Done, Edge, Error, Filter, Filtered, Operation, Over, Params, Passes, Result, ZeroFlags, param,
    values,
};

use crate::FilterKind;

const MODES: &str = "none|emulate|notrim|plugin";
const FAST_MODES: &str = "none|slow|ignore|default";

pub(crate) const KIND: FilterKind = FilterKind {
    word: "nozero",
    summary: "controls zero requests: hidden, written as data, never trimmed, never fast",
    keeps_disk: false,
    params: &[
        param("zeromode", MODES, "how to zero (default none: not offered)"),
        param(
            "fastzeromode",
            FAST_MODES,
            "how to answer fast zeroes (default: slow with emulate, else the device's own)",
        ),
    ],
    example: "serve --filter=nozero memory 1M zeromode=emulate \
              --run 'nbdinfo --can fast-zero \"$uri\"'",
    open: |params, below, _| Ok(Filtered::device(NoZero::read(params)?, below)),
    ..FilterKind::PLAIN
};

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Mode {
    None,
    Emulate,
    NoTrim,
    Plugin,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Fast {
    None,
    Slow,
    Ignore,
    Default,
}

struct NoZero {
    mode: Mode,
    fast: Fast,
}

impl NoZero {
    fn read(params: &Params) -> Result<Self> {
        let modes = [Mode::None, Mode::Emulate, Mode::NoTrim, Mode::Plugin];
        let mode = values::meaning(params, "zeromode", MODES, modes)?.unwrap_or(Mode::None);
        let usual = if mode == Mode::Emulate { Fast::Slow } else { Fast::Default };
        let modes = [Fast::None, Fast::Slow, Fast::Ignore, usual];
        let fast = values::meaning(params, "fastzeromode", FAST_MODES, modes)?.unwrap_or(usual);
        Ok(Self { mode, fast })
    }

    fn zero(&self, below: &Edge, (offset, len): (u64, u64), flags: ZeroFlags, done: Done) {
        let Self { mode, fast } = *self;
        let fast_only = match fast {
            Fast::None | Fast::Slow if flags.fast_only => return done(Err(Error::not_fast())),
            Fast::Ignore => false,
            _ => flags.fast_only,
        };
        match mode {
            // It is not fast, and clients must not learn that: the edge above would tell them.
            Mode::None | Mode::Emulate if flags.fast_only && fast == Fast::Ignore => {
                below.submit_zeroes(offset, len, flags.fua, done);
            }
            // The edge above writes zeroes.
            Mode::None | Mode::Emulate => done(Err(Error::unsupported("zero"))),
            Mode::NoTrim | Mode::Plugin => {
                let may_unmap = flags.may_unmap && mode == Mode::Plugin;
                let flags = ZeroFlags { fast_only, may_unmap, ..flags };
                below.submit(Operation::Zero { offset, len, flags }, done);
            }
        }
    }
}

impl Filter for NoZero {
    fn describe(&self, over: &mut Over) {
        let a = &mut over.info.abilities;
        a.hides_zero = self.mode == Mode::None || a.hides_zero;
        a.zero = match self.mode {
            Mode::None | Mode::Emulate => false,
            Mode::NoTrim | Mode::Plugin => a.zero,
        };
        a.fast_zero = match self.fast {
            Fast::None => false,
            // Always refused, so the claim is true; or never, and then the user has been warned.
            Fast::Slow | Fast::Ignore => a.write,
            Fast::Default => a.fast_zero,
        };
        over.passes = Passes::ALL;
    }

    fn run(&self, over: &Over, operation: Operation, done: Done) {
        match operation {
            Operation::Zero { offset, len, flags } => {
                self.zero(&over.below, (offset, len), flags, done);
            }
            other => over.below.submit(other, done),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use device::ErrorKind;
    use device::model::Model;

    use super::*;
    use crate::kit::tested::{blank, put, simple};

    const FAST: ZeroFlags =
        ZeroFlags { may_unmap: true, written: false, fast_only: true, fua: false };

    #[test]
    fn a_fast_zero_is_refused_with_nothing_changed_unless_it_is_fast() {
        for words in [&["zeromode=emulate"][..], &["zeromode=plugin", "fastzeromode=slow"]] {
            let model = Arc::new(Model::new(8192));
            let disk = put("nozero", simple(model.clone()), words).unwrap();
            disk.write(&[7; 8192], 0, false).unwrap();
            assert_eq!(disk.zero(0, 4096, FAST).unwrap_err().kind(), ErrorKind::NotFast);
            assert!(disk.info().abilities.fast_zero && model.bytes() == [7; 8192], "{words:?}");
        }
        let disk = put("nozero", blank(8192), &["zeromode=plugin"]).unwrap();
        disk.zero(0, 4096, FAST).unwrap();
    }

    #[test]
    fn a_fast_zero_that_is_only_advertised_is_written() {
        let model = Arc::new(Model::new(8192));
        let disk =
            put("nozero", simple(model.clone()), &["zeromode=emulate", "fastzeromode=ignore"])
                .unwrap();
        disk.write(&[7; 8192], 0, false).unwrap();
        disk.zero(100, 4000, FAST).unwrap();
        let bytes = model.bytes();
        assert!(bytes[100..4100].iter().all(|b| *b == 0));
        assert!(bytes[..100].iter().chain(&bytes[4100..]).all(|b| *b == 7));
        assert!(model.log().iter().all(|l| l.starts_with("write")), "{:?}", model.log());
    }
}
