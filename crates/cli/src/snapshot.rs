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
    summary: "List, create, apply or delete snapshots in an image",
    about: "The options are those of `qemu-img snapshot`. A snapshot preserves the disk's \
            contents at the time of its creation, inside the image (qcow2). Without an action, \
            snapshots are listed. Applying one discards the current contents; to keep them, \
            create another snapshot first. Changes are durable when the command ends; if it is \
            interrupted, the image has either its old or its new state. The image must not be in \
            use.",
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
        .arg(value("-a, --apply SNAPSHOT", "Revert the disk to a snapshot, given by ID or name"))
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
        return Err(Failure::usage("-U: a changed image must be locked against others"));
    }
    let context = image::context(matches)?;
    let options = image::reading(matches);
    let kept = disk::keep(&source.disk, source.changed()?, &options, &context)?;
    let none = "snapshots of this format cannot be changed";
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
