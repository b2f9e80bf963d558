//! Whether each block of a VDI image has a room of its own, and all are counted.

use device::{Edge, Result};
use runtime::Context;

use crate::Findings;

use super::header::Header;
use super::{ABSENT, GIVEN_UP, Map};

/// Lines that are kept of what is wrong.
const LINES: usize = 100;

pub(super) fn check(container: &Edge, _: &Context) -> Result<Findings> {
    let header = Header::read(container)?;
    let map = Map::new(container, header.clone())?;
    let rooms = container.info().size.saturating_sub(header.data) / (header.block + header.extra);
    let rooms = rooms.min(header.blocks);
    let mut taken = vec![0_u64; usize::try_from(rooms.div_ceil(64)).unwrap_or(0)];
    let mut findings = Findings { total_clusters: header.blocks, ..Findings::default() };
    let mut last = None;
    for block in 0..header.blocks {
        let index = entry(&map, block)?;
        if index == ABSENT || index == GIVEN_UP {
            continue;
        }
        findings.allocated_clusters += 1;
        findings.fragmented_clusters += u64::from(last.is_some_and(|last: u64| last + 1 != index));
        last = Some(index);
        let bit = 1 << (index % 64);
        match usize::try_from(index / 64).ok().and_then(|i| taken.get_mut(i)) {
            Some(word) if index < rooms && *word & bit == 0 => *word |= bit,
            Some(_) if index < rooms => {
                wrong(&mut findings, format!("block {block} has the room of another: {index}"));
            }
            _ => wrong(&mut findings, format!("block {block} lies outside the file: {index}")),
        }
    }
    if findings.allocated_clusters != header.allocated {
        let (says, has) = (header.allocated, findings.allocated_clusters);
        wrong(&mut findings, format!("the header counts {says} blocks, and there are {has}"));
    }
    findings.image_end = container.info().size;
    Ok(findings)
}

fn wrong(findings: &mut Findings, line: String) {
    findings.corruption_count += 1;
    if findings.corruptions.len() < LINES {
        findings.corruptions.push(line);
    }
}

/// An entry of the map; this thread waits.
fn entry(map: &Map, block: u64) -> Result<u64> {
    map.table.entry_now(block)
}
