//! What a plugin's host needs of the C library and of the system: Linux in one file, the rest
//! (macOS is the one that is checked) in the other. Both have the same items.

#[cfg(target_os = "linux")]
mod linux;
#[cfg(not(target_os = "linux"))]
mod other;

#[cfg(target_os = "linux")]
pub(crate) use linux::*;
#[cfg(not(target_os = "linux"))]
pub(crate) use other::*;
