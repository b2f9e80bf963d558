//! What `serve` answers instead of serving: help, versions, and what this program can do in lines
//! for scripts, with nbdkit's keys where they mean the same.

use std::fmt::Write as _;

use clap::{Arg, ArgMatches, Command};
use device::{Info, Name, Params};
use disk::{About, DeviceKind, Named, ShownKind, Stack, StackRole, Storage, kinds_of};
use runtime::Context;

use super::disks::{self, positional};
use super::exports;
use crate::failure::{ExitResult, Failure};
use crate::page::Page;
use crate::{arguments, help, output};

const VERSION: &str = env!("CARGO_PKG_VERSION");

type Answer = fn(&ArgMatches) -> Result<String, Failure>;

/// The answer, if one was asked for.
pub(super) fn answer(matches: &ArgMatches) -> Option<ExitResult> {
    let answers: [(&str, Answer); 7] = [
        ("help", |matches| help_text(matches, help::of_verb)),
        ("brief-help", |matches| help_text(matches, help::of_verb_in_short)),
        ("version", versions),
        ("dump-config", |_| Ok(configuration())),
        ("dump-plugin", dump),
        ("short-options", |_| Ok(options(short_names))),
        ("long-options", |_| Ok(options(long_names))),
    ];
    let (_, text) = answers.iter().find(|(id, _)| matches.get_flag(id))?;
    Some(text(matches).and_then(|text| output::text(&text)))
}

/// The description of the disk by its kind, if the kind has one.
fn told(matches: &ArgMatches) -> Result<Option<About>, Failure> {
    let Some((word, _)) = positional(matches) else { return Ok(None) };
    let named = match disk::meant(word) {
        Some(kind) => Named::new(kind, kind.with_argument(word, Params::default())?)?,
        None => match Name::parse(word)? {
            name @ Name::Device { .. } => Named::of(&name)?,
            Name::Path(_) | Name::Uri { .. } => return Ok(None),
        },
    };
    Ok(named.about().transpose()?)
}

/// The device, if one was named.
fn device(matches: &ArgMatches) -> Result<Option<&'static DeviceKind>, Failure> {
    let Some((word, _)) = positional(matches) else { return Ok(None) };
    Ok(Some(match Name::parse(word)? {
        Name::Path(word) if !word.contains('/') => disk::device(&word)?,
        name => disk::leads_to(&name)?,
    }))
}

/// Help on what was named, or else `of_verb`.
fn help_text(matches: &ArgMatches, of_verb: fn(&str) -> String) -> Result<String, Failure> {
    let filters = arguments::filters(matches, "filter")?;
    let mut pages: Vec<Page> = filters.kinds().map(shown).collect();
    if let Some(about) = told(matches)? {
        let pages = pages.iter().map(Page::text);
        return Ok(std::iter::once(about.help).chain(pages).collect::<Vec<_>>().join("\n"));
    }
    // A filter may be named like a device.
    match positional(matches).and_then(|(word, _)| disk::filter(word).ok()) {
        Some(kind) if pages.is_empty() => pages.push(shown(kind)),
        _ => pages.extend(device(matches)?.map(shown)),
    }
    if pages.is_empty() {
        return Ok(of_verb("serve"));
    }
    Ok(pages.iter().map(Page::text).collect::<Vec<_>>().join("\n"))
}

fn shown(kind: impl Into<ShownKind>) -> Page {
    Page::from(kind.into())
}

fn versions(matches: &ArgMatches) -> Result<String, Failure> {
    let filters = arguments::filters(matches, "filter")?;
    let mut words = vec!["diskferry"];
    let mut others = String::new();
    match told(matches)? {
        Some(About { name, version, .. }) => {
            others = format!("{name} {}\n", version.unwrap_or_default());
        }
        None => words.extend(device(matches)?.map(|kind| kind.word)),
    }
    words.extend(filters.kinds().map(|kind| kind.word));
    let own: String = words.iter().map(|word| format!("{word} {VERSION}\n")).collect();
    Ok(own + &others)
}

fn lines<'a>(pairs: impl IntoIterator<Item = (&'a str, String)>) -> String {
    pairs.into_iter().fold(String::new(), |mut text, (key, value)| {
        // Writing to a string does not fail.
        let _ = writeln!(text, "{key}={value}");
        text
    })
}

fn binary() -> String {
    std::env::current_exe().map(|path| path.display().to_string()).unwrap_or_default()
}

