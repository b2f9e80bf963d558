//! What making keys asks the system: random bytes, and how much memory there is.

#[cfg(target_os = "linux")]
pub(super) use linux::{memory, random};
#[cfg(not(target_os = "linux"))]
pub(super) use other::{memory, random};

#[cfg(target_os = "linux")]
mod linux {
    use rustix::io::Result;
    use rustix::rand::{GetRandomFlags, getrandom};

    /// Random bytes into the beginning of `bytes` (not empty); tells how many.
    pub(in crate::luks) fn random(bytes: &mut [u8]) -> Result<usize> {
        getrandom(bytes, GetRandomFlags::empty())
    }

    /// Bytes of memory that the machine has.
    pub(in crate::luks) fn memory() -> u64 {
        let system = rustix::system::sysinfo();
        system.totalram.saturating_mul(system.mem_unit.into())
    }
}

#[cfg(not(target_os = "linux"))]
mod other {
    use rustix::fs::{CWD, Mode, OFlags, openat};
    use rustix::io::{Errno, Result, read};

    /// Random bytes into the beginning of `bytes` (not empty); tells how many.
    pub(in crate::luks) fn random(bytes: &mut [u8]) -> Result<usize> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOCTTY;
        match read(openat(CWD, "/dev/urandom", flags, Mode::empty())?, bytes)? {
            0 => Err(Errno::IO),
            n => Ok(n),
        }
    }

    /// Not known: as much as any limit.
    pub(in crate::luks) fn memory() -> u64 {
        u64::MAX
    }
}
