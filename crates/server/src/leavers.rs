//! Clients that have hung up while what they asked for is not done.
//!
//! A client that lost its connection asks again over a new one, for what was not answered, and then
//! goes on. A write of the old connection that is still under way, or not yet read from its
//! socket, must not come after those. So a client is let in to an export that can be written only when the connections
//! whose clients have hung up are done with it. Not for ever: a disk that does not answer, or a
//! client that hung up only one way and does not read, must not keep everybody out.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::link::Link;

/// How long a client waits for others that leave.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// Who is served, by export.
#[derive(Debug, Default)]
pub(crate) struct Leavers(Mutex<HashMap<String, Vec<Weak<Link>>>>);

impl Leavers {
    /// A client of an export that can be written.
    pub(crate) fn enter(&self, export: &str, link: &Arc<Link>) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let links = all.entry(export.to_owned()).or_default();
        links.retain(|link| link.strong_count() > 0);
        links.push(Arc::downgrade(link));
    }

    /// Whether somebody who has hung up has not been done with.
    pub(crate) fn is_anyone_leaving(&self, export: &str) -> bool {
        let links: Vec<Arc<Link>> = {
            let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let Some(links) = all.get(export) else { return false };
            links.iter().filter_map(Weak::upgrade).filter(|link| !link.is_settled()).collect()
        };
        if links.iter().any(|link| link.is_broken()) {
            return true;
        }
        let mut polled: Vec<PollFd<'_>> = links
            .iter()
            .map(|link| PollFd::from_borrowed_fd(link.socket(), PollFlags::RDHUP))
            .collect();
        let gone = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut polled, Some(&now)).is_ok_and(|n| n > 0)
            && polled.iter().any(|p| p.revents().intersects(gone))
    }
}
