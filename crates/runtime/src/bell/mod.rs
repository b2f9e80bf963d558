//! A bell: wakes a thread that waits with poll(2), epoll or kqueue. Linux has eventfd for it; other
//! systems have a pipe.

#[cfg(target_os = "linux")]
mod eventfd;
#[cfg(any(test, not(target_os = "linux")))]
mod pipe;

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

#[cfg(target_os = "linux")]
use eventfd::Clapper;
#[cfg(not(target_os = "linux"))]
use pipe::Clapper;

/// A descriptor that is readable from the first ring until it is silenced, for all that wait for
/// it. It may be rung and silenced by any thread, and neither waits.
#[derive(Debug)]
pub struct Bell(Clapper);

impl Bell {
    /// A silent bell.
    ///
    /// # Errors
    /// There are no more descriptors, or no memory.
    pub fn new() -> io::Result<Self> {
        Clapper::new().map(Self)
    }

    /// Makes it readable. In an epoll set that is edge-triggered each ring is an event.
    pub fn ring(&self) {
        self.0.ring();
    }

    /// Ends all rings so far. What it was rung for has to be looked for after that.
    pub fn silence(&self) {
        self.0.silence();
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;

    #[test]
    fn it_rings_until_it_is_silenced() {
        let bell = Bell::new().unwrap();
        check(&bell, || bell.ring(), || bell.silence());
        let pipe = super::pipe::Clapper::new().unwrap();
        check(&pipe, || pipe.ring(), || pipe.silence());
        // As often as anything rings: a pipe that is full rings, too, and one turn empties it.
        (0..100_000).for_each(|_| pipe.ring());
        check(&pipe, || pipe.ring(), || pipe.silence());
    }

    fn check(bell: impl AsFd, ring: impl Fn(), silence: impl Fn()) {
        let rings = || {
            let mut one = [PollFd::new(&bell, PollFlags::IN)];
            poll(&mut one, Some(&Timespec::default())).unwrap() == 1
        };
        silence();
        assert!(!rings());
        ring();
        ring();
        assert!(rings() && rings());
        silence();
        assert!(!rings());
    }
}
