//! The file system's map of a file: filefrag asks for it by FIEMAP.

use std::path::Path;
use std::process::Command;

use blackbox::peers::find;

/// Bytes of a file, up to its length, by their kind in the map.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Map {
    pub(crate) written: u64,
    pub(crate) unwritten: u64,
    pub(crate) holes: u64,
}

/// The map, after what is in the page cache has its room.
pub(crate) fn map(path: &Path) -> Map {
    let filefrag = find("filefrag").expect("e2fsprogs has filefrag");
    let output = Command::new(filefrag).args(["-v", "-s"]).arg(path).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let size = std::fs::metadata(path).unwrap().len();
    let block: u64 = text
        .split_once("blocks of ")
        .or_else(|| text.split_once("block of "))
        .and_then(|(_, rest)| rest.split_whitespace().next()?.parse().ok())
        .unwrap_or_else(|| panic!("{text}"));
    let mut map = Map::default();
    for line in text.lines() {
        let mut fields = line.split(':').map(str::trim);
        let Some(Ok(_)) = fields.next().map(str::parse::<u64>) else { continue };
        let (first, last) = fields.next().unwrap().split_once("..").unwrap();
        let first: u64 = first.trim().parse().unwrap();
        let last: u64 = last.trim().parse().unwrap();
        let bytes = ((last + 1) * block).min(size).saturating_sub(first * block);
        let slot = if line.contains("unwritten") { &mut map.unwritten } else { &mut map.written };
        *slot += bytes;
    }
    map.holes = size - map.written - map.unwritten;
    map
}

/// Fails unless all of a file is written.
#[track_caller]
pub(crate) fn all_written(path: &Path) {
    let found = map(path);
    assert!(found.unwritten == 0 && found.holes == 0, "{}: {found:?}", path.display());
}
