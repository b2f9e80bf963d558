//! Systems that share and copy only whole files, into new ones (clonefile on macOS).

use std::os::fd::BorrowedFd;

use device::Place;
use rustix::io::Errno;

/// It cannot.
pub(super) fn clone_range(
    _: &Place,
    _: BorrowedFd<'_>,
    _offset: u64,
    _len: u64,
) -> Result<(), Errno> {
    Err(Errno::OPNOTSUPP)
}

/// It cannot.
pub(super) fn copy_range(
    _: &Place,
    _: BorrowedFd<'_>,
    _offset: u64,
    _len: usize,
) -> Result<usize, Errno> {
    Err(Errno::OPNOTSUPP)
}
