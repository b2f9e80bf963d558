//! A set of descriptors that are waited for together: epoll on Linux, kqueue elsewhere. Either can
//! itself be polled, and reports a descriptor for as long as it is ready.

#[cfg(target_os = "linux")]
mod epoll;
#[cfg(not(target_os = "linux"))]
mod kqueue;

#[cfg(target_os = "linux")]
pub(crate) use epoll::{Ready, ReadySet};
#[cfg(not(target_os = "linux"))]
pub(crate) use kqueue::{Ready, ReadySet};

use device::Interest;

/// To receive.
pub(crate) const RECEIVE: Interest = Interest { read: true, write: false };
/// To receive and to send.
pub(crate) const BOTH: Interest = Interest { read: true, write: true };
