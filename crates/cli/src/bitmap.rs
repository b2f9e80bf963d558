//! `diskferry bitmap`: the dirty bitmaps of an image.

use std::process::ExitCode;

use clap::{ArgAction, ArgMatches, Command};
use device::parse_size;
use disk::{BitmapChange, Described, Image, Named};
use runtime::Context;

use crate::arguments::{disk_as, flag, value};
use crate::failure::{ExitResult, Failure};
use crate::image::{self, Source};
use crate::verb::Verb;

pub(crate) const VERB: Verb = Verb {
    name: "bitmap",
    summary: "Add, remove or change a dirty bitmap of an image",
    about: "The options are those of `qemu-img bitmap`: one or more actions, which are done in \
            their order, all or none. A bitmap records which parts of the disk were written since \
            its creation (qcow2); `diskferry info` lists bitmaps. A bitmap left in use by a crash \
            can only be removed. Changes are durable when the command ends. The image must not be \
            in use.",
    example: "  diskferry create -q -f qcow2 disk.qcow2 1G\n  \
              diskferry bitmap --add disk.qcow2 since-monday\n  \
              diskferry bitmap --add --disable -g 4k disk.qcow2 all\n  \
              diskferry bitmap --merge since-monday disk.qcow2 all\n  \
              diskferry bitmap --remove disk.qcow2 since-monday",
    status: "",
    usage: 1,
    arguments,
    run,
};

/// Actions without a value.
const ACTIONS: [(&str, BitmapChange<'_>); 5] = [
    ("add", BitmapChange::Add(None)),
    ("remove", BitmapChange::Remove),
    ("clear", BitmapChange::Clear),
    ("enable", BitmapChange::Enable),
    ("disable", BitmapChange::Disable),
];

fn arguments(command: Command) -> Command {
    let merge = value("--merge BITMAP", "Also set the bits that are set in another bitmap");
    let command = command
        .arg(disk_as("disk", "FILE", "A path, or file:PATH"))
        .arg(
            clap::Arg::new("bitmap")
                .value_name("BITMAP")
                .required_unless_present("remove-all")
                .help("Its name"),
        )
        .arg(flag("--add", "Add it, enabled"))
        .arg(flag("--remove", "Remove it"))
        .arg(
            flag("--remove-all", "Remove all bitmaps, one after the other")
                .conflicts_with_all(["bitmap", "merge"])
                .conflicts_with_all(ACTIONS.map(|(action, _)| action)),
        )
        .arg(flag("--clear", "Clear all of its bits"))
        .arg(flag("--enable", "Start recording writes"))
        .arg(flag("--disable", "Stop recording writes"))
        .arg(merge.action(ArgAction::Append))
        .arg(
            value("-b, --source-file FILE", "The image with the bitmaps to merge")
                .requires("merge"),
        )
        .arg(
            image::format_argument("-F, --source-format", "Its format [default: a guess]")
                .requires("source-file"),
        )
        .arg(
            value("-g, --granularity SIZE", "Bytes of a bit in a new one [default: as QEMU]")
                .requires("add"),
        )
        .arg(image::format_argument("-f, --format", "Format of FILE [default: a guess]"));
    image::arguments(command)
}

/// The actions in their order.
fn changes<'a>(
    matches: &'a ArgMatches,
    other: Option<&'a Described>,
) -> Result<Vec<BitmapChange<'a>>, Failure> {
    let granularity = match image::word(matches, "granularity").map(parse_size) {
        Some(Ok(0)) | None => None,
        Some(Ok(bytes)) => Some(bytes),
        Some(Err(e)) => return Err(Failure::usage(format!("-g: {e}"))),
    };
    let mut found = Vec::new();
    for (id, change) in ACTIONS.into_iter().filter(|(id, _)| image::is_given(matches, id)) {
        let change = match change {
            BitmapChange::Add(_) => BitmapChange::Add(granularity),
            change => change,
        };
        found.extend(matches.indices_of(id).into_iter().flatten().map(|at| (at, change)));
    }
    let other = other.map(|other| &other.container);
    let merges = image::words(matches, "merge").map(|name| BitmapChange::Merge(name, other));
    found.extend(matches.indices_of("merge").into_iter().flatten().zip(merges));
    found.sort_by_key(|(at, _)| *at);
    if found.is_empty() {
        return Err(Failure::usage(
            "what is to be done? --add, --remove, --remove-all, --clear, --enable, --disable or --merge",
        ));
    }
    Ok(found.into_iter().map(|(_, change)| change).collect())
}

/// The image of -b.
fn other(matches: &ArgMatches, context: &Context) -> Result<Option<Described>, Failure> {
    let Some(text) = image::word(matches, "source-file") else { return Ok(None) };
    let image = match image::word(matches, "source-format") {
        Some(word) => Image::of(word)?,
        None => Image::guessed(),
    };
    let options = image::reading(matches);
    let other = disk::describe(&Named::parse(text)?, &image, &options, context)?;
    if other.format.upkeep.bitmap.is_none() {
        return Err(Failure::new(format!("-b: {text}: {}: it has no bitmaps", other.format.word)));
    }
    Ok(Some(other))
}

fn run(matches: &ArgMatches) -> ExitResult {
    image::check_objects(matches)?;
    if image::is_given(matches, "force-share") {
        return Err(Failure::usage("-U: a changed image must be locked against others"));
    }
    let context = image::context(matches)?;
    let other = other(matches, &context)?;
    let all = matches.get_flag("remove-all");
    let changes = if all { vec![BitmapChange::Remove] } else { changes(matches, other.as_ref())? };
    let source = Source::read(matches, image::word(matches, "disk").unwrap_or_default())?;
    let options = image::reading(matches);
    let image = source.changed()?;
    let keep = || disk::keep(&source.disk, image, &options, &context);
    let change = |name: &str| -> device::Result<()> {
        // An open container has the length with which it was opened: each time anew.
        let kept = keep()?;
        let none = "images of this format have no bitmaps";
        kept.change(none, kept.format.upkeep.bitmap, |run, container, opening| {
            run(container, opening, name, &changes)
        })
    };
    if all {
        let kept = keep()?;
        let found = (kept.format.describe)(&kept.container, &context)?.bitmaps;
        drop(kept);
        match found {
            Some(all) => all.iter().try_for_each(|bitmap| change(&bitmap.name))?,
            // Which says that there can be none.
            None => change("")?,
        }
    } else {
        change(image::word(matches, "bitmap").unwrap_or_default())?;
    }
    Ok(ExitCode::SUCCESS)
}
