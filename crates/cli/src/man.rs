//! `diskferry man`: man pages, from the table of verbs.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Arg, ArgMatches, Command, value_parser};

use crate::failure::{Failure, Outcome};
use crate::verb::{Verb, command};

pub(crate) const VERB: Verb = Verb {
    name: "man",
    summary: "Write the man pages into a directory",
    about: "One page for diskferry and one for each verb; the directory is made if need be.",
    example: "  diskferry man man1 && ls man1",
    arguments,
    run,
};

fn arguments(command: Command) -> Command {
    command.arg(
        Arg::new("directory").value_name("DIR").required(true).value_parser(value_parser!(PathBuf)),
    )
}

fn run(matches: &ArgMatches) -> Outcome {
    let directory =
        matches.get_one::<PathBuf>("directory").ok_or_else(|| Failure::usage("no directory"))?;
    let say = |e: std::io::Error| Failure::new(format!("{}: {e}", directory.display()));
    std::fs::create_dir_all(directory).map_err(say)?;
    clap_mangen::generate_to(command(), directory).map_err(say)?;
    Ok(ExitCode::SUCCESS)
}
