//! `diskferry info`: what there is to know of a disk, without using it.

use std::io::{self, Write};
use std::process::ExitCode;

use clap::{Arg, ArgAction, ArgMatches, Command, ValueHint};
use device::{Name, Params};
use devices::OpenOptions;
use serde_json::{Value, json};

use crate::describe;
use crate::failure::{Failure, Outcome};
use crate::formats;
use crate::output;
use crate::verb::Verb;
use crate::words::Words;

pub(crate) const VERB: Verb = Verb {
    name: "info",
    summary: "Show size, abilities and block sizes of a disk",
    about: "Of an export of an NBD server it shows what nbdinfo shows, in the same words.",
    example: "  diskferry serve memory 1G --run 'diskferry info \"$uri\"'",
    status: "",
    arguments,
    run,
};

fn arguments(command: Command) -> Command {
    command.arg(disk()).arg(json_flag())
}

/// The argument that names a disk.
pub(crate) fn disk() -> Arg {
    Arg::new("disk")
        .value_name("DISK")
        .required(true)
        .value_parser(Words::Disk)
        .value_hint(ValueHint::AnyPath)
        .help("A path, URI or DEVICE:ARG?key=value")
}

/// The flag for JSON.
pub(crate) fn json_flag() -> Arg {
    Arg::new("json").long("json").action(ArgAction::SetTrue).help("Print JSON")
}

/// The name on the command line.
pub(crate) fn name(matches: &ArgMatches) -> Result<Name, Failure> {
    let text = matches.get_one::<String>("disk").ok_or_else(|| Failure::usage("no disk"))?;
    Ok(Name::parse(text)?)
}

/// The parameters of an NBD export, if `name` names one.
pub(crate) fn nbd_params(name: &Name) -> Result<Option<Params>, Failure> {
    let (uri, mut params) = match name {
        Name::Uri { scheme, text } if scheme.starts_with("nbd") => (text, Params::default()),
        Name::Device { kind, arg, params } if kind == "nbd" => (arg, params.clone()),
        _ => return Ok(None),
    };
    if !uri.is_empty() {
        params.set("uri", uri)?;
    }
    devices::kind("nbd")?.check(&params)?;
    Ok(Some(params))
}

fn run(matches: &ArgMatches) -> Outcome {
    let name = name(matches)?;
    let json = matches.get_flag("json");
    match nbd_params(&name)? {
        Some(params) => {
            let (session, name) = devices::nbd::inspect_named(&params)?;
            let protocol = describe::protocol(Some(&session));
            let export = describe::session(&session, &name);
            output::finish(|out| print(out, json, protocol, "export", export))
        }
        None => {
            let options = OpenOptions { lock: false, ..OpenOptions::read_only() };
            let device = devices::open(&name, &options)?;
            formats::warn(&name, &*device);
            let mut head = describe::Export::new();
            head.insert("device".into(), json!(word(&name)));
            let export = describe::device(device.info());
            output::finish(|out| print(out, json, head, "disk", export))
        }
    }
}

/// The device's word in the table.
fn word(name: &Name) -> &str {
    match name {
        Name::Device { kind, .. } => kind,
        Name::Path(_) => "file",
        Name::Uri { scheme, .. } => scheme,
    }
}

fn print(
    out: &mut dyn Write,
    json: bool,
    mut head: describe::Export,
    word: &str,
    export: describe::Export,
) -> io::Result<ExitCode> {
    let mut out = out;
    if json {
        head.insert("exports".into(), Value::Array(vec![Value::Object(export)]));
        describe::write_json(&mut out, head)?;
    } else {
        match head.get("device").and_then(Value::as_str) {
            Some(device) => writeln!(out, "device: {device}")?,
            None => describe::write_protocol(&mut out, &head)?,
        }
        describe::write_export(&mut out, word, &export)?;
    }
    Ok(ExitCode::SUCCESS)
}
