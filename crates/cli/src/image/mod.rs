//! Images on the command line, in qemu-img's words: formats, what they take, and what may be
//! guessed.
//!
//! A format that is not named is guessed for reading only, and the guess is reported. What an image
//! names is opened only where the user allows it.

mod backing;
mod objects;
mod options;
mod unfinished;

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::path::PathBuf;

use clap::builder::PossibleValue;
use clap::{Arg, ArgAction, ArgMatches, Command, ValueHint};
use device::{Edge, Error, ErrorKind, Fault, Params, Reach, Use};
use disk::{Allocation, Content, External, Format, Image, Named, OpenOptions, Stack};
use runtime::Context;
use serde_json::Value;

pub(crate) use backing::check as check_backing;
pub(crate) use objects::{check_objects, credentials, object, resolve_secrets};
pub(crate) use options::{asks_for_help, help, read as options};
pub(crate) use unfinished::warn_of_unfinished;

use crate::arguments::{flag, value};
use crate::failure::{Failure, say};
use crate::words::{Words, to_read};
use crate::{names, patience, sandbox};

/// The word that asks for a list.
const HELP: &str = "help";
/// The ways of caching that qemu-img knows.
pub(crate) const CACHES: [&str; 5] = ["none", "directsync", "writeback", "writethrough", "unsafe"];

/// An image that is named for reading.
#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) disk: Named,
    /// Its format, and filters over it.
    pub(crate) stack: Stack,
    /// Its format was not named.
    pub(crate) unsaid: bool,
    /// Its name says that it is not to be written.
    pub(crate) read_only: bool,
}

/// One that is open.
pub(crate) struct OpenImage {
    pub(crate) container: Edge,
    pub(crate) edge: Edge,
    pub(crate) format: Option<&'static Format>,
    /// A note for the user on how its bytes are interpreted.
    pub(crate) note: Option<String>,
}

impl OpenImage {
    /// Prints that note.
    pub(crate) fn tell(self) -> Self {
        if let Some(note) = &self.note {
            say(note);
        }
        self
    }
}

impl Source {
    /// An image in the words of a verb that guesses formats.
    pub(crate) fn read(matches: &ArgMatches, text: &str) -> Result<Self, Failure> {
        Self::of(matches, text, "format")
    }

    /// The same where another option names the format.
    pub(crate) fn of(matches: &ArgMatches, text: &str, option: &str) -> Result<Self, Failure> {
        // QEMU's `file:PATH` is the path, and is guessed as one.
        let path = text.strip_prefix("file:").filter(|path| !path.contains([':', '?']));
        let text = path.filter(|_| names::is_qemu_img()).unwrap_or(text);
        let format = word(matches, option);
        let has_options = is_given(matches, "image-opts");
        if has_options && format.is_some() {
            return Err(Failure::usage("--image-opts names the format itself; leave out -f"));
        }
        let (disk, stack, read_only) = if has_options || text.starts_with("json:") {
            let node = node(matches, text)?;
            (node.disk, node.stack, node.read_only)
        } else {
            let image = format.map_or_else(|| Ok(Image::guessed()), of_word)?;
            let image = Image { external: external(matches), ..image };
            let (disk, image) = disk::named(to_read(text), image)?;
            (disk, Stack::default().over_image(image), false)
        };
        let mut image = stack.image().clone();
        if let Some(format) = format.filter(|_| !image.is_told) {
            // A node of QEMU's, whose format is named beside it.
            let Image { params, ignore_backing, .. } = image;
            image = Image { params, ignore_backing, ..of_word(format)? };
        }
        if matches!(image.external, External::Nothing) {
            image.external = external(matches);
        }
        resolve_secrets(matches, &mut image.params)?;
        image.guess_backing = format.is_none() && !has_options;
        // Of a format that is guessed they are checked when it is known.
        if !matches!(image.content, Content::Guess) {
            image.check()?;
        }
        warn_of_unfinished(matches, &disk);
        // A node in JSON names its driver itself.
        let unsaid = matches!(image.content, Content::Guess);
        Ok(Self { disk, stack: stack.over_image(image), unsaid, read_only })
    }

