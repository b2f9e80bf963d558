//! `diskferry man`: the manual pages, and the reference in Markdown, from the tables of verbs,
//! devices, filters, formats and topics, and the page on JSON.

mod markdown;
mod pages;

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Arg, ArgMatches, Command, ValueHint, value_parser};

use crate::arguments::flag;
use crate::failure::{ExitResult, Failure, USAGE};
use crate::verb::Verb;

pub(crate) const VERB: Verb = Verb {
    name: "man",
    summary: "Write the man pages to a directory",
    about: "One page for diskferry and one for each verb, device, filter and format; the directory is \
            created if it is missing. With --markdown it writes the reference of the documentation \
            instead: verbs, devices, filters, formats, exit statuses, signals, environment, files, \
            JSON.",
    example: "  diskferry man man1 && ls man1",
    status: "",
    usage: USAGE,
    arguments,
    run,
};

/// A page of either: the name of its file, and its text.
type PageFile = (String, Vec<u8>);

fn arguments(command: Command) -> Command {
    command.arg(flag("--markdown", "Write the reference, as Markdown")).arg(
        Arg::new("directory")
            .value_name("DIR")
            .required(true)
            .value_parser(value_parser!(PathBuf))
            .value_hint(ValueHint::DirPath)
            .help("The directory to write to"),
    )
}

fn run(matches: &ArgMatches) -> ExitResult {
    let directory =
        matches.get_one::<PathBuf>("directory").ok_or_else(|| Failure::usage("no directory"))?;
    let say = |e: io::Error| Failure::new(format!("{}: {e}", directory.display()));
    let pages = match matches.get_flag("markdown") {
        true => markdown::all(),
        false => pages::all().map_err(say)?,
    };
    std::fs::create_dir_all(directory).map_err(say)?;
    for (name, text) in pages {
        std::fs::write(directory.join(name), text).map_err(say)?;
    }
    Ok(ExitCode::SUCCESS)
}
