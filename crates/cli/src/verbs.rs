//! The table of verbs: the one source of help, man pages and completions.

use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, Command};
use device::suggestion;

use crate::failure::{ExitResult, Failure, USAGE, is_renamed, program};
use crate::headings::{MORE, group, shorten};
use crate::misread::{reason, unknown_option, what_is_wrong};
use crate::page::wrap;
use crate::verb::Verb;
use crate::{
    amend, bench, bitmap, bracket, check, commit, compare, completions, convert, copy, create, ctl,
    dd, digest, elsewhere, fleet, help, info, inspect, list, man, map, measure, output, prealloc,
    rebase, resize, shell, snapshot, top, trim, verify, zero,
};
#[cfg(target_os = "linux")]
use crate::{attached, cache, detach, serve};

/// All verbs, in the order in which help shows them.
pub(crate) static VERBS: &[Verb] = &[
    #[cfg(target_os = "linux")]
    serve::VERB,
    copy::VERB,
    convert::VERB,
    dd::VERB,
    create::VERB,
    resize::VERB,
    rebase::VERB,
    commit::VERB,
    amend::VERB,
    info::VERB,
    list::VERB,
    ctl::VERB,
    top::VERB,
    #[cfg(target_os = "linux")]
    serve::ATTACH,
    #[cfg(target_os = "linux")]
    detach::VERB,
    #[cfg(target_os = "linux")]
    attached::VERB,
    map::VERB,
    compare::VERB,
    digest::VERB,
    verify::VERB,
    bench::VERB,
    measure::VERB,
    check::VERB,
    snapshot::VERB,
    bitmap::VERB,
    inspect::VERB,
    prealloc::VERB,
    zero::VERB,
    trim::VERB,
    #[cfg(target_os = "linux")]
    cache::VERB,
    fleet::PLAN,
    fleet::RUN,
    fleet::FINISH,
    fleet::STATUS,
    shell::VERB,
    help::VERB,
    completions::VERB,
    man::VERB,
];

/// The whole command line, with all of its help.
pub(crate) fn command() -> Command {
    VERBS.iter().fold(program_itself(), |command, verb| command.subcommand(whole(verb)))
}

/// The program without its verbs.
fn program_itself() -> Command {
    Command::new("diskferry")
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
        .max_term_width(80)
}

/// A verb with its arguments and all of its help.
fn whole(verb: &Verb) -> Command {
    let command = Command::new(verb.name)
        .about(verb.summary)
        .long_about(format!("{}.\n\n{}", verb.summary, verb.about))
        .after_help(format!("Example:\n{}", verb.example))
        .after_long_help(format!(
            "Exit status:\n{}\n\nExample:\n{}",
            wrap(&verb.statuses(), 2).join("\n"),
            verb.example
        ))
        // As with qemu-img and nbdkit, whose callers add options to what is there: the last one
        // counts. Options that accumulate are not touched by it.
        .args_override_self(true)
        .max_term_width(80);
    group((verb.arguments)(command))
}

/// A verb with a short help (`-h`) that leaves out what is rarely needed. Completions and manual
/// pages have all.
fn short(verb: &Verb) -> Command {
    match shorten(whole(verb)) {
        (command, true) => command.after_help(format!("{MORE}Example:\n{}", verb.example)),
        (command, false) => command,
    }
}

/// Each verb with its arguments, among them those that the parser adds.
pub(crate) fn built() -> impl Iterator<Item = (&'static Verb, Command)> {
    let mut all = command();
    all.build();
    VERBS.iter().filter_map(move |verb| Some((verb, all.find_subcommand(verb.name)?.clone())))
}

/// The options of a verb by their names, each in a line, as nbdkit and libnbd's tools list theirs
/// for completions.
pub(crate) fn options(name: &str, names: fn(&Arg) -> Vec<String>) -> String {
    let command = command_for(verb(name));
    let arguments = command.find_subcommand(name).map(Command::get_arguments);
    let mut names: Vec<String> = arguments.into_iter().flatten().flat_map(names).collect();
    names.sort();
    names.dedup();
    names.iter().map(|name| format!("{name}\n")).collect()
}

/// The command line as it is read when `called` is its verb: of the others it has the names alone,
/// since to make the arguments of all verbs takes longer than a quick verb does.
pub(crate) fn command_for(called: Option<&Verb>) -> Command {
    VERBS.iter().fold(program_itself(), |command, verb| {
        command.subcommand(match called {
            Some(called) if called.name == verb.name => short(verb),
            _ => Command::new(verb.name).about(verb.summary),
        })
    })
}

/// The verb of this name.
pub(crate) fn verb(name: &str) -> Option<&'static Verb> {
    VERBS.iter().find(|verb| verb.name == name)
}

/// Reads the command line and runs the verb.
pub(crate) fn dispatch(args: Vec<OsString>) -> ExitResult {
    let verb = args.get(1).and_then(|word| verb(word.to_str()?));
    if let Some(failure) = args.get(1).and_then(|word| elsewhere::verb(word.to_str()?)) {
        return Err(failure);
    }
    let whole = command_for(verb);
    // The tools under whose names it may be called end with 1.
    let usage = if is_renamed() { 1 } else { verb.map_or(USAGE, |verb| verb.usage) };
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
            let elsewhere = verb.and_then(|verb| elsewhere::option(verb, unknown_option(e)?));
            let cure = elsewhere.map(str::to_owned).or_else(|| near_verb(e));
            let reason =
                cure.map_or_else(|| reason(e), |cure| format!("{}; {cure}", what_is_wrong(e)));
            Err(Failure::usage(match program() {
                // What another tool calls by another name has its page there.
                name @ "qemu-img" | name @ "diskferry" => {
                    format!("{reason} (see `{name}{page} --help`)")
                }
                name => format!("{reason} (see `{name} --help`)"),
            }))
        }
    }
}

/// The verb that may have been meant.
fn near_verb(e: &clap::Error) -> Option<String> {
    match (e.kind(), e.get(ContextKind::InvalidSubcommand)?) {
        (ErrorKind::InvalidSubcommand, ContextValue::String(word)) => {
            let verbs: Vec<_> = VERBS.iter().map(|verb| verb.name).collect();
            Some(suggestion(word, &verbs))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        command().debug_assert();
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
