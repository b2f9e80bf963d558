//! `diskferry measure`: how large an image would be.

use std::process::ExitCode;

use clap::{ArgMatches, Command};
use disk::{Image, Measured};
use serde_json::json;

use crate::arguments::{disk_as, size, value};
use crate::failure::{ExitResult, Failure};
use crate::image::{self, Source};
use crate::output;
use crate::verb::Verb;

pub(crate) const VERB: Verb = Verb {
    name: "measure",
    summary: "Estimate the size of an image",
    about: "The options are those of `qemu-img measure`: of a new image of --size bytes, or of one that \
            SOURCE is converted to, and of one with data everywhere.",
    example: "  diskferry measure --size 10G\n  \
              diskferry measure --output=json 'sparse-random:1G?seed=7'",
    status: "",
    usage: 1,
    arguments,
    run,
};

fn arguments(command: Command) -> Command {
    let command = command
        .arg(disk_as("disk", "SOURCE", "A path, URI or DEVICE:ARG?key=value").required(false))
        .arg(
            value("-s, --size SIZE", "Bytes of the disk in a new image")
                .conflicts_with_all(["disk", "format", "snapshot"]),
        )
        .arg(image::format_argument("-f, --format", "Format of SOURCE [default: a guess]"))
        .arg(image::target_format_argument(
            "-O, --target-format",
            "Format of the image [default: raw]",
        ))
        .arg(image::options_option("Options of its format; -o help lists them"))
        .arg(value("-l, --snapshot SNAPSHOT", "Measure for an internal snapshot"))
        .arg(image::output_argument());
    image::arguments(command)
}

fn run(matches: &ArgMatches) -> ExitResult {
    image::check_objects(matches)?;
    let format = disk::format(image::word(matches, "target-format").unwrap_or("raw"))?;
    if image::asks_for_help(image::words(matches, "options")) {
        return output::text(&image::help(format));
    }
    let mut target = Image::of(format.word)?;
    target.options = image::options(image::words(matches, "options"))?;
    image::check_target(&target)?;
    let context = image::context(matches)?;
    let measure = |disk: Measured<'_>| disk::measure(format, &target.options, disk, &context);
    let (found, bitmaps) = match (size(matches, "size")?, image::word(matches, "disk")) {
        (Some(size), _) => (measure(Measured::Empty(size))?, None),
        (None, Some(text)) => {
            let snapshot = image::word(matches, "snapshot");
            let source = Source::read(matches, text)?.at_snapshot(snapshot)?;
            image::confine(matches, [&source])?;
            let opened = source.open(&image::reading(matches), &context)?.tell();
            let container = opened.format.map(|_| &opened.container);
            let found = measure(Measured::Disk(&opened.edge, container))?;
            let bitmaps = match opened.format {
                Some(of) => {
                    let of = (of, &opened.container);
                    disk::measure_bitmaps(format, &target.options, of, &context)?
                }
                None => None,
            };
            (found, bitmaps)
        }
        (None, None) => return Err(Failure::usage("of what? give --size or a source")),
    };
    output::finish(|out| {
        let (required, full) = (found.required, found.fully_allocated);
        if image::word(matches, "output") == Some("json") {
            let mut keys = json!({ "required": required, "fully-allocated": full });
            if let (Some(bitmaps), Some(keys)) = (bitmaps, keys.as_object_mut()) {
                keys.insert("bitmaps".to_owned(), json!(bitmaps));
            }
            image::write_json(out, &keys)?;
        } else {
            writeln!(out, "required size: {required}\nfully allocated size: {full}")?;
            if let Some(bitmaps) = bitmaps {
                writeln!(out, "bitmaps size: {bitmaps}")?;
            }
        }
        Ok(ExitCode::SUCCESS)
    })
}
