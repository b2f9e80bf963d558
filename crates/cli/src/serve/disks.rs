//! Which disks are served, through which filters: a disk named as for all verbs, or nbdkit's
//! `DEVICE [VALUE] [key=value]...`, and `--export NAME=DISK`.
//!
//! Each filter takes the parameters it knows, the first one first; the rest are the device's. One
//! that none of them knows is refused with the nearest known word. The exports of `--config`
//! follow.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

use clap::ArgMatches;
use device::{Name, Params, nearest};
use disk::{DeviceKind, Image, Named, Stack};

use super::config::Config;
use super::words::{self, Word};
use crate::failure::Failure;
use crate::{image, names};

/// Bytes of the longest name that a client can ask for.
pub(super) const LONGEST_NAME: usize = 4096;

/// A disk to be served.
#[derive(Debug)]
pub(super) struct Disk {
    /// `FILE:LINE: ` of the configuration that names it; else empty.
    pub(super) at: String,
    pub(super) export: String,
    pub(super) disk: Named,
    /// The filters over it.
    pub(super) filters: Arc<Stack>,
    pub(super) read_only: bool,
    /// Its description; `None`: that of the command line, for all disks.
    pub(super) description: Option<String>,
}

/// The disks that are to be served: at least one, and each with a name of its own.
pub(super) fn resolve(matches: &ArgMatches, config: Option<&Config>) -> Result<Vec<Disk>, Failure> {
    let mut disks = typed(matches)?;
    let before: Vec<&str> =
        matches.get_many::<String>("filter").unwrap_or_default().map(String::as_str).collect();
    for export in config.into_iter().flat_map(|config| &config.exports) {
        disks.push(export.disk(&before)?);
    }
    if disks.is_empty() {
        return Err(Failure::usage("no disk to serve; name one, for example memory:1G"));
    }
    let mut names = HashSet::new();
    if let Some(again) = disks.iter().find(|disk| !names.insert(&disk.export)) {
        let what = format!("{}two exports are named `{}`", again.at, again.export);
        return Err(Failure::usage(what));
    }
    Ok(disks)
}

/// Those of the command line.
fn typed(matches: &ArgMatches) -> Result<Vec<Disk>, Failure> {
    let mut filters = filters(matches)?;
    let mut image = image::image(matches, "format")?;
    let mut read_only = matches.get_flag("readonly");
    let mut first = None;
    if let Some((disk, stack, is_only_read)) = node(matches)? {
        image = stack.image().clone();
        filters = filters.over_stack(stack);
        read_only |= is_only_read;
        first = Some((disk, image.clone()));
    } else if let Some((text, rest)) = positional(matches) {
        let mut words = words::read(rest)?;
        if let Some(format) = format_among(&mut words, text) {
            let external = image.external.clone();
            image = Image { external, ..Image::of(&format)? };
        }
        filters = filters.over_image(image.clone());
        let named = disk(text, &words, &mut filters)?;
        first = Some((named, filters.image().clone()));
    }
    let exports = exports(matches)?.into_iter();
    let mut named = exports
        .map(|(name, text)| Ok((name.to_owned(), disk::named(text, image.clone())?)))
        .collect::<Result<Vec<_>, Failure>>()?;
    if let Some(first) = first {
        let name = export_name(matches);
        let is_node = matches.get_flag("image-opts");
        let taken = !is_node && named.iter().any(|(other, _)| *other == name);
        named.insert(0, (if taken { String::new() } else { name }, first));
    }
    let disk = |(export, (disk, image))| Disk {
        at: String::new(),
        export,
        disk,
        filters: filters.clone().over_image(image).into(),
        read_only,
        description: None,
    };
    Ok(named.into_iter().map(disk).collect())
}

/// The filters over each disk. With one thread nbdkit does one request of a client after the other.
fn filters(matches: &ArgMatches) -> Result<Stack, Failure> {
    let words = matches.get_many::<String>("filter").unwrap_or_default().map(String::as_str);
    let in_turn = names::is_nbdkit() && matches.get_one::<u32>("threads") == Some(&1);
    Ok(Stack::parse(words.chain(in_turn.then_some("noparallel?serialize=requests")))?)
}

/// The disk of the command line, if QEMU's options name it; and whether it is only read.
fn node(matches: &ArgMatches) -> Result<Option<(Named, Stack, bool)>, Failure> {
    let Some((first, rest)) = positional(matches) else { return Ok(None) };
    if !matches.get_flag("image-opts") && !first.starts_with("json:") {
        return Ok(None);
    }
    if !rest.is_empty() || image::word(matches, "format").is_some() {
        return Err(Failure::usage(
            "QEMU's options name the disk and its format; nothing else does",
        ));
    }
    let node = image::node(matches, first)?;
    let mut image = node.stack.image().clone();
    if matches!(image.content, disk::Content::Guess) {
        let what = format!("{}: a format is not guessed here; name its driver", node.disk);
        return Err(Failure::usage(what));
    }
    image.external = image::external(matches);
    image::resolve_secrets(matches, &mut image.params)?;
    image.check()?;
    Ok(Some((node.disk, node.stack.over_image(image), node.read_only)))
}

