//! Resizing a disk while keeping its bytes: the request.

use device::{Error, ErrorKind, Fault, Result, format_size};

use crate::preallocation::Allocation;

/// A length, as it is asked for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Length {
    /// This many bytes.
    Exactly(u64),
    /// This many bytes more than it has.
    More(u64),
    /// This many bytes less than it has.
    Less(u64),
}

/// What is asked for.
#[derive(Clone, Copy, Debug)]
pub struct Resizing {
    /// The length that it has in the end.
    pub length: Length,
    /// Bytes at its end may be lost.
    pub shrink: bool,
    /// How new bytes are allocated.
    pub mode: Allocation,
}

/// The result, in bytes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Resized {
    /// What it had.
    pub before: u64,
    /// What it has now.
    pub after: u64,
}

impl Resizing {
    /// The new length of a disk of `before` bytes.
    ///
    /// # Errors
    /// There is no such length, or bytes would be lost that must not be.
    pub fn of(&self, before: u64) -> Result<Resized> {
        let after = match self.length {
            Length::Exactly(bytes) => Some(bytes),
            Length::More(bytes) => before.checked_add(bytes),
            Length::Less(bytes) => before.checked_sub(bytes),
        };
        let after = after.filter(|bytes| i64::try_from(*bytes).is_ok()).ok_or_else(|| {
            let wrong = match self.length {
                Length::Less(bytes) => format!("it cannot have {bytes} fewer"),
                _ => "the result would be longer than any disk".to_owned(),
            };
            Error::unfit(format!("resize: it has {before} bytes, and {wrong}"))
        })?;
        if after < before && !self.shrink {
            let lost = before - after;
            let action = format!(
                "resize: the last {lost} bytes ({}) would be lost; --shrink discards them",
                format_size(lost)
            );
            return Err(Error::new(ErrorKind::Denied, Fault::User, action));
        }
        if after < before && self.mode != Allocation::Sparse {
            return Err(Error::unfit("resize: a shrinking file has nothing to preallocate"));
        }
        Ok(Resized { before, after })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_cut_off_only_where_that_is_asked_for() {
        let of = |length, shrink, before| {
            let wish = Resizing { length, shrink, mode: Allocation::Sparse };
            wish.of(before).map(|resized| resized.after).ok()
        };
        assert_eq!(of(Length::Exactly(7), false, 5), Some(7));
        assert_eq!(of(Length::Exactly(5), false, 5), Some(5));
        assert_eq!(of(Length::More(3), false, 5), Some(8));
        assert_eq!(of(Length::Exactly(4), false, 5), None);
        assert_eq!(of(Length::Less(1), false, 5), None);
        assert_eq!(of(Length::Less(1), true, 5), Some(4));
        assert_eq!(of(Length::Less(0), false, 5), Some(5));
        assert_eq!(of(Length::Less(6), true, 5), None);
        assert_eq!(of(Length::More(u64::MAX), true, 5), None);
        assert_eq!(of(Length::More(i64::MAX.cast_unsigned()), true, 1), None);
        let full = Resizing { length: Length::Less(1), shrink: true, mode: Allocation::Written };
        assert!(full.of(5).is_err());
    }
}
