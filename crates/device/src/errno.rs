//! Error kinds and their numbers, both ways: those of Linux, which NBD borrows on every system, and
//! those of the system that we run on.

use crate::{ErrorClass, ErrorKind, Fault};

/// The numbers of Linux, whatever the system.
mod linux {
    pub(super) const EPERM: i32 = 1;
    pub(super) const EIO: i32 = 5;
    pub(super) const ENOMEM: i32 = 12;
    pub(super) const EINVAL: i32 = 22;
    pub(super) const ENOSPC: i32 = 28;
    pub(super) const EROFS: i32 = 30;
    pub(super) const EOVERFLOW: i32 = 75;
    pub(super) const ENOTSUP: i32 = 95;
    pub(super) const ESHUTDOWN: i32 = 108;
}

impl ErrorKind {
    /// The number (Linux's) and the name that say it best without more context.
    #[must_use]
    pub fn errno(self) -> (i32, &'static str) {
        match self {
            Self::Denied | Self::NeedsKey | Self::PermissionDenied => (linux::EPERM, "EPERM"),
            Self::InvalidInput | Self::OutOfBounds | Self::Unsupported => (linux::EINVAL, "EINVAL"),
            Self::NoMemory => (linux::ENOMEM, "ENOMEM"),
            Self::NoSpace => (linux::ENOSPC, "ENOSPC"),
            // Of all kinds, only this one allows the caller to do something else instead.
            Self::NotFast => (linux::ENOTSUP, "ENOTSUP"),
            Self::ReadOnly => (linux::EROFS, "EROFS"),
            Self::Shutdown => (linux::ESHUTDOWN, "ESHUTDOWN"),
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
            | Self::TimedOut => (linux::EIO, "EIO"),
        }
    }

    /// The kind of a number that an NBD peer sent, which is Linux's.
    #[must_use]
    pub fn from_peers_errno(number: i32) -> Self {
        match number {
            linux::EOVERFLOW => Self::Limit,
            linux::ENOTSUP => Self::Unsupported,
            linux::ESHUTDOWN => Self::Shutdown,
            // The others have one number everywhere.
            number => Self::from_errno(number),
        }
    }

    /// The kind of a number that a system call failed with.
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
            // On Linux the number of EOPNOTSUPP.
            number if number == libc::ENOTSUP => Self::Unsupported,
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
            assert_eq!(ErrorKind::from_peers_errno(kind.errno().0), heard, "{kind:?}");
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn what_a_peer_sends_are_the_numbers_of_linux() {
        for number in 0..200 {
            assert_eq!(ErrorKind::from_peers_errno(number), ErrorKind::from_errno(number));
        }
    }
}
