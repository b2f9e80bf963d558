//! `diskferry resize`: gives a raw file another length.

use std::process::ExitCode;

use clap::{Arg, ArgMatches, Command};
use device::parse_size;
use disk::{Allocation, Image, Length, Named, OpenOptions, Resizing, Stack};
use runtime::Context;

use crate::arguments::{disk_as, flag, value};
use crate::failure::{ExitResult, Failure};
use crate::verb::Verb;
use crate::{formats, image, output};

pub(crate) const VERB: Verb = Verb {
    name: "resize",
    summary: "Give a raw file another length",
    about: "The options are those of `qemu-img resize`: +SIZE is that much more than now, and -SIZE that much \
            less, for which --shrink is needed. New bytes read as zeroes, and the others stay as they are. The result is durable when the command ends. Only raw files are resized, not block devices; without -f a file that looks like an image is refused.",
    example: "  diskferry create disk.raw 1G\n  \
              diskferry resize disk.raw +512M\n  \
              diskferry resize --shrink disk.raw 1G",
    status: "",
    usage: 1,
    arguments,
    run,
};

fn arguments(command: Command) -> Command {
    command
        .arg(disk_as("disk", "FILE", "A path, or file:PATH"))
        .arg(
            Arg::new("size")
                .value_name("[+|-]SIZE")
                .required(true)
                .allow_hyphen_values(true)
                .help("The new length in bytes, or how much more or less than now"),
        )
        .arg(image::format_argument("-f, --format", "Format: raw"))
        .arg(flag("--shrink", "Cut off what lies behind the new end"))
        .arg(
            value("--preallocation MODE", "How new bytes are allocated: off, falloc or full")
                .value_parser(["off", "falloc", "full", "sparse", "unwritten", "written"])
                .hide_possible_values(true),
        )
        .arg(flag("-q, --quiet", "Print errors only"))
        .arg(image::object())
}

/// The length that a word asks for.
fn length(text: &str) -> Result<Length, Failure> {
    let (length, number): (fn(u64) -> Length, _) = match text.as_bytes().first() {
        Some(b'+') => (Length::More, text.get(1..)),
        Some(b'-') => (Length::Less, text.get(1..)),
        _ => (Length::Exactly, Some(text)),
    };
    let bytes = parse_size(number.unwrap_or_default());
    bytes.map(length).map_err(|e| Failure::usage(format!("the size: {e}")))
}

fn run(matches: &ArgMatches) -> ExitResult {
    image::check_objects(matches)?;
    let disk = Named::parse(image::word(matches, "disk").unwrap_or_default())?;
    let mode = image::word(matches, "preallocation").and_then(image::allocation);
    let mode = mode.unwrap_or(Allocation::Sparse);
    let length = length(image::word(matches, "size").unwrap_or_default())?;
    let wish = Resizing { length, shrink: matches.get_flag("shrink"), mode };
    let stack = Stack::default();
    refuse_images(matches, &disk, &stack, length)?;
    disk.resize(&wish, &OpenOptions::read_write())?;
    if matches.get_flag("quiet") {
        return Ok(ExitCode::SUCCESS);
    }
    output::text("Image resized.\n")
}

/// Only of a raw disk a longer file is a longer disk.
fn refuse_images(
    matches: &ArgMatches,
    disk: &Named,
    stack: &Stack,
    length: Length,
) -> Result<(), Failure> {
    let size = match length {
        Length::Exactly(bytes) => bytes.to_string(),
        Length::More(_) | Length::Less(_) => "SIZE".to_owned(),
    };
    let only_raw = |format: &str| {
        let makes = disk::format(format).is_ok_and(|format| format.create.is_some());
        let target = if makes { format } else { "qcow2" };
        format!(
            "only raw files are resized here; `diskferry copy -f {format} --source-filter='truncate?truncate={size}' \
             -O {target} {disk} NEW` makes an image of that size"
        )
    };
    if let Some(word) = image::word(matches, "format") {
        return match Image::of(word)?.format() {
            Some(format) => {
                Err(Failure::new(format!("{disk}: {}: {}", format.word, only_raw(format.word))))
            }
            None => Ok(()),
        };
    }
    let options = OpenOptions { lock: false, ..OpenOptions::read_only() };
    let opened = disk::open(disk, stack, &options, &Context::default())?;
    match formats::known(&opened.edge)? {
        Some(format) => {
            let cure = formats::readable(format).map(only_raw);
            let cure = cure.unwrap_or_else(|| "only raw files are resized here".to_owned());
            Err(Failure::new(format!(
                "{disk}: looks like a {format} image, and {cure}; with -f raw its bytes are the disk"
            )))
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_length_is_said_as_qemu_img_has_it() {
        assert_eq!(length("1G").unwrap(), Length::Exactly(1 << 30));
        assert_eq!(length("+1k").unwrap(), Length::More(1024));
        assert_eq!(length("-512").unwrap(), Length::Less(512));
        for text in ["", "+", "-", "--1", "+-1", "x", "ä1", "+ä"] {
            assert!(length(text).is_err(), "{text}");
        }
    }
}
