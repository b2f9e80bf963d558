//! `diskferry help`: the pages of verbs, devices, filters and formats.

use clap::builder::StyledStr;
use clap::{Arg, ArgMatches, Command};
use device::nearest;

use crate::failure::{ExitResult, Failure, USAGE};
use crate::output;
use crate::page::{Page, ROLES, pages, pages_of};
use crate::verb::Verb;
use crate::verbs::{VERBS, command, command_for, verb};
use crate::words::Words;

pub(crate) const VERB: Verb = Verb {
    name: "help",
    summary: "Print the help of a verb, a device, a filter or a format",
    about: "Without a word it prints the general help and lists the devices, filters and formats.",
    example: "  diskferry help memory",
    status: "",
    usage: USAGE,
    arguments,
    run,
};

fn arguments(command: Command) -> Command {
    command.arg(
        Arg::new("word")
            .value_name("WORD")
            .value_parser(Words::Known(|| words().map(Into::into).collect()))
            .hide_possible_values(true)
            .help("A verb, a device, a filter or a format"),
    )
}

fn run(matches: &ArgMatches) -> ExitResult {
    let text = match matches.get_one::<String>("word") {
        Some(word) => about(word)?,
        None => overview(),
    };
    output::text(&text)
}

/// Everything that goes by this word.
fn about(word: &str) -> Result<String, Failure> {
    let verb = verb(word).map(of_verb);
    let pages = pages().filter(|page| page.word == word).map(|page| page.text());
    let found: Vec<String> = verb.into_iter().chain(pages).collect();
    if found.is_empty() {
        let words: Vec<&str> = words().collect();
        let hint = nearest(word, &words).map(|near| format!("; did you mean `{near}`?"));
        let what = format!("there is no verb, device, filter or format `{word}`");
        return Err(Failure::usage(what + &hint.unwrap_or_default()));
    }
    Ok(found.join("\n"))
}

/// Every word that has a page.
pub(crate) fn words() -> impl Iterator<Item = &'static str> {
    let all = VERBS.iter().map(|verb| verb.name).chain(pages().map(|page| page.word));
    let mut seen = std::collections::BTreeSet::new();
    // `zero` is a verb and a device.
    all.filter(move |word| seen.insert(*word))
}

fn overview() -> String {
    let mut text = command().render_long_help().to_string();
    for (role, title) in ROLES {
        text += &format!("\n{title}:\n");
        for Page { word, summary, .. } in pages_of(role) {
            text += &format!("  {word:<18} {summary}\n");
        }
    }
    text
}

/// The long help of a verb.
pub(crate) fn of_verb(verb: &Verb) -> String {
    rendered(verb, Command::render_long_help)
}

/// The short help of a verb.
pub(crate) fn of_verb_in_short(verb: &Verb) -> String {
    rendered(verb, Command::render_help)
}

fn rendered(verb: &Verb, render: fn(&mut Command) -> StyledStr) -> String {
    let mut all = command_for(Some(verb));
    all.build();
    all.find_subcommand_mut(verb.name).map(|verb| render(verb).to_string()).unwrap_or_default()
}