fn configuration() -> String {
    let binary = binary();
    let directory = binary.rsplit_once('/').map_or("", |(directory, _)| directory).to_owned();
    let mut numbers = VERSION.split('.');
    let mut number = || numbers.next().unwrap_or("0").to_owned();
    let (major, minor) = (number(), number());
    let yes = || "yes".to_owned();
    let words = |role| kinds_of(role).map(|kind| kind.word).collect::<Vec<_>>().join(",");
    lines([
        ("binary", binary),
        ("bindir", directory),
        ("devices", words(StackRole::Device)),
        ("exit_with_parent", yes()),
        ("extended_headers", yes()),
        ("filters", words(StackRole::Filter)),
        ("host_cpu", std::env::consts::ARCH.to_owned()),
        ("host_os", std::env::consts::OS.to_owned()),
        ("name", "diskferry".to_owned()),
        ("run_default_socket", "Unix".to_owned()),
        ("selinux", yes()),
        ("timeout_option", yes()),
        ("tls", if cfg!(feature = "tls") { "yes" } else { "no" }.to_owned()),
        ("version", VERSION.to_owned()),
        ("version_major", major),
        ("version_minor", minor),
        ("vsock_option", yes()),
    ])
}

/// Of a device, and of the filters that are named with it.
fn dump(matches: &ArgMatches) -> Result<String, Failure> {
    if let Some(about) = told(matches)? {
        return Ok(about.dump + &filters_dump(matches)?);
    }
    let Some(kind) = device(matches)? else {
        return Err(Failure::usage("--dump-plugin: which device? for example memory"));
    };
    let mut text = lines([
        ("path", binary()),
        ("name", kind.word.to_owned()),
        ("version", VERSION.to_owned()),
        ("description", kind.summary.to_owned()),
    ]);
    text += &lines(kind.magic.map(|magic| ("magic_config_key", magic.to_owned())));
    let model = || "parallel".to_owned();
    text += &lines([("max_thread_model", model()), ("thread_model", model())]);
    if let Some(disk) = example(matches, kind)? {
        let opened = exports::open_disk(&disk, &Stack::default(), "", true, &Context::default());
        text += &opened.map(|edge| abilities(edge.info()))?;
    }
    Ok(text + &filters_dump(matches)?)
}

/// Of the filters.
fn filters_dump(matches: &ArgMatches) -> Result<String, Failure> {
    let mut text = String::new();
    for filter in arguments::filters(matches, "filter")?.kinds() {
        let key = |end: &str| format!("{}_{end}", filter.word);
        let (path, name, summary) = (key("path"), key("name"), key("description"));
        text += &lines([
            (path.as_str(), binary()),
            (&name, filter.word.to_owned()),
            (&summary, filter.summary.to_owned()),
        ]);
    }
    Ok(text)
}

/// The disk that was named, or one like the device's example, to see what it can do. Without a
/// name nothing outside of this process is opened: no file, no server.
fn example(matches: &ArgMatches, kind: &'static DeviceKind) -> Result<Option<Named>, Failure> {
    if positional(matches).is_some_and(|(first, rest)| first != kind.word || !rest.is_empty()) {
        return Ok(disks::resolve(matches, None)?.into_iter().next().map(|disk| disk.disk));
    }
    let is_own = (kind.unopened.storage)(&Params::default()) == Storage::Own;
    Ok(is_own.then(|| Named::example(kind)).transpose()?)
}

/// What a device does itself; the server derives the rest from that.
fn abilities(info: &Info) -> String {
    let can = info.abilities;
    let all = [
        ("has_get_size", true),
        ("has_block_size", true),
        ("has_pread", true),
        ("has_pwrite", can.write),
        ("has_flush", can.flush),
        ("has_trim", can.trim),
        ("has_zero", can.zero),
        ("has_can_fast_zero", can.fast_zero),
        ("has_can_fua", can.fua),
        ("has_can_multi_conn", can.multi_conn),
        ("has_cache", can.prefetch),
        ("has_extents", can.extents),
        ("has_is_rotational", can.rotational),
    ];
    let has = all.into_iter().filter(|(_, yes)| *yes).map(|(key, _)| (key, "1".to_owned()));
    lines(has)
}

/// What `--short-options` and `--long-options` list.
fn options(names: fn(&Arg) -> Vec<String>) -> String {
    let serve = super::arguments::arguments(Command::new("serve"));
    let mut names: Vec<String> = serve.get_arguments().flat_map(names).collect();
    names.sort();
    names.iter().map(|name| format!("{name}\n")).collect()
}

fn short_names(arg: &Arg) -> Vec<String> {
    let names = arg.get_short_and_visible_aliases().unwrap_or_default();
    names.iter().map(|name| format!("-{name}")).collect()
}

fn long_names(arg: &Arg) -> Vec<String> {
    let more = arg.get_all_aliases().unwrap_or_default();
    arg.get_long().into_iter().chain(more).map(|name| format!("--{name}")).collect()
}
