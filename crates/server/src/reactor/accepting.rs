//! New connections: accepted a few at a time, and left waiting when descriptors run out.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use net::Listener;
use rustix::event::epoll;
use rustix::io::Errno;

use super::Reactor;
use serving::Severity;

/// New connections accepted in one turn; then the existing ones have theirs.
const ACCEPTS: usize = 64;
/// How often it is logged that there are no descriptors left.
const FULL: Duration = Duration::from_secs(60);

impl Reactor {
    fn listener(&self, token: u64) -> Option<&Listener> {
        self.listeners.get(usize::try_from(token).ok()?.checked_sub(1)?)
    }

    pub(super) fn accept(&mut self, token: u64) {
        let Some(listener) = self.listener(token) else { return };
        for _ in 0..ACCEPTS {
            match listener.accept() {
                Ok(Some(stream)) => {
                    self.shared.admit(stream);
                }
                Ok(None) => return,
                Err(e) => return self.park(token, e),
            }
        }
    }

    /// Out of descriptors, most likely: pauses the listener until a connection has ended, or for a
    /// tick. Clients that wait to be accepted go on waiting.
    fn park(&mut self, token: u64, e: Errno) {
        let Some(listener) = self.listener(token) else { return };
        let is_news = self.told.is_none_or(|told| told.elapsed() >= FULL);
        if is_news {
            let what = format_args!("{}: no more clients for now: {e}", listener.place());
            self.shared.common.hub.log.event(Severity::Error, None, None, what);
        }
        let _ = epoll::delete(self.bell().epoll(), listener);
        if is_news {
            self.told = Some(Instant::now());
        }
        self.parked.push(token);
        self.shared.full.store(true, Ordering::SeqCst);
    }

    pub(super) fn unpark(&mut self) {
        if self.parked.is_empty() {
            return;
        }
        self.shared.full.store(false, Ordering::SeqCst);
        for token in std::mem::take(&mut self.parked) {
            let Some(listener) = self.listener(token) else { continue };
            let data = epoll::EventData::new_u64(token);
            if epoll::add(self.bell().epoll(), listener, data, epoll::EventFlags::IN).is_err() {
                self.parked.push(token);
            }
        }
    }
}
