//! `diskferry info`: describes a disk, without using it.
//!
//! For an export it prints what nbdinfo prints, and for an image what qemu-img prints; `--json` and
//! `--output` choose one of the two for any disk.

mod image;
mod question;

use std::process::ExitCode;

use clap::{ArgMatches, Command};
use device::{Edge, Info, Use};
use disk::{Fact, Facts, Inspection, Named, Scope};
use runtime::Context;
use serde_json::Value;

use crate::arguments::{disk, flag, json_flag, value};
use crate::failure::{ExitResult, Failure};
use crate::image::{self as images, Source};
use crate::names::{is_nbdinfo, is_qemu_img};
use crate::verb::Verb;
use crate::{colors, describe, formats, list, map, output, sandbox};

pub(crate) use image::print_snapshots;
use question::Question;

pub(crate) const VERB: Verb = Verb {
    name: "info",
    summary: "Show the size, format, capabilities and block sizes of a disk",
    about: "For an NBD export it prints nbdinfo's output, and for a file the output of `qemu-img \
            info`; --json and --output select either for any disk. --size, --uri, --can and the \
            like print a single property, as in nbdinfo. Without -f the format of an image is \
            guessed. Files that an image names are opened only with --backing-chain, and only \
            where --allow-external allows it.",
    example: "  diskferry serve memory 1G --run 'diskferry info \"$uri\"'\n  \
              diskferry info --output=json memory:1G\n  \
              diskferry info --size [ diskferry serve memory 1G ]\n  \
              diskferry info --can write memory:1M && echo yes",
    status: "2: the answer to --can or --cannot is no.",
    usage: 1,
    arguments,
    run,
};

fn arguments(command: Command) -> Command {
    let command = command
        .arg(disk())
        .arg(json_flag().help("Print JSON as nbdinfo does").conflicts_with("output"))
        .arg(images::output_argument())
        .arg(images::format_argument("-f, --format", "Format [default: a guess]"))
        .arg(
            value("-t, --cache MODE", "Ignored")
                .value_parser(images::CACHES)
                .hide_possible_values(true)
                .hide(true),
        )
        .arg(
            flag("--backing-chain", "Also show the images in its backing chain")
                .conflicts_with("json"),
        );
    images::arguments(question::arguments(command))
}

fn run(matches: &ArgMatches) -> ExitResult {
    images::check_objects(matches)?;
    let asked = question::asked(matches)?;
    let source = Source::read(matches, images::word(matches, "disk").unwrap_or_default())?;
    match asked {
        Some(Question::Map(context)) => return map::show(matches, &source, context),
        Some(Question::List) => {
            return list::show(matches, &source.disk, matches.get_flag("content"));
        }
        Some(question) => return answer(matches, &source, &question),
        None => {}
    }
    // The sandbox does not allow /proc and /sys.
    let facts = source.disk.facts();
    images::confine(matches, [&source])?;
    let context = images::context(matches)?;
    let output = images::word(matches, "output");
    let as_image = output.is_some()
        || source.disk.path().is_some()
        || images::word(matches, "format").is_some()
        || is_qemu_img()
        || matches.get_flag("backing-chain");
    if as_image && !matches.get_flag("json") && !matches.get_flag("content") {
        return of_image(matches, &source, &facts, &context, output == Some("json"));
    }
    let mut found = match source.disk.inspect(Scope::Disk, &context)? {
        Some(found) => found,
        None => open_and_ask(matches, &source, facts, &context)?,
    };
    let is_asked = matches.get_flag("content");
    // As nbdinfo does, but where the server has no second connection for it.
    let is_usual = is_nbdinfo() && !matches.get_flag("no-content");
    if let Some(disk) = found.disks.first_mut().filter(|_| is_asked || is_usual) {
        match content(&source.disk, &context) {
            Ok(content) => disk.push(("content", content)),
            Err(e) if is_asked => return Err(e),
            Err(_) => {}
        }
    }
    let json = matches.get_flag("json");
    output::finish(|out| {
        colors::print(colors::are_wanted(matches), out, |out| describe::write(out, found, json))
            .map(|()| ExitCode::SUCCESS)
    })
}

/// What the disk holds by its beginning and end: the word of an image's format, or `data`.
pub(crate) fn content(disk: &Named, context: &Context) -> Result<Fact, Failure> {
    let options = disk::OpenOptions { lock: false, ..disk::OpenOptions::read_only() };
    let container = Edge::new(disk.open(&options, context)?, context.pool.clone());
    let seen = disk::looks_like(&container)?;
    Ok(Fact::Text(seen.first().map_or("data", |format| format.word).to_owned()))
}

