//! `diskferry zero`: makes a range of a disk read as zeroes.

use clap::{ArgMatches, Command};
use device::{ErrorKind, Operation, ZeroFlags};

use crate::arguments::flag;
use crate::failure::{ExitResult, Failure, USAGE};
use crate::range::{self, RangeTarget, Undone};
use crate::verb::Verb;

pub(crate) const VERB: Verb = Verb {
    name: "zero",
    summary: "Zero a range of a disk",
    about: "The disk is treated as raw bytes, even if the file is an image. If it cannot zero, \
            zeroes are written. The range may become a hole. The result is durable when the \
            command ends. -z, -Z, -k, -o and -l are those of fallocate(1).",
    example: "  diskferry copy pattern:8M disk.raw\n  \
              diskferry zero --offset 1M --length 2M disk.raw",
    status: "3: --fast was given, zeroing is not known to be fast, and nothing was changed. 130, \
             143, 129: SIGINT, SIGTERM or SIGHUP stopped it.",
    usage: USAGE,
    arguments,
    run,
};

/// Exit status of a fast zero that is not known to be fast, and has changed nothing.
const NOT_FAST: u8 = 3;

fn arguments(command: Command) -> Command {
    range::arguments(command)
        .arg(flag("--fast", "Only if it is known to be faster than writing zeroes"))
        .arg(
            flag("-z, --no-hole", "Keep allocated what is zeroed")
                .visible_alias("zero-range")
                .long_help(
                    "Keep the range allocated. As with fallocate -z, a missing file is created, and a shorter one \
                     becomes as long as the range",
                ),
        )
        .arg(
            flag("-Z, --written", "Write the zeroes, by the best way there is")
                .short_alias('w')
                .visible_alias("force-zero")
                .alias("write-zeroes")
                .conflicts_with_all(["no-hole", "fast", "keep-size"])
                .long_help(
                    "Write the zeroes by the best available method, so that later writes do not \
                     change file system metadata. As with -z, a file is created or extended",
                ),
        )
        .arg(
            flag("-k, --keep-size", "With -z: the file keeps its length, which must include the range")
                .short_alias('n'),
        )
}

fn run(matches: &ArgMatches) -> ExitResult {
    let (keep, written) = (matches.get_flag("no-hole"), matches.get_flag("written"));
    let target = if (keep || written) && !matches.get_flag("keep-size") {
        RangeTarget::open_or_grow(matches, "zero")?
    } else {
        RangeTarget::open(matches, "zero")?
    };
    let flags = ZeroFlags {
        may_unmap: !keep && !written,
        written,
        fast_only: matches.get_flag("fast"),
        fua: false,
    };
    let zero = |offset, len| Operation::Zero { offset, len, flags };
    let length = target.length();
    target.run(matches, "zeroed", (zero, flags.fast_only), |undone| explain(undone, length))
}

/// Adds to a failure what was changed and what was not.
fn explain(undone: &Undone, length: u64) -> Failure {
    let Undone { error, done, first, .. } = undone;
    match (error.kind(), done) {
        (ErrorKind::NotFast, 0) => {
            Failure::new(format!("{error}; nothing was changed")).with_code(NOT_FAST)
        }
        _ => Failure::because(
            error,
            format!(
                "{error}; {done} of {length} bytes were zeroed, the first that may not be is at {first}"
            ),
        ),
    }
}
