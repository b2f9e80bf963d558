//! `[ CMD ARGS ]` on the command line: a server that runs only for this command, as with nbdcopy
//! and nbdinfo. It becomes the one word that names its disk before anything else reads the command
//! line.

use std::ffi::{OsStr, OsString};

use clap::{Arg, Command};

use crate::failure::Failure;

const OPEN: &str = "[";
const CLOSE: &str = "]";
const OPEN_END: &str = "`[` has no end: write [ CMD ARGS ], with a space on both sides of each bracket (a file of that \
    name is `./[`)";

/// The words of a command line, with each `[ CMD ARGS ]` as one. A `[` that is the value of an
/// option of `verb` stays what it is.
pub(crate) fn join(words: Vec<OsString>, verb: &Command) -> Result<Vec<OsString>, Failure> {
    let mut joined: Vec<OsString> = Vec::with_capacity(words.len());
    let mut words = words.into_iter();
    while let Some(word) = words.next() {
        if word != OPEN || joined.last().is_some_and(|last| takes_value(verb, last)) {
            joined.push(word);
            continue;
        }
        let mut command = Vec::new();
        loop {
            match words.next() {
                Some(word) if word == CLOSE => break,
                Some(word) => command.push(word),
                None => return Err(Failure::usage(OPEN_END)),
            }
        }
        joined.push(disk::of_command(&command)?);
    }
    Ok(joined)
}

/// Whether a word is an option whose value is the next word.
fn takes_value(verb: &Command, word: &OsStr) -> bool {
    let Some(word) = word.to_str() else { return false };
    let is_it = |arg: &&Arg| match word.strip_prefix("--") {
        Some(long) => {
            let others = arg.get_all_aliases().unwrap_or_default();
            arg.get_long() == Some(long) || others.contains(&long)
        }
        None => {
            let last = word.strip_prefix('-').and_then(|letters| letters.chars().next_back());
            last.is_some() && arg.get_short() == last
        }
    };
    let takes = |arg: &Arg| arg.get_action().takes_values() && !arg.is_require_equals_set();
    verb.get_arguments().find(is_it).is_some_and(takes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn joined(words: &[&str]) -> Result<Vec<OsString>, Failure> {
        let verb = Command::new("verb")
            .arg(Arg::new("run").long("run").short('r'))
            .arg(Arg::new("quiet").long("quiet").short('q').action(clap::ArgAction::SetTrue));
        join(words.iter().map(OsString::from).collect(), &verb)
    }

    #[test]
    fn a_command_in_brackets_is_one_word_and_an_option_inside_is_its_own() {
        let words = ["x", "-q", "[", "nbdkit", "--", "-f", "]", "[", "b", "]", "z"];
        let wanted = ["x", "-q", "nbd:?command=nbdkit&arg=--&arg=-f", "nbd:?command=b", "z"];
        assert_eq!(joined(&words).unwrap(), wanted);
    }

    #[test]
    fn a_bracket_that_is_the_value_of_an_option_stays_one() {
        for words in
            [&["--run", "[", "a"][..], &["-qr", "[", "a"], &["--run=[", "a"], &["[x]", "]"]]
        {
            assert_eq!(joined(words).unwrap(), words, "{words:?}");
        }
    }

    #[test]
    fn a_bracket_without_an_end_or_a_command_is_refused() {
        for words in [&["["][..], &["[", "a"], &["a", "[", "b", "c"], &["[", "]"]] {
            assert!(joined(words).is_err(), "{words:?}");
        }
    }
}
