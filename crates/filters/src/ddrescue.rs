//! `ddrescue`: a disk that GNU ddrescue rescued in part: reads of the parts that it could not
//! rescue fail.
//!
//! The mapfile says what was rescued. A read that touches anything else fails with an I/O error and
//! returns no bytes. The map calls such ranges data, never holes. The disk is read-only.

use device::{
    Done, Edge, Error, ErrorKind, Extent, ExtentKind, Fault, Filter, Filtered, Operation, Outcome,
    Over, Params, Result, param,
};

use crate::FilterKind;
use crate::kit::listing::{self, Range};
use crate::kit::params::c_number;

const KEY: &str = "ddrescue-mapfile";

pub(crate) const KIND: FilterKind = FilterKind {
    word: "ddrescue",
    summary: "fails reads of areas not marked as rescued in GNU ddrescue's mapfile",
    reads_only: true,
    params: &[param(KEY, "FILE", "the mapfile that ddrescue wrote")],
    reaches: |params| device::Reach::named(params, &[KEY], device::Use::Read),
    example: "serve --filter=ddrescue file disk.img ddrescue-mapfile=disk.map \
              --run 'nbdinfo --map \"$uri\"'",
    open: |params, below, _| Ok(Filtered::device(Rescued(read(params)?), below)),
    ..FilterKind::PLAIN
};

/// The ranges that were rescued.
fn read(params: &Params) -> Result<Vec<Range<()>>> {
    let (text, name) = listing::read(params, KEY)?;
    let mut is_headed = false;
    let all = listing::ranges((text.as_str(), name), |line| {
        if line.trim().is_empty() || line.starts_with('#') {
            return Ok(None);
        }
        // ddrescue's position when it ended.
        if !std::mem::replace(&mut is_headed, true) {
            return Ok(None);
        }
        range(line)
    })?;
    if is_headed {
        return Ok(all.into_iter().filter(|range| range.is).map(Range::rescued).collect());
    }
    Err(Error::unfit("there is no status line: it is not a mapfile of ddrescue").on(name))
}

impl Range<bool> {
    fn rescued(self) -> Range<()> {
        Range { start: self.start, end: self.end, is: () }
    }
}

/// A line: position, size, and whether it was rescued.
fn range(line: &str) -> std::result::Result<Option<(u64, u64, bool)>, String> {
    let mut words = line.split_ascii_whitespace();
    let mut next = |what: &str| words.next().ok_or_else(|| format!("{what} is missing"));
    let (start, len) = (number(next("the position")?)?, number(next("the size")?)?);
    match next("the status")? {
        "+" => Ok(Some((start, len, true))),
        "?" | "*" | "/" | "-" => Ok(Some((start, len, false))),
        other => Err(format!("`{other}` is not one of ddrescue's signs")),
    }
}

/// As C writes them: decimal, `0x…` or octal.
fn number(word: &str) -> std::result::Result<u64, String> {
    c_number(&word.replacen("0X", "0x", 1)).ok_or_else(|| format!("`{word}` is not a number"))
}

/// The ranges that were rescued.
struct Rescued(Vec<Range<()>>);

impl Rescued {
    /// Whether `offset` was rescued, and where that range ends.
    fn at(&self, offset: u64) -> (bool, u64) {
        let (found, until) = listing::at(&self.0, offset);
        (found.is_some(), until)
    }

    /// The first byte of a range that was not rescued.
    fn first_bad(&self, offset: u64, len: u64) -> Option<u64> {
        let end = offset.saturating_add(len);
        match self.at(offset) {
            (true, until) => (until < end).then_some(until),
            (false, _) => (len > 0).then_some(offset),
        }
    }

    fn resolve(&self, below: &Edge, (offset, len): (u64, u64), max: usize, done: Done) {
        let (good, until) = self.at(offset);
        // The caller asks again for the rest.
        let len = len.min(until.saturating_sub(offset));
        if good {
            return below.submit(Operation::Resolve { offset, len, max }, done);
        }
        done(Ok(Outcome::Extents(vec![Extent::new(offset, len, ExtentKind::Data)])));
    }
}

impl Filter for Rescued {
    fn describe(&self, over: &mut Over) {
        // Exactly as requested: rounding a read up to blocks may touch bytes that were not rescued.
        over.info.observe();
        let a = &mut over.info.abilities;
        (a.write, a.prefetch, a.extents) = (false, false, true);
    }

