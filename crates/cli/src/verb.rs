//! The table of verbs: the one source of help, man pages and completions.

use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{ArgMatches, Command};
use device::{nearest, suggestion};

use crate::failure::{ExitResult, Failure, USAGE};
use crate::headings::{MORE, group, shorten};
use crate::page::wrap;
use crate::{
    bracket, cache, check, compare, completions, convert, copy, create, dd, elsewhere, help, info,
    inspect, list, man, map, measure, output, prealloc, resize, serve, shell, trim, zero,
};

/// A verb.
pub(crate) struct Verb {
    /// The word on the command line.
    pub(crate) name: &'static str,
    /// One line on what it does.
    pub(crate) summary: &'static str,
    /// A few lines more.
    pub(crate) about: &'static str,
    /// Commands that work as they are, or nearly.
    pub(crate) example: &'static str,
    /// Exit statuses beyond [`STATUS`], a sentence; may be empty.
    pub(crate) status: &'static str,
    /// Exit status for wrong usage.
    pub(crate) usage: u8,
    /// Its arguments.
    pub(crate) arguments: fn(Command) -> Command,
    /// Does it.
    pub(crate) run: fn(&ArgMatches) -> ExitResult,
}

/// What the exit status of each verb means.
pub(crate) const STATUS: &str = "0: all was done. 1: something failed when it was tried. 2: the \
    command line is wrong (an unknown option, device, filter or parameter, an invalid value, size or \
    URI, or something missing). 75: a server is \
    not there (no socket, no answer, no such host) or was lost; another try may succeed.";

/// The same for verbs that have qemu-img's statuses.
pub(crate) const STATUS_OF_IMAGES: &str = "0: all was done. 1: something failed, or the command line is wrong. 75: a \
    server is not there (no socket, no answer, no such host) or was lost; another try may succeed.";

impl Verb {
    /// The text on the exit status.
    pub(crate) fn statuses(&self) -> String {
        let common = if self.usage == USAGE { STATUS } else { STATUS_OF_IMAGES };
        format!("{common} {}", self.status).trim_end().to_owned()
    }
}

/// All verbs, in the order in which help shows them.
pub(crate) static VERBS: &[Verb] = &[
    serve::VERB,
    copy::VERB,
    convert::VERB,
    dd::VERB,
    create::VERB,
    resize::VERB,
    info::VERB,
    list::VERB,
    map::VERB,
    compare::VERB,
    measure::VERB,
    check::VERB,
    inspect::VERB,
    prealloc::VERB,
    zero::VERB,
    trim::VERB,
    cache::VERB,
    shell::VERB,
    help::VERB,
    completions::VERB,
    man::VERB,
];

/// The whole command line, with all of its help.
pub(crate) fn command() -> Command {
    let mut command = Command::new("diskferry")
        .version(env!("CARGO_PKG_VERSION"))
        .about("Serve, copy and inspect disks")
        .long_about(
            "Serve, copy and inspect disks, over NBD and in files.\n\n\
             Every disk is named in one way: a path (disk.raw), a URI \
             (nbd://host/export), DEVICE:ARG?key=value (memory:1G, \
             sparse-random:1T?seed=7&percent=5), or a server to run \
             ([ nbdkit memory 1G ]).",
        )
        .subcommand_required(true)
        .arg_required_else_help(true)
        .disable_help_subcommand(true)
        .max_term_width(80);
    for verb in VERBS {
        let sub = Command::new(verb.name)
            .about(verb.summary)
            .long_about(format!("{}.\n\n{}", verb.summary, verb.about))
            .after_help(format!("Example:\n{}", verb.example))
            .after_long_help(format!(
                "Exit status:\n{}\n\nExample:\n{}",
                wrap(&verb.statuses(), 2).join("\n"),
                verb.example
            ))
            // As with qemu-img and nbdkit, whose callers add options to what is there: the last one counts. Options
            // that accumulate are not touched by it.
            .args_override_self(true)
            .max_term_width(80);
        command = command.subcommand(group((verb.arguments)(sub)));
    }
    command
}

/// The same, with a short help (`-h`) that leaves out what is rarely needed. Completions and manual pages
/// have all.
pub(crate) fn short_command() -> Command {
    VERBS.iter().fold(command(), |command, verb| {
        command.mut_subcommand(verb.name, |sub| match shorten(sub) {
            (sub, true) => sub.after_help(format!("{MORE}Example:\n{}", verb.example)),
            (sub, false) => sub,
        })
    })
}

