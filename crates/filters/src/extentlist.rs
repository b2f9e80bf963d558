//! `extentlist`: takes the map of the disk from a file.
//!
//! For disks without a map, if it is known from elsewhere. The filter trusts the file: a copy does
//! not read ranges that the file calls zero. The file would be wrong after the first write, so the
//! disk is read-only.

use device::{
    Done, Edge, Error, ErrorKind, Extent, ExtentKind, Fault, Filter, Filtered, Operation, Outcome,
    Over, Params, Passes, Result, merge_extent, param, parse_size,
};

use crate::FilterKind;
use crate::kit::listing::{self, Range};

const KEY: &str = "extentlist";

pub(crate) const KIND: FilterKind = FilterKind {
    word: "extentlist",
    summary: "replaces the disk's map with one from a file; read-only",
    reads_only: true,
    params: &[param(
        KEY,
        "FILE",
        "a line each: offset, length, and `hole,zero`, `zero` or nothing",
    )],
    reaches: |params| device::Reach::named(params, &[KEY], device::Use::Read),
    example: "serve --filter=extentlist memory 1M extentlist=/dev/null --run 'diskferry map \"$uri\"'",
    open: |params, below, _| Ok(Filtered::device(ExtentList(read(params)?), below)),
    ..FilterKind::PLAIN
};

fn read(params: &Params) -> Result<Vec<Range<ListedKind>>> {
    let (text, name) = listing::read(params, KEY)?;
    listing::ranges((text.as_str(), name), extent)
}

/// What a line says of its range: its kind, and whether data has no room.
type ListedKind = (ExtentKind, bool);

/// A line: offset, length and kind.
fn extent(line: &str) -> std::result::Result<Option<(u64, u64, ListedKind)>, String> {
    let mut words = line.split_ascii_whitespace();
    let Some(offset) = words.next() else { return Ok(None) };
    let len = words.next().ok_or("an offset and a length are needed")?;
    let size = |word: &str| parse_size(word).map_err(|e| e.to_string());
    let kind = kind(words.next().unwrap_or("0"))?;
    match words.next() {
        Some(more) => Err(format!("`{more}` is not understood")),
        None => Ok(Some((size(offset)?, size(len)?, kind))),
    }
}

/// `hole` alone does not say that a range reads as zeroes, so it must be read.
fn kind(word: &str) -> std::result::Result<ListedKind, String> {
    let mut flags = (false, false);
    match word {
        "0" => {}
        "1" => flags.0 = true,
        "2" => flags.1 = true,
        "3" => flags = (true, true),
        words => {
            for word in words.split(',') {
                match ["hole", "zero"].iter().position(|known| *known == word) {
                    Some(0) => flags.0 = true,
                    Some(_) => flags.1 = true,
                    None => {
                        return Err(format!("`{word}` is neither `hole` nor `zero`, nor 0 to 3"));
                    }
                }
            }
        }
    }
    Ok(match flags {
        (roomless, false) => (ExtentKind::Data, roomless),
        (false, true) => (ExtentKind::Zero, false),
        (true, true) => (ExtentKind::Hole, false),
    })
}

struct ExtentList(Vec<Range<ListedKind>>);

impl ExtentList {
    /// The map of a range by the list: at least one extent, at most `max`. Ranges that are not
    /// listed are holes.
    fn extents(&self, below: &Edge, (offset, len): (u64, u64), max: usize) -> Vec<Extent> {
        let flat = below.info().flat.as_ref();
        let (mut found, mut at, end) = (Vec::new(), offset, offset.saturating_add(len));
        while at < end && found.len() < max {
            let (kind, until) = listing::at(&self.0, at);
            let (kind, roomless) = kind.unwrap_or((ExtentKind::Hole, false));
            let place = flat.filter(|_| kind == ExtentKind::Data).map(|flat| flat.advanced(at));
            let extent = Extent::new(at, until.min(end) - at, kind).at(place);
            merge_extent(&mut found, extent.without_room(roomless));
            at = until.min(end);
        }
        found
    }
}

impl Filter for ExtentList {
    fn describe(&self, over: &mut Over) {
        let a = &mut over.info.abilities;
        (a.write, a.extents) = (false, true);
        over.passes = Passes::READS;
    }

    fn run(&self, over: &Over, operation: Operation, done: Done) {
        match operation {
            Operation::Resolve { offset, len, max } => {
                done(Ok(Outcome::Extents(self.extents(&over.below, (offset, len), max))));
            }
            change if change.changes() => {
                let action =
                    "change refused: the map would no longer match the file of `extentlist`";
                let error = Error::new(ErrorKind::ReadOnly, Fault::User, action);
                done(Err(error.on(&over.info.name)));
            }
            other => over.below.submit(other, done),
        }
    }

    fn resolve_now(
        &self,
        over: &Over,
        range: (u64, u64),
        max: usize,
        out: &mut Vec<Extent>,
    ) -> Result<bool> {
        out.append(&mut self.extents(&over.below, range, max));
        Ok(true)
    }
}

#[cfg(test)]
mod tests {

    use super::*;
    use crate::kit::tested::{blank, put};

    fn over(list: &str) -> Result<Edge> {
        let scratch = trial::Scratch::new("/tmp");
        let word = format!("extentlist={}", scratch.file("list", list.as_bytes()).display());
        put("extentlist", blank(64 << 10), &[&word])
    }

    fn map(disk: &Edge, offset: u64, len: u64, max: usize) -> Vec<(u64, u64, ExtentKind)> {
        let mut map = Vec::new();
        disk.resolve(offset, len, max, &mut map).unwrap();
        map.iter().map(|e| (e.start, e.len, e.kind)).collect()
    }

    #[test]
    fn the_map_is_what_the_file_says_and_gaps_are_holes() {
        use ExtentKind::{Data, Hole, Zero};
        let list = "8192 4K zero\n4096 4096\n12K 100 hole\n60K 1M 0\n20K 1K hole,zero\n21K 1K 3\n";
        let disk = over(list).unwrap();
        let wanted = [
            (0, 4096, Hole),
            (4096, 4096, Data),
            (8192, 4096, Zero),
            (12288, 100, Data),
            (12388, 61440 - 12388, Hole),
            (61440, 4096, Data),
        ];
        assert_eq!(map(&disk, 0, 64 << 10, 99), wanted);
        assert_eq!(map(&disk, 5000, 10, 9), [(5000, 10, Data)]);
        assert_eq!(map(&disk, 100, 9000, 2), [(100, 3996, Hole), (4096, 4096, Data)]);
        assert_eq!(map(&over("").unwrap(), 0, 64 << 10, 9), [(0, 64 << 10, Hole)]);
    }

    #[test]
    fn nothing_is_written_under_a_map_that_would_be_wrong_then() {
        let disk = over("0 64K").unwrap();
        assert!(!disk.info().abilities.write);
        assert_eq!(disk.write(&[1], 0, false).unwrap_err().kind(), ErrorKind::ReadOnly);
        disk.read(&mut [0; 100], 3).unwrap();
    }

    #[test]
    fn an_invalid_line_is_refused() {
        for line in ["1", "x 1", "0 1 holy", "0 1 4", "0 1 zero,", "0 1 zero more", "0 -1"] {
            let e = over(line).unwrap_err().to_string();
            assert!(e.contains("line 1: "), "{line}: {e}");
        }
    }
}