/// Takes `format=FORMAT` out of the words, unless it is, or may be, a parameter of the device
/// itself.
fn format_among(words: &mut Vec<Word>, first: &str) -> Option<String> {
    let declares = |kind: &DeviceKind| kind.params.iter().any(|param| param.key == "format");
    if kind(first).is_some_and(|kind| kind.names.foreign.is_some() || declares(kind)) {
        return None;
    }
    let is_format = |word: &Word| matches!(word, Word::Pair { key, .. } if key == "format");
    match words.remove(words.iter().position(is_format)?) {
        Word::Pair { value, .. } => Some(value),
        Word::Value(_) => None,
    }
}

/// The positional words: the first, and the others.
pub(super) fn positional(matches: &ArgMatches) -> Option<(&str, Vec<&str>)> {
    let mut words = matches.get_many::<String>("disk").unwrap_or_default().map(String::as_str);
    Some((words.next()?, words.collect()))
}

/// The name in `$exportname` of `--run`, under which the positional disk is served, too. nbdkit
/// knows `--export NAME` as another way to say `-e NAME`.
pub(super) fn export_name(matches: &ArgMatches) -> String {
    let named = matches.get_one::<String>("exportname");
    let mut others = matches.get_many::<String>("export").unwrap_or_default();
    let other = others.find(|text| !text.contains('='));
    named.or(other.filter(|_| positional(matches).is_some())).cloned().unwrap_or_default()
}

fn exports(matches: &ArgMatches) -> Result<Vec<(&str, &str)>, Failure> {
    let mut pairs = Vec::new();
    for text in matches.get_many::<String>("export").unwrap_or_default() {
        match text.split_once('=') {
            Some((name, _)) if name.len() > LONGEST_NAME => {
                let action = format!("--export: a name has {} bytes", name.len());
                return Err(Failure::usage(format!("{action}; NBD takes {LONGEST_NAME}")));
            }
            Some(pair) => pairs.push(pair),
            None if positional(matches).is_some() => {}
            None => return Err(Failure::usage(format!("--export {text}: write NAME=DISK"))),
        }
    }
    Ok(pairs)
}

/// The kind of device that the first word names, if it is not a path.
fn kind(first: &str) -> Option<&'static DeviceKind> {
    if let Ok(kind) = disk::device(first) {
        return Some(kind);
    }
    disk::meant(first).or_else(|| match Name::parse(first).ok()? {
        Name::Device { kind, .. } => disk::device(&kind).ok(),
        Name::Path(_) | Name::Uri { .. } => None,
    })
}

/// The disk that these words name. What they say of its bytes is added to the image of `filters`.
fn disk(first: &str, words: &[Word], filters: &mut Stack) -> Result<Named, Failure> {
    let unknown = match disk::device(first) {
        Ok(kind) => return device(kind, Params::default(), words, filters),
        Err(unknown) => unknown,
    };
    if let Some(kind) = disk::meant(first) {
        let params = kind.with_argument(first, Params::default())?;
        return device(kind, params, words, filters);
    }
    let name = Name::parse(first)?;
    if names::is_nbdkit() && matches!(name, Name::Path(_)) {
        // There a path is a plugin. What is in a script is not the disk that it makes.
        let cure =
            format!("a file is served by `nbdkit file {first}`, a script by `nbdkit sh {first}`");
        return Err(Failure::usage(format!("{first}: is not a plugin; {cure}")));
    }
    let (named, image) = disk::named(first, filters.image().clone())?;
    *filters = std::mem::take(filters).over_image(image);
    // Of a path, and of what its format names by a word of its own, no words follow but filters'.
    if matches!(name, Name::Device { .. }) && named.path().is_none() {
        return device(named.kind(), named.params().clone(), words, filters);
    }
    for word in words {
        let (key, value) = match word {
            Word::Pair { key, value } => (key.as_str(), value.as_str()),
            Word::Value(other) if Path::new(first).exists() => {
                let cure = format!("name the others: --export NAME={other}");
                return Err(Failure::usage(format!("{first}: one disk has no name; {cure}")));
            }
            // More words follow, so this was meant to be a device.
            Word::Value(_) => return Err(Failure::usage(unknown)),
        };
        if !filters.take(key, value)? {
            if Stack::owner(key).is_none() && !first.contains('/') {
                return Err(Failure::usage(unknown));
            }
            let known: Vec<_> = filters.keys().collect();
            return Err(refuse(first, key, &known));
        }
    }
    Ok(named)
}

fn device(
    kind: &'static DeviceKind,
    mut params: Params,
    words: &[Word],
    filters: &mut Stack,
) -> Result<Named, Failure> {
    for given in words {
        match given {
            Word::Value(value) => params = kind.with_argument(value, params)?,
            Word::Pair { key, value } => {
                if filters.take(key, value)? {
                    continue;
                }
                let mine = kind.params.iter().map(|p| p.key);
                if !kind.any_param && !mine.clone().any(|known| known == key) {
                    let known: Vec<_> = filters.keys().chain(mine).collect();
                    return Err(refuse(kind.word, key, &known));
                }
                params.add(key, value);
            }
        }
    }
    Ok(Named::new(kind, params)?)
}

/// Neither the device nor a filter knows `key`; `known` is what they know.
fn refuse(thing: &str, key: &str, known: &[&str]) -> Failure {
    if let Some(disk::FilterKind { word, .. }) = Stack::owner(key) {
        let hint = format!("`{key}` is a parameter of the filter `{word}`: add --filter={word}");
        return Failure::usage(format!("{thing}: {hint}"));
    }
    let hint = match nearest(key, known) {
        Some(near) => format!("; did you mean `{near}`?"),
        None => String::new(),
    };
    Failure::usage(format!("{thing}: there is no parameter `{key}`{hint}"))
}
