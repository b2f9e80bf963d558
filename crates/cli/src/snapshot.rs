//! `diskferry snapshot`: internal snapshots of an image.

use std::process::ExitCode;

use clap::{ArgMatches, Command};
use disk::SnapshotChange;

use crate::arguments::{disk_as, flag, value};
use crate::failure::{ExitResult, Failure};
use crate::image::{self, Source};
use crate::verb::Verb;
use crate::{info, output};

pub(crate) const VERB: Verb = Verb {
    name: "snapshot",
    summary: "List, make, apply or delete the snapshots in an image",
    about: "The options are those of `qemu-img snapshot`. A snapshot is what the disk was when it was made, kept in \
            the image itself (qcow2). Without an action they are listed. Applying one gives up \
            what the disk holds; make another before, where that is to be kept. What is changed is durable when the command ends, and whenever it is stopped the image is what it was or what it was to be. Nobody else may use the \
            image meanwhile.",
    example: "  diskferry create -q -f qcow2 disk.qcow2 1G\n  \
              diskferry snapshot -c before disk.qcow2\n  \
              diskferry snapshot -l disk.qcow2\n  \
              diskferry snapshot -a before disk.qcow2\n  \
              diskferry snapshot -d before disk.qcow2",
    status: "",
    usage: 1,
    arguments,
    run,
};

/// The actions, one at a time.
const ACTIONS: [&str; 4] = ["list", "create", "apply", "delete"];

fn arguments(command: Command) -> Command {
    let command = command
        .arg(disk_as("disk", "FILE", "A path, or file:PATH"))
        .arg(flag("-l, --list", "List all snapshots"))
        .arg(value("-c, --create NAME", "Make a snapshot of this name"))
        .arg(value("-a, --apply SNAPSHOT", "Make the disk what it was: an ID, or else a name"))
        .arg(value("-d, --delete NAME", "Delete the first snapshot of this name"))
        .arg(image::format_argument("-f, --format", "Format of FILE [default: a guess]"))
        .arg(flag("-q, --quiet", "Print errors only"));
    let command = ACTIONS.iter().fold(command, |command, action| {
        let others = ACTIONS.iter().filter(|other| *other != action);
        command.mut_arg(action, |arg| arg.conflicts_with_all(others))
    });
    image::arguments(command)
}

fn run(matches: &ArgMatches) -> ExitResult {
    image::check_objects(matches)?;
    let source = Source::read(matches, image::word(matches, "disk").unwrap_or_default())?;
    let word = |action| image::word(matches, action);
    let change = match (word("create"), word("apply"), word("delete")) {
        (Some(name), _, _) => SnapshotChange::Create(name),
        (_, Some(name), _) => SnapshotChange::Apply(name),
        (_, _, Some(name)) => SnapshotChange::Delete(name),
        (None, None, None) => return list(matches, &source),
    };
    if image::is_given(matches, "force-share") {
        return Err(Failure::usage("-U: an image that is changed is locked against others"));
    }
    let context = image::context(matches)?;
    let options = image::reading(matches);
    let kept = disk::keep(&source.disk, source.changed()?, &options, &context)?;
    let none = "images of this format have no snapshots that are changed here";
    kept.change(none, kept.format.upkeep.snapshot, |run, container, opening| {
        run(container, opening, change)
    })?;
    Ok(ExitCode::SUCCESS)
}

fn list(matches: &ArgMatches, source: &Source) -> ExitResult {
    image::confine(matches, [source])?;
    let (image, context) = (source.image()?, image::context(matches)?);
    let found = disk::describe(&source.disk, image, &image::reading(matches), &context)?;
    let found = found.refuse_unknown()?;
    output::finish(|out| {
        info::print_snapshots(&found.description.snapshots, out)?;
        Ok(ExitCode::SUCCESS)
    })
}
