//! How a verb that takes long shows its progress, and can be stopped.

mod descriptor;
mod line;
mod mapped;
mod show;
mod signals;

use clap::{ArgMatches, Command};

pub(crate) use line::{Counting, has_blocks};
pub(crate) use show::{Display, percent, warning};
pub(crate) use signals::{SignalEvent, Signals};

use crate::arguments::{flag, value};
use crate::failure::is_renamed;
use descriptor::WordOrNumber;

/// How progress is shown.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Show {
    Bar,
    Json,
    /// As nbdcopy does, into a descriptor.
    Hundredths,
    /// A line of text now and then.
    Lines,
    /// As qemu-img does, on standard output.
    Percent,
    /// Nothing but the last line.
    Summary,
    Nothing,
}

impl Show {
    /// How progress is to be shown.
    pub(crate) fn asked(matches: &ArgMatches) -> Self {
        let asked = matches.get_one::<String>("progress").map(String::as_str);
        let terminal = rustix::termios::isatty(std::io::stderr());
        match asked {
            _ if matches.get_flag("quiet") => Self::Nothing,
            Some("json") => Self::Json,
            Some(word) if descriptor::is_number(word) => Self::Hundredths,
            _ if terminal => Self::Bar,
            Some(_) => Self::Lines,
            None => Self::Nothing,
        }
    }
}

impl Show {
    /// The same for verbs with qemu-img's words: with -p as there, for programs; else people at a
    /// terminal see a bar, unless the program was called as qemu-img.
    pub(crate) fn of_image(matches: &ArgMatches) -> Self {
        let is_seen = || !is_renamed() && rustix::termios::isatty(std::io::stderr());
        match (matches.get_flag("quiet"), matches.get_flag("progress")) {
            (true, _) => Self::Nothing,
            (false, true) => Self::Percent,
            (false, false) if is_seen() => Self::Bar,
            (false, false) => Self::Nothing,
        }
    }
}

/// The arguments on how progress is shown.
pub(crate) fn arguments(command: Command) -> Command {
    command
        .arg(
            value("-p, --progress FORM", "Show progress on standard error: bar, or json; or into a descriptor")
                .num_args(0..=1)
                .require_equals(true)
                .default_missing_value("bar")
                .value_parser(WordOrNumber(["bar", "json"]))
                .long_help(
                    "Show progress on standard error. On a terminal that is the default: a bar, \
                     and a summary at the end. `bar` elsewhere writes a line a second; `json` \
                     writes an object a line, see docs/copy.md. A number is that of a descriptor: \
                     `42/100` is written to it, a line each, as nbdcopy does. The percentage, the rate and the time to go \
                     of a copy are those of data",
                ),
        )
        .arg(flag("-q, --quiet", "Show no progress").conflicts_with("progress"))
}