    /// How its bytes are interpreted, where nothing but that lies between them and the disk.
    pub(crate) fn image(&self) -> Result<&Image, Failure> {
        if self.stack.is_empty() {
            return Ok(self.stack.image());
        }
        let what = "the image's options: a part of a disk, or one with a limit, is read and written \
                    as a disk; this verb is for images in files";
        Err(Failure::usage(what))
    }

    /// The same of one that is to be changed.
    pub(crate) fn changed(&self) -> Result<&Image, Failure> {
        if self.read_only {
            return Err(Failure::new(format!("{}: read-only=on: it is not changed", self.disk)));
        }
        let image = self.stack.image();
        // Whatever it is: the archive itself is not meant.
        if image.params.contains("entry") {
            let what = "a file in an archive cannot be changed in place; copy it out first";
            return Err(Failure::new(format!("{}: {what}", self.disk)));
        }
        self.image()
    }

    /// An image whose format has to be named, for it is written; nothing of it is guessed. Only as
    /// qemu-img it is what it looks like, and then no file that it names is opened.
    pub(crate) fn written(matches: &ArgMatches, text: &str) -> Result<(Named, Image), Failure> {
        let source = Self::read(matches, text)?;
        if source.unsaid && !names::is_qemu_img() {
            return Err(Failure::usage(format!(
                "{}: the format is not guessed for writing; add -f FORMAT",
                source.disk
            )));
        }
        let image = Image { guess_backing: false, ..source.changed()?.clone() };
        Ok((source.disk, image))
    }

    /// The same, of one of its snapshots.
    pub(crate) fn at_snapshot(self, snapshot: Option<&str>) -> Result<Self, Failure> {
        let Some(snapshot) = snapshot else { return Ok(self) };
        let mut image = self.stack.image().clone();
        image.params.set("snapshot", snapshot)?;
        if !matches!(image.content, Content::Guess) {
            image.check()?;
        }
        Ok(Self { stack: self.stack.over_image(image), ..self })
    }

    /// What it needs of the system.
    pub(crate) fn reach(&self) -> Reach {
        disk::reach(&self.disk, &self.stack, Use::Read)
    }

    /// Opens it.
    pub(crate) fn open(
        &self,
        options: &OpenOptions,
        context: &Context,
    ) -> Result<OpenImage, Failure> {
        let opened = disk::open(&self.disk, &self.stack, options, context)?;
        let note = self.interpreted(&opened)?;
        let disk::Opened { container, edge, format, .. } = opened;
        Ok(OpenImage { container, edge, format, note })
    }

    /// A note for the user on how its bytes are interpreted, now that it is open.
    pub(crate) fn interpreted(&self, opened: &disk::Opened) -> device::Result<Option<String>> {
        let (image, container) = (self.stack.image(), &opened.container);
        let is_guessed = matches!(image.content, Content::Guess);
        // The file of an archive is named, and what it is may be guessed.
        let is_file = opened.packed.is_some() && !image.is_told;
        if !is_guessed && !is_file {
            let warning = || crate::formats::warning(&self.disk, container, "-f");
            let is_plain = self.unsaid && opened.packed.is_none();
            return Ok(is_plain.then(warning).flatten());
        }
        let Some(format) = opened.format else {
            refuse_unknown(&image.params, disk::format("raw")?)?;
            crate::formats::refuse(&self.disk, container)?;
            return Ok(None);
        };
        let packed = opened.packed.as_ref().filter(|_| is_guessed);
        if is_guessed {
            refuse_unknown(&image.params, packed.map_or(format, |(_, packing)| packing))?;
        }
        // Nobody who calls qemu-img means a file of an archive.
        if let Some((archive, _)) = packed.filter(|_| names::is_qemu_img()) {
            crate::formats::refuse_archive(&self.disk, archive)?;
        }
        if crate::failure::is_renamed() {
            return Ok(None);
        }
        Ok(Some(format!("{}: detected format {}; use -f to set it", self.disk, format.word)))
    }
}

