//! `diskferry run`: copies shards of a plan.

use std::process::ExitCode;

use clap::{ArgMatches, Command, value_parser};
use device::{Error, ErrorKind, Fault, format_size};
use transfer::fleet::{FleetPlan, FleetRun, FleetShare, ShardOutcome, ShardReport};

use super::{context, plan_file, plan_of, share};
use crate::arguments::{flag, value};
use crate::failure::{ExitResult, Failure, say};
use crate::image;
use crate::patience;
use crate::sandbox::{self, Sandbox};
use crate::verb::Verb;

pub(crate) const VERB: Verb = Verb {
    name: "run",
    summary: "Copy shards of a plan",
    about: "Any process may run any shard, anywhere, any number of times, also two at the same time: what is durable is in the \
            shard's journal, and is not copied again. Without --all and --shard the share is that of the task of a Slurm array \
            (SLURM_ARRAY_TASK_ID) or of the pod of a Kubernetes Indexed Job (JOB_COMPLETION_INDEX, with --of). It can be killed \
            at any moment; the same command resumes it.",
    example: "  printf '[[disk]]\\nsource=\"pattern:8M\"\\ntarget=\"copy.raw\"\\n' > job.toml\n  \
              diskferry plan -q job.toml -o plan.json\n  \
              diskferry run plan.json --all --workers 4\n  \
              diskferry run plan.json --shard 0/8",
    status: "75: also if another process is running a shard of this share. 1: a shard failed for \
             good, the others were run.",
    usage: 2,
    arguments,
    run,
};

fn arguments(command: Command) -> Command {
    let command = command
        .arg(plan_file())
        .arg(
            value("--shard I/N", "The share I of N equal ones, from 0/N on")
                .conflicts_with_all(["all", "of"]),
        )
        .arg(flag("--all", "All shards of the plan").conflicts_with("of"))
        .arg(
            value(
                "--of N",
                "How many shares there are, where the environment says which one this is",
            )
            .value_parser(value_parser!(u64)),
        )
        .arg(
            value("--workers N", "Shards that this process copies at the same time")
                .default_value("1")
                .value_parser(value_parser!(u16).range(1..=256)),
        )
        .arg(flag("-q, --quiet", "Print errors only"))
        .arg(sandbox::argument());
    patience::arguments(command)
}

fn run(matches: &ArgMatches) -> ExitResult {
    let share = share_of(matches)?;
    let plan = plan_of(matches)?;
    let run = FleetRun::new(&plan, share.shards(&plan));
    patience::asked(matches)?;
    run.make_journals()?;
    Sandbox::enter(sandbox::wish(matches), &run.reach())?;
    let workers = matches.get_one::<u16>("workers").map_or(1, |n| usize::from(*n));
    let context = || context(matches).unwrap_or_default();
    let quiet = matches.get_flag("quiet");
    let reports = run.run(workers, &context, &|report| tell(&plan, report, quiet));
    let code = |outcome| match outcome {
        ShardOutcome::Copied(_) | ShardOutcome::Was => 0,
        ShardOutcome::Busy => busy().code(),
        ShardOutcome::Failed(e) => Failure::from(e).code(),
    };
    let codes: Vec<u8> = reports.into_iter().map(|report| code(report.outcome)).collect();
    // What failed for good is not to be tried again and again.
    let transient = busy().code();
    let worst = codes.iter().copied().find(|code| *code != 0 && *code != transient);
    let worst = worst.or_else(|| codes.into_iter().find(|code| *code != 0));
    Ok(ExitCode::from(worst.unwrap_or(0)))
}

fn share_of(matches: &ArgMatches) -> Result<FleetShare, Failure> {
    if matches.get_flag("all") {
        return Ok(FleetShare::ALL);
    }
    match image::word(matches, "shard") {
        Some(text) => Ok(FleetShare::parse(text)?),
        None => share::by_environment(
            &|name| std::env::var(name).ok(),
            matches.get_one::<u64>("of").copied(),
        ),
    }
}

/// Another process runs a shard: another try may find it done.
fn busy() -> Failure {
    let e = Error::new(
        ErrorKind::Disconnected,
        Fault::Peer,
        "another process is running it; try again",
    );
    Failure::because(&e, &e)
}

fn tell(plan: &FleetPlan, ShardReport { number, outcome }: &ShardReport, quiet: bool) {
    let disk = plan.disks.get(number.disk);
    let shown = disk.map(|disk| disk.shown()).unwrap_or_default();
    let name = format!("shard {}.{} ({shown})", number.disk, number.shard);
    match outcome {
        ShardOutcome::Copied(bytes) if !quiet => {
            say(&format!("{name}: done, {} copied", format_size(*bytes)));
        }
        ShardOutcome::Was if !quiet => say(&format!("{name}: already done")),
        ShardOutcome::Copied(_) | ShardOutcome::Was => {}
        ShardOutcome::Busy => say(&format!("{name}: {}", busy().line())),
        ShardOutcome::Failed(e) => say(&Failure::new(format!("{name}: {e}")).line()),
    }
}
