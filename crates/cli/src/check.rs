//! `diskferry check`: checks the metadata of an image.

use std::io::{self, Write};

use clap::{ArgMatches, Command};
use disk::{Findings, Repair, Repaired};
use serde_json::{Map, Value, json};

use crate::arguments::{disk, flag, value};
use crate::failure::{ExitResult, Failure, say};
use crate::image::{self, Source};
use crate::output;
use crate::verb::Verb;

pub(crate) const VERB: Verb = Verb {
    name: "check",
    summary: "Check the metadata of an image",
    about: "The options are those of `qemu-img check`. With -r an image is repaired where it lies \
            (qcow2), and checked again: its status is that of the second check. Without -r nothing \
            is changed. Without -f the format is guessed.",
    example: "  diskferry create -q -f raw disk.raw 1M\n  \
              diskferry check disk.raw || test $? = 63",
    status: "2: the image is corrupt. 3: clusters are leaked, nothing is corrupt. 63: the format \
             has no check.",
    usage: 1,
    arguments,
    run,
};

/// Exit statuses.
const UNDONE: u8 = 1;
const BROKEN: u8 = 2;
const LEAKS: u8 = 3;
const NO_CHECK: u8 = 63;

fn arguments(command: Command) -> Command {
    let command = command
        .arg(disk())
        .arg(image::format_argument("-f, --format", "Format [default: a guess]"))
        .arg(image::output_argument())
        .arg(flag("-q, --quiet", "Print errors only"))
        .arg(
            value("-r, --repair WHAT", "Repair: `leaks`, or `all` that is wrong")
                .value_parser(["leaks", "all"]),
        )
        .arg(image::cache_argument());
    image::arguments(command)
}

fn run(matches: &ArgMatches) -> ExitResult {
    image::check_objects(matches)?;
    let source = Source::read(matches, image::word(matches, "disk").unwrap_or_default())?;
    let repair = image::word(matches, "repair");
    match repair {
        Some(_) => image::confine_to_change(matches, &source.disk, &source.stack)?,
        None => image::confine(matches, [&source])?,
    }
    let (image, context) = (source.image()?, image::context(matches)?);
    if let Some(what) = repair {
        let what = if what == "all" { Repair::All } else { Repair::Leaks };
        let options = image::reading(matches);
        let kept = disk::keep(&source.disk, source.changed()?, &options, &context)?;
        if kept.format.check.is_none() {
            return Err(unchecked(&source));
        }
        let change = kept.format.upkeep.repair;
        let none = "images of this format are not repaired; `diskferry convert` makes a new one";
        let repaired =
            kept.change(none, change, |repair, edge, opening| repair(edge, opening, what))?;
        return report(matches, &source, kept.format.word, &repaired);
    }
    let checked = disk::check(&source.disk, image, &image::reading(matches), &context)?;
    let Some(found) = checked.findings else {
        return Err(unchecked(&source));
    };
    let now = Repaired { now: found, ..Repaired::default() };
    report(matches, &source, checked.format.word, &now)
}

fn unchecked(source: &Source) -> Failure {
    let what = format!("{}: This image format does not support checks", source.disk);
    Failure::new(what).with_code(NO_CHECK)
}

/// Says what was repaired, if anything was, and what is found now.
fn report(matches: &ArgMatches, source: &Source, format: &str, repaired: &Repaired) -> ExitResult {
    let quiet = matches.get_flag("quiet");
    let Repaired { before, now: found, leaks_fixed, corruptions_fixed } = repaired;
    let is_repaired = (*leaks_fixed, *corruptions_fixed) != (0, 0);
    if !quiet {
        let is_gone = |line: &&String| !found.corruptions.contains(line);
        let gone = before.corruptions.iter().filter(is_gone);
        gone.for_each(|line| say(&format!("Repairing: {line}")));
        found.corruptions.iter().for_each(|line| say(&format!("ERROR {line}")));
    }
    let as_json = image::word(matches, "output") == Some("json");
    output::verdict(code(found), |out| {
        if as_json {
            let name = device::text::shown(&source.disk.to_string()).into_owned();
            image::write_json(out, &json_of(repaired, &name, format))?;
        } else if !quiet {
            if is_repaired {
                writeln!(
                    out,
                    "The following inconsistencies were found and repaired:\n\n    \
                     {leaks_fixed} leaked clusters\n    {corruptions_fixed} corruptions\n\n\
                     Double checking the fixed image now..."
                )?;
            }
            print(found, out)?;
        }
        Ok(())
    })
}

fn code(found: &Findings) -> u8 {
    match found {
        Findings { corruption_count: 1.., .. } => BROKEN,
        Findings { check_errors: 1.., .. } => UNDONE,
        Findings { leaks: 1.., .. } => LEAKS,
        _ => 0,
    }
}

fn json_of(repaired: &Repaired, name: &str, format: &str) -> Value {
    let found = &repaired.now;
    let mut keys = Map::new();
    let mut say = |key: &str, number: u64, always: bool| {
        if always || number > 0 {
            keys.insert(key.to_owned(), json!(number));
        }
    };
    say("image-end-offset", found.image_end, false);
    say("total-clusters", found.total_clusters, false);
    say("check-errors", found.check_errors, true);
    say("corruptions", found.corruption_count, false);
    say("leaks", found.leaks, false);
    say("corruptions-fixed", repaired.corruptions_fixed, false);
    say("leaks-fixed", repaired.leaks_fixed, false);
    say("allocated-clusters", found.allocated_clusters, false);
    say("fragmented-clusters", found.fragmented_clusters, false);
    say("compressed-clusters", found.compressed_clusters, false);
    keys.insert("filename".into(), json!(name));
    keys.insert("format".into(), json!(format));
    Value::Object(keys)
}

fn print(found: &Findings, out: &mut dyn Write) -> io::Result<()> {
    let Findings { corruption_count, leaks, check_errors, .. } = found;
    if (*corruption_count, *leaks, *check_errors) == (0, 0, 0) {
        writeln!(out, "No errors were found on the image.")?;
    }
    if *corruption_count > 0 {
        writeln!(
            out,
            "\n{corruption_count} errors were found on the image.\n\
             Data may be corrupted, or further writes to the image may corrupt it."
        )?;
    }
    if *leaks > 0 {
        writeln!(
            out,
            "\n{leaks} leaked clusters were found on the image.\n\
             This means waste of disk space, but no harm to data."
        )?;
    }
    if *check_errors > 0 {
        writeln!(out, "\n{check_errors} internal errors have occurred during the check.")?;
    }
    let (total, allocated) = (found.total_clusters, found.allocated_clusters);
    if total > 0 && allocated > 0 {
        writeln!(
            out,
            "{allocated}/{total} = {:.2}% allocated, {:.2}% fragmented, {:.2}% compressed clusters",
            percent(allocated, total),
            percent(found.fragmented_clusters, allocated),
            percent(found.compressed_clusters, allocated),
        )?;
    }
    if found.image_end > 0 {
        writeln!(out, "Image end offset: {}", found.image_end)?;
    }
    Ok(())
}

#[expect(clippy::cast_precision_loss, reason = "a percentage needs no more than 52 bits")]
fn percent(part: u64, whole: u64) -> f64 {
    part as f64 * 100.0 / whole as f64
}
