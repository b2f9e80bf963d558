//! `diskferry zero`: makes a range of a disk read as zeroes.

use clap::{ArgMatches, Command};
use device::{ErrorKind, Operation, ZeroFlags};

use crate::arguments::flag;
use crate::failure::{Failure, Outcome, USAGE};
use crate::range::{self, Target, Undone};
use crate::verb::Verb;

pub(crate) const VERB: Verb = Verb {
    name: "zero",
    summary: "Make a range of a disk read as zeroes",
    about: "The disk is taken as it is, byte for byte, whatever a file may hold. Where it cannot \
            zero, zeroes are written. What is zeroed may become a hole. It is durable when the \
            command ends.",
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
        .arg(flag("fast", "Only if it is known to be faster than writing zeroes"))
        .arg(flag("no-hole", "Keep allocated what is zeroed"))
}

fn run(matches: &ArgMatches) -> Outcome {
    let target = Target::open(matches, "zero")?;
    let flags = ZeroFlags {
        may_unmap: !matches.get_flag("no-hole"),
        fast_only: matches.get_flag("fast"),
        fua: false,
    };
    let zero = |offset, len| Operation::Zero { offset, len, flags };
    let length = target.length();
    target.run(matches, "zeroed", (zero, flags.fast_only), |undone| explain(undone, length))
}

/// Says what was changed and what was not.
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
