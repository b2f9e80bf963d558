//! The map of a disk in memory in units that are larger than the system's pages, as nbdkit keeps
//! and tells it: a unit is a hole if all of it is one.

use device::{Extent, ExtentKind, Place, merge_extent};

/// The unit of nbdkit's disks in memory, in bytes.
pub(super) const NBDKIT: u64 = 32 << 10;
/// Extents that are looked up at least: more than a unit has.
pub(super) const ENOUGH: usize = 64;

/// A range, widened to whole units as far as the disk goes: its start and its end.
pub(super) fn outward((offset, len): (u64, u64), unit: u64, size: u64) -> (u64, u64) {
    (down(offset, unit), up(offset.saturating_add(len), unit, size))
}

fn down(at: u64, unit: u64) -> u64 {
    at - at % unit
}

fn up(at: u64, unit: u64, size: u64) -> u64 {
    at.checked_next_multiple_of(unit).unwrap_or(size).min(size)
}

/// The extents of whole units, as far as all of a unit is known. `own` adjoin, and begin with a
/// unit; `place` is where data at an offset lie.
pub(super) fn in_units(
    own: &[Extent],
    unit: u64,
    size: u64,
    place: impl Fn(u64) -> Option<Place>,
) -> Vec<Extent> {
    let Some(first) = own.first() else { return Vec::new() };
    let known = own.last().map_or(first.start, Extent::end);
    let mut told = Vec::new();
    let mut at = first.start;
    let mut put = |start: u64, end: u64, kind| {
        if start < end {
            let place = if kind == ExtentKind::Data { place(start) } else { None };
            merge_extent(&mut told, Extent::new(start, end - start, kind).at(place));
        }
    };
    for data in own.iter().filter(|extent| !extent.kind.reads_zero()) {
        let (start, end) = (down(data.start, unit).max(at), up(data.end(), unit, size));
        put(at, start, ExtentKind::Hole);
        put(start, end, ExtentKind::Data);
        at = at.max(end);
    }
    // The rest of the last unit may hold data.
    let whole = if known == size { size } else { down(known, unit) };
    put(at, whole, ExtentKind::Hole);
    told
}

#[cfg(test)]
mod tests {
    use super::*;

    const H: ExtentKind = ExtentKind::Hole;
    const D: ExtentKind = ExtentKind::Data;

    type Runs = &'static [(u64, ExtentKind)];

    #[test]
    fn a_unit_is_a_hole_if_all_of_it_is_one_and_is_known() {
        let cases: [(Runs, Runs); 6] = [
            (&[(100, H)], &[(100, H)]),
            (&[(4, D), (96, H)], &[(8, D), (92, H)]),
            (&[(20, H), (1, D), (79, H)], &[(16, H), (8, D), (76, H)]),
            (&[(98, H), (2, D)], &[(96, H), (4, D)]),
            (&[(7, H), (1, D), (1, D), (91, H)], &[(16, D), (84, H)]),
            (&[(20, H)], &[(16, H)]),
        ];
        for (own, told) in cases {
            let extents = |list: Runs| {
                let mut at = 0;
                let extent = |(len, kind): &(u64, ExtentKind)| {
                    at += len;
                    Extent::new(at - len, *len, *kind)
                };
                list.iter().map(extent).collect::<Vec<_>>()
            };
            let found = in_units(&extents(own), 8, 100, |_| None);
            let found: Vec<_> = found.iter().map(|e| (e.len, e.kind)).collect();
            assert_eq!(found, told, "{own:?}");
        }
        assert_eq!(outward((9, 8), 8, 100), (8, 24));
        assert_eq!(outward((97, 2), 8, 100), (96, 100));
    }
}
