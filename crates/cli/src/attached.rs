//! `diskferry attached`: the disks that are attached as files on this machine.

use std::process::ExitCode;

use clap::{ArgMatches, Command};
use serde_json::json;

use crate::arguments::json_flag;
use crate::failure::{ExitResult, USAGE};
use crate::output;
use crate::verb::Verb;

pub(crate) const VERB: Verb = Verb {
    name: "attached",
    summary: "List attached disks",
    about: "A line each: where, and what. They are those that any process of this program attached, as far as the mounts of this process \
            show them.",
    example: "  diskferry attach memory:1G disk.img --run 'diskferry attached'",
    status: "",
    usage: USAGE,
    arguments,
    run,
};

fn arguments(command: Command) -> Command {
    command.arg(json_flag())
}

fn run(matches: &ArgMatches) -> ExitResult {
    let disks = attach::attached()?;
    output::finish(|out| {
        if matches.get_flag("json") {
            let of = |disk: &attach::AttachedDisk| {
                json!({
                    "point": disk.path.to_string_lossy(),
                    "kind": disk.kind,
                    "disk": disk.disk,
                    "read-only": disk.is_read_only,
                    "waiting": disk.is_waiting,
                })
            };
            let all: Vec<_> = disks.iter().map(of).collect();
            writeln!(out, "{:#}", json!({ "version": output::VERSION, "attached": all }))?;
            return Ok(ExitCode::SUCCESS);
        }
        for disk in &disks {
            let read_only = if disk.is_read_only { " (read-only)" } else { "" };
            let path = disk.path.to_string_lossy();
            let (path, name) = (device::text::shown(&path), device::text::shown(&disk.disk));
            writeln!(out, "{path}: {name}{read_only}")?;
        }
        Ok(ExitCode::SUCCESS)
    })
}
