//! What making keys asks the system: how much memory there is.

#[cfg(target_os = "linux")]
pub(super) use linux::memory;
#[cfg(not(target_os = "linux"))]
pub(super) use other::memory;

#[cfg(target_os = "linux")]
mod linux {
    /// Bytes of memory that the machine has.
    pub(in crate::luks) fn memory() -> u64 {
        let system = rustix::system::sysinfo();
        system.totalram.saturating_mul(system.mem_unit.into())
    }
}

#[cfg(not(target_os = "linux"))]
mod other {
    /// Not known: as much as any limit.
    pub(in crate::luks) fn memory() -> u64 {
        u64::MAX
    }
}