/// Parameters that a format which was guessed does not have.
fn refuse_unknown(params: &Params, format: &Format) -> device::Result<()> {
    let checked = params.check_declared(format.params, false);
    checked.map_err(|e| {
        Error::new(ErrorKind::Unsupported, Fault::User, format!("{}: {e}", format.word))
    })
}

/// The value of an option.
pub(crate) fn word<'a>(matches: &'a ArgMatches, id: &str) -> Option<&'a str> {
    matches.try_get_one::<String>(id).ok().flatten().map(String::as_str)
}

/// All values of an option.
pub(crate) fn words<'a>(matches: &'a ArgMatches, id: &str) -> impl Iterator<Item = &'a str> {
    let values = matches.try_get_many::<String>(id).ok().flatten();
    values.unwrap_or_default().map(String::as_str)
}

/// A disk as QEMU names it, in an option string or JSON.
pub(crate) fn node(matches: &ArgMatches, text: &str) -> Result<disk::NamedNode, Failure> {
    Ok(disk::node(text, &objects::for_nodes(matches)?)?)
}

/// A target that QEMU's options name.
pub(crate) fn target_of_options(
    matches: &ArgMatches,
    text: &str,
) -> Result<(Named, Stack), Failure> {
    let disk::NamedNode { disk, stack, read_only } = node(matches, text)?;
    if matches!(stack.image().content, Content::Guess) {
        return Err(Failure::usage(
            "the target's options have no `driver`; the format is not guessed",
        ));
    }
    if read_only {
        return Err(Failure::usage("the target's options have read-only=on"));
    }
    let mut image = stack.image().clone();
    resolve_secrets(matches, &mut image.params)?;
    Ok((disk, stack.over_image(image)))
}

/// The image that a word for a format names: QEMU's drivers for bytes are raw, too.
pub(crate) fn of_word(word: &str) -> Result<Image, Failure> {
    Ok(if BYTES.contains(&word) { Image::of("raw")? } else { Image::of(word)? })
}

/// Refuses images that cannot be created.
pub(crate) fn check_target(image: &Image) -> Result<(), Failure> {
    image.check()?;
    match image.format() {
        None if image.compress => Err(Failure::usage("raw is not compressed; leave out -c")),
        Some(format) if format.create.is_none() => {
            let made = disk::formats().iter().filter(|format| format.create.is_some());
            let others = made.map(|format| format.word).filter(|word| *word != "qcow2");
            let what = format!(
                "{} images can be read, but not created: take qcow2, or one of {}",
                format.word,
                others.collect::<Vec<_>>().join(", ")
            );
            Err(Failure::usage(what))
        }
        _ => Ok(()),
    }
}

/// How a raw disk may be allocated from the beginning, in qemu-img's words and in ours.
const ALLOCATIONS: [(&str, &str, Allocation); 3] = [
    ("off", "sparse", Allocation::Sparse),
    ("falloc", "unwritten", Allocation::Unwritten),
    ("full", "written", Allocation::Written),
];

/// How a raw disk is to be allocated from the beginning; `None` for an image, whose format has its
/// own option, and by default.
pub(crate) fn preallocation(image: &Image) -> Result<Option<Allocation>, Failure> {
    let Some(word) = image.options.get("preallocation").filter(|_| image.format().is_none()) else {
        return Ok(None);
    };
    match allocation(word) {
        Some(allocation) => Ok(Some(allocation)),
        None => Err(Failure::usage(
            "-o preallocation: must be off, falloc or full; or sparse, unwritten or written",
        )),
    }
}

/// The mode of either word.
pub(crate) fn allocation(word: &str) -> Option<Allocation> {
    let mut known = ALLOCATIONS.iter();
    known.find(|(theirs, ours, _)| [*theirs, *ours].contains(&word)).map(|(_, _, found)| *found)
}

