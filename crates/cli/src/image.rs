//! Arguments that say as what bytes are understood: the format of an image, and which files it may
//! name.

use std::path::PathBuf;

use clap::{Arg, ArgMatches, ValueHint};
use disk::{External, Image};

use crate::arguments::value;
use crate::failure::Failure;

/// The option for a format; shells complete its values.
pub(crate) fn format_argument(id: &'static str) -> Arg {
    let words: Vec<_> = disk::formats().iter().map(|format| format.word).collect();
    value(id, "FORMAT", "").value_parser(words).hide_possible_values(true)
}

/// The option for the files that images may name.
pub(crate) fn external_argument() -> Arg {
    value(
        "allow-external",
        "DIR|chain",
        "Open the files that images name: those beneath DIR, or (chain) wherever they lead",
    )
    .value_parser(clap::value_parser!(PathBuf))
    .value_hint(ValueHint::DirPath)
}

/// The image that the option `id` says it is; raw bytes without.
pub(crate) fn image(matches: &ArgMatches, id: &str) -> Result<Image, Failure> {
    let image = match matches.get_one::<String>(id) {
        Some(word) => Image::of(word)?,
        None => Image::default(),
    };
    Ok(Image { external: external(matches), ..image })
}

/// Which files images may name.
pub(crate) fn external(matches: &ArgMatches) -> External {
    match matches.get_one::<PathBuf>("allow-external") {
        None => External::Nothing,
        Some(word) if word.as_os_str() == "chain" => External::Chain,
        Some(directory) => External::Beneath(directory.clone()),
    }
}
