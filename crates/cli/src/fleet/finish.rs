//! `diskferry finish`: proves that all disks of a plan are complete.

use std::process::ExitCode;

use clap::{ArgMatches, Command};
use transfer::fleet::{FleetFinish, finish};

use super::{context, plan_file, plan_of};
use crate::arguments::flag;
use crate::digest::line;
use crate::failure::{ExitResult, say};
use crate::output;
use crate::patience;
use crate::verb::Verb;

pub(crate) const VERB: Verb = Verb {
    name: "finish",
    summary: "Verify and complete the disks of a plan",
    about: "Where a shard is missing it names it, and changes nothing. Otherwise each target is read and compared with the \
            digests of what was read from its source, made durable, and is complete from then on: the mark beside it and its \
            journals are removed, and no `run` of the plan writes to it any more. The digests are printed, for `digest --check`.",
    example: "  printf '[[disk]]\\nsource=\"pattern:8M\"\\ntarget=\"copy.raw\"\\n' > job.toml\n  \
              diskferry plan -q job.toml -o plan.json\n  \
              diskferry run -q plan.json --all\n  diskferry finish plan.json > digests",
    status: "75: also if another process has a target open after 30 seconds (60 with a store). 1: shards are missing, or a \
             target does not hold what was copied to it.",
    usage: 2,
    arguments,
    run,
};

fn arguments(command: Command) -> Command {
    let command = command
        .arg(plan_file())
        .arg(flag("--verify", "Read the data from the disk, not from the page cache"))
        .arg(flag("-q, --quiet", "Print errors only"));

    patience::arguments(command)
}

fn run(matches: &ArgMatches) -> ExitResult {
    let plan = plan_of(matches)?;
    let context = context(matches)?;
    let how = FleetFinish { past_cache: matches.get_flag("verify") };
    let quiet = matches.get_flag("quiet");
    let done = finish(&plan, how, &context, &|finished| {
        let name = plan.disks.get(finished.disk).map(|disk| disk.shown()).unwrap_or_default();
        let print = |out: &mut dyn std::io::Write| out.write_all(&line(&finished.digest, &name));
        let printed = match quiet {
            true => Ok(ExitCode::SUCCESS),
            false => output::finish(|out| print(out).map(|()| ExitCode::SUCCESS)),
        };
        if let Err(failure) = printed {
            say(&failure.line());
        }
    });
    context.control.end();
    Ok(done.map(|()| ExitCode::SUCCESS)?)
}
