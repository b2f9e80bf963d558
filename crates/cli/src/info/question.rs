//! One question about a disk, answered as nbdinfo answers it: by a line of text, or by the exit
//! status alone.

use std::process::ExitCode;

use clap::{Arg, ArgAction, ArgGroup, ArgMatches, Command};
use disk::{Fact, Facts, Inspection};
use serde_json::Value;

use crate::arguments::{flag, value};
use crate::failure::{ExitResult, Failure};
use crate::image::{word, words};
use crate::output;
use crate::words::Words;

/// Exit status of a question whose answer is no.
const NO: u8 = 2;

/// What is asked.
pub(super) enum Question<'a> {
    /// Its size in bytes.
    Size,
    /// Its URI.
    Uri,
    /// Whether it has all of these abilities; or, with `false`, none of them.
    Can(Vec<&'static Ability>, bool),
    /// Its map, in this context.
    Map(&'a str),
    /// All exports of its server.
    List,
}

/// Something that a disk can do, or is.
pub(super) struct Ability {
    /// Words for it, the first as help shows it; with `-` where others may write `_` or a space.
    words: &'static [&'static str],
    answer: Answer,
}

enum Answer {
    /// Always, if it can be opened.
    Yes,
    /// A flag of the description, and the value that means yes.
    Flag(&'static str, bool),
    /// Yes if it has this status context, or that flag.
    Context(&'static str, &'static str),
}

const fn flagged(words: &'static [&'static str], key: &'static str) -> Ability {
    Ability { words, answer: Answer::Flag(key, true) }
}

static ABILITIES: &[Ability] = &[
    flagged(&["cache"], "can_cache"),
    Ability { words: &["connect"], answer: Answer::Yes },
    flagged(&["df"], "can_df"),
    flagged(&["extended-headers", "extended-header", "extended", "eh"], "extended"),
    flagged(&["fast-zero", "fastzero"], "can_fast_zero"),
    flagged(&["flush"], "can_flush"),
    flagged(&["fua"], "can_fua"),
    Ability { words: &["map"], answer: Answer::Context("base:allocation", "can_map") },
    flagged(&["multi-conn", "multiconn"], "can_multi_conn"),
    flagged(&["block-status-payload", "payload"], "can_block_status_payload"),
    Ability { words: &["read"], answer: Answer::Yes },
    flagged(&["read-only", "readonly"], "is_read_only"),
    flagged(&["rotational"], "is_rotational"),
    flagged(&["structured-reply", "structured-replies", "structured", "sr"], "structured"),
    flagged(&["tls"], "TLS"),
    flagged(&["trim"], "can_trim"),
    Ability { words: &["write"], answer: Answer::Flag("is_read_only", false) },
    flagged(&["zero"], "can_zero"),
];

/// The options.
pub(super) fn arguments(command: Command) -> Command {
    let map = Arg::new("map").long("map").value_name("CONTEXT");
    let map = map.num_args(0..=1).require_equals(true).default_missing_value("base:allocation");
    let colors = flag("--color", "Print in colours");
    let colors = colors.aliases(["colour", "colors", "colours"]).overrides_with("no-color");
    let none =
        flag("--no-color", "Print without colours, also at a terminal under the name nbdinfo");
    let none = none.aliases(["no-colour", "no-colors", "no-colours"]);
    command
        .arg(flag("--size", "Print only the size in bytes"))
        .arg(flag("--uri", "Print only the URI of the export"))
        .arg(
            value("--can ABILITY", "Print nothing; end with 0 if it can, and with 2 if it cannot")
                .action(ArgAction::Append)
                .visible_aliases(["is", "has"])
                .alias("have")
                .value_parser(Words::Known(|| ability_words().map(Into::into).collect()))
                .hide_possible_values(true)
                .long_help(format!(
                    "Print nothing; end with 0 if it can do that, or is that, and with 2 if not: {}",
                    known()
                )),
        )
        .arg(
            value("--cannot ABILITY", "The opposite: 0 if it cannot, and 2 if it can")
                .action(ArgAction::Append)
                .visible_aliases(["isnt", "hasnt"])
                .aliases(["can-not", "cant", "isnot", "is-not", "hasnot", "has-not", "havent", "havenot", "have-not"])
                .value_parser(Words::Known(|| ability_words().map(Into::into).collect()))
                .hide_possible_values(true),
        )
        .arg(map.help("Print the map, as `map` does, or another status context"))
        .arg(flag("--totals", "With --map: one line for each type").alias("total").requires("map"))
        .arg(flag("-L, --list", "Describe all exports of the server, as `list` does"))
        .arg(
            flag("--content", "Detect what the disk contains: an image format, or data")
                .conflicts_with("output"),
        )
        .arg(
            flag("--no-content", "Do not detect the content: the default, except under the name \
                nbdinfo")
                .overrides_with("content"),
        )
        .args([colors, none])
        .group(ArgGroup::new("question").args(["size", "uri", "can", "cannot", "map", "list"]))
}

