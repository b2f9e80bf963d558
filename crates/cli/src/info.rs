//! `diskferry info`: what there is to know of a disk, without using it.

use std::process::ExitCode;

use clap::{ArgMatches, Command};
use device::Info;
use disk::{Fact, Inspection, Named, OpenOptions, Scope, Stack};
use runtime::Context;

use crate::arguments::{disk, json_flag, named};
use crate::failure::{Failure, Outcome, USAGE};
use crate::verb::Verb;
use crate::{describe, formats, output, patience};

pub(crate) const VERB: Verb = Verb {
    name: "info",
    summary: "Show size, abilities and block sizes of a disk",
    about: "Of an export of an NBD server it shows what nbdinfo shows, in the same words.",
    example: "  diskferry serve memory 1G --run 'diskferry info \"$uri\"'",
    status: "",
    usage: USAGE,
    arguments,
    run,
};

fn arguments(command: Command) -> Command {
    patience::arguments(command.arg(disk()).arg(json_flag()))
}

fn run(matches: &ArgMatches) -> Outcome {
    let disk = named(matches)?;
    let context = Context::default().with_patience(patience::asked(matches)?);
    let found = match disk.inspect(Scope::Disk, &context)? {
        Some(found) => found,
        None => open_and_ask(&disk, &context)?,
    };
    output::finish(|out| {
        describe::write(out, found, matches.get_flag("json")).map(|()| ExitCode::SUCCESS)
    })
}

/// What a device tells of itself. What depends on being opened for writing is left out: looking
/// must not lock or change anything.
fn open_and_ask(disk: &Named, context: &Context) -> Result<Inspection, Failure> {
    let options = OpenOptions { lock: false, ..OpenOptions::read_only() };
    let edge = disk::open(disk, &Stack::default(), &options, context)?.edge;
    formats::warn(disk, &edge);
    let Info { name, description, size, blocks, abilities, .. } = edge.info();
    let mut facts = vec![("name", Fact::Text(name.clone()))];
    if !description.is_empty() {
        facts.push(("description", Fact::Text(description.clone())));
    }
    facts.extend([
        ("is_rotational", Fact::Flag(abilities.rotational)),
        ("can_cache", Fact::Flag(abilities.prefetch)),
        ("can_map", Fact::Flag(abilities.extents)),
        ("can_multi_conn", Fact::Flag(abilities.multi_conn)),
        ("block_size_minimum", Fact::Number(blocks.minimum.into())),
        ("block_size_preferred", Fact::Number(blocks.preferred.into())),
        ("block_size_maximum", Fact::Number(blocks.maximum.into())),
        ("export-size", Fact::Size(*size)),
    ]);
    let place = vec![("device", Fact::Text(disk.kind().word.into()))];
    Ok(Inspection { place, disks: vec![facts] })
}
