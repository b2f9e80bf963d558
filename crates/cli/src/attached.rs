//! `diskferry attached`: the disks that are attached as files on this machine.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use attach::AttachedDisk;
use clap::{Arg, ArgMatches, Command, ValueHint, value_parser};
use serde_json::json;

use crate::arguments::json_flag;
use crate::failure::{ExitResult, Failure, USAGE};
use crate::output;
use crate::verb::Verb;

pub(crate) const VERB: Verb = Verb {
    name: "attached",
    summary: "List attached disks",
    about: "A line each: where, and what. They are those that any process of this program attached, as far as the mounts of this process \
            show them; with POINT, those there, and it is an error where there is none.",
    example: "  diskferry attach memory:1G disk.img --run 'diskferry attached'",
    status: "",
    usage: USAGE,
    arguments,
    run,
};

fn arguments(command: Command) -> Command {
    let points = points("Only what is attached here").required(false);
    command.arg(points).arg(json_flag())
}

/// The argument that names points, with its help.
pub(crate) fn points(help: &'static str) -> Arg {
    Arg::new("point")
        .value_name("POINT")
        .required(true)
        .num_args(1..)
        .value_parser(value_parser!(PathBuf))
        .value_hint(ValueHint::FilePath)
        .help(help)
}

/// The disk that is attached at `point`.
pub(crate) fn at(point: &Path) -> Result<AttachedDisk, Failure> {
    let path = std::path::absolute(point);
    let path = path.map_err(|e| Failure::new(format!("{}: {e}", point.display())))?;
    // A link, or a relative part of the name, leads there as well.
    let path = path
        .parent()
        .and_then(|above| above.canonicalize().ok())
        .map_or_else(|| path.clone(), |above| above.join(path.file_name().unwrap_or_default()));
    attach::attached()?.into_iter().find(|disk| disk.is_at(&path)).ok_or_else(|| {
        let cure = "`diskferry attached` lists attached disks";
        Failure::new(format!("{}: no disk is attached there; {cure}", path.display()))
    })
}

fn run(matches: &ArgMatches) -> ExitResult {
    let disks = match matches.get_many::<PathBuf>("point") {
        Some(points) => points.map(|point| at(point)).collect::<Result<Vec<_>, _>>()?,
        None => attach::attached()?,
    };
    output::finish(|out| {
        if matches.get_flag("json") {
            let of = |disk: &AttachedDisk| {
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
