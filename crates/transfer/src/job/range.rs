//! A copy of a range: which bytes of the source, and where in the target they go. The rest of the
//! target stays as it is.

use device::{Edge, ErrorKind, format_size};
use disk::{Created, Stack};
use runtime::Context;

use super::{Advice, JobError};

/// Ranges begin and end at multiples of this, in bytes, where both ends can do that.
pub(super) fn grid(source: &Edge, target: &Edge) -> u64 {
    source.info().blocks.minimum.max(target.info().blocks.minimum).max(1).into()
}

/// Refuses a range that does not lie in the source.
pub(super) fn check((start, len): (u64, u64), source: &str, size: u64) -> Result<(), JobError> {
    let rest = size.checked_sub(start);
    if rest.is_some_and(|rest| len <= rest || len == u64::MAX) {
        return Ok(());
    }
    let bytes = format!("{size} bytes ({})", format_size(size));
    let text = match rest {
        None => {
            format!("{source}: has {bytes}, and the range begins at {start}; nothing was changed")
        }
        Some(rest) => format!(
            "{source}: has {bytes}, {rest} of them from {start} on, and the range has {len}; nothing was changed"
        ),
    };
    Err(JobError::refused(ErrorKind::OutOfBounds, text))
}

/// Bytes that a target must have for `len` of them from `start` on.
pub(super) fn end(start: u64, len: u64) -> Result<u64, JobError> {
    let end = start.checked_add(len).filter(|end| i64::try_from(*end).is_ok());
    let what =
        || JobError::usage(format!("a range of {len} bytes at {start}: no disk is that long"));
    end.ok_or_else(what)
}

/// The bytes of a target from `start` on, `len` of them, as the target.
pub(super) fn part(
    target: &Created,
    (start, len): (u64, u64),
    context: &Context,
) -> Result<Edge, JobError> {
    let (info, end) = (target.edge.info(), end(start, len)?);
    if info.size < end {
        let text = format!(
            "{}: target is too small: it has {} bytes, and the range ends at {end}; it was not written",
            info.name, info.size
        );
        return Err(JobError::refused(ErrorKind::NoSpace, text).advise(Advice::Resize));
    }
    let part = Stack::parse([&*format!("offset?offset={start}&range={len}")])?;
    Ok(part.over(target.edge.clone(), context)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_lies_in_the_source_or_is_refused() {
        for (range, size) in [((0, 10), 10), ((10, 0), 10), ((3, u64::MAX), 10), ((0, u64::MAX), 0)]
        {
            assert!(check(range, "it", size).is_ok(), "{range:?} {size}");
        }
        for (range, size) in
            [((11, 0), 10), ((11, u64::MAX), 10), ((5, 6), 10), ((1, u64::MAX - 1), 10)]
        {
            assert!(check(range, "it", size).is_err(), "{range:?} {size}");
        }
        assert_eq!(end(3, 4).unwrap(), 7);
        assert!(end(u64::MAX, 1).is_err() && end(i64::MAX.cast_unsigned(), 1).is_err());
    }
}