    fn run(&self, over: &Over, operation: Operation, done: Done) {
        let refused =
            |kind, action: &str| Error::new(kind, Fault::File, action).on(&over.info.name);
        match operation {
            Operation::Read { offset, buffer } => {
                match self.first_bad(offset, buffer.len() as u64) {
                    None => over.below.submit(Operation::Read { offset, buffer }, done),
                    Some(bad) => {
                        let action = "read: the mapfile does not mark it as rescued";
                        done(Err(refused(ErrorKind::Io, action).at(bad)));
                    }
                }
            }
            Operation::Resolve { offset, len, max } => {
                self.resolve(&over.below, (offset, len), max, done);
            }
            change if change.changes() => {
                let action = "change refused: the filter `ddrescue` only reads";
                done(Err(refused(ErrorKind::ReadOnly, action)));
            }
            Operation::Prefetch { .. } => done(Ok(Outcome::Done)),
            other => over.below.submit(other, done),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use device::model::Model;
    use device::{BlockSizes, Blocking as _};

    use super::*;
    use crate::kit::tested::{put, simple};

    const MAP: &str = "# Mapfile. Created by GNU ddrescue\n# current_pos status pass\n\
        0x00000000 + 1\n0x0 0x400 +\n0x400 512 -\n0x600 01000 +\n2048 0x10 +\n0x810 0x7f0 ?\n";

    fn rescued(map: &str, model: Model) -> Result<Edge> {
        let scratch = trial::Scratch::new("/tmp");
        let word = format!("ddrescue-mapfile={}", scratch.file("map", map.as_bytes()).display());
        put("ddrescue", simple(Arc::new(model)), &[&word])
    }

    #[test]
    fn what_was_not_rescued_fails_and_what_lies_beside_it_does_not() {
        for blocks in [1, 512] {
            let sizes = BlockSizes { minimum: blocks, preferred: 4096, maximum: 8192 };
            let all = Model::new(1).info().abilities;
            let model = Model::with(4096, all, sizes);
            model.write_at(&[7; 4096], 0, false).unwrap();
            let disk = rescued(MAP, model).unwrap();
            let read = |offset, len| {
                disk.read(&mut vec![0; len], offset).map_err(|e| (e.kind(), e.offset()))
            };
            let bad = |at| Err((ErrorKind::Io, Some(at)));
            assert_eq!(read(0, 1024), Ok(()));
            assert_eq!(read(0, 1025), bad(1024));
            assert_eq!(read(1024, 1), bad(1024));
            assert_eq!(read(1535, 2), bad(1535));
            // Two adjacent rescued ranges.
            assert_eq!(read(1536, 528), Ok(()));
            assert_eq!(read(1536, 529), bad(2064));
            assert_eq!(read(4095, 1), bad(4095));
            assert_eq!(read(4096, 0), Ok(()));
            assert!(!disk.info().abilities.write && disk.info().flat.is_none());
            assert_eq!(disk.write(&[1], 0, false).unwrap_err().kind(), ErrorKind::ReadOnly);
        }
    }

    #[test]
    fn nothing_that_was_not_rescued_is_a_hole() {
        // The whole disk below is a hole.
        let disk = rescued(MAP, Model::new(4096)).unwrap();
        let (mut map, mut at): (Vec<Extent>, u64) = (Vec::new(), 0);
        while at < 4096 {
            disk.resolve(at, 4096 - at, 9, &mut map).unwrap();
            at = map.last().unwrap().end();
        }
        let zeroes = map.iter().filter(|e| e.kind.reads_zero()).map(|e| (e.start, e.len));
        assert_eq!(zeroes.collect::<Vec<_>>(), [(0, 1024), (1536, 528)]);
        let mut one = Vec::new();
        disk.resolve(2064, 100, 1, &mut one).unwrap();
        assert_eq!((one[0].kind, one[0].len), (ExtentKind::Data, 100));
    }

    #[test]
    fn a_file_that_is_no_mapfile_is_refused() {
        for (map, why) in [
            ("", "no status line"),
            ("# only comments\n", "no status line"),
            ("0 + 1\n0 10 x\n", "`x` is not one of ddrescue's signs"),
            ("0 + 1\n0 10\n", "the status is missing"),
            ("0 + 1\n0x 10 +\n", "`0x` is not a number"),
            ("0 + 1\n0 09 +\n", "`09` is not a number"),
            ("0 + 1\n0 10 +\n5 10 -\n", "the byte 5"),
        ] {
            let e = rescued(map, Model::new(4096)).unwrap_err().to_string();
            assert!(e.contains(why), "{map}: {e}");
        }
    }
}
