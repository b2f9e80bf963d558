//! What `serve` answers instead of serving: help and versions, and what `dump` has.

use clap::ArgMatches;
use device::{Name, Params};
use disk::{About, DeviceKind, Named, ShownKind};

use super::disks::positional;
use super::dump;
use crate::arguments::{long_names, short_names};
use crate::failure::{ExitResult, Failure};
use crate::page::Page;
use crate::verb::Verb;
use crate::{arguments, help, names, output, verbs};

type Answer = fn(&ArgMatches) -> Result<String, Failure>;

/// The answer, if one was asked for.
pub(super) fn answer(matches: &ArgMatches) -> Option<ExitResult> {
    let answers: [(&str, Answer); 7] = [
        ("help", |matches| help_text(matches, help::of_verb)),
        ("brief-help", |matches| help_text(matches, help::of_verb_in_short)),
        ("version", versions),
        ("dump-config", |_| Ok(dump::configuration())),
        ("dump-plugin", dump::device),
        ("short-options", |_| Ok(verbs::options("serve", short_names))),
        ("long-options", |_| Ok(verbs::options("serve", long_names))),
    ];
    let (_, text) = answers.iter().find(|(id, _)| matches.get_flag(id))?;
    Some(text(matches).and_then(|text| output::text(&text)))
}

/// The disk that is named by the first word alone, if it may describe itself.
pub(super) fn named(matches: &ArgMatches) -> Result<Option<Named>, Failure> {
    let Some((word, _)) = positional(matches) else { return Ok(None) };
    let named = match disk::meant(word) {
        Some(kind) => Named::new(kind, kind.with_argument(word, Params::default())?)?,
        None => match Name::parse(word)? {
            name @ Name::Device { .. } => Named::of(&name)?,
            Name::Path(_) | Name::Uri { .. } => return Ok(None),
        },
    };
    Ok(Some(named).filter(|named| named.kind().names.foreign.is_some()))
}

/// The description of the disk by its kind, if the kind has one.
fn told(matches: &ArgMatches) -> Result<Option<About>, Failure> {
    let about = named(matches)?.and_then(|named| named.about());
    Ok(about.transpose()?)
}

/// The device, if one was named.
pub(super) fn device(matches: &ArgMatches) -> Result<Option<&'static DeviceKind>, Failure> {
    let Some((word, _)) = positional(matches) else { return Ok(None) };
    Ok(Some(match Name::parse(word)? {
        Name::Path(word) if !word.contains('/') => disk::device(&word)?,
        name => disk::leads_to(&name)?,
    }))
}

/// Help on what was named, or else `of_verb`.
fn help_text(matches: &ArgMatches, of_verb: fn(&Verb) -> String) -> Result<String, Failure> {
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
        return Ok(of_verb(&super::VERB));
    }
    Ok(pages.iter().map(Page::text).collect::<Vec<_>>().join("\n"))
}

fn shown(kind: impl Into<ShownKind>) -> Page {
    Page::from(kind.into())
}

fn versions(matches: &ArgMatches) -> Result<String, Failure> {
    let filters = arguments::filters(matches, "filter")?;
    let line = |name: &str, version: &str| format!("{name} {version}\n");
    // In nbdkit's order: from the client to the bytes.
    let first = match names::is_nbdkit() {
        true => names::version("nbdkit", version()),
        false => line("diskferry", version()),
    };
    let above: String = filters.kinds().map(|kind| line(kind.word, version())).collect();
    let device = match told(matches)? {
        Some(About { name, version, .. }) => line(&name, &version.unwrap_or_default()),
        None => device(matches)?.map(|kind| line(kind.word, version())).unwrap_or_default(),
    };
    Ok(first + &above + &device)
}

/// The version to say: as nbdkit, that of the nbdkit whose words these are.
pub(super) fn version() -> &'static str {
    if names::is_nbdkit() { names::NBDKIT_VERSION } else { env!("CARGO_PKG_VERSION") }
}
