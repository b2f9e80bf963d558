//! `diskferry man`: man pages, from the tables of verbs, devices and filters.

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Arg, ArgMatches, Command, value_parser};
use clap_mangen::roff::{Roff, bold, italic, roman};

use crate::failure::{Failure, Outcome};
use crate::page::{Page, pages};
use crate::verb::{Verb, command};

pub(crate) const VERB: Verb = Verb {
    name: "man",
    summary: "Write the man pages into a directory",
    about: "One page for diskferry and one for each verb, device and filter; the directory is \
            made if need be.",
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
    let say = |e: io::Error| Failure::new(format!("{}: {e}", directory.display()));
    std::fs::create_dir_all(directory).map_err(say)?;
    clap_mangen::generate_to(command(), directory).map_err(say)?;
    for page in pages() {
        write(&page, directory).map_err(say)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// `diskferry-device-memory.1`, say.
fn write(page: &Page, directory: &Path) -> io::Result<()> {
    let name = format!("diskferry-{}-{}", page.thing.name(), page.word);
    let version = format!("diskferry {}", env!("CARGO_PKG_VERSION"));
    let mut roff = Roff::new();
    roff.control("TH", [name.as_str(), "1", "", version.as_str()]);
    roff.control("SH", ["NAME"]);
    roff.text([roman(format!("{name} - {}", page.summary))]);
    roff.control("SH", ["SYNOPSIS"]);
    for usage in page.usage() {
        roff.text([roman(usage)]);
        roff.control("br", []);
    }
    if !page.params.is_empty() || page.any_param {
        roff.control("SH", ["PARAMETERS"]);
    }
    for param in page.params {
        roff.control("TP", []);
        roff.text([bold(param.key), roman("="), italic(param.value)]);
        roff.text([roman(param.doc)]);
        if Some(param.key) == page.magic {
            roff.text([roman(format!("{}= may be left out.", param.key))]);
        }
    }
    if page.any_param {
        roff.control("TP", []);
        roff.text([italic("NAME"), roman("="), italic("VALUE")]);
        roff.text([roman("Variables, with names of your choice.")]);
    }
    roff.control("SH", ["EXAMPLE"]);
    roff.text([roman(page.command())]);
    roff.control("SH", ["SEE ALSO"]);
    roff.text([bold("diskferry"), roman("(1), "), bold("diskferry-serve"), roman("(1)")]);
    std::fs::write(directory.join(format!("{name}.1")), roff.to_roff())
}
