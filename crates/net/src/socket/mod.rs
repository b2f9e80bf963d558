//! Making stream sockets that no started program inherits and that send no signal, and the calls
//! that Linux alone has for them: in one file what Linux does, in the other what takes more calls
//! elsewhere.

#[cfg(target_os = "linux")]
mod linux;
#[cfg(not(target_os = "linux"))]
mod other;

#[cfg(target_os = "linux")]
pub(crate) use linux::*;
#[cfg(not(target_os = "linux"))]
pub(crate) use other::*;
