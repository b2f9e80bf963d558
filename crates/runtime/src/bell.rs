//! A bell: wakes a thread that waits with poll(2) or epoll.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};

/// A descriptor that is readable from the first ring until it is silenced, for all that wait for
/// it. It may be rung and silenced by any thread, and neither waits.
#[derive(Debug)]
pub struct Bell(OwnedFd);

impl Bell {
    /// A silent bell.
    ///
    /// # Errors
    /// There are no more descriptors, or no memory.
    pub fn new() -> io::Result<Self> {
        Ok(Self(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    /// Makes it readable. In an epoll set that is edge-triggered each ring is an event.
    pub fn ring(&self) {
        // It fails only when the counter is full, and then the bell rings anyway.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }

    /// Ends all rings so far. What it was rung for has to be looked for after that.
    pub fn silence(&self) {
        // It fails only when the bell does not ring.
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
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
        let rings = || {
            let mut one = [PollFd::new(&bell, PollFlags::IN)];
            poll(&mut one, Some(&Timespec::default())).unwrap() == 1
        };
        bell.silence();
        assert!(!rings());
        bell.ring();
        bell.ring();
        assert!(rings() && rings());
        bell.silence();
        assert!(!rings());
    }
}