/// Reads the command line and runs the verb.
pub(crate) fn dispatch(args: impl Iterator<Item = OsString>) -> ExitResult {
    let args: Vec<OsString> = args.collect();
    let verb = VERBS.iter().find(|verb| args.get(1).is_some_and(|word| word == verb.name));
    if let Some(failure) = args.get(1).and_then(|word| elsewhere::verb(word.to_str()?)) {
        return Err(failure);
    }
    let whole = short_command();
    let usage = verb.map_or(USAGE, |verb| verb.usage);
    let args = match verb.and_then(|verb| whole.find_subcommand(verb.name)) {
        Some(verb) => bracket::join(args, verb).map_err(|e| e.with_usage_code(usage))?,
        None => args,
    };
    let outcome = match (whole.try_get_matches_from(&args), verb) {
        (Err(e), verb) => explain(&e, verb.map(|verb| verb.name)),
        (Ok(matches), Some(verb)) => {
            let matches = matches.subcommand().ok_or_else(|| Failure::usage("no verb"))?;
            (verb.run)(matches.1)
        }
        (Ok(_), None) => Err(Failure::usage("no verb")),
    };
    outcome.map_err(|failure| failure.with_usage_code(usage))
}

/// Help and version are printed; an error becomes one line.
fn explain(e: &clap::Error, verb: Option<&str>) -> ExitResult {
    match e.kind() {
        ErrorKind::DisplayHelp
        | ErrorKind::DisplayVersion
        | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let printed = e.print().and_then(|()| std::io::stdout().flush());
            output::finish(|_| printed.map(|()| ExitCode::SUCCESS))?;
            Ok(if e.use_stderr() { ExitCode::from(2) } else { ExitCode::SUCCESS })
        }
        _ => {
            let page = verb.map(|verb| format!(" {verb}")).unwrap_or_default();
            let elsewhere = verb.and_then(|verb| elsewhere::option(verb, unknown(e)?));
            let reason = match elsewhere {
                Some(cure) => format!("{}; {cure}", what_is_wrong(e)),
                None => reason(e),
            };
            Err(Failure::usage(format!("{reason} (see `diskferry{page} --help`)")))
        }
    }
}

/// What is wrong with the words, in one line.
pub(crate) fn reason(e: &clap::Error) -> String {
    what_is_wrong(e) + &hint(e)
}

/// The same without a hint.
fn what_is_wrong(e: &clap::Error) -> String {
    let text = e.to_string();
    // The first paragraph says what is wrong; clap puts usage and tips after it.
    let what = text.split("\n\n").next().unwrap_or(&text);
    let what = what.strip_prefix("error: ").unwrap_or(what);
    let words: Vec<&str> = what.split_whitespace().collect();
    plain(&words.join(" "))
}

/// The option that the verb does not have.
fn unknown(e: &clap::Error) -> Option<&str> {
    match (e.kind(), e.get(ContextKind::InvalidArg)) {
        (ErrorKind::UnknownArgument, Some(ContextValue::String(word))) => Some(word),
        _ => None,
    }
}

/// The parser's sentence in a user's words.
fn plain(what: &str) -> String {
    let what = what
        .replace("invalid digit found in string", "not a number")
        .replace("the following required arguments were not provided:", "missing:")
        .replace("unrecognized subcommand", "there is no verb");
    // "invalid value '0' for '--threads <N>': 0 is not in 1..=1024"
    let range = what.rsplit_once(" is not in ").and_then(|(value, range)| {
        let (least, most) = range.split_once("..=")?;
        Some(format!("{}: must be from {least} to {most}", value.rsplit_once(": ")?.0))
    });
    range.unwrap_or(what)
}

/// A known word that is near, if there is one.
fn hint(e: &clap::Error) -> String {
    if e.kind() == ErrorKind::InvalidSubcommand
        && let Some(ContextValue::String(word)) = e.get(ContextKind::InvalidSubcommand)
    {
        let verbs: Vec<_> = VERBS.iter().map(|verb| verb.name).collect();
        return format!("; {}", suggestion(word, &verbs));
    }
    if let (
        ErrorKind::InvalidValue,
        Some(ContextValue::String(word)),
        Some(ContextValue::Strings(values)),
    ) = (e.kind(), e.get(ContextKind::InvalidValue), e.get(ContextKind::ValidValue))
    {
        let values: Vec<_> = values.iter().map(String::as_str).collect();
        let near = nearest(word, &values);
        return near.map(|near| format!("; did you mean `{near}`?")).unwrap_or_default();
    }
    // Other tips explain how to give a value that looks like an option.
    let text = e.to_string();
    let tip = text.lines().find_map(|l| l.trim().strip_prefix("tip: a similar"));
    tip.map(|tip| format!("; a similar{tip}")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        command().debug_assert();
    }

    #[test]
    fn a_range_is_told_in_words() {
        let now = "invalid value '0' for '--threads <N>': 0 is not in 1..=1024";
        assert_eq!(plain(now), "invalid value '0' for '--threads <N>': must be from 1 to 1024");
        assert_eq!(plain("unexpected argument '--foo' found"), "unexpected argument '--foo' found");
    }

    #[test]
    fn help_fits_80_columns() {
        for verb in VERBS {
            let mut command = command();
            let sub = command.find_subcommand_mut(verb.name).unwrap();
            for line in sub.render_long_help().to_string().lines() {
                assert!(line.chars().count() <= 80, "{}: {line}", verb.name);
            }
        }
    }
}
