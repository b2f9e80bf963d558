//! `diskferry amend`: changes options of an image that exists.

use std::process::ExitCode;

use clap::{ArgMatches, Command};
use device::Param;
use disk::{Format, OpenOptions};
use runtime::Context;

use crate::arguments::{disk_as, flag, value};
use crate::failure::{ExitResult, Failure};
use crate::image::{self, CACHES, Source};
use crate::output;
use crate::progress::percent;
use crate::verb::Verb;

pub(crate) const VERB: Verb = Verb {
    name: "amend",
    summary: "Change options of an existing image",
    about: "The options are those of `qemu-img amend`, for qcow2: compat (1.1 or 0.10), \
            lazy_refcounts, data_file, data_file_raw=off and size; `-o help` lists them. If it is \
            interrupted, each option has either its old or its new value. Without -f the format \
            is guessed.",
    example: "  diskferry create -q -f qcow2 -o compat=0.10 disk.qcow2 1G\n  \
              diskferry amend -o compat=1.1,lazy_refcounts=on disk.qcow2",
    status: "",
    usage: 1,
    arguments,
    run,
};

fn arguments(command: Command) -> Command {
    command
        .arg(disk_as("disk", "FILE", "A path, or file:PATH").required(false))
        .arg(image::format_argument("-f, --format", "Format [default: a guess]"))
        .arg(image::options_option("What changes; help lists what may"))
        .arg(flag("-p, --progress", "Show how much is done on standard output"))
        .arg(flag("-q, --quiet", "Print errors only"))
        .arg(flag(
            "--force",
            "Ignored: no used keyslot is overwritten, and the last one is not emptied",
        ))
        .arg(value("-t, --cache MODE", "Ignored").value_parser(CACHES))
        .arg(image::object())
        .arg(image::image_opts())
        .arg(image::external_argument())
}

fn run(matches: &ArgMatches) -> ExitResult {
    image::check_objects(matches)?;
    let texts = || image::words(matches, "options");
    if texts().next().is_none() {
        return Err(Failure::usage("which options? name them with -o; -o help lists them"));
    }
    let named = image::word(matches, "format").map(disk::format).transpose()?;
    if let Some(format) = named.filter(|_| image::asks_for_help(texts())) {
        return output::text(&help(format)?);
    }
    let Some(disk) = image::word(matches, "disk") else {
        return Err(Failure::usage("which image? name its file"));
    };
    let source = Source::read(matches, disk)?;
    let (options, context) = (OpenOptions::read_write(), Context::default());
    let kept = disk::keep(&source.disk, source.changed()?, &options, &context)?;
    let text = help(kept.format).map_err(|failure| failure.behind(&format!("{disk}: ")))?;
    if image::asks_for_help(texts()) {
        return output::text(&text);
    }
    let mut options = image::options(texts())?;
    image::resolve_secrets(matches, &mut options)?;
    if let Some((key, cure)) = options.iter().find_map(|(key, _)| elsewhere(kept.format, key)) {
        return Err(Failure::usage(format!("-o {key}: {cure}")));
    }
    let declared = options.check_declared(kept.format.upkeep.amended, false);
    declared.map_err(|e| Failure::usage(format!("-o: {e}")))?;
    let none = "images of this format have no options to amend";
    let shows = matches.get_flag("progress") && !matches.get_flag("quiet");
    if shows {
        percent(0, 1, '\r');
    }
    kept.change(none, kept.format.upkeep.amend, |amend, container, opening| {
        amend(container, opening, &options)
    })?;
    if shows {
        percent(1, 1, '\n');
    }
    Ok(ExitCode::SUCCESS)
}

/// An option that is not amended, and what to do.
fn elsewhere<'a>(format: &Format, key: &'a str) -> Option<(&'a str, &'static str)> {
    let has = |params: &[Param]| params.iter().any(|param| param.key == key);
    let cure = match key {
        _ if has(format.upkeep.amended) => return None,
        "backing_file" | "backing_fmt" => "`diskferry rebase` changes it",
        _ if format.create.as_ref().is_some_and(|create| has(create.options)) => {
            "is chosen when an image is made; `diskferry convert -o` makes another"
        }
        _ => return None,
    };
    Some((key, cure))
}

/// The options that a format amends.
fn help(format: &Format) -> Result<String, Failure> {
    if format.upkeep.amend.is_none() {
        return Err(Failure::new(format!(
            "images of the format {} have no options to amend",
            format.word
        )));
    }
    let mut text = format!("Amend options for '{}':\n", format.word);
    for param in format.upkeep.amended {
        let word = format!("{}=<{}>", param.key, param.value);
        text += &format!("  {word:<22} - {}\n", param.doc);
    }
    Ok(text)
}