/// The options of a copy for it: `allocated` and `written`.
pub(crate) fn fills(allocation: Option<Allocation>) -> (bool, bool) {
    match allocation {
        None | Some(Allocation::Sparse) => (false, false),
        Some(Allocation::Unwritten) => (true, false),
        Some(Allocation::Written) => (true, true),
    }
}

/// Whether a flag is given, of a verb that may not have it.
pub(crate) fn is_given(matches: &ArgMatches, id: &str) -> bool {
    matches.try_get_one::<bool>(id).ok().flatten() == Some(&true)
}

/// The option for a format; shells complete its values.
pub(crate) fn format_argument(spelled: &'static str, help: &'static str) -> Arg {
    format_argument_with(spelled, help, |_| false)
}

/// The same for a format that is made. One that can only be read is understood, for a message of
/// its own, but not offered.
pub(crate) fn target_format_argument(spelled: &'static str, help: &'static str) -> Arg {
    format_argument_with(spelled, help, |format| format.create.is_none())
}

fn format_argument_with(
    spelled: &'static str,
    help: &'static str,
    is_hidden: fn(&Format) -> bool,
) -> Arg {
    let words = disk::formats().iter();
    let words = words.map(|format| PossibleValue::new(format.word).hide(is_hidden(format)));
    let hidden = BYTES.into_iter().chain([HELP]).map(|word| PossibleValue::new(word).hide(true));
    let words: Vec<_> = words.chain(hidden).collect();
    value(spelled, help).value_name("FORMAT").value_parser(words).hide_possible_values(true)
}

/// Whether the list of formats that can be made is asked for.
pub(crate) fn asks_for_formats(matches: &ArgMatches, id: &str) -> bool {
    word(matches, id) == Some(HELP)
}

/// The formats that can be made, a line each.
pub(crate) fn formats_to_make() -> String {
    let made = disk::formats().iter().filter(|format| format.create.is_some());
    let lines = made.map(|format| format!("  {:<10} {}\n", format.word, format.summary));
    format!("Supported formats:\n{}", lines.collect::<String>())
}

/// `-o`.
pub(crate) fn options_option(help: &'static str) -> Arg {
    // qemu-img's long names for it are others in `convert` and `measure`.
    value("--options KEY=VALUE,...", help)
        .short('o')
        .aliases(["target-format-options", "image-options"])
        .value_parser(Words::Known(keys_to_make))
        .hide_possible_values(true)
        .action(ArgAction::Append)
}

/// What `-o` may begin with.
fn keys_to_make() -> Vec<PossibleValue> {
    let made = disk::formats().iter().filter_map(|format| format.create);
    let keys: BTreeSet<_> = made.flat_map(|create| create.options).map(|param| param.key).collect();
    keys.into_iter().map(|key| format!("{key}=").into()).collect()
}

/// QEMU's drivers for bytes, which it takes in the place of a format.
const BYTES: [&str; 5] = ["file", "host_cdrom", "host_device", "http", "nbd"];

/// What every verb takes that reads an image.
pub(crate) fn arguments(command: Command) -> Command {
    patience::arguments(command)
        .arg(image_opts())
        .arg(flag("-U, --force-share", "Do not lock the image against others"))
        .arg(object())
        .arg(external_argument())
        .arg(sandbox::argument())
}

/// The option by which a name is a list of options.
pub(crate) fn image_opts() -> Arg {
    flag("--image-opts", "The name of the image is a list of QEMU's options")
        .alias("source-image-opts")
}

/// The option for the files that images may name.
pub(crate) fn external_argument() -> Arg {
    value(
        "--allow-external DIR|beside|chain",
        "Open the files that images name: beneath DIR, beside the image (its format has to be named), or wherever they lead",
    )
    .value_parser(clap::value_parser!(PathBuf))
    .value_hint(ValueHint::DirPath)
}

