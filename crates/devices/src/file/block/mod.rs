//! Facts of block devices, and the requests that only they take.

use device::{BlockSizes, Granules};

#[cfg(target_os = "linux")]
mod linux;
#[cfg(not(target_os = "linux"))]
mod other;

#[cfg(target_os = "linux")]
pub(crate) use linux::*;
#[cfg(not(target_os = "linux"))]
pub(crate) use other::*;

/// The facts of a block device.
#[derive(Clone, Debug)]
pub(crate) struct Geometry {
    /// Zeroing and discarding are done in multiples of this many bytes.
    pub(crate) sector: u64,
    pub(crate) blocks: BlockSizes,
    pub(crate) granules: Granules,
    /// As the kernel shows it.
    pub(crate) serial: Option<String>,
    pub(crate) rotational: bool,
    /// See `device::Info::room`.
    pub(crate) room: u64,
}
