//! Checks that each block of a VDI image has a place of its own, and that the header counts them
//! all. Like `qemu-img check`, it reports no numbers.

use device::{Edge, Result};
use runtime::Context;

use crate::Findings;

use super::header::Header;
use super::map::{ABSENT, GIVEN_UP, Map};

pub(super) fn check(container: &Edge, context: &Context) -> Result<Findings> {
    let header = Header::read(container)?;
    let map = Map::new((container, context), header.clone())?;
    let rooms = container.info().size.saturating_sub(header.data) / header.block;
    let rooms = rooms.min(header.blocks);
    let mut taken = vec![0_u64; usize::try_from(rooms.div_ceil(64)).unwrap_or(0)];
    let (mut findings, mut allocated) = (Findings::default(), 0);
    for block in 0..header.blocks {
        let index = map.table.entry_now(block)?;
        if index == ABSENT || index == GIVEN_UP {
            continue;
        }
        allocated += 1;
        let bit = 1 << (index % 64);
        match usize::try_from(index / 64).ok().and_then(|i| taken.get_mut(i)) {
            Some(word) if index < rooms && *word & bit == 0 => *word |= bit,
            Some(_) if index < rooms => {
                findings.wrong(format!("block {block} shares the space of another: {index}"));
            }
            _ => findings.wrong(format!("block {block} lies outside the file: {index}")),
        }
    }
    // A count that was durable before the map when the power was cut loses room, and nothing else.
    if allocated < header.allocated && findings.corruption_count == 0 {
        findings.leaks = header.allocated - allocated;
    } else if allocated != header.allocated {
        let says = header.allocated;
        findings.wrong(format!("the header counts {says} blocks, and there are {allocated}"));
    }
    Ok(findings)
}
