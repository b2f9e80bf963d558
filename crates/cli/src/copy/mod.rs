//! `diskferry copy`: copies a disk to a disk.

mod arguments;
mod settings;

use clap::ArgMatches;

use crate::copying;
use crate::failure::{ExitResult, USAGE};
use crate::verb::Verb;

pub(crate) const VERB: Verb = Verb {
    name: "copy",
    summary: "Copy a disk to another",
    about: "A missing file is created; an existing one is overwritten, and truncated or extended \
            to the source's length. Any other target must be at least as large as the source, and \
            its remainder is left alone. Holes are not read, and zeroes become holes. With \
            --target-filter an existing file keeps its length: the filter may show only part of \
            it. The copy is durable when the command ends, if the target can flush. `-` is \
            standard input or output; a failed producer in a pipe goes unnoticed (set -o \
            pipefail). SIGUSR1 shows the progress at once. If a copy fails, it removes a file \
            that it created.",
    example: "  diskferry copy sparse-random:1G disk.raw\n  \
              diskferry serve memory 1G --run 'diskferry copy disk.raw \"$uri\"'\n  \
              diskferry copy --source-filter='rate?rate=8G' disk.raw copy.raw\n  \
              diskferry copy --progress=json disk.raw null:\n  \
              head -c 10M disk.raw | diskferry copy - head.raw\n  \
              diskferry copy disk.raw [ diskferry serve memory 1G ]",
    status: "1: also if a place could not be read (--max-errors). 130, 143, 129: SIGINT, SIGTERM \
             or SIGHUP stopped it.",
    usage: USAGE,
    arguments: arguments::arguments,
    run,
};

fn run(matches: &ArgMatches) -> ExitResult {
    copying::run(&settings::resolve(matches)?)
}
