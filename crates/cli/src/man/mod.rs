//! `diskferry man`: man pages, from the tables of verbs, devices and filters.

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Arg, ArgMatches, Command, ValueHint, value_parser};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, italic, roman};
use disk::{Kind, kinds};

use crate::failure::{Failure, Outcome, USAGE};
use crate::page::Page;
use crate::verb::{STATUS, VERBS, Verb, command};

pub(crate) const VERB: Verb = Verb {
    name: "man",
    summary: "Write the man pages into a directory",
    about: "One page for diskferry and one for each verb, device and filter; the directory is \
            made if need be.",
    example: "  diskferry man man1 && ls man1",
    status: "",
    usage: USAGE,
    arguments,
    run,
};

/// The foot of each page.
const SOURCE: &str = concat!("diskferry ", env!("CARGO_PKG_VERSION"));

fn arguments(command: Command) -> Command {
    command.arg(
        Arg::new("directory")
            .value_name("DIR")
            .required(true)
            .value_parser(value_parser!(PathBuf))
            .value_hint(ValueHint::DirPath)
            .help("Where to"),
    )
}

fn run(matches: &ArgMatches) -> Outcome {
    let directory =
        matches.get_one::<PathBuf>("directory").ok_or_else(|| Failure::usage("no directory"))?;
    let say = |e: io::Error| Failure::new(format!("{}: {e}", directory.display()));
    std::fs::create_dir_all(directory).map_err(say)?;
    write_root(directory).map_err(say)?;
    for verb in VERBS {
        write_verb(verb, directory).map_err(say)?;
    }
    for kind in kinds() {
        write(&kind, directory).map_err(say)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// `diskferry.1`.
fn write_root(directory: &Path) -> io::Result<()> {
    let man = Man::new(command()).title("diskferry").source(SOURCE);
    let mut out = Vec::new();
    man.render_title(&mut out)?;
    section("NAME", "diskferry - serve, copy and inspect disks", &mut out)?;
    section("SYNOPSIS", "diskferry VERB [OPTION]... [DISK]...", &mut out)?;
    man.render_description_section(&mut out)?;
    man.render_subcommands_section(&mut out)?;
    section("EXIT STATUS", STATUS, &mut out)?;
    let verbs = VERBS.iter().map(|verb| format!("diskferry-{}", verb.name));
    let pages = kinds().map(|kind| format!("diskferry-{}-{}", kind.role.name(), kind.word));
    see_also(verbs.chain(pages), &mut out)?;
    std::fs::write(directory.join("diskferry.1"), out)
}

/// `diskferry-copy.1`, say.
fn write_verb(verb: &Verb, directory: &Path) -> io::Result<()> {
    let name = format!("diskferry-{}", verb.name);
    let mut all = command();
    all.build();
    let Some(command) = all.find_subcommand_mut(verb.name) else { return Ok(()) };
    let usage = command.render_usage().to_string();
    let command = command.clone().name(name.clone());
    let man = Man::new(command).title(name.clone()).source(SOURCE);
    let mut out = Vec::new();
    man.render_title(&mut out)?;
    section("NAME", &format!("{name} - {}", lower(verb.summary)), &mut out)?;
    section("SYNOPSIS", usage.trim_start_matches("Usage: "), &mut out)?;
    man.render_description_section(&mut out)?;
    man.render_options_section(&mut out)?;
    section("EXIT STATUS", &verb.statuses(), &mut out)?;
    let mut roff = Roff::new();
    roff.control("SH", ["EXAMPLES"]);
    roff.control("nf", []);
    roff.text([roman(verb.example)]);
    roff.control("fi", []);
    roff.to_writer(&mut out)?;
    let others = VERBS.iter().filter(|other| other.name != verb.name);
    let others = others.map(|other| format!("diskferry-{}", other.name));
    see_also(std::iter::once("diskferry".to_owned()).chain(others), &mut out)?;
    std::fs::write(directory.join(format!("{name}.1")), out)
}

/// A summary as it stands in a line of NAME.
fn lower(summary: &str) -> String {
    let mut letters = summary.chars();
    letters.next().map(|c| c.to_lowercase().chain(letters).collect()).unwrap_or_default()
}

fn section(title: &str, text: &str, out: &mut Vec<u8>) -> io::Result<()> {
    let mut roff = Roff::new();
    roff.control("SH", [title]);
    roff.text([roman(text)]);
    roff.to_writer(out)
}

fn see_also(pages: impl Iterator<Item = String>, out: &mut Vec<u8>) -> io::Result<()> {
    let mut line = Vec::new();
    for page in pages {
        if !line.is_empty() {
            line.push(roman(", "));
        }
        line.extend([bold(page), roman("(1)")]);
    }
    let mut roff = Roff::new();
    roff.control("SH", ["SEE ALSO"]);
    roff.text(line);
    roff.to_writer(out)
}

/// `diskferry-device-memory.1`, say.
fn write(kind: &Kind, directory: &Path) -> io::Result<()> {
    let name = format!("diskferry-{}-{}", kind.role.name(), kind.word);
    let mut roff = Roff::new();
    roff.control("TH", [name.as_str(), "1", "", SOURCE]);
    roff.control("SH", ["NAME"]);
    roff.text([roman(format!("{name} - {}", kind.summary))]);
    roff.control("SH", ["SYNOPSIS"]);
    for usage in kind.usage() {
        roff.text([roman(usage)]);
        roff.control("br", []);
    }
    if !kind.params.is_empty() || kind.any_param {
        roff.control("SH", ["PARAMETERS"]);
    }
    for param in kind.params {
        roff.control("TP", []);
        roff.text([bold(param.key), roman("="), italic(param.value)]);
        roff.text([roman(param.doc)]);
        if Some(param.key) == kind.magic {
            roff.text([roman(format!("{}= may be left out.", param.key))]);
        }
    }
    if kind.any_param {
        roff.control("TP", []);
        roff.text([italic("NAME"), roman("="), italic("VALUE")]);
        roff.text([roman("Variables, with names of your choice.")]);
    }
    roff.control("SH", ["EXAMPLE"]);
    roff.text([roman(kind.command())]);
    roff.control("SH", ["SEE ALSO"]);
    roff.text([bold("diskferry"), roman("(1), "), bold("diskferry-serve"), roman("(1)")]);
    std::fs::write(directory.join(format!("{name}.1")), roff.to_roff())
}
