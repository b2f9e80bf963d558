//! `diskferry plan`: cuts the disks of a job into shards, and makes their targets ready.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{ArgMatches, Command};
use device::format_size;
use transfer::fleet::{FleetDisk, FleetPreparation};

use super::{context, file, job};
use crate::arguments::{flag, value};
use crate::failure::{ExitResult, Failure};
use crate::output;
use crate::patience;
use crate::sandbox::{self, Sandbox, Wish};
use crate::verb::Verb;

pub(crate) const VERB: Verb = Verb {
    name: "plan",
    summary: "Plan the copies of many disks",
    about: "JOB is a file (TOML) that names disks and limits. Every source is opened once and cut \
            by its map into shards of about equal work; every target is made, with its full size, \
            and marked as not complete. `run` copies shards of the plan, anywhere and any number \
            of times, `finish` verifies the result, `status` shows the progress. What processes note \
            lies in a directory that they share, or in an object store. See docs/fleet.md.",
    example: "  printf '[[disk]]\\nsource=\"%s\"\\ntarget=\"%s\"\\n' \\\n    pattern:8M copy.raw > job.toml\n  \
              diskferry plan job.toml -o plan.json\n  \
              diskferry run plan.json --all && diskferry finish plan.json",
    status: "",
    usage: 2,
    arguments,
    run,
};

/// Disks of a plan that is made in a sandbox.
const CONFINED: usize = 200;

fn arguments(command: Command) -> Command {
    let output = value("-o, --output PLAN", "Where the plan goes: a file that is not there yet");
    let path = clap::value_parser!(PathBuf);
    let command = command
        .arg(file("job", "JOB", "A job file (TOML)"))
        .arg(output.required(true).value_parser(path).value_hint(clap::ValueHint::FilePath))
        .arg(flag("-q, --quiet", "Print errors only"))
        .arg(sandbox::argument());
    patience::arguments(command)
}

fn run(matches: &ArgMatches) -> ExitResult {
    let path = |id| matches.get_one::<PathBuf>(id).ok_or_else(|| Failure::usage("no file"));
    let job = job::read(path("job")?, path("output")?)?;
    let preparation = FleetPreparation::begin(job)?;
    let wish = match sandbox::wish(matches) {
        // Each name that may be made is a descriptor of the helper.
        Wish::Auto if preparation.disks() > CONFINED => Wish::Off,
        wish => wish,
    };
    Sandbox::enter(wish, &preparation.reach())?;
    let context = context(matches)?;
    let made = preparation.make(&context, &|_| ());
    context.control.end();
    let plan = made?;
    if matches.get_flag("quiet") {
        return Ok(ExitCode::SUCCESS);
    }
    let sum = |of: fn(&FleetDisk) -> u64| plan.disks.iter().map(of).sum::<u64>();
    let shards = sum(|disk| disk.shards.len() as u64);
    let data = sum(|disk| disk.shards.iter().map(|shard| shard.data).sum());
    let (disks, size) = (plan.disks.len(), sum(|disk| disk.size));
    let (data, size) = (format_size(data), format_size(size));
    output::text(&format!("disks: {disks}, shards: {shards}, data: {data} of {size}\n"))
}
