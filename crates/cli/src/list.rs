//! `diskferry list`: the exports of an NBD server, each with its description.

use std::process::ExitCode;

use clap::{ArgMatches, Command};
use disk::{Fact, Named, Scope};
use runtime::Context;

use crate::arguments::{disk, json_flag, named};
use crate::failure::{ExitResult, Failure, USAGE};
use crate::verb::Verb;
use crate::{colors, describe, info, output, patience};

pub(crate) const VERB: Verb = Verb {
    name: "list",
    summary: "List the exports of an NBD server",
    about: "Each export is described as by `info`. An export name in the URI is ignored. Not all \
            servers list their exports.",
    example: "  diskferry serve --export a=memory:1G --export b=null:1T \\\n    \
              --run 'diskferry list \"$uri\"'",
    status: "",
    usage: USAGE,
    arguments,
    run,
};

fn arguments(command: Command) -> Command {
    let uri = disk().value_name("URI").help("The URI of an NBD server");
    patience::arguments(command.arg(uri).arg(json_flag()))
}

fn run(matches: &ArgMatches) -> ExitResult {
    show(matches, &named(matches)?, false)
}

/// Describes all exports of the server of `disk`; if asked, with what each that can be read holds.
pub(crate) fn show(matches: &ArgMatches, disk: &Named, with_content: bool) -> ExitResult {
    let context = Context::default().with_patience(patience::asked(matches)?);
    let Some(mut found) = disk.inspect(Scope::All, &context)? else {
        return Err(Failure::usage("list: only NBD servers have exports; give the URI of one"));
    };
    for export in found.disks.iter_mut().filter(|_| with_content) {
        let uri = export.iter().find_map(|(key, fact)| match fact {
            Fact::Text(uri) if *key == "uri" => Some(uri.clone()),
            _ => None,
        });
        let named = uri.and_then(|uri| Named::parse(&uri).ok());
        if let Some(Ok(content)) = named.map(|named| info::content(&named, &context)) {
            export.push(("content", content));
        }
    }
    let json = matches.get_flag("json");
    output::finish(|out| {
        colors::print(colors::are_wanted(matches), out, |out| describe::write(out, found, json))
            .map(|()| ExitCode::SUCCESS)
    })
}
