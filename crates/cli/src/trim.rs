//! `diskferry trim`: says that a range of a disk is no longer needed.

use clap::ArgMatches;
use device::{Error, Operation};

use crate::failure::{ExitResult, Failure, USAGE};
use crate::range::{self, RangeTarget, Undone};
use crate::verb::Verb;

pub(crate) const VERB: Verb = Verb {
    name: "trim",
    summary: "Discard a range of a disk",
    about: "The range's contents are undefined afterwards; to get zeroes, use `zero`. The disk is \
            treated as raw bytes, even if the file is an image. Only whole blocks are freed.",
    example: "  diskferry serve memory 64M \\\n    \
              --run 'diskferry trim --offset 1M --length 2M \"$uri\"'",
    status: "130, 143, 129: SIGINT, SIGTERM or SIGHUP stopped it.",
    usage: USAGE,
    arguments: range::arguments,
    run,
};

fn run(matches: &ArgMatches) -> ExitResult {
    let target = RangeTarget::open(matches, "trim")?;
    let info = target.edge.info();
    if info.abilities.write && !info.abilities.trim {
        let error = Error::unsupported("trim: it cannot free space").on(&info.name);
        return Err(Failure::new(format!("{error}; nothing was changed")));
    }
    let trim = |offset, len| Operation::Trim { offset, len, fua: false };
    let length = target.length();
    target.run(matches, "trimmed", (trim, false), |undone| {
        let Undone { error, done, .. } = undone;
        Failure::because(error, format!("{error}; {done} of {length} bytes were trimmed"))
    })
}
