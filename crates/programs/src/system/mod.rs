//! What files, their names and processes are called by the system: Linux in one file, the rest
//! (macOS is the one that is checked) in the other. Both have the same items. What a system has no
//! counterpart for is an error there.

#[cfg(target_os = "linux")]
mod linux;
#[cfg(not(target_os = "linux"))]
mod other;

#[cfg(target_os = "linux")]
pub(crate) use linux::*;
#[cfg(not(target_os = "linux"))]
pub(crate) use other::*;
