//! `diskferry list`: the exports of an NBD server, with what there is to know of each.

use std::io::{self, Write};
use std::process::ExitCode;

use clap::{ArgMatches, Command};
use serde_json::{Value, json};
use wire::ListedExport;

use crate::failure::{Failure, Outcome};
use crate::info::{disk, json_flag, name, nbd_params};
use crate::verb::Verb;
use crate::{describe, output};

pub(crate) const VERB: Verb = Verb {
    name: "list",
    summary: "List the exports of an NBD server",
    about: "Each export is described as `info` does. The name of an export in the URI is ignored. \
            Not every server tells which exports it has.",
    example: "  diskferry serve --export a=memory:1G --export b=null:1T \\\n    \
              --run 'diskferry list \"$uri\"'",
    status: "",
    arguments,
    run,
};

fn arguments(command: Command) -> Command {
    command.arg(disk().value_name("URI").help("The URI of an NBD server")).arg(json_flag())
}

fn run(matches: &ArgMatches) -> Outcome {
    let name = name(matches)?;
    let Some(params) = nbd_params(&name)? else {
        return Err(Failure::usage("list: only NBD servers have exports; give the URI of one"));
    };
    let listed = devices::nbd::list_named(&params)?;
    let session = listed.iter().find_map(|(l, _)| l.details.as_ref()?.as_ref().ok());
    let mut head = describe::protocol(session);
    let exports: Vec<_> = listed.iter().map(|(export, name)| describe(export, name)).collect();
    output::finish(|mut out| {
        if matches.get_flag("json") {
            let all = exports.into_iter().map(Value::Object).collect();
            head.insert("exports".into(), Value::Array(all));
            describe::write_json(&mut out, head)?;
            return Ok(ExitCode::SUCCESS);
        }
        print(out, &head, &exports)
    })
}

fn print(
    mut out: &mut dyn Write,
    head: &describe::Export,
    exports: &[describe::Export],
) -> io::Result<ExitCode> {
    describe::write_protocol(&mut out, head)?;
    for export in exports {
        describe::write_export(&mut out, "export", export)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn describe(export: &ListedExport, name: &str) -> describe::Export {
    let mut session = match &export.details {
        Some(Ok(session)) => session.clone(),
        other => {
            let mut keys = describe::Export::new();
            keys.insert("export-name".into(), json!(export.name));
            if !export.description.is_empty() {
                keys.insert("description".into(), json!(export.description));
            }
            keys.insert("uri".into(), json!(name));
            if let Some(Err(e)) = other {
                keys.insert("error".into(), json!(e.to_string()));
            }
            return keys;
        }
    };
    if session.description.is_none() {
        session.description = Some(export.description.clone());
    }
    describe::session(&session, name)
}
