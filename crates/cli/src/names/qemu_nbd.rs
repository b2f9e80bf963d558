//! `qemu-nbd`: one image is served, in its options, by `serve`. Without `-t` the server ends with
//! its last client; without `-e` it takes one at a time. With `-c` it is attached at a block device
//! instead, which `-d` detaches.

use std::ffi::OsString;

use clap::{Arg, ArgAction, ArgMatches, Command};

use super::{Called, verb, version};
use crate::arguments::{flag, value};
use crate::failure::Failure;
use crate::image;

/// The version whose options ours are like.
const VERSION: &str = "11.0.0";

pub(super) fn becomes(words: &[OsString]) -> Result<Called, Failure> {
    let name = std::iter::once(OsString::from("qemu-nbd"));
    let matches = match arguments().try_get_matches_from(name.chain(words.iter().cloned())) {
        Ok(matches) => matches,
        Err(e) if !e.use_stderr() => return Ok(Called::Says(e.to_string())),
        Err(e) => return Err(Failure::new(crate::misread::reason(&e))),
    };
    if matches.get_flag("version") {
        return Ok(Called::Says(version("qemu-nbd", VERSION)));
    }
    let text = |id: &str| matches.get_one::<String>(id).map(String::as_str);
    for (id, what) in [("connect", "Failed to open"), ("disconnect", "Cannot open")] {
        if let Some(device) = text(id)
            && let Err(e) = std::fs::metadata(device::text::path(device))
        {
            let shown = device::text::shown(device);
            return Err(Failure::new(format!("{what} {shown}: {}", said(&e))));
        }
    }
    if let Some(device) = text("disconnect") {
        return Ok(verb("detach", ["--".to_owned(), device.to_owned()]));
    }
    if matches.get_flag("list") {
        return Ok(verb("list", [address(&matches)?]));
    }
    Ok(verb("serve", served(&matches)?))
}

/// An error in the words of the system, without its number.
fn said(e: &std::io::Error) -> String {
    let text = e.to_string();
    text.split(" (os error").next().unwrap_or_default().to_owned()
}

/// The words of `serve`.
fn served(matches: &ArgMatches) -> Result<Vec<String>, Failure> {
    let mut ours: Vec<String> = Vec::new();
    if matches.get_flag("read-only") {
        ours.push("--readonly".into());
    }
    let text = |id: &str| matches.get_one::<String>(id).map(String::as_str);
    let disk = text("filename").ok_or_else(|| Failure::new("which image? name its file"))?;
    let is_node = matches.get_flag("image-opts") || disk.starts_with("json:");
    if text("format").is_none() && !is_node {
        // qemu-nbd guesses. What is served as raw bytes, and is an image, would be destroyed.
        return Err(Failure::new(format!(
            "{disk}: the format is not guessed for serving; add -f FORMAT (-f raw: the bytes \
             unchanged)"
        )));
    }
    let valued = [
        ("format", "format"),
        ("socket", "unix"),
        ("port", "port"),
        ("bind", "ipaddr"),
        ("description", "description"),
        ("selinux-label", "selinux-label"),
        ("handshake-limit", "handshake-timeout"),
    ];
    for (theirs, option) in valued {
        ours.extend(text(theirs).map(|value| format!("--{option}={value}")));
    }
    let device = text("connect");
    // With a device it goes to the background unless it is to talk.
    let goes = matches.get_flag("fork") || device.is_some() && !matches.get_flag("verbose");
    ours.push(if goes { "--daemon" } else { "--foreground" }.into());
    ours.extend(device.map(|device| format!("--attach=nbd:{device}")));
    ours.extend(text("pid-file").map(|value| format!("--pidfile={value}")));
    if matches.get_flag("verbose") {
        ours.push("--verbose".into());
    }
    // In one word with its option (`"-e 2"`, virtnbdbackup's) a number has a space before it.
    match text("shared").unwrap_or("1").trim_start() {
        // As many as come.
        "0" => {}
        // The kernel opens several connections, and ends them together.
        _ if device.is_some() => {}
        count => ours.push(format!("--max-connections={count}")),
    }
    if !matches.get_flag("persistent") && device.is_none() {
        ours.push("--filter=exitlast".into());
    }
    if let Some(offset) = text("offset") {
        ours.push(format!("--filter=offset?offset={offset}"));
    }
    if matches.get_flag("snapshot") {
        ours.push("--filter=cow".into());
    }
    if matches!(text("discard"), Some("ignore" | "off")) {
        ours.push("--filter=nozero?zeromode=notrim".into());
    }
    if text("cache") == Some("writethrough") {
        ours.push("--filter=fua?fuamode=force".into());
    }
    ours.push(super::external());
    if let Some(id) = text("tls-creds") {
        ours.extend(image::credentials(matches, id, true)?.of_server());
    }
    let objects = matches.get_many::<String>("object").unwrap_or_default();
    ours.extend(objects.map(|object| format!("--object={object}")));
    if is_node {
        ours.extend(text("export-name").map(|name| format!("--exportname={name}")));
        ours.extend(["--image-opts".to_owned(), "--".to_owned(), disk.to_owned()]);
        return Ok(ours);
    }
    let mut name = if disk.contains(':') { disk.to_owned() } else { format!("file:{disk}") };
    if let Some(snapshot) = text("load-snapshot") {
        let own = snapshot.trim_start_matches("snapshot.name=").trim_start_matches("snapshot.id=");
        name = format!("{name}?snapshot={own}");
    }
    ours.push(match text("export-name") {
        Some(export) => format!("--export={export}={name}"),
        None => name,
    });
    Ok(ours)
}

