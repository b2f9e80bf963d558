//! A text file that lists ranges of a disk, one per line. A filter reads it once, when it is
//! opened; the file's size is limited.

use std::fs::File;
use std::io::Read;

use device::{Error, ErrorKind, Fault, Params, Result, text};

use crate::kit::params::required;

/// The longest file, in bytes.
const LONGEST: u64 = 64 << 20;
/// The most ranges.
const MOST: usize = 1 << 20;

/// A range of a disk with one value.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Range<T> {
    pub(crate) start: u64,
    /// The first byte after it.
    pub(crate) end: u64,
    pub(crate) is: T,
}

/// The text of the file that the parameter `key` names, and its name.
///
/// # Errors
/// The parameter is missing; the file cannot be read, is too long or is no text.
pub(crate) fn read<'a>(params: &'a Params, key: &str) -> Result<(String, &'a str)> {
    let name = required(params, key, "FILE")?;
    let failed = |e| Error::os(format!("{key}: read"), e).on(text::shown(name));
    let file = File::open(text::path(name)).map_err(failed)?;
    let mut bytes = Vec::new();
    file.take(LONGEST + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > LONGEST {
        return Err(too_much(&format!("{key}: it is longer than {LONGEST} bytes")).on(name));
    }
    let text = String::from_utf8(bytes);
    Ok((text.map_err(|_| Error::unfit(format!("{key}: it is not text")).on(name))?, name))
}

/// The ranges that `parse` returns for each line, by offset. Lines for which it returns none and
/// empty ranges are skipped; equal neighbours are merged.
///
/// # Errors
/// A line is malformed, there are too many, or ranges overlap.
pub(crate) fn ranges<T: Copy + PartialEq>(
    (text, name): (&str, &str),
    mut parse: impl FnMut(&str) -> std::result::Result<Option<(u64, u64, T)>, String>,
) -> Result<Vec<Range<T>>> {
    let mut all = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let wrong = |why: String| Error::unfit(format!("line {}: {why}", number + 1)).on(name);
        let Some((start, len, is)) = parse(line).map_err(wrong)? else { continue };
        let end = start.checked_add(len).filter(|end| i64::try_from(*end).is_ok());
        let end = end.ok_or_else(|| wrong("the range ends beyond 2^63-1 bytes".into()))?;
        if all.len() >= MOST {
            return Err(too_much(&format!("it lists more than {MOST} ranges")).on(name));
        }
        if len > 0 {
            all.push(Range { start, end, is });
        }
    }
    all.sort_by_key(|range| range.start);
    let mut joined: Vec<Range<T>> = Vec::new();
    for range in all {
        match joined.last_mut() {
            Some(last) if last.end > range.start => {
                let action = format!("two of its ranges have the byte {}", range.start);
                return Err(Error::unfit(action).on(name));
            }
            Some(last) if last.end == range.start && last.is == range.is => last.end = range.end,
            _ => joined.push(range),
        }
    }
    Ok(joined)
}

/// The range at `offset`, or the gap before the next one, and where that ends.
pub(crate) fn at<T: Copy>(ranges: &[Range<T>], offset: u64) -> (Option<T>, u64) {
    let next = ranges.partition_point(|range| range.end <= offset);
    match ranges.get(next) {
        Some(range) if range.start <= offset => (Some(range.is), range.end),
        Some(range) => (None, range.start),
        None => (None, u64::MAX),
    }
}

fn too_much(action: &str) -> Error {
    Error::new(ErrorKind::Limit, Fault::File, action)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(text: &str) -> Result<Vec<Range<u32>>> {
        ranges((text, "list"), |line| {
            let words: Vec<u64> = line.split(' ').filter_map(|word| word.parse().ok()).collect();
            match words.as_slice() {
                [start, len, is] => Ok(Some((*start, *len, u32::try_from(*is).unwrap()))),
                [] => Ok(None),
                _ => Err("three numbers".into()),
            }
        })
    }

    #[test]
    fn ranges_are_sorted_and_joined_and_gaps_are_found() {
        let all = listed("20 5 1\n\n0 10 1\n10 2 1\n25 5 2\n40 0 7\n").unwrap();
        let plain: Vec<_> = all.iter().map(|r| (r.start, r.end, r.is)).collect();
        assert_eq!(plain, [(0, 12, 1), (20, 25, 1), (25, 30, 2)]);
        let seen = [0, 11, 12, 19, 20, 24, 25, 29, 30].map(|offset| at(&all, offset));
        let wanted = [
            (Some(1), 12),
            (Some(1), 12),
            (None, 20),
            (None, 20),
            (Some(1), 25),
            (Some(1), 25),
            (Some(2), 30),
            (Some(2), 30),
            (None, u64::MAX),
        ];
        assert_eq!(seen, wanted);
        assert_eq!(at::<u32>(&[], 7), (None, u64::MAX));
    }

    #[test]
    fn overlapping_overflowing_or_invalid_lines_are_refused_with_their_number() {
        for (text, why) in [
            ("0 10 1\n9 1 1", "the byte 9"),
            ("0 10 1\n0 10 1", "the byte 0"),
            ("0 1 1\n5 9223372036854775807 1", "line 2: the range ends beyond"),
            ("18446744073709551615 18446744073709551615 1", "line 1"),
            ("0 1 1\n\n1 1", "line 3: three numbers"),
        ] {
            let e = listed(text).unwrap_err().to_string();
            assert!(e.starts_with("list: ") && e.contains(why), "{e}");
        }
    }

    #[test]
    fn a_list_has_a_bound() {
        let many = "\n".repeat(MOST + 1);
        let mut next = 0;
        let count = |_: &str| {
            next += 2;
            Ok(Some((next, 1, ())))
        };
        assert_eq!(ranges((many.as_str(), "list"), count).unwrap_err().kind(), ErrorKind::Limit);
        let params = Params::parse(["list=/dev/zero"]).unwrap();
        assert_eq!(read(&params, "list").unwrap_err().kind(), ErrorKind::Limit);
        assert!(read(&Params::default(), "list").unwrap_err().is_usage());
    }
}