/// Answers one question.
fn answer(matches: &ArgMatches, source: &Source, question: &Question<'_>) -> ExitResult {
    // Whether it could be written is seen by opening it so.
    let reach = disk::reach(&source.disk, &source.stack, Use::Write);
    sandbox::Sandbox::enter(sandbox::wish(matches), &reach)?.shut()?;
    let context = images::context(matches)?;
    let found = match source.disk.inspect(Scope::Disk, &context)? {
        Some(found) => found,
        None => abilities(matches, source, &context)?,
    };
    question.answer(&source.disk.to_string(), &found, matches.get_flag("json"))
}

/// What a disk that is not an export can do when it is used; it is not locked for that.
fn abilities(
    matches: &ArgMatches,
    source: &Source,
    context: &Context,
) -> Result<Inspection, Failure> {
    let options = disk::OpenOptions { lock: false, ..images::reading(matches) };
    let opened = source.open(&options, context)?.tell();
    let size = opened.edge.info().size;
    let is_image = opened.format.is_some();
    let mut seen = opened.edge.info().abilities;
    if !is_image {
        let options = disk::OpenOptions { write: true, or_read_only: true, ..options };
        // A user that may not even open it for writing can read it all the same.
        if let Ok(device) = source.disk.open(&options, context) {
            seen = device.info().abilities;
        }
    }
    let facts = vec![
        ("export-size", Fact::Size(size)),
        ("is_read_only", Fact::Flag(!seen.write)),
        ("is_rotational", Fact::Flag(seen.rotational)),
        ("can_cache", Fact::Flag(seen.prefetch)),
        ("can_map", Fact::Flag(seen.extents)),
        ("can_multi_conn", Fact::Flag(seen.multi_conn)),
        ("can_flush", Fact::Flag(seen.flush)),
        ("can_fua", Fact::Flag(seen.fua)),
        ("can_trim", Fact::Flag(seen.trim)),
        ("can_zero", Fact::Flag(seen.zero)),
        ("can_fast_zero", Fact::Flag(seen.fast_zero)),
    ];
    Ok(Inspection { place: Facts::new(), disks: vec![facts] })
}

fn of_image(
    matches: &ArgMatches,
    source: &Source,
    facts: &Facts,
    context: &Context,
    json: bool,
) -> ExitResult {
    let (disk, image, options) = (&source.disk, source.image()?, images::reading(matches));
    let with_chain = matches.get_flag("backing-chain");
    let (chain, closed) = if with_chain {
        disk::describe_chain(disk, image, &options, context)?
    } else {
        (vec![disk::describe(disk, image, &options, context)?], None)
    };
    let chain = chain.into_iter().map(disk::Described::refuse_unknown);
    let chain = chain.collect::<device::Result<Vec<_>>>()?;
    if let Some(first) = chain.first().filter(|_| source.unsaid) {
        match &first.archive {
            Some(archive) if is_qemu_img() => formats::refuse_archive(disk, archive)?,
            None if first.format.is_plain => formats::refuse(disk, &first.container)?,
            _ => {}
        }
    }
    output::finish(|out| {
        if json {
            let mut values: Vec<_> = chain.iter().map(image::json).collect();
            if let Some(Value::Object(first)) = values.first_mut().filter(|_| !facts.is_empty()) {
                first.insert("block-device".into(), describe::keys(facts.clone()).into());
            }
            let value = match values.pop() {
                Some(only) if !with_chain => only,
                last => values.into_iter().chain(last).collect::<Value>(),
            };
            images::write_json(out, &value)?;
        }
        for (i, image) in chain.iter().enumerate().filter(|_| !json) {
            if i > 0 {
                writeln!(out)?;
            }
            image::print(image, out)?;
            if i == 0 && !facts.is_empty() {
                image::print_block_device(facts.clone(), out)?;
            }
        }
        Ok(ExitCode::SUCCESS)
    })?;
    // The layers that can be seen were shown; this names the one below them.
    closed.map_or(Ok(ExitCode::SUCCESS), |e| Err(e.into()))
}

/// The facts of a device. Those that depend on being opened for writing are left out: this must not
/// lock or change anything.
fn open_and_ask(
    matches: &ArgMatches,
    source: &Source,
    of_device: Facts,
    context: &Context,
) -> Result<Inspection, Failure> {
    let options = disk::OpenOptions { lock: false, ..images::reading(matches) };
    let opened = source.open(&options, context)?.tell();
    let Info { name, description, size, blocks, abilities, .. } = opened.edge.info();
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
    facts.extend(of_device);
    let mut place = vec![("device", Fact::Text(source.disk.kind().word.into()))];
    if let Some(format) = opened.format {
        place.push(("format", Fact::Text(format.word.into())));
    }
    Ok(Inspection { place, disks: vec![facts] })
}
