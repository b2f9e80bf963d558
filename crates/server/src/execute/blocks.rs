//! Block status in whole blocks: "The server MUST use descriptor lengths that are an integer
//! multiple of any advertised minimum block size."
//!
//! A block that is not all of one kind is data if any of it is, or may be; it is a hole only if all
//! of it is one.

use device::{Extent, ExtentKind, merge_extent};

/// Rounds the map of a range that ends at `end` to whole blocks of `block` bytes, as far as the
/// range consists of whole blocks.
pub(crate) fn whole_blocks(extents: Vec<Extent>, end: u64, block: u64) -> Vec<Extent> {
    let is_whole = |e: &Extent| {
        e.start.is_multiple_of(block) && (e.end().is_multiple_of(block) || e.end() == end)
    };
    if block <= 1 || extents.iter().all(is_whole) {
        return extents;
    }
    let border = |at: u64| (at - at % block).saturating_add(block).min(end);
    let mut whole = Vec::with_capacity(extents.len());
    // A block of which not all is known yet.
    let mut part: Option<Extent> = None;
    for extent in extents {
        let mut at = extent.start;
        while at < extent.end() {
            let stop = if part.is_some() || !at.is_multiple_of(block) {
                border(at).min(extent.end())
            } else {
                // All following blocks of the same kind; or the beginning of one.
                let inner = extent.end() - extent.end() % block;
                if inner > at { inner } else { extent.end() }
            };
            let piece = Extent::new(at, stop - at, extent.kind).without_room(extent.roomless);
            let joined = match part.take() {
                Some(before) => join(&before, &piece),
                None => piece,
            };
            if joined.end().is_multiple_of(block) || joined.end() == end {
                merge_extent(&mut whole, joined);
            } else {
                part = Some(joined);
            }
            at = stop;
        }
    }
    if let (Some(part), true) = (part, whole.is_empty()) {
        // More of it is not known, and a reply needs at least one extent.
        let len = border(part.start) - part.start;
        whole.push(Extent::new(part.start, len, ExtentKind::Data));
    }
    whole
}

/// Two that adjoin, as one.
fn join(first: &Extent, second: &Extent) -> Extent {
    let kind = match (first.kind, second.kind) {
        (a, b) if a == b => a,
        (ExtentKind::Data, _) | (_, ExtentKind::Data) => ExtentKind::Data,
        _ => ExtentKind::Zero,
    };
    Extent::new(first.start, second.end() - first.start, kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    const D: ExtentKind = ExtentKind::Data;
    const H: ExtentKind = ExtentKind::Hole;
    const Z: ExtentKind = ExtentKind::Zero;

    /// The lengths and kinds of a map of blocks of 512 bytes.
    fn whole(start: u64, map: &[(u64, ExtentKind)], end: u64) -> Vec<(u64, ExtentKind)> {
        let mut at = start;
        let extents = map.iter().map(|(len, kind)| {
            at += len;
            Extent::new(at - len, *len, *kind)
        });
        let extents = whole_blocks(extents.collect(), end, 512);
        let mut at = start;
        for extent in &extents {
            assert_eq!(extent.start, at);
            at = extent.end();
        }
        assert!(at <= end);
        extents.iter().map(|e| (e.len, e.kind)).collect()
    }

    #[test]
    fn a_block_is_data_where_a_part_of_it_is_and_a_hole_where_all_of_it_is() {
        assert_eq!(whole(0, &[(512, D), (1024, H)], 1536), [(512, D), (1024, H)]);
        assert_eq!(whole(0, &[(1, D), (1535, H)], 1536), [(512, D), (1024, H)]);
        assert_eq!(whole(0, &[(1535, H), (1, D)], 1536), [(1024, H), (512, D)]);
        assert_eq!(whole(0, &[(600, H), (10, D), (926, H)], 1536), [(512, H), (512, D), (512, H)]);
        assert_eq!(whole(0, &[(100, H), (412, Z), (512, H)], 1024), [(512, Z), (512, H)]);
        assert_eq!(whole(0, &[(100, Z), (100, H), (100, D), (212, Z)], 512), [(512, D)]);
        assert_eq!(whole(0, &[(700, D), (836, D)], 1536), [(1536, D)]);
    }

    #[test]
    fn a_range_that_is_not_of_whole_blocks_keeps_its_ends() {
        assert_eq!(whole(100, &[(412, H), (512, D), (10, H)], 1034), [(412, H), (512, D), (10, H)]);
        assert_eq!(whole(100, &[(100, H), (800, D)], 1000), [(900, D)]);
        assert_eq!(whole(100, &[(10, H)], 110), [(10, H)]);
        assert_eq!(whole(512, &[(512, H), (10, D)], 1034), [(512, H), (10, D)]);
    }

    #[test]
    fn of_a_block_of_which_not_all_is_told_nothing_is_said_unless_nothing_else_is() {
        assert_eq!(whole(0, &[(1024, H), (100, D)], 4096), [(1024, H)]);
        assert_eq!(whole(0, &[(100, H)], 4096), [(512, D)]);
        assert_eq!(whole(0, &[(612, H)], 4096), [(512, H)]);
        assert_eq!(whole(4000, &[(10, H)], 4096), [(96, D)]);
    }
}
