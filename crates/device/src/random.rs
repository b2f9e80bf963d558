//! Random bytes of the system, good enough for keys.

#[cfg(target_os = "linux")]
pub use linux::random_bytes;
#[cfg(not(target_os = "linux"))]
pub use other::random_bytes;

#[cfg(target_os = "linux")]
mod linux {
    use rustix::io::Result;
    use rustix::rand::{GetRandomFlags, getrandom};

    /// Random bytes into the beginning of `bytes` (not empty); tells how many.
    ///
    /// # Errors
    /// The system has none, or was interrupted.
    pub fn random_bytes(bytes: &mut [u8]) -> Result<usize> {
        getrandom(bytes, GetRandomFlags::empty())
    }
}

#[cfg(not(target_os = "linux"))]
mod other {
    use rustix::fs::{CWD, Mode, OFlags, openat};
    use rustix::io::{Errno, Result, read};

    /// Random bytes into the beginning of `bytes` (not empty); tells how many.
    ///
    /// # Errors
    /// The system has none, or was interrupted.
    pub fn random_bytes(bytes: &mut [u8]) -> Result<usize> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOCTTY;
        match read(openat(CWD, "/dev/urandom", flags, Mode::empty())?, bytes)? {
            0 => Err(Errno::IO),
            n => Ok(n),
        }
    }
}