/// Where a client finds the server.
fn address(matches: &ArgMatches) -> Result<String, Failure> {
    let text = |id: &str| matches.get_one::<String>(id).map(String::as_str);
    let mut params = match text("tls-creds") {
        Some(id) => image::credentials(matches, id, false)?.params(),
        None => device::Params::default(),
    };
    if let Some(name) = text("tls-hostname") {
        params.set("tls-hostname", name)?;
    }
    let uri = match (text("socket"), text("bind"), text("port")) {
        (Some(socket), ..) => format!("nbd+unix:///?socket={socket}"),
        (None, host, port) => {
            format!("nbd://{}:{}", host.unwrap_or("localhost"), port.unwrap_or("10809"))
        }
    };
    if params.is_empty() {
        return Ok(uri);
    }
    let params: Vec<_> = params.iter().map(|(key, value)| format!("{key}={value}")).collect();
    let params = params.join("&");
    // The URI goes in two pieces through a name with parameters.
    Ok(match uri.split_once("?socket=") {
        Some((_, socket)) => format!("nbd:?socket={socket}&{params}"),
        None => format!("nbd:{uri}?{params}"),
    })
}

fn arguments() -> Command {
    Command::new("qemu-nbd")
        .about("Serve an image over NBD")
        .args_override_self(true)
        .disable_version_flag(true)
        .arg(Arg::new("filename").value_name("FILE"))
        .args([
            flag("-V, --version", "Print the version"),
            value("-p, --port PORT", "Listen on this TCP port"),
            value("-b, --bind ADDRESS", "Listen on this address"),
            value("-k, --socket PATH", "Listen on a Unix socket"),
            value("-e, --shared NUM", "How many clients may connect at a time (1; 0: any number)"),
            flag("-t, --persistent", "Keep serving when the last client has left"),
            value("--handshake-limit SECONDS", "How long a handshake may take"),
            flag("-v, --verbose", "Log connecting clients"),
            value("-x, --export-name NAME", "The name of the export"),
            value("-D, --description TEXT", "Its description"),
            value("-o, --offset OFFSET", "Serve the image from there on"),
            flag("-A, --allocation-depth", "Accepted: it is offered anyway"),
            value("-B, --bitmap NAME", "Accepted: all bitmaps are offered")
                .action(ArgAction::Append),
            flag("-L, --list", "List the exports of a server"),
            flag("--fork", "Go into the background once it listens"),
            value("--pid-file PATH", "Write the process id to this file"),
            value("--selinux-label LABEL", "The label of the socket"),
            value("-c, --connect DEV", "Attach the image at the kernel's device DEV"),
            value("-d, --disconnect DEV", "Detach what is attached at DEV"),
            value("-f, --format FORMAT", "The format of the image"),
            flag("-r, --read-only", "Refuse writes"),
            flag("-s, --snapshot", "Discard writes at the end"),
            value("-l, --load-snapshot SNAPSHOT", "Serve an internal snapshot"),
            flag("-n, --nocache", "Taken"),
            value("--cache MODE", "writethrough, writeback, none, directsync, unsafe"),
            value("--aio MODE", "Taken"),
            value("--discard MODE", "ignore or unmap"),
            value("--detect-zeroes MODE", "Taken"),
            value("-T, --trace WORDS", "Taken"),
            flag("--image-opts", "FILE is a list of QEMU's options"),
            image::object(),
            value("--tls-creds ID", "Encrypt with the certificates or keys of this --object"),
            value(
                "--tls-hostname NAME",
                "The name that the server's certificate must be for; with --list",
            ),
        ])
}
