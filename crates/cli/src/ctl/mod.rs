//! `diskferry ctl`: commands to a server that runs, at its control socket (`serve --control`).
//!
//! A file that is to be served is opened here, and sent along: the server's sandbox does not know
//! its name, and it is the user of this command who must be allowed to open it.

pub(crate) mod socket;

use std::io::Write;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Arg, ArgMatches, Command, ValueHint, value_parser};
use device::{Error, format_size, text};
use disk::{Image, Named};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use serde_json::{Value, json};

use crate::arguments::{filter_argument, flag, json_flag, size, value};
use crate::failure::{ExitResult, Failure, USAGE};
use crate::image;
use crate::output;
use crate::verb::Verb;

const ACTIONS: [&str; 5] = ["add", "remove", "enable", "disable", "clear"];
/// All commands.
const KNOWN: &str = "list; clients; add NAME DISK; replace NAME DISK; remove NAME; kick CLIENT; \
                     pause NAME; resume NAME; rate NAME SIZE|off; bitmap add|remove|enable|disable|clear NAME [EXPORT]";

pub(crate) const VERB: Verb = Verb {
    name: "ctl",
    summary: "Control a running server: add and remove exports, and more",
    about: "The commands are `list`, which shows exports and bitmaps; `clients`, which shows who is connected; `add NAME DISK`, `replace NAME \
            DISK` and `remove NAME`, which change what is served; `kick CLIENT`, which ends one connection; `pause NAME` and `resume NAME`: in between \
            no request of the export is begun, and its clients wait; `rate NAME SIZE`, the bytes a second that are read and written \
            of it, or `off`; and `bitmap ACTION NAME [EXPORT]`, where ACTION is add, remove, enable, disable or clear. Nobody is disconnected by an export that comes or \
            goes: clients keep the disk that they have, and it is closed when the last of them has left; --now sends them away, with \
            the replies that they are owed. A file is opened by this command and sent to the server, whose sandbox stays as it is. \
            A bitmap records which blocks of a disk are written from then on, until the server ends; what is being \
            written when it is added is in it. Clients that connect from then on find it as the \
            status context qemu:dirty-bitmap:NAME.",
    example: "  diskferry serve --control vm.ctl memory:1G \\\n    \
              --run 'diskferry ctl vm.ctl bitmap add monday && diskferry ctl vm.ctl list'\n  \
              diskferry serve --control vm.ctl memory:1G \\\n    \
              --run 'diskferry ctl vm.ctl add scratch memory:1M && diskferry list \"$uri\"'",
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
        .arg(Arg::new("command").value_name("COMMAND").required(true).num_args(1..).help(KNOWN))
        .arg(value("-f, --format FORMAT", "Format of the disk that is added (default raw)"))
        .arg(filter_argument("filter", "Apply a filter to it; may be repeated"))
        .arg(flag("-r, --readonly", "Its clients may not change it"))
        .arg(value("--description TEXT", "Its description, for `list`"))
        .arg(value("--allow RULES", "Which clients may use it, as after --allow NAME= of serve"))
        .arg(flag("--now", "With remove and replace: disconnect its clients"))
        .arg(value("--granularity SIZE", "What a bit stands for, a power of two (default 64K)"))
        .arg(flag("--disabled", "Add a bitmap that does not record yet"))
        .arg(json_flag())
}

fn run(matches: &ArgMatches) -> ExitResult {
    let request = request(matches)?;
    let file = file_of(matches, &request)?;
    let path = matches.get_one::<PathBuf>("socket").cloned().unwrap_or_default();
    let reply = socket::ask(&path, &request, file.as_ref())?;
    let command = request.get("command").and_then(Value::as_str);
    output::finish(|out| {
        match command {
            _ if matches.get_flag("json") => writeln!(out, "{reply:#}")?,
            Some("list") => list(&reply, out)?,
            Some("clients") => clients(&reply, out)?,
            Some("remove" | "replace") => remain(&reply, &request, out)?,
            Some("pause") => paused(&reply, out)?,
            _ => {}
        }
        Ok(ExitCode::SUCCESS)
    })
}

