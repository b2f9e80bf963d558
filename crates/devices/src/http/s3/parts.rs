//! How long the parts of an upload are.
//!
//! A store takes 10,000 parts, and all of one have to be in memory. Where the length is known, all
//! are alike. Where it is not (an image that grows), they grow with what has gone before, a
//! thousandth of it, as far as twice what an image of that disk would need.

/// Parts of an upload, at most.
const PARTS: u64 = 10_000;
/// Bytes of a part, at least, but for the last one.
const LEAST: u64 = 8 << 20;
const MIB: u64 = 1 << 20;
/// Bytes of an object, at most.
const LONGEST: u64 = 5 << 40;

/// See the module.
#[derive(Clone, Copy, Debug)]
pub(super) struct PartSizes {
    /// The longest.
    most: u64,
    grow: bool,
}

impl PartSizes {
    /// For an object of that many bytes; or, where it grows, of about that many at most.
    pub(super) fn of(size: u64, grows: bool) -> Self {
        let bound = size.min(LONGEST);
        let even = bound.div_ceil(PARTS) * if grows { 2 } else { 1 };
        Self { most: even.next_multiple_of(MIB).max(LEAST), grow: grows }
    }

    /// Bytes of the part that begins there.
    pub(super) fn at(self, offset: u64) -> u64 {
        if self.grow {
            (offset / 1000).next_multiple_of(MIB).clamp(LEAST, self.most)
        } else {
            self.most
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many parts an object has, and the longest.
    fn parts(sizes: PartSizes, size: u64) -> (u64, u64) {
        let (mut at, mut count, mut longest) = (0, 0, 0);
        while at < size {
            let len = sizes.at(at).min(size - at);
            (at, count, longest) = (at + len, count + 1, longest.max(len));
        }
        (count, longest)
    }

    #[test]
    fn ten_thousand_parts_hold_any_object_and_those_of_usual_ones_are_short() {
        let (gib, tib) = (1 << 30, 1 << 40);
        for (size, most) in
            [(1, 8 * MIB), (gib, 8 * MIB), (100 * gib, 11 * MIB), (5 * tib, 525 * MIB)]
        {
            let (count, longest) = parts(PartSizes::of(size, false), size);
            assert!(count <= PARTS && longest <= most, "{size}: {count} of {longest}");
        }
        for (bound, size, most) in [
            (100 * gib, 101 * gib, 21 * MIB),
            (10 * tib, gib, 8 * MIB),
            (u64::MAX, 5 * tib, 1049 * MIB),
            (tib, tib + tib / 50, 211 * MIB),
        ] {
            let (count, longest) = parts(PartSizes::of(bound, true), size);
            assert!(count <= PARTS && longest <= most, "{bound} {size}: {count} of {longest}");
        }
    }
}
