//! `diskferry create`: makes an empty image.

use std::process::ExitCode;

use clap::{Arg, ArgMatches, Command};
use device::parse_size;
use disk::{Image, Named, OpenOptions};
use runtime::{Context, OperatorLog};
use transfer::job::{NewDisk, backing_size};

use crate::arguments::{disk_as, flag, value};
use crate::failure::{ExitResult, Failure, is_renamed, say};
use crate::force;
use crate::formatting;
use crate::image;
use crate::output;
use crate::verb::Verb;
use crate::words::Words;

pub(crate) const VERB: Verb = Verb {
    name: "create",
    summary: "Create an empty image",
    about: "The options are those of `qemu-img create`. An existing file becomes the image; a new \
            one gets its name only when it is complete. It is durable when the command ends. A \
            backing image (-b) requires its format (-F), and makes the size optional.",
    example: "  diskferry create -f raw disk.raw 10G\n  \
              diskferry create -o help",
    status: "",
    usage: 1,
    arguments,
    run,
};

fn arguments(command: Command) -> Command {
    command
        .arg(disk_as("disk", "FILE", "A path, or DEVICE:ARG?key=value").required(false))
        .arg(Arg::new("size").value_name("SIZE").help("Bytes of the disk: 10G"))
        .arg(image::target_format_argument("-f, --format", "Format [default: raw]"))
        .arg(image::options_option("Options of the format; -o help lists them"))
        .arg(
            value(
                "-b, --backing FILE",
                "The backing image: data missing from the new image is read from it",
            )
            .value_parser(Words::Disk),
        )
        .arg(
            image::format_argument("-F, --backing-format", "Format of the backing image")
                .short_alias('B'),
        )
        .arg(flag("-u, --backing-unsafe", "Do not look for the backing image"))
        .arg(force::argument())
        .arg(flag("-q, --quiet", "Print errors only"))
        .arg(image::object())
}

fn run(matches: &ArgMatches) -> ExitResult {
    if image::asks_for_formats(matches, "format") {
        return output::text(&image::formats_to_make());
    }
    image::check_objects(matches)?;
    let word = image::word(matches, "format").unwrap_or("raw");
    if image::asks_for_help(image::words(matches, "options")) {
        return output::text(&image::help(disk::format(word)?));
    }
    let name = image::word(matches, "disk");
    let name = name.ok_or_else(|| Failure::usage("which image? name a file"))?;
    let target = Named::parse(name)?;
    let log = OperatorLog::new(|line| say(&line.to_string()));
    let context = Context::default().with_log(log);
    let mut image = Image::of(word)?;
    image.options = image::options(image::words(matches, "options"))?;
    let taken = formatting::take_of_the_file(&mut image.options)
        .map_err(|e| Failure::usage(format!("-o: {e}")))?;
    let size = match (image::word(matches, "size"), image.options.take("size")) {
        (Some(_), Some(_)) => return Err(Failure::usage("the size is given twice")),
        (Some(text), None) => Some(text.to_owned()),
        (None, given) => given,
    };
    let size = size.as_deref().map(parse_size).transpose();
    let size = size.map_err(|e| Failure::usage(format!("the size: {e}")))?;
    if let Some(backing) = image::word(matches, "backing") {
        image.options.set("backing_file", backing)?;
    }
    if let Some(format) = image::word(matches, "backing-format") {
        image.options.set("backing_fmt", format)?;
    }
    image::check_target(&image)?;
    image::check_backing(&image)?;
    let below = if matches.get_flag("backing-unsafe") {
        None
    } else {
        backing_size(&target, &image, &context)?
    };
    let size = size.or(below).ok_or_else(|| Failure::usage("missing size; for example 10G"))?;
    // Raw disks of QEMU have whole sectors.
    let is_whole = !is_renamed() || image.format().is_some();
    let size = if is_whole { size } else { size.next_multiple_of(512) };
    if !matches.get_flag("quiet") && !output::is_named(name) {
        let options = match is_renamed() {
            true => {
                let mut given = image.options.clone();
                taken.iter().for_each(|(key, value)| given.add(key, value));
                formatting::options(word, &given, size)
            }
            false => options_of(&image, size),
        };
        output::text(&format!("Formatting '{name}', fmt={word}{options}\n"))?;
    }
    image::resolve_secrets(matches, &mut image.options)?;
    let force = force::asked(matches);
    let made = force::refuse_used(&target, force)
        .and_then(|()| create(&target, &image, size, force, &context));
    context.control.end();
    made.map(|()| ExitCode::SUCCESS)
}

/// What is made, in qemu-img's words.
fn options_of(image: &Image, size: u64) -> String {
    let options = image.options.iter().map(|(key, value)| format!(" {key}={value}"));
    format!(" size={size}{}", options.collect::<String>())
}

fn create(
    target: &Named,
    image: &Image,
    size: u64,
    force: bool,
    context: &Context,
) -> Result<(), Failure> {
    let fills = image::preallocation(image)?;
    let options = OpenOptions { force, ..OpenOptions::read_write() };
    let new = NewDisk { target, image, size, fills, spared: &[], options: &options };
    Ok(new.create(context)?)
}