/// The file of a disk that is added, open; `None`: it is no file, and the server opens it.
fn file_of(matches: &ArgMatches, request: &Value) -> Result<Option<OwnedFd>, Failure> {
    let typed = matches.get_many::<String>("command").unwrap_or_default().nth(2);
    let Some(disk) = typed.filter(|_| request.get("disk").is_some()) else { return Ok(None) };
    let (named, image) = disk::named(disk, Image::default())?;
    // Of an archive the server has to know which file is meant.
    let Some(path) = named.path().filter(|_| image.is_plain()) else { return Ok(None) };
    let is_read = request.get("read-only").and_then(Value::as_bool) == Some(true);
    // A FIFO must not hold us up; the server refuses it.
    let flags = OFlags::CLOEXEC | OFlags::NONBLOCK;
    let open = |flags| rustix::fs::open(&*text::path(path), flags, Mode::empty());
    let opened = match is_read {
        true => open(flags | OFlags::RDONLY),
        false => open(flags | OFlags::RDWR),
    };
    opened.map(Some).map_err(|e| {
        let error = Error::os("open", e).on(path);
        let failure = Failure::because(&error, &error);
        match e {
            Errno::ACCESS | Errno::PERM | Errno::ROFS if !is_read => {
                failure.and("; --readonly opens it to be read")
            }
            _ => failure,
        }
    })
}

/// The request for the words of the command.
fn request(matches: &ArgMatches) -> Result<Value, Failure> {
    let words = matches.get_many::<String>("command").unwrap_or_default();
    let words: Vec<&str> = words.map(String::as_str).collect();
    let (granularity, disabled) = (size(matches, "granularity")?, matches.get_flag("disabled"));
    let (is_new, is_bitmap) = match words.first() {
        Some(&"add" | &"replace") => (true, false),
        Some(&"bitmap") => (false, words.get(1) == Some(&"add")),
        _ => (false, false),
    };
    if !is_bitmap && (granularity.is_some() || disabled) {
        return Err(Failure::usage("--granularity and --disabled belong to `bitmap add`"));
    }
    let word = |id| image::word(matches, id);
    let filters: Vec<_> =
        matches.get_many::<String>("filter").unwrap_or_default().map(String::as_str).collect();
    let of_disk = ["format", "description", "allow"].into_iter().any(|id| word(id).is_some())
        || matches.get_flag("readonly")
        || !filters.is_empty();
    if of_disk && !is_new {
        return Err(Failure::usage(
            "--format, --filter, --readonly, --description and --allow belong to `add` and `replace`",
        ));
    }
    let now = matches.get_flag("now");
    if now && !matches!(words.first(), Some(&"remove" | &"replace")) {
        return Err(Failure::usage("--now belongs to `remove` and `replace`"));
    }
    match *words.as_slice() {
        [command @ ("list" | "clients")] => Ok(json!({ "command": command })),
        [command @ ("add" | "replace"), name, disk] => Ok(json!({
            "command": command,
            "name": name,
            "disk": whole(disk),
            "format": word("format"),
            "filters": filters,
            "description": word("description"),
            "allow": word("allow"),
            "read-only": matches.get_flag("readonly"),
            "now": now,
        })),
        ["remove", name] => Ok(json!({ "command": "remove", "name": name, "now": now })),
        [command @ ("pause" | "resume"), name] => Ok(json!({ "command": command, "name": name })),
        ["rate", name, rate] => {
            Ok(json!({ "command": "rate", "name": name, "bytes": rate_of(rate)? }))
        }
        ["kick", client] => match client.parse::<u64>() {
            Ok(client) => Ok(json!({ "command": "kick", "client": client })),
            Err(_) => Err(Failure::usage(format!(
                "kick {client}: clients have numbers; `clients` lists them"
            ))),
        },
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
        _ => Err(Failure::usage(format!("ctl: no such command; there are: {KNOWN}"))),
    }
}

