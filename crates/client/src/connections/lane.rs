//! A lane: one thread drives connections itself, one or, where that helps, several.

use std::cell::Cell;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use device::losses::LossAccount;
use device::{Completed, Interest, LaneStep, Operation, Result};

use super::Shared;
use super::connection::SharedConnection;
use super::growth::Growth;
use super::inbox::Inbox;
use super::order::{Submission, Whose};

/// A thread's path to the server. Other threads may use the same connection for an operation now
/// and then. While it has none, because too few exist, other connections work for it.
#[derive(Debug)]
pub struct ClientLane {
    home: Arc<Shared>,
    account: Option<Arc<LossAccount>>,
    inbox: Arc<Inbox>,
    legs: Vec<Leg>,
    /// How many there should be.
    wanted: usize,
    growth: Growth,
    /// Since when its thread waits.
    waits: Cell<Option<Instant>>,
    /// The number of connections added when it last looked for one.
    seen: u64,
    in_flight: usize,
}

/// A connection that the lane drives.
#[derive(Debug)]
struct Leg {
    connection: Arc<SharedConnection>,
    id: u64,
}

impl Drop for Leg {
    fn drop(&mut self) {
        self.connection.detach(self.id);
    }
}

impl ClientLane {
    /// One that has no connection yet.
    pub(crate) fn new(home: &Arc<Shared>, account: Option<Arc<LossAccount>>) -> Result<Self> {
        let inbox = Arc::new(Inbox::new()?);
        home.lanes.fetch_add(1, Ordering::AcqRel);
        let home = home.clone();
        let (legs, growth, waits) = (Vec::new(), Growth::new(Instant::now()), Cell::new(None));
        let (wanted, seen, in_flight) = (1, u64::MAX, 0);
        Ok(Self { home, account, inbox, legs, wanted, growth, waits, seen, in_flight })
    }

    /// Takes a connection without a lane. Returns whether there was one.
    pub(crate) fn find(&mut self) -> Result<bool> {
        for connection in self.home.all() {
            if let Some(id) = connection.attach(&self.inbox)? {
                self.legs.push(Leg { connection, id });
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Looks for a connection if it has too few, and there may be new ones.
    fn look(&mut self) {
        if self.legs.len() >= self.wanted {
            return;
        }
        let now = self.home.times.load(Ordering::Acquire);
        if self.seen != now {
            self.seen = now;
            // Without one, other connections work for it.
            if self.find().unwrap_or(false) {
                self.growth.came(Instant::now());
            }
        }
    }

    /// Its thread has waited; asks for one more connection if that may help.
    fn waited(&mut self) {
        let Some(since) = self.waits.take() else { return };
        // A connection that is slow to come is judged when it has come.
        if self.legs.len() != self.wanted {
            return;
        }
        let now = Instant::now();
        if self.growth.waited(now.saturating_duration_since(since), now) && self.home.want_more() {
            self.wanted += 1;
            self.seen = u64::MAX;
        }
    }
}

impl device::Lane for ClientLane {
    fn start(&mut self, ticket: u64, operation: Operation) {
        self.in_flight += 1;
        if let Operation::Read { .. } | Operation::Write { .. } = operation {
            self.growth.asked(operation.range().map_or(0, |(_, len)| len));
        }
        self.look();
        let care = self.home.keep.care(&operation, self.account.as_ref());
        let (mut order, mut operation) =
            (Submission::new(Whose::Lane { lane: 0, ticket }, care), operation);
        if self.legs.len() > 1 {
            self.legs.sort_by_key(|leg| leg.connection.under_way());
        }
        let is_flush = matches!(operation, Operation::Flush);
        for leg in self.legs.iter().filter(|leg| !is_flush || leg.connection.is_trusted()) {
            order.whose = Whose::Lane { lane: leg.id, ticket };
            match leg.connection.start(order, operation) {
                None => return,
                Some(back) => (order, operation) = back,
            }
        }
        order.whose = Whose::Inbox { inbox: self.inbox.clone(), ticket };
        self.home.order(order, operation);
    }

    fn turn(&mut self, out: &mut Vec<Completed>) -> LaneStep {
        self.waited();
        let before = out.len();
        let mut moved = false;
        let mut left = false;
        for leg in &self.legs {
            moved |= leg.connection.turn(leg.id, out);
            left |= leg.connection.under_way() == 0 && leg.connection.is_over();
        }
        if left {
            self.legs.retain(|leg| leg.connection.under_way() > 0 || !leg.connection.is_over());
            self.seen = u64::MAX;
        }
        self.inbox.take(out);
        let ended = out.len() - before;
        self.in_flight -= ended;
        if moved || ended > 0 { LaneStep::Progress } else { LaneStep::Idle }
    }

    fn waits_on(&self) -> Option<(BorrowedFd<'_>, Interest)> {
        if self.in_flight == 0 {
            return None;
        }
        self.legs.iter().for_each(|leg| leg.connection.before_wait());
        self.waits.set(self.waits.get().or_else(|| Some(Instant::now())));
        Some((self.inbox.ready(), Interest { read: true, write: false }))
    }

    fn in_flight(&self) -> usize {
        self.in_flight
    }
}

impl Drop for ClientLane {
    fn drop(&mut self) {
        self.legs.clear();
        self.home.lanes.fetch_sub(1, Ordering::AcqRel);
    }
}
