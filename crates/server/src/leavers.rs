//! Clients that have hung up while their requests are not done.
//!
//! A client that lost its connection sends unanswered requests again over a new one, and then goes
//! on. A write of the old connection that is still in flight, or not yet read from its socket, must
//! not come after those. So a client is admitted to a writable export only when the connections
//! whose clients have hung up are done with it. That wait is bounded: a disk that does not answer,
//! or a client that shut down only one direction and does not read, must not keep all others out.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use runtime::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::link::Link;

/// How long a client waits for others to leave.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// How long the result that a client is leaving is reused: all that wait ask, and each check looks
/// at all that are served. The result that none is leaving is never reused: it may be older than
/// the hang-up.
const MOMENT: Duration = Duration::from_millis(5);

/// The clients that are served, by export.
#[derive(Debug, Default)]
pub(crate) struct Leavers(Mutex<HashMap<String, Clients>>);

#[derive(Debug, Default)]
struct Clients {
    links: Vec<Weak<Link>>,
    /// When a client was last seen leaving.
    seen: Option<Instant>,
}

impl Leavers {
    /// A client of an export that can be written.
    pub(crate) fn enter(&self, export: &str, link: &Arc<Link>) {
        let mut all = self.0.lock();
        let links = &mut all.entry(export.to_owned()).or_default().links;
        links.retain(|link| link.strong_count() > 0);
        links.push(Arc::downgrade(link));
    }

    /// Whether requests of a client that has hung up are still running.
    pub(crate) fn is_anyone_leaving(&self, export: &str) -> bool {
        let links: Vec<Arc<Link>> = {
            let all = self.0.lock();
            let Some(Clients { links, seen }) = all.get(export) else { return false };
            if seen.is_some_and(|seen| seen.elapsed() < MOMENT) {
                return true;
            }
            links.iter().filter_map(Weak::upgrade).filter(|link| !link.is_settled()).collect()
        };
        let leaving = is_any_leaving(&links);
        if leaving && let Some(clients) = self.0.lock().get_mut(export) {
            clients.seen = Some(Instant::now());
        }
        leaving
    }
}

/// Whether the client of one of these connections has hung up.
fn is_any_leaving(links: &[Arc<Link>]) -> bool {
    if links.iter().any(|link| link.is_broken()) {
        return true;
    }
    let mut polled: Vec<PollFd<'_>> =
        links.iter().map(|link| PollFd::new(link.stream(), PollFlags::RDHUP)).collect();
    let gone = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut polled, Some(&now)).is_ok_and(|n| n > 0)
        && polled.iter().any(|p| p.revents().intersects(gone))
}