/// Bytes a second; `None`: as many as there are.
fn rate_of(word: &str) -> Result<Option<u64>, Failure> {
    if word == "off" {
        return Ok(None);
    }
    let bytes = device::parse_size(word.strip_suffix("/s").unwrap_or(word));
    match bytes {
        Ok(bytes) if bytes > 0 => Ok(Some(bytes)),
        _ => Err(Failure::usage(format!("rate {word}: bytes a second, such as 10M, or off"))),
    }
}

/// A disk by its name for a process with another working directory.
fn whole(disk: &str) -> String {
    let named = Named::parse(disk).ok();
    let path = named.as_ref().and_then(Named::path).map(text::path);
    let path = path.and_then(|path| std::path::absolute(path).ok());
    path.and_then(|path| path.to_str().map(str::to_owned)).unwrap_or_else(|| disk.to_owned())
}

/// Who is connected, for people.
fn clients(reply: &Value, out: &mut dyn Write) -> std::io::Result<()> {
    let all = reply.get("clients").and_then(Value::as_array).cloned().unwrap_or_default();
    for client in all {
        let number = |key: &str| client.get(key).and_then(Value::as_u64).unwrap_or(0);
        let word = |key: &str, without: &str| {
            let word = client.get(key).and_then(Value::as_str).unwrap_or(without);
            text::shown(word).into_owned()
        };
        let export = match client.get("export").and_then(Value::as_str) {
            Some(name) => format!("export \"{}\"", text::shown(name)),
            None => "no export yet".to_owned(),
        };
        writeln!(
            out,
            "client {}: {}, {export}, {} s, {} requests, {} read, {} written, {} errors",
            number("client"),
            word("address", "unknown address"),
            number("seconds"),
            number("requests"),
            format_size(number("bytes-read")),
            format_size(number("bytes-written")),
            number("errors"),
        )?;
    }
    Ok(())
}

/// What has begun before a pause.
fn paused(reply: &Value, out: &mut dyn Write) -> std::io::Result<()> {
    match reply.get("in-flight").and_then(Value::as_u64).unwrap_or(0) {
        0 => Ok(()),
        1 => writeln!(out, "one request began before, and continues"),
        n => writeln!(out, "{n} requests began before, and continue"),
    }
}

/// Who still has an export that went.
fn remain(reply: &Value, request: &Value, out: &mut dyn Write) -> std::io::Result<()> {
    let is_now = request.get("now").and_then(Value::as_bool) == Some(true);
    match reply.get("clients").and_then(Value::as_u64).unwrap_or(0) {
        0 => Ok(()),
        1 if is_now => writeln!(out, "one client is disconnected"),
        n if is_now => writeln!(out, "{n} clients are disconnected"),
        1 => writeln!(out, "one client uses it until it disconnects"),
        n => writeln!(out, "{n} clients use it until they disconnect"),
    }
}

/// The exports and their bitmaps, for people.
fn list(reply: &Value, out: &mut dyn Write) -> std::io::Result<()> {
    let all = |value: &Value, key: &str| {
        value.get(key).and_then(Value::as_array).cloned().unwrap_or_default()
    };
    let word = |value: &Value, key: &str| {
        let word = value.get(key).and_then(Value::as_str).unwrap_or_default();
        text::shown(word).into_owned()
    };
    let number = |value: &Value, key: &str| value.get(key).and_then(Value::as_u64).unwrap_or(0);
    let flag = |value: &Value, key: &str| value.get(key).and_then(Value::as_bool).unwrap_or(false);
    for export in all(reply, "exports") {
        let (size, clients) = (number(&export, "size"), number(&export, "clients"));
        let read_only = if flag(&export, "read-only") { ", read-only" } else { "" };
        let (name, disk) = (word(&export, "name"), word(&export, "disk"));
        let paused = if flag(&export, "paused") { ", paused" } else { "" };
        let rate = match export.get("rate").and_then(Value::as_u64) {
            Some(rate) => format!(", at most {}/s", format_size(rate)),
            None => String::new(),
        };
        writeln!(
            out,
            "export \"{name}\": {disk}, {size} bytes{read_only}{paused}{rate}, clients: {clients}"
        )?;
        for bitmap in all(&export, "bitmaps") {
            let name = word(&bitmap, "name");
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
