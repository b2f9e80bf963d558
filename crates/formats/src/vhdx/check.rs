//! Checks that each block of a VHDX image lies in the file and overlaps neither headers nor other
//! blocks. Like `qemu-img check`, it counts nothing, and skips an image whose log must be replayed.

use device::{Edge, Error, ErrorKind, Result};
use runtime::Context;

use crate::Findings;
use crate::kit::Taken;
use crate::kit::fields::lies_inside;

use super::VhdxImage;
use super::header::MIB;
use super::map::{Map, PARTLY, PRESENT};

/// Checks the table of blocks.
pub(super) fn check(container: &Edge, context: &Context) -> Result<Findings> {
    let VhdxImage { container, dirty, regions, metadata } = VhdxImage::read(container.clone())?;
    if dirty {
        return Err(Error::unfit(
            "the VHDX image was not closed, and its log is to be replayed first: `qemu-img check -r all` does that",
        ));
    }
    let map = Map::new((&container, context), regions, metadata)?;
    blocks(&map, &container).map(|(findings, _)| findings)
}

/// Checks the blocks, and returns where the last one ends.
pub(super) fn blocks(map: &Map, container: &Edge) -> Result<(Findings, u64)> {
    let mut taken = Taken::of(container.info().size.div_ceil(MIB));
    let (mut findings, mut last) = (Findings::default(), 0);
    let (ratio, block) = (map.metadata.ratio(), map.metadata.block);
    for index in 0..map.metadata.entries() {
        let entry = map.table.entry_now(index)?;
        // After each chunk of blocks comes an entry for their bitmap.
        let of_bitmap = index % (ratio + 1) == ratio;
        let start = (index - index / (ratio + 1)).saturating_mul(block);
        // The file may end after the disk's part of the last block.
        let (len, wanted) = match entry & 7 {
            PRESENT if of_bitmap => (MIB, MIB),
            PRESENT => (block, block.min(map.metadata.size.saturating_sub(start))),
            PARTLY if map.metadata.parent.is_some() => (block, 0),
            _ => continue,
        };
        let place = map.place(entry, len);
        let lies = place.and_then(|at| lies_inside(container, "block", at, wanted).map(|()| at));
        last = last.max(lies.as_ref().map_or(0, |at| at + len));
        match lies {
            Ok(at) if taken.take(at / MIB, len / MIB) => {}
            Ok(at) => findings.wrong(format!("entry {index}: the space at {at} is used twice")),
            Err(e) if e.kind() == ErrorKind::Corrupt => {
                findings.wrong(format!("entry {index}: {e}"))
            }
            Err(e) => return Err(e),
        }
    }
    Ok((findings, last))
}
