//! Descriptors that are received, which no program gets that is started.

#[cfg(target_os = "linux")]
pub(super) use linux::{FLAGS, keep_to_us};
#[cfg(not(target_os = "linux"))]
pub(super) use other::{FLAGS, keep_to_us};

#[cfg(target_os = "linux")]
mod linux {
    use std::os::fd::OwnedFd;

    use rustix::net::RecvFlags;

    /// Nothing waits, and no descriptor outlives an exec.
    pub(in crate::control) const FLAGS: RecvFlags =
        RecvFlags::CMSG_CLOEXEC.union(RecvFlags::DONTWAIT);

    /// It is so already.
    #[inline]
    #[expect(clippy::unnecessary_wraps, reason = "on other systems it may fail")]
    pub(in crate::control) fn keep_to_us(_: &OwnedFd) -> rustix::io::Result<()> {
        Ok(())
    }
}

#[cfg(not(target_os = "linux"))]
mod other {
    use std::os::fd::OwnedFd;

    use rustix::io::{FdFlags, fcntl_setfd};
    use rustix::net::RecvFlags;

    /// Nothing waits.
    pub(in crate::control) const FLAGS: RecvFlags = RecvFlags::DONTWAIT;

    /// Keeps it from programs that are started from now on; one that another thread starts just
    /// then gets it.
    pub(in crate::control) fn keep_to_us(file: &OwnedFd) -> rustix::io::Result<()> {
        fcntl_setfd(file, FdFlags::CLOEXEC)
    }
}
