//! `diskferry resize`: gives a raw file another length, and the disk in an image another size.

use std::process::ExitCode;

use clap::{Arg, ArgMatches, Command};
use device::parse_size;
use disk::{Allocation, Format, Length, NewRoom, OpenOptions, Resizing, Stack};
use runtime::Context;

use crate::arguments::{disk_as, flag, value};
use crate::failure::{ExitResult, Failure};
use crate::image::Source;
use crate::verb::Verb;
use crate::{formats, image, names, output};

pub(crate) const VERB: Verb = Verb {
    name: "resize",
    summary: "Resize a raw file or a qcow2 image",
    about: "The options are those of `qemu-img resize`: +SIZE and -SIZE are relative to the \
            current size; shrinking needs --shrink. New bytes read as zeroes, and existing data \
            is preserved. The result is durable when the command ends. It resizes raw files, but \
            not block devices, and with -f qcow2 the disk in an image on any container; without \
            -f, a file that looks like an image is refused.",
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
        .arg(image::format_argument("-f, --format", "Format: raw or qcow2"))
        .arg(flag("--shrink", "Allow the disk to shrink, discarding data past the new end"))
        .arg(
            value(
                "--preallocation MODE",
                "How new bytes are allocated: off, metadata, falloc or full",
            )
            .value_parser(["off", "metadata", "falloc", "full", "sparse", "unwritten", "written"])
            .hide_possible_values(true),
        )
        .arg(flag("-q, --quiet", "Print errors only"))
        .arg(image::object())
        .arg(image::image_opts())
        .arg(image::external_argument())
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
    let source = Source::read(matches, image::word(matches, "disk").unwrap_or_default())?;
    let room = image::word(matches, "preallocation").unwrap_or("off");
    // Of tables only images have any.
    let mode = if room == "metadata" { Some(Allocation::Written) } else { image::allocation(room) };
    let mode = mode.unwrap_or(Allocation::Sparse);
    let length = length(image::word(matches, "size").unwrap_or_default())?;
    let wish = Resizing { length, shrink: matches.get_flag("shrink"), mode };
    let seen = if source.unsaid { looks_like(&source)? } else { None };
    match source.changed()?.format() {
        Some(format) if format.upkeep.resize.is_some() => resize_image(&source, &wish, room)?,
        None if names::is_qemu_img() && is_image(seen) => resize_image(&source, &wish, room)?,
        _ if room == "metadata" => {
            return Err(Failure::usage("--preallocation=metadata is for -f qcow2"));
        }
        _ => {
            refuse_images(&source, seen, length)?;
            source.disk.resize(&wish, &OpenOptions::read_write())?;
        }
    }
    if matches.get_flag("quiet") {
        return Ok(ExitCode::SUCCESS);
    }
    output::text("Image resized.\n")
}

fn resize_image(source: &Source, wish: &Resizing, room: &str) -> Result<(), Failure> {
    let room = match room {
        "off" | "sparse" => NewRoom::None,
        "metadata" => NewRoom::Tables,
        _ => NewRoom::Written,
    };
    let (options, context) = (OpenOptions::read_write(), Context::default());
    let kept = disk::keep(&source.disk, source.changed()?, &options, &context)?;
    let size = |before| wish.of(before).map(|resized| resized.after);
    let none = "images of this format cannot be resized";
    kept.change(none, kept.format.upkeep.resize, |resize, container, opening| {
        resize(container, opening, &size, room)
    })?;
    Ok(())
}

/// Whether a disk that looks like this is resized as an image. As qemu-img it is, without a format
/// that is named; no file that the image names is opened then.
fn is_image(seen: Option<&str>) -> bool {
    let format = seen.and_then(|word| disk::format(word).ok());
    format.is_some_and(|format| format.upkeep.resize.is_some())
}

/// The format of which its bytes look. An archive is no disk that has a length.
fn looks_like(source: &Source) -> Result<Option<&'static str>, Failure> {
    let options = OpenOptions { lock: false, ..OpenOptions::read_only() };
    let opened = disk::open(&source.disk, &Stack::default(), &options, &Context::default())?;
    formats::refuse_archive(&source.disk, &opened.edge)?;
    Ok(formats::known(&opened.edge)?)
}

/// Only of a raw disk a longer file is a longer disk.
fn refuse_images(
    source: &Source,
    seen: Option<&'static str>,
    length: Length,
) -> Result<(), Failure> {
    let disk = &source.disk;
    let size = match length {
        Length::Exactly(bytes) => bytes.to_string(),
        Length::More(_) | Length::Less(_) => "SIZE".to_owned(),
    };
    let cure = |format: &Format| {
        let word = format.word;
        if format.upkeep.resize.is_some() {
            return format!("-f {word} resizes the disk in it");
        }
        let target = if format.create.is_some() { word } else { "qcow2" };
        format!(
            "{word} images cannot be resized; `diskferry copy -f {word} \
             --source-filter='truncate?truncate={size}' \
             -O {target} {disk} NEW` creates an image of that size"
        )
    };
    if let Some(format) = source.stack.image().format() {
        return Err(Failure::new(format!("{disk}: {}", cure(format))));
    }
    match seen {
        Some(word) => {
            let known = formats::readable(word).and_then(|word| disk::format(word).ok());
            let cure = known.map_or_else(|| "such images cannot be resized".to_owned(), cure);
            Err(Failure::new(format!(
                "{disk}: looks like a {word} image, and {cure}; with -f raw its bytes are the disk"
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
