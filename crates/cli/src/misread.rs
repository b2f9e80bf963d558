//! What is wrong with a command line, in a user's words: the parser's sentences, and a known word
//! that is near.

use clap::error::{ContextKind, ContextValue, ErrorKind};
use device::nearest;

/// What is wrong with the words, in one line.
pub(crate) fn reason(e: &clap::Error) -> String {
    what_is_wrong(e) + &hint(e)
}

/// The same without a hint.
pub(crate) fn what_is_wrong(e: &clap::Error) -> String {
    let text = e.to_string();
    // The first paragraph says what is wrong; clap puts usage and tips after it.
    let what = text.split("\n\n").next().unwrap_or(&text);
    let what = what.strip_prefix("error: ").unwrap_or(what);
    let words: Vec<&str> = what.split_whitespace().collect();
    plain(&words.join(" "))
}

/// The option that the verb does not have.
pub(crate) fn unknown_option(e: &clap::Error) -> Option<&str> {
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
    fn a_range_is_told_in_words() {
        let now = "invalid value '0' for '--threads <N>': 0 is not in 1..=1024";
        assert_eq!(plain(now), "invalid value '0' for '--threads <N>': must be from 1 to 1024");
        assert_eq!(plain("unexpected argument '--foo' found"), "unexpected argument '--foo' found");
    }
}
