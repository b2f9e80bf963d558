//! Arguments that several verbs take: a disk, filters over it, and whether to print JSON.

use clap::builder::PossibleValue;
use clap::{Arg, ArgAction, ArgMatches, ValueHint};
use device::parse_size;
use disk::{Named, Stack, StackRole, kinds_of};

use crate::failure::Failure;
use crate::words::Words;

/// The argument that names a disk.
pub(crate) fn disk() -> Arg {
    let disk = disk_as("disk", "DISK", "A path, URI or DEVICE:ARG?key=value");
    disk.value_hint(ValueHint::AnyPath)
}

/// The same with a name and a help of its own.
pub(crate) fn disk_as(id: &'static str, name: &'static str, help: &'static str) -> Arg {
    let disk = Arg::new(id).value_name(name).required(true).value_parser(Words::Disk);
    disk.value_hint(ValueHint::FilePath).help(help)
}

/// The disk on the command line.
pub(crate) fn named(matches: &ArgMatches) -> Result<Named, Failure> {
    let text = matches.get_one::<String>("disk").ok_or_else(|| Failure::usage("no disk"))?;
    Ok(Named::parse(text)?)
}

/// An option as help spells it: `--quiet`, `-q, --quiet`, or with a value `-o, --offset SIZE`. The
/// long name, which is its id, may also stand alone.
fn option(spelled: &'static str) -> Arg {
    let (short, long) = match spelled.split_once(", ") {
        Some((short, long)) => (short.chars().nth(1), long),
        None => (None, spelled),
    };
    let long = long.strip_prefix("--").unwrap_or(long);
    let (long, value) = match long.split_once(' ') {
        Some((long, value)) => (long, Some(value)),
        None => (long, None),
    };
    let arg = Arg::new(long).long(long).short(short);
    value.into_iter().fold(arg, Arg::value_name)
}

/// An option that is given or not.
pub(crate) fn flag(spelled: &'static str, help: &'static str) -> Arg {
    option(spelled).action(ArgAction::SetTrue).help(help)
}

/// An option with a value.
pub(crate) fn value(spelled: &'static str, help: &'static str) -> Arg {
    option(spelled).help(help)
}

/// The spellings of an option with one letter.
pub(crate) fn short_names(arg: &Arg) -> Vec<String> {
    let names = arg.get_short_and_visible_aliases().unwrap_or_default();
    names.iter().map(|name| format!("-{name}")).collect()
}

/// The long spellings of an option.
pub(crate) fn long_names(arg: &Arg) -> Vec<String> {
    let more = arg.get_all_aliases().unwrap_or_default();
    arg.get_long().into_iter().chain(more).map(|name| format!("--{name}")).collect()
}

/// The size that the option `id` gives, in bytes, where the verb has it.
pub(crate) fn size(matches: &ArgMatches, id: &str) -> Result<Option<u64>, Failure> {
    let text = matches.try_get_one::<String>(id).ok().flatten();
    let size = text.map(|text| parse_size(text)).transpose();
    size.map_err(|e| Failure::usage(format!("--{id}: {e}")))
}

/// The flag for JSON.
pub(crate) fn json_flag() -> Arg {
    flag("--json", "Print JSON")
}

/// An option that names filters; shells complete them.
pub(crate) fn filter_argument(id: &'static str, help: &'static str) -> Arg {
    value(id, help)
        .value_name("NAME[?key=value]")
        .action(ArgAction::Append)
        .value_parser(Words::Known(known_filters))
        .hide_possible_values(true)
}

fn known_filters() -> Vec<PossibleValue> {
    let filters = kinds_of(StackRole::Filter);
    filters.map(|kind| PossibleValue::new(kind.word).help(kind.summary)).collect()
}

/// The filters that the option `id` names.
pub(crate) fn filters(matches: &ArgMatches, id: &str) -> Result<Stack, Failure> {
    let words = matches.get_many::<String>(id).unwrap_or_default();
    Ok(Stack::parse(words.map(String::as_str))?)
}
