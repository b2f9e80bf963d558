//! Mapfiles of GNU ddrescue: which parts of a disk were rescued. A copy that leaves out what it
//! cannot read writes one; the next copy takes from it what is still to be copied.
//!
//! `+` is finished; `?`, `*`, `/` and `-` are not, for reasons that are ddrescue's own. Where a
//! mapfile says nothing, it is not known that anything is finished.

use std::io::{self, Write};
use std::ops::Range;

use device::{Error, Result};
use runtime::RangeSet;

/// What a mapfile begins with, whichever program wrote it.
pub const MAGIC: &[u8] = b"# Mapfile. Created by ";

/// What became of the bytes of a disk.
#[derive(Debug)]
pub struct RescueMap<'a> {
    /// The part of the disk that the copy was of. What lies in front of it was not tried.
    pub part: Range<u64>,
    /// What could not be read.
    pub bad: &'a RangeSet,
    /// What is not known to be copied; it may overlap with what could not be read.
    pub left: &'a RangeSet,
}

impl RescueMap<'_> {
    /// Writes it as the mapfile of a run of `program` that has ended.
    ///
    /// # Errors
    /// Those of `to`.
    pub fn write(&self, to: &mut dyn Write, program: &str) -> io::Result<()> {
        let mut text = MAGIC.to_vec();
        writeln!(text, "{program}")?;
        writeln!(text, "# current_pos  current_status  current_pass")?;
        writeln!(text, "0x{:08X}     +               1", self.part.start)?;
        writeln!(text, "#      pos        size  status")?;
        if self.part.start > 0 {
            line(&mut text, 0..self.part.start, '?')?;
        }
        let mut all: Vec<(Range<u64>, char)> = Vec::new();
        let left = self.left.without(self.bad);
        let both: RangeSet = [self.bad, &left].into_iter().flat_map(RangeSet::iter).collect();
        all.extend(self.bad.within(self.part.clone()).map(|range| (range, '-')));
        all.extend(left.within(self.part.clone()).map(|range| (range, '?')));
        all.extend(both.gaps(self.part.clone()).map(|range| (range, '+')));
        all.sort_unstable_by_key(|(range, _)| range.start);
        for (range, status) in all {
            line(&mut text, range, status)?;
        }
        to.write_all(&text)
    }
}

fn line(to: &mut Vec<u8>, range: Range<u64>, status: char) -> io::Result<()> {
    let (start, len) = (range.start, range.end - range.start);
    writeln!(to, "0x{start:08X}  0x{len:08X}  {status}")
}

/// The ranges that a mapfile says are not finished.
///
/// # Errors
/// It is no mapfile.
pub(crate) fn unfinished(text: &[u8]) -> Result<Vec<Range<u64>>> {
    let wrong = |what: &str| Error::invalid(format!("read the mapfile of ddrescue: {what}"));
    let text = std::str::from_utf8(text).map_err(|_| wrong("it is not text"))?;
    let lines = text.lines().enumerate().map(|(n, line)| (n + 1, line.trim()));
    let mut lines = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    // Where ddrescue was when it ended.
    let current = lines.next().map(|(_, line)| line.split_ascii_whitespace().collect::<Vec<_>>());
    match current.as_deref() {
        Some([at, "?" | "*" | "/" | "-" | "F" | "G" | "+", ..]) if number(at).is_some() => {}
        _ => return Err(wrong("it has no status line")),
    }
    let (mut ranges, mut end) = (Vec::new(), 0);
    for (n, line) in lines {
        let words: Vec<_> = line.split_ascii_whitespace().collect();
        let (start, len, status) = match &words[..] {
            [start, len, status] => (number(start), number(len), *status),
            _ => (None, None, ""),
        };
        let found = start.zip(len).and_then(|(start, len)| Some(start..start.checked_add(len)?));
        let found = found.filter(|range| range.start >= end);
        let range =
            found.ok_or_else(|| wrong(&format!("line {n} does not follow the area before it")))?;
        end = range.end;
        match status {
            "+" => {}
            "?" | "*" | "/" | "-" => ranges.push(range),
            _ => return Err(wrong(&format!("line {n} has an unknown status"))),
        }
    }
    Ok(ranges)
}

/// As C writes them: decimal, `0x…` or octal.
fn number(word: &str) -> Option<u64> {
    let hex = word.strip_prefix("0x").or_else(|| word.strip_prefix("0X"));
    match (hex, word.strip_prefix('0').filter(|rest| !rest.is_empty())) {
        (Some(hex), _) => u64::from_str_radix(hex, 16).ok(),
        (None, Some(octal)) => u64::from_str_radix(octal, 8).ok(),
        (None, None) => word.parse().ok(),
    }
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init, reason = "ranges are what is compared")]
mod tests {
    use super::*;

    fn set(ranges: &[Range<u64>]) -> RangeSet {
        ranges.iter().cloned().collect()
    }

    #[test]
    fn what_was_written_says_what_is_not_finished() {
        let (bad, left) = (set(&[4096..4608, 8192..9216]), set(&[8704..20_000]));
        let map = RescueMap { part: 1024..30_000, bad: &bad, left: &left };
        let mut text = Vec::new();
        map.write(&mut text, "us 1").unwrap();
        let text = String::from_utf8(text).unwrap();
        assert_eq!(
            text,
            "# Mapfile. Created by us 1\n# current_pos  current_status  current_pass\n\
             0x00000400     +               1\n#      pos        size  status\n\
             0x00000000  0x00000400  ?\n0x00000400  0x00000C00  +\n0x00001000  0x00000200  -\n\
             0x00001200  0x00000E00  +\n0x00002000  0x00000400  -\n0x00002400  0x00002A20  ?\n\
             0x00004E20  0x00002710  +\n"
        );
        let ranges = unfinished(text.as_bytes()).unwrap();
        assert_eq!(ranges, [0..1024, 4096..4608, 8192..9216, 9216..20_000]);
    }

    #[test]
    fn mapfiles_of_ddrescue_are_read_and_others_refused() {
        let head = "# Mapfile. Created by GNU ddrescue version 1.27\n0x00120000     ?   1\n";
        for (lines, wanted) in [
            ("", Ok(&[][..])),
            (
                "0x0 0x400 +\n0x400 512 -\n# a comment\n0x600 01000 /\n",
                Ok(&[1024..1536, 1536..2048]),
            ),
            ("0 16 *\n0x10  0x10  ?\n", Ok(&[0..16, 16..32])),
            ("0 16 !\n", Err("unknown status")),
            ("0 16\n", Err("does not follow the area")),
            ("0 16 +\n8 16 -\n", Err("does not follow the area")),
            ("0xFFFFFFFFFFFFFFFF 2 -\n", Err("does not follow the area")),
            ("-1 2 -\n", Err("does not follow the area")),
        ] {
            let found = unfinished(format!("{head}{lines}").as_bytes());
            match (found, wanted) {
                (Ok(found), Ok(wanted)) => assert_eq!(found, wanted, "{lines}"),
                (Err(e), Err(why)) => assert!(e.to_string().contains(why), "{lines}: {e}"),
                (found, _) => panic!("{lines}: {found:?}"),
            }
        }
        assert!(unfinished(b"# nothing\n").unwrap_err().to_string().contains("no status line"));
    }
}