/// The image as the option `id` names its format; raw bytes without it.
pub(crate) fn image(matches: &ArgMatches, id: &str) -> Result<Image, Failure> {
    let image = match matches.get_one::<String>(id) {
        Some(word) => of_word(word)?,
        None => Image::default(),
    };
    Ok(Image { external: external(matches), ..image })
}

/// `-T` of verbs that only read: checked, and ignored.
pub(crate) fn cache_argument() -> Arg {
    value("-T, --source-cache MODE", "Ignored").alias("cache").value_parser(CACHES)
}

/// `--output`.
pub(crate) fn output_argument() -> Arg {
    value("--output FORM", "Print what qemu-img prints: human, or json")
        .value_parser(["human", "json"])
}

/// A size as qemu-img shows it: three digits, and a unit.
pub(crate) fn size_for_people(bytes: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let (mut unit, mut whole) = (0, 1_u64);
    // 1000 of one unit are shown in the next.
    while unit + 1 < units.len() && bytes / 1000 >= whole {
        unit += 1;
        whole <<= 10;
    }
    #[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
    let number = bytes as f64 / whole as f64;
    let digits = if number >= 99.95 {
        0
    } else if number >= 9.995 {
        1
    } else if number >= 0.9995 || number == 0.0 {
        2
    } else {
        3
    };
    let text = format!("{number:.digits$}");
    let text = if digits > 0 { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    format!("{text} {}", units.get(unit).unwrap_or(&""))
}

/// JSON with qemu-img's four spaces.
pub(crate) fn write_json(out: &mut dyn Write, value: &Value) -> io::Result<()> {
    let text = serde_json::to_string_pretty(value)?;
    for line in text.lines() {
        let indent = line.len() - line.trim_start().len();
        writeln!(out, "{:indent$}{line}", "")?;
    }
    Ok(())
}

/// Which files images may name.
pub(crate) fn external(matches: &ArgMatches) -> External {
    match matches.get_one::<PathBuf>("allow-external") {
        None => External::Nothing,
        Some(word) if word.as_os_str() == "chain" => External::Chain,
        Some(word) if word.as_os_str() == "beside" => External::Beside,
        Some(directory) => External::Beneath(directory.clone()),
    }
}

/// Confines this process, which is about to read images.
pub(crate) fn confine<'a>(
    matches: &ArgMatches,
    sources: impl IntoIterator<Item = &'a Source>,
) -> Result<(), Failure> {
    let reach = sources.into_iter().map(Source::reach).fold(Reach::default(), Reach::and);
    sandbox::Sandbox::enter(sandbox::wish(matches), &reach)?.shut().map(drop)
}

/// Confines this process, which is about to change an image where it lies.
pub(crate) fn confine_to_change(
    matches: &ArgMatches,
    disk: &Named,
    stack: &Stack,
) -> Result<(), Failure> {
    let reach = disk::reach(disk, stack, Use::Write);
    sandbox::Sandbox::enter(sandbox::wish(matches), &reach)?.shut().map(drop)
}

/// The context that verbs open images with.
pub(crate) fn context(matches: &ArgMatches) -> Result<Context, Failure> {
    Ok(Context::default().with_patience(patience::asked(matches)?))
}

/// The options to open an image only to read it.
pub(crate) fn reading(matches: &ArgMatches) -> OpenOptions {
    OpenOptions { lock: !is_given(matches, "force-share"), ..OpenOptions::read_only() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_those_of_qemu_img() {
        for (bytes, text) in [
            (0, "0 B"),
            (512, "512 B"),
            (999, "999 B"),
            (1000, "0.977 KiB"),
            (200_704, "196 KiB"),
            (2_363_392, "2.25 MiB"),
            (10 << 20, "10 MiB"),
            (4_583_424, "4.37 MiB"),
            (1 << 63, "8 EiB"),
        ] {
            assert_eq!(size_for_people(bytes), text);
        }
    }
}