/// The words for abilities, as help shows them.
fn ability_words() -> impl Iterator<Item = &'static str> {
    ABILITIES.iter().filter_map(|ability| ability.words.first()).copied()
}

fn known() -> String {
    ability_words().collect::<Vec<_>>().join(", ")
}

/// The question, if there is exactly one.
pub(super) fn asked(matches: &ArgMatches) -> Result<Option<Question<'_>>, Failure> {
    if let Some(context) = word(matches, "map") {
        return Ok(Some(Question::Map(context)));
    }
    for (option, yes) in [("can", true), ("cannot", false)] {
        let abilities = words(matches, option).map(ability).collect::<Result<Vec<_>, _>>()?;
        if !abilities.is_empty() {
            return Ok(Some(Question::Can(abilities, yes)));
        }
    }
    let flags = [("size", Question::Size), ("uri", Question::Uri), ("list", Question::List)];
    Ok(flags.into_iter().find(|(id, _)| matches.get_flag(id)).map(|(_, question)| question))
}

fn ability(word: &str) -> Result<&'static Ability, Failure> {
    let plain: String = word.to_ascii_lowercase().replace([' ', '_'], "-");
    let found = ABILITIES.iter().find(|ability| ability.words.contains(&plain.as_str()));
    found.ok_or_else(|| {
        Failure::usage(format!("`{word}` is no ability of a disk; there are {}", known()))
    })
}

impl Question<'_> {
    /// Answers it from what was found; a URI as a string of JSON, if that is asked for.
    pub(super) fn answer(&self, name: &str, found: &Inspection, json: bool) -> ExitResult {
        let none = Facts::new();
        let disk = found.disks.first().unwrap_or(&none);
        let fact = |key: &str| disk.iter().chain(&found.place).find(|(k, _)| *k == key);
        let line = |text: String| output::text(&format!("{text}\n"));
        match self {
            Self::Size => match fact("export-size") {
                Some((_, Fact::Size(size))) => line(size.to_string()),
                _ => Err(Failure::new(format!("{name}: its size is not known"))),
            },
            Self::Uri => match fact("uri") {
                Some((_, Fact::Text(uri))) if json => line(Value::from(uri.as_str()).to_string()),
                Some((_, Fact::Text(uri))) => line(device::text::shown(uri).into_owned()),
                _ => Err(Failure::new(format!(
                    "{name}: is not an export of an NBD server, and has no URI"
                ))),
            },
            Self::Can(abilities, yes) => {
                // A flag that is not among the facts is off.
                let flag = |key| matches!(fact(key), Some((_, Fact::Flag(true))));
                let can = |ability: &&Ability| match ability.answer {
                    Answer::Yes => true,
                    Answer::Flag(key, wanted) => flag(key) == wanted,
                    Answer::Context(context, key) => match fact("contexts") {
                        Some((_, Fact::Texts(all))) => all.iter().any(|known| known == context),
                        _ => flag(key),
                    },
                };
                let is_so = abilities.iter().all(|ability| can(ability) == *yes);
                Ok(if is_so { ExitCode::SUCCESS } else { ExitCode::from(NO) })
            }
            Self::Map(_) | Self::List => Err(Failure::usage("asked for more than one answer")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn abilities_are_known_by_every_word_that_nbdinfo_has() {
        for word in [
            "connect",
            "read",
            "tls",
            "sr",
            "structured",
            "structured reply",
            "structured-reply",
            "structured_reply",
            "structured replies",
            "structured-replies",
            "structured_replies",
            "eh",
            "extended",
            "extended header",
            "extended_headers",
            "extended-headers",
            "readonly",
            "read-only",
            "read_only",
            "write",
            "rotational",
            "cache",
            "df",
            "fastzero",
            "fast-zero",
            "fast_zero",
            "flush",
            "fua",
            "multiconn",
            "multi-conn",
            "multi_conn",
            "trim",
            "zero",
            "payload",
            "block status payload",
            "block-status-payload",
            "TLS",
        ] {
            assert!(ability(word).is_ok(), "{word}");
        }
        assert!(ability("fly").is_err());
    }
}
