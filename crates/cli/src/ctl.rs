//! `diskferry ctl`: commands to a server that runs, at its control socket (`serve --control`).

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Arg, ArgMatches, Command, ValueHint, value_parser};
use device::{Error, ErrorKind, Fault};
use serde_json::{Value, json};

use crate::arguments::{flag, json_flag, size, value};
use crate::failure::{ExitResult, Failure, USAGE};
use crate::output;
use crate::verb::Verb;

/// How long the server may take.
const WITHIN: Duration = Duration::from_secs(10);
/// Bytes of a reply, at most.
const REPLY: u64 = 64 << 20;
const ACTIONS: [&str; 5] = ["add", "remove", "enable", "disable", "clear"];

pub(crate) const VERB: Verb = Verb {
    name: "ctl",
    summary: "List and change the bitmaps of a server that runs",
    about: "The commands are `list`, which shows exports, clients and bitmaps, and `bitmap ACTION \
            NAME [EXPORT]`, where ACTION is add, remove, enable, disable or clear. A bitmap records \
            which blocks of a disk are written from then on, until the server ends; what is being \
            written when it is added is in it. Clients that connect from then on find it as the \
            status context qemu:dirty-bitmap:NAME.",
    example: "  diskferry serve --control vm.ctl memory:1G \\\n    \
              --run 'diskferry ctl vm.ctl bitmap add monday && diskferry ctl vm.ctl list'",
    status: "",
    usage: USAGE,
    arguments,
    run,
};

fn arguments(command: Command) -> Command {
    let path = value_parser!(PathBuf);
    command
        .arg(
            Arg::new("socket")
                .value_name("SOCKET")
                .required(true)
                .value_parser(path)
                .value_hint(ValueHint::FilePath)
                .help("The control socket of a server (serve --control)"),
        )
        .arg(
            Arg::new("command")
                .value_name("COMMAND")
                .required(true)
                .num_args(1..)
                .help("list; or bitmap add|remove|enable|disable|clear NAME [EXPORT]"),
        )
        .arg(value("--granularity SIZE", "What a bit stands for, a power of two (default 64K)"))
        .arg(flag("--disabled", "Add a bitmap that does not record yet"))
        .arg(json_flag())
}

fn run(matches: &ArgMatches) -> ExitResult {
    let request = request(matches)?;
    let path = matches.get_one::<PathBuf>("socket").cloned().unwrap_or_default();
    let place = path.display();
    let say = |e: std::io::Error| Failure::new(format!("{place}: {e}"));
    let mut stream = UnixStream::connect(&path).map_err(|e| {
        let cure = "is that the socket of `serve --control`, and does the server run?";
        let line = format!("{place}: connect: {e}; {cure}");
        match e.kind() {
            std::io::ErrorKind::NotFound | std::io::ErrorKind::ConnectionRefused => gone(line),
            _ => Failure::new(line),
        }
    })?;
    stream.set_read_timeout(Some(WITHIN)).map_err(say)?;
    stream.set_write_timeout(Some(WITHIN)).map_err(say)?;
    // One that refuses us may have said why, and left.
    let sent = stream.write_all(format!("{request}\n").as_bytes());
    let mut line = String::new();
    let got = BufReader::new(stream.take(REPLY)).read_line(&mut line);
    if line.is_empty() {
        got.and(sent).map_err(say)?;
        return Err(gone(format!("{place}: the server left without a reply")));
    }
    let reply: Value = serde_json::from_str(&line)
        .map_err(|e| Failure::new(format!("{place}: the reply makes no sense: {e}")))?;
    if let Some(error) = reply.get("error") {
        let error = error.as_str().map_or_else(|| error.to_string(), str::to_owned);
        return Err(Failure::new(format!("{place}: {error}")));
    }
    let is_list = request.get("command").and_then(Value::as_str) == Some("list");
    output::finish(|out| {
        if matches.get_flag("json") {
            writeln!(out, "{reply:#}")?;
        } else if is_list {
            list(&reply, out)?;
        }
        Ok(ExitCode::SUCCESS)
    })
}

/// The server is not there, or has gone: another try may succeed.
fn gone(line: String) -> Failure {
    let error = Error::new(ErrorKind::Disconnected, Fault::Peer, line);
    Failure::because(&error, &error)
}

/// The request for the words of the command.
fn request(matches: &ArgMatches) -> Result<Value, Failure> {
    let words = matches.get_many::<String>("command").unwrap_or_default();
    let words: Vec<&str> = words.map(String::as_str).collect();
    let (granularity, disabled) = (size(matches, "granularity")?, matches.get_flag("disabled"));
    let is_add = words.get(1) == Some(&"add");
    if !is_add && (granularity.is_some() || disabled) {
        return Err(Failure::usage("--granularity and --disabled belong to `bitmap add`"));
    }
    match *words.as_slice() {
        ["list"] => Ok(json!({ "command": "list" })),
        ["bitmap", action, name, ref rest @ ..] if ACTIONS.contains(&action) && rest.len() <= 1 => {
            Ok(json!({
                "command": "bitmap",
                "action": action,
                "name": name,
                "export": rest.first().copied().unwrap_or_default(),
                "granularity": granularity,
                "disabled": disabled,
            }))
        }
        _ => {
            let known = "list; or bitmap add|remove|enable|disable|clear NAME [EXPORT]";
            Err(Failure::usage(format!("ctl: no such command; there are: {known}")))
        }
    }
}

/// The exports and their bitmaps, for people.
fn list(reply: &Value, out: &mut dyn Write) -> std::io::Result<()> {
    let all = |value: &Value, key: &str| {
        value.get(key).and_then(Value::as_array).cloned().unwrap_or_default()
    };
    let text = |value: &Value, key: &str| {
        let text = value.get(key).and_then(Value::as_str).unwrap_or_default();
        device::text::shown(text).into_owned()
    };
    let number = |value: &Value, key: &str| value.get(key).and_then(Value::as_u64).unwrap_or(0);
    let flag = |value: &Value, key: &str| value.get(key).and_then(Value::as_bool).unwrap_or(false);
    for export in all(reply, "exports") {
        let (size, clients) = (number(&export, "size"), number(&export, "clients"));
        let read_only = if flag(&export, "read-only") { ", read-only" } else { "" };
        let (name, disk) = (text(&export, "name"), text(&export, "disk"));
        writeln!(out, "export \"{name}\": {disk}, {size} bytes{read_only}, clients: {clients}")?;
        for bitmap in all(&export, "bitmaps") {
            let name = text(&bitmap, "name");
            if flag(&bitmap, "of-the-image") {
                writeln!(out, "  bitmap \"{name}\": of the image")?;
                continue;
            }
            let does = if flag(&bitmap, "recording") { "recording" } else { "disabled" };
            let (granularity, dirty) =
                (number(&bitmap, "granularity"), number(&bitmap, "dirty-bytes"));
            writeln!(
                out,
                "  bitmap \"{name}\": granularity {granularity}, {does}, {dirty} bytes dirty"
            )?;
        }
    }
    Ok(())
}
