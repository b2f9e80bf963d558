//! Which ranges of the source are copied: all of it, by its map, or those of a list.

use std::ops::Range;

use device::{Error, Result};

/// Where the plan of a copy comes from.
#[derive(Clone, Debug, Default)]
pub enum CopyPlan {
    /// All of the source; its map says where it has data.
    #[default]
    Map,
    /// These stretches of it, in order and apart, which begin and end on blocks of both ends (the
    /// last may end with the source). What lies between them is left alone.
    List(Vec<ListedRange>),
}

/// A range of the disk and what becomes of it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ListedRange {
    /// In bytes.
    pub range: Range<u64>,
    /// What becomes of it.
    pub kind: RangeFate,
}

/// What becomes of a range.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum RangeFate {
    /// It is copied. The source's map is read, and zeroes are looked for, as always.
    Data,
    /// It is to read as zeroes in the target; the source is not asked.
    Zero,
    /// It is neither read nor changed, as if it were not in the list.
    LeftAlone,
}

/// A range that is to be copied. Never empty.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Span {
    pub(crate) range: Range<u64>,
    /// By the list, it reads as zeroes.
    pub(crate) zero: bool,
}

impl CopyPlan {
    /// The ranges to copy of a source of `size` bytes, in order and apart.
    ///
    /// # Errors
    /// `InvalidInput`: a list that is not in order, or not on blocks of `grid` bytes.
    pub(crate) fn spans(&self, size: u64, grid: u64) -> Result<Vec<Span>> {
        let Self::List(list) = self else {
            let all = Span { range: 0..size, zero: false };
            return Ok(if size > 0 { vec![all] } else { Vec::new() });
        };
        let mut at = 0;
        for ListedRange { range, .. } in list {
            let Range { start, end } = *range;
            if start < at || end < start || end > size {
                let action = format!("copy by a list: {start} to {end}: not in order, or outside");
                return Err(Error::invalid(action));
            }
            if !start.is_multiple_of(grid) || !(end.is_multiple_of(grid) || end == size) {
                let action = format!("copy by a list: {start} to {end}: no whole blocks of {grid}");
                return Err(Error::invalid(action));
            }
            at = end;
        }
        let copied = list.iter().filter(|l| l.kind != RangeFate::LeftAlone && !l.range.is_empty());
        let span =
            |l: &ListedRange| Span { range: l.range.clone(), zero: l.kind == RangeFate::Zero };
        Ok(copied.map(span).collect())
    }
}

/// The parts of `spans` that lie in `ranges`; both are in order and apart.
pub(crate) fn within(spans: &[Span], ranges: impl Iterator<Item = Range<u64>>) -> Vec<Span> {
    let mut found = Vec::new();
    for range in ranges {
        let first = spans.partition_point(|s| s.range.end <= range.start);
        let met = spans.iter().skip(first).take_while(|s| s.range.start < range.end);
        found.extend(met.map(|s| Span {
            range: s.range.start.max(range.start)..s.range.end.min(range.end),
            zero: s.zero,
        }));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(start: u64, end: u64, kind: RangeFate) -> ListedRange {
        ListedRange { range: start..end, kind }
    }

    #[test]
    fn a_list_is_in_order_inside_the_disk_and_on_blocks() {
        let spans = |list: &[ListedRange]| CopyPlan::List(list.to_vec()).spans(1000, 512);
        for bad in [
            vec![listed(512, 1000, RangeFate::Data), listed(0, 512, RangeFate::Zero)],
            vec![listed(0, 1024, RangeFate::Data)],
            vec![listed(0, 700, RangeFate::Data)],
            vec![listed(10, 512, RangeFate::LeftAlone)],
            vec![listed(512, 0, RangeFate::Data)],
        ] {
            assert!(spans(&bad).is_err(), "{bad:?}");
        }
        let good = [listed(0, 512, RangeFate::LeftAlone), listed(512, 1000, RangeFate::Zero)];
        assert_eq!(spans(&good).unwrap(), [Span { range: 512..1000, zero: true }]);
        assert_eq!(CopyPlan::Map.spans(1000, 512).unwrap()[0].range, 0..1000);
        assert!(CopyPlan::Map.spans(0, 1).unwrap().is_empty());
    }

    #[test]
    fn only_what_is_in_both_is_copied_again() {
        let span = |start, end, zero| Span { range: start..end, zero };
        let spans = [span(0, 10, false), span(10, 20, true), span(30, 40, false)];
        assert_eq!(
            within(&spans, [5..12, 18..32, 39..50].into_iter()),
            [
                span(5, 10, false),
                span(10, 12, true),
                span(18, 20, true),
                span(30, 32, false),
                span(39, 40, false)
            ]
        );
    }
}
