//! How many bytes a second may be written, in the words of the verbs that copy.

use clap::{Arg, ArgMatches, ValueHint};
use device::parse_size;
use disk::Stack;

use crate::arguments::value;
use crate::failure::Failure;
use crate::image;

/// The filter that limits writing to this many bytes a second: `10M`, or `10M/s`. `option` is the
/// option that it came from.
pub(crate) fn rate(text: &str, option: &str) -> Result<Stack, Failure> {
    let number = text.strip_suffix("/s").unwrap_or(text);
    let bytes = parse_size(number).map_err(|e| Failure::usage(format!("{option}: {e}")))?;
    let bits = bytes.checked_mul(8).filter(|bits| *bits > 0);
    let bits = bits.ok_or_else(|| {
        Failure::usage(format!("{option}: {text} is not a rate; write for example 100M"))
    })?;
    Ok(Stack::parse([&*format!("rate?rate={bits}")])?)
}

/// `--rate`, and what changes it.
pub(crate) fn rates() -> [Arg; 3] {
    let rate = value("--rate BYTES[/s]", "Write at most this many bytes a second: 100M, or 100M/s");
    let file = value("--rate-file FILE", "Write as many as FILE says, which may change meanwhile")
        .value_hint(ValueHint::FilePath);
    let table = value(
        "--bandwidth-schedule TIMETABLE",
        "The same by the time of the day: \"08:00,512K 23:00,off\"",
    );
    [
        rate,
        file.long_help(
            "Limit the write rate to the value in FILE: 100M, 100M/s, or off. The file is read \
             once per second and must exist at the start; if it is removed later, the last rate \
             stays. If it is empty, --rate applies, or no limit",
        ),
        table
            .long_help(
                "Limit the write rate by the time of day, in the format of rclone's --bwlimit: \
                 \"08:00,512K 12:00,10M 13:00,512K 23:00,off\". Times are local, each lasts until \
                 the next, and one may be of a day: Sat-08:00,off",
            )
            .conflicts_with_all(["rate", "rate-file"]),
    ]
}

/// The parameter of the filter that names a file.
const FILE: &str = "rate-bytes-file";

/// The filter takes a file that is not there for no limit; of a copy it is a name that was
/// mistyped.
fn check_file(word: &str) -> Result<(), Failure> {
    match std::fs::metadata(device::text::path(word)) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Err(Failure::usage(format!(
            "--rate-file: there is no file {word}; create it first, with a rate (100M) or `off` \
             in it"
        ))),
        _ => Ok(()),
    }
}

/// The filter that they ask for.
pub(crate) fn rate_of(matches: &ArgMatches) -> Result<Option<Stack>, Failure> {
    let fixed = image::word(matches, "rate").map(|text| rate(text, "--rate")).transpose()?;
    let table = image::word(matches, "bandwidth-schedule");
    let changing = [(FILE, image::word(matches, "rate-file")), ("rate-timetable", table)];
    let changing = changing.into_iter().find_map(|(key, word)| Some((key, word?)));
    let Some((key, word)) = changing else { return Ok(fixed) };
    if key == FILE {
        check_file(word)?;
    }
    let mut stack = fixed.map_or_else(|| Stack::parse(["rate"]), Ok)?;
    stack.take(key, word)?;
    Ok(Some(stack))
}
