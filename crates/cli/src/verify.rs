//! `diskferry verify`: whether a disk still holds what a manifest says, and where it does not.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::{ArgMatches, Command, ValueHint, value_parser};
use copy::Cancel;
use device::format_size;
use runtime::RangeSet;
use serde_json::json;
use transfer::Manifest;

use crate::arguments::{disk_as, json_flag};
use crate::digest::{options, read};
use crate::failure::{ExitResult, Failure, USAGE};
use crate::image::{self, Source};
use crate::output;
use crate::progress;
use crate::verb::Verb;

pub(crate) const VERB: Verb = Verb {
    name: "verify",
    summary: "Verify a disk against a manifest",
    about: "The manifest comes from `digest --manifest` or `copy --manifest`. Every differing \
            stretch is listed. - reads the manifest from standard input. The disk can have any \
            format and location. Without -f the format is guessed.",
    example: "  diskferry digest --manifest disk.manifest pattern:8M\n  \
              diskferry verify disk.manifest pattern:8M",
    status: "1 also if the disk differs.",
    usage: USAGE,
    arguments,
    run,
};

/// The status where the disk differs.
const DIFFERS: u8 = 1;

fn arguments(command: Command) -> Command {
    let manifest =
        disk_as("manifest", "MANIFEST", "The manifest").value_parser(value_parser!(PathBuf));
    let command = command
        .arg(manifest.value_hint(ValueHint::FilePath))
        .arg(disk_as("disk", "DISK", "A path, URI or DEVICE:ARG?key=value"))
        .arg(image::format_argument("-f, --format", "Format of the disk [default: a guess]"))
        .arg(json_flag());
    image::arguments(progress::arguments(command))
}

fn run(matches: &ArgMatches) -> ExitResult {
    image::check_objects(matches)?;
    let path =
        matches.get_one::<PathBuf>("manifest").ok_or_else(|| Failure::usage("no manifest"))?;
    let named = |e: device::Error| Failure::because(&e, format!("{}: {e}", path.display()));
    let name = image::word(matches, "disk").unwrap_or_default();
    let source = Arc::new(Source::read(matches, name)?);
    let is_input = path == Path::new(output::STREAM);
    if is_input && name == output::STREAM {
        return Err(Failure::usage("standard input is one of the two: name a file for the other"));
    }
    let from: Box<dyn BufRead> = match is_input {
        true => Box::new(std::io::stdin().lock()),
        false => {
            let file = File::open(path).map_err(|e| named(device::Error::os("open", e)))?;
            Box::new(BufReader::new(file))
        }
    };
    let manifest = Arc::new(Manifest::read(from).map_err(named)?);
    image::confine(matches, [&*source])?;
    let context = image::context(matches)?;
    let opened = source.open(&options(matches), &context)?.tell();
    let size = opened.edge.info().size;
    let mut differing = RangeSet::default();
    if size == manifest.size {
        let ends = (&source, &opened);
        let compared = read(matches, ends, &Cancel::default(), &context, |options, watched| {
            manifest.compare(&opened.edge, options, watched, &context)
        });
        let digest;
        (differing, digest) = compared?;
        // No stretch differs, and yet: the manifest was changed.
        if digest != manifest.digest && differing.is_empty() {
            let what = "its last line does not match its stretches; it was modified";
            return Err(Failure::new(format!("{}: {what}", path.display())));
        }
    }
    tell(matches, &manifest, size, &differing)
}

fn tell(matches: &ArgMatches, manifest: &Manifest, size: u64, differing: &RangeSet) -> ExitResult {
    let same = size == manifest.size && differing.is_empty();
    let status = if same { 0 } else { DIFFERS };
    if matches.get_flag("json") {
        let ranges: Vec<_> = differing.iter().map(|r| json!([r.start, r.end - r.start])).collect();
        let all = json!({
            "version": output::VERSION,
            "same": same,
            "size": size,
            "manifest-size": manifest.size,
            "differing": ranges,
        });
        return output::verdict(status, |out| writeln!(out, "{all}"));
    }
    output::verdict(status, |out| {
        if size != manifest.size {
            return writeln!(
                out,
                "Sizes differ: {size} bytes, the manifest has {}.",
                manifest.size
            );
        }
        for range in differing.iter() {
            let len = range.end - range.start;
            writeln!(out, "Differs: {} to {} ({})", range.start, range.end, format_size(len))?;
        }
        if same {
            writeln!(out, "The disk matches the manifest.")?;
        }
        Ok(())
    })
}
