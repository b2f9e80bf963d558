//! Error kinds and the numbers of Linux, which NBD borrows: the one table, both ways.

use crate::{ErrorClass, ErrorKind, Fault};

impl ErrorKind {
    /// The number and the name that say it best without more context.
    #[must_use]
    pub fn errno(self) -> (i32, &'static str) {
        match self {
            Self::Denied | Self::NeedsKey | Self::PermissionDenied => (libc::EPERM, "EPERM"),
            Self::InvalidInput | Self::OutOfBounds | Self::Unsupported => (libc::EINVAL, "EINVAL"),
            Self::NoMemory => (libc::ENOMEM, "ENOMEM"),
            Self::NoSpace => (libc::ENOSPC, "ENOSPC"),
            // Of all kinds, only this one allows the caller to do something else instead.
            Self::NotFast => (libc::ENOTSUP, "ENOTSUP"),
            Self::ReadOnly => (libc::EROFS, "EROFS"),
            Self::Shutdown => (libc::ESHUTDOWN, "ESHUTDOWN"),
            Self::Cancelled
            | Self::Changed
            | Self::Corrupt
            | Self::Disconnected
            | Self::Dropped
            | Self::Io
            | Self::Limit
            | Self::Locked
            | Self::Mismatch
            | Self::NotFound
            | Self::Protocol
            | Self::TimedOut => (libc::EIO, "EIO"),
        }
    }

    /// The kind of a number that a system call failed with, or that a peer sent.
    #[must_use]
    pub fn from_errno(number: i32) -> Self {
        match number {
            libc::EACCES | libc::EPERM => Self::PermissionDenied,
            libc::ECONNREFUSED | libc::ECONNRESET | libc::ENOTCONN | libc::EPIPE => {
                Self::Disconnected
            }
            libc::EDQUOT | libc::EFBIG | libc::ENOSPC => Self::NoSpace,
            libc::EINVAL | libc::EISDIR => Self::InvalidInput,
            libc::ENOENT | libc::ENOTDIR => Self::NotFound,
            libc::ENOMEM => Self::NoMemory,
            libc::ENOSYS | libc::ENOTTY | libc::EOPNOTSUPP => Self::Unsupported,
            libc::EOVERFLOW => Self::Limit,
            libc::EROFS => Self::ReadOnly,
            libc::ESHUTDOWN => Self::Shutdown,
            libc::ETIMEDOUT => Self::TimedOut,
            _ => Self::Io,
        }
    }

    /// Whose fault a failed system call is.
    pub(crate) fn fault_of_call(self) -> Fault {
        match self {
            Self::InvalidInput | Self::NotFound | Self::PermissionDenied | Self::ReadOnly => {
                Fault::User
            }
            Self::Disconnected | Self::Shutdown | Self::TimedOut => Fault::Peer,
            _ => Fault::File,
        }
    }

    /// What it means for another try.
    pub(crate) fn class(self) -> ErrorClass {
        match self {
            Self::Cancelled
            | Self::Changed
            | Self::Denied
            | Self::InvalidInput
            | Self::Limit
            | Self::Mismatch
            | Self::NeedsKey
            | Self::NoSpace
            | Self::NotFast
            | Self::OutOfBounds
            | Self::PermissionDenied
            | Self::ReadOnly
            | Self::Unsupported => ErrorClass::Permanent,
            Self::Disconnected | Self::Shutdown | Self::TimedOut => ErrorClass::Transient,
            Self::Corrupt
            | Self::Dropped
            | Self::Io
            | Self::Locked
            | Self::NoMemory
            | Self::NotFound
            | Self::Protocol => ErrorClass::Misbehaved,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_errno_never_means_more_to_a_peer_than_the_error_does() {
        for (kind, heard) in [
            (ErrorKind::ReadOnly, ErrorKind::ReadOnly),
            (ErrorKind::NoSpace, ErrorKind::NoSpace),
            (ErrorKind::Denied, ErrorKind::PermissionDenied),
            (ErrorKind::OutOfBounds, ErrorKind::InvalidInput),
            (ErrorKind::Corrupt, ErrorKind::Io),
            // Not "unsupported", which would allow the caller to write instead.
            (ErrorKind::Unsupported, ErrorKind::InvalidInput),
        ] {
            assert_eq!(ErrorKind::from_errno(kind.errno().0), heard, "{kind:?}");
        }
    }
}
