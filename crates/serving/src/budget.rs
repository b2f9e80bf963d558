//! Memory that clients can make the server hold, counted for each of them and for all.
//!
//! One budget counts whatever grows with what clients send and do not read: payloads as they
//! arrive, requests in flight, replies that are queued, partial requests and options that wait. One
//! address (or one user of a Unix socket) has at most half of it. Where there is no room, a
//! connection that holds nothing may still have one small request, so that none is shut out; what
//! is larger waits. A payload of which part has arrived holds memory until all is there, and
//! several of them could wait for each other for ever: so one at a time, the *elder*, goes on
//! beyond the limit. So the most that is held is the limit, one request of the longest kind, and a
//! small request and a small part of a reply for each connection.
//!
//! Counting never waits and never fails; the caller checks for room before.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use device::Peer;
use runtime::Mutex;

/// A request that was refused room this long ago still counts as waiting.
const RECENT: Duration = Duration::from_secs(2);

/// The server's count.
#[derive(Debug)]
pub struct MemoryBudget {
    limit: AtomicU64,
    used: AtomicU64,
    peers: Mutex<HashMap<Origin, Weak<Part>>>,
    elder: AtomicBool,
    begun: Instant,
    /// When a connection last waited for room, and when because there was none in all: in
    /// milliseconds since `begun`; 0 for never.
    waited: AtomicU64,
    lacked: AtomicU64,
}

/// What one address or user has of it.
#[derive(Debug, Default)]
struct Part {
    used: AtomicU64,
    /// Its connections, including closed ones whose requests are still running.
    accounts: AtomicUsize,
    /// When a connection last waited because there was no room in this part.
    lacked: AtomicU64,
}

/// What identifies a client, as far as sharing goes.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
enum Origin {
    /// IPv6 addresses count by their network, which is what one host has.
    Ip(IpAddr),
    User(u32),
    Machine(u32),
    Other,
}

impl Origin {
    fn of(peer: &Peer) -> Self {
        match peer {
            Peer::Ip(address) => Self::Ip(match address.ip() {
                IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() & !u128::from(u64::MAX)).into(),
                ip @ IpAddr::V4(_) => ip,
            }),
            Peer::Unix { credentials } => credentials.map_or(Self::Other, |c| Self::User(c.uid)),
            Peer::Vsock { cid, .. } => Self::Machine(*cid),
            Peer::Other => Self::Other,
        }
    }
}

impl MemoryBudget {
    /// Of this many bytes.
    #[must_use]
    pub fn new(limit: u64) -> Self {
        Self {
            limit: AtomicU64::new(limit),
            used: AtomicU64::new(0),
            peers: Mutex::default(),
            elder: AtomicBool::new(false),
            begun: Instant::now(),
            waited: AtomicU64::new(0),
            lacked: AtomicU64::new(0),
        }
    }

    /// The account of a client.
    pub fn account(self: &Arc<Self>, peer: &Peer) -> Arc<MemoryAccount> {
        let mut peers = self.peers.lock();
        let origin = Origin::of(peer);
        let part = peers.get(&origin).and_then(Weak::upgrade).unwrap_or_default();
        peers.insert(origin, Arc::downgrade(&part));
        // Removes the entries of clients that left, at a cost that newcomers share.
        if peers.len() > 16 && peers.len().is_power_of_two() {
            peers.retain(|_, part| part.strong_count() > 0);
        }
        part.accounts.fetch_add(1, Ordering::Relaxed);
        Arc::new(MemoryAccount { budget: self.clone(), part, is_elder: AtomicBool::new(false) })
    }

    /// Bytes in use, and how many may be.
    pub fn used_of(&self) -> (u64, u64) {
        (self.used.load(Ordering::Relaxed), self.limit())
    }

    /// Bytes that may be in use.
    fn limit(&self) -> u64 {
        self.limit.load(Ordering::Relaxed)
    }

    /// Sets the limit. What is in use beyond it stays so until it is given back.
    pub fn set_limit(&self, limit: u64) {
        self.limit.store(limit, Ordering::Relaxed);
    }

    /// Whether a time was just now.
    fn is_recent(&self, time: &AtomicU64) -> bool {
        let time = time.load(Ordering::Relaxed);
        time > 0 && self.now().saturating_sub(time) < millis(RECENT)
    }

    /// An eighth of the limit, in bytes: worth closing a connection for.
    pub fn slice(&self) -> u64 {
        self.limit() / 8
    }

    fn now(&self) -> u64 {
        millis(self.begun.elapsed()).max(1)
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn fits(bytes: u64, used: u64, limit: u64) -> bool {
    bytes <= limit.saturating_sub(used) || used <= limit / 4 && bytes > limit / 4
}

/// A connection's account in the budget.
#[derive(Debug)]
pub struct MemoryAccount {
    budget: Arc<MemoryBudget>,
    part: Arc<Part>,
    is_elder: AtomicBool,
}

impl MemoryAccount {
    /// How many connections its address or user has, this one included.
    pub fn connections(&self) -> usize {
        self.part.accounts.load(Ordering::Relaxed)
    }

    /// Whether `bytes` more may be taken. A request that is large compared to the limit may exceed
    /// it where little is in use: otherwise it could never be served.
    pub fn has_room(&self, bytes: u64) -> bool {
        self.has_room_beside(bytes, 0)
    }

    /// The same, where `own` bytes of those in use belong to the request itself.
    pub fn has_room_beside(&self, bytes: u64, own: u64) -> bool {
        self.has_room_in_all(bytes, own) && self.has_room_in_part(bytes, own)
    }

    fn has_room_in_all(&self, bytes: u64, own: u64) -> bool {
        let used = self.budget.used.load(Ordering::Relaxed);
        fits(bytes, used.saturating_sub(own), self.budget.limit())
    }

    fn has_room_in_part(&self, bytes: u64, own: u64) -> bool {
        let used = self.part.used.load(Ordering::Relaxed);
        fits(bytes, used.saturating_sub(own), self.budget.limit() / 2)
    }

    /// Notes that something waits for room for `bytes`.
    pub fn wait(&self, bytes: u64) {
        let now = self.budget.now();
        self.budget.waited.store(now, Ordering::Relaxed);
        if !self.has_room_in_all(bytes, 0) {
            self.budget.lacked.store(now, Ordering::Relaxed);
        } else if !self.has_room_in_part(bytes, 0) {
            self.part.lacked.store(now, Ordering::Relaxed);
        }
    }

    /// Whether a connection waits, or did a moment ago, for memory that is held here. A client that
    /// has used up the part of one address waits for that address only. For memory of the elder,
    /// all may wait.
    pub fn is_wanted(&self) -> bool {
        let Self { budget, part, .. } = self;
        budget.is_recent(&budget.lacked)
            || budget.is_recent(&part.lacked)
            || self.is_elder() && budget.is_recent(&budget.waited)
    }

    /// Whether this one holder may exceed the limit.
    pub fn is_elder(&self) -> bool {
        self.is_elder.load(Ordering::Relaxed)
    }

    /// Whether a partly received payload may go on without room. The one that may remains the only
    /// one until [`MemoryAccount::is_complete`].
    pub fn may_exceed(&self) -> bool {
        if !self.is_elder.load(Ordering::Relaxed) && !self.budget.elder.swap(true, Ordering::AcqRel)
        {
            self.is_elder.store(true, Ordering::Relaxed);
        }
        self.is_elder()
    }

    /// Its payload is there, or will never be.
    pub fn is_complete(&self) {
        if self.is_elder.swap(false, Ordering::Relaxed) {
            self.budget.elder.store(false, Ordering::Release);
        }
    }

    /// Counts bytes that are given back by [`MemoryAccount::put`].
    pub fn take(&self, bytes: u64) {
        self.budget.used.fetch_add(bytes, Ordering::Relaxed);
        self.part.used.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Gives back what was taken.
    pub fn put(&self, bytes: u64) {
        let of_all = self.budget.used.fetch_sub(bytes, Ordering::Relaxed);
        let of_part = self.part.used.fetch_sub(bytes, Ordering::Relaxed);
        debug_assert!(of_all >= bytes && of_part >= bytes, "no more is put back than was taken");
    }
}

impl Drop for MemoryAccount {
    fn drop(&mut self) {
        self.is_complete();
        self.part.accounts.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Bytes taken from the budget; given back when dropped.
#[derive(Debug)]
pub struct Share {
    account: Arc<MemoryAccount>,
    bytes: u64,
}

impl Share {
    /// Takes them, whether there is room or not.
    #[must_use]
    pub fn take(account: &Arc<MemoryAccount>, bytes: u64) -> Self {
        account.take(bytes);
        Self { account: account.clone(), bytes }
    }

    /// How many they are.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Counts as `bytes` from now on.
    pub fn resize(&mut self, bytes: u64) {
        if bytes == self.bytes {
            return;
        }
        self.account.take(bytes);
        self.account.put(self.bytes);
        self.bytes = bytes;
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.account.put(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(uid: u32) -> Peer {
        Peer::Unix { credentials: Some(device::Credentials { pid: 1, uid, gid: 0 }) }
    }

    #[test]
    fn one_user_has_half_of_the_budget_and_leaves_the_rest_to_others() {
        let budget = Arc::new(MemoryBudget::new(1000));
        let (a, again, b) =
            (budget.account(&user(1)), budget.account(&user(1)), budget.account(&user(2)));
        let held = Share::take(&a, 450);
        assert!(a.has_room(50) && !a.has_room(51));
        assert!(!again.has_room(51) && b.has_room(500));
        drop(held);
        assert!(again.has_room(500));
    }

    #[test]
    fn a_limit_that_is_lowered_takes_nothing_back_and_lets_nothing_more_in() {
        let budget = Arc::new(MemoryBudget::new(1000));
        let account = budget.account(&user(1));
        let held = Share::take(&account, 400);
        budget.set_limit(200);
        assert!(!account.has_room(1));
        drop(held);
        assert!(account.has_room(100) && budget.used_of() == (0, 200));
    }

    #[test]
    fn a_request_larger_than_the_limit_is_had_when_little_is_in_use() {
        let budget = Arc::new(MemoryBudget::new(1000));
        let account = budget.account(&user(1));
        assert!(account.has_room(1 << 20));
        let _held = Share::take(&account, 300);
        assert!(!account.has_room(1 << 20));
    }

    #[test]
    fn one_payload_at_a_time_goes_beyond_the_limit() {
        let budget = Arc::new(MemoryBudget::new(1000));
        let (a, b) = (budget.account(&user(1)), budget.account(&user(2)));
        assert!(a.may_exceed() && a.may_exceed() && !b.may_exceed());
        a.is_complete();
        assert!(b.may_exceed() && !a.may_exceed());
        drop(b);
        assert!(a.may_exceed());
    }

    #[test]
    fn a_client_that_used_up_its_share_hurries_itself_and_one_that_finds_nothing_left_hurries_all()
    {
        let budget = Arc::new(MemoryBudget::new(1000));
        let (a, b) = (budget.account(&user(1)), budget.account(&user(2)));
        let _half = Share::take(&a, 500);
        assert!(!a.is_wanted());
        a.wait(1);
        assert!(a.is_wanted() && budget.account(&user(1)).is_wanted() && !b.is_wanted());
        let c = budget.account(&user(3));
        let _rest = Share::take(&b, 500);
        c.wait(1);
        assert!(a.is_wanted() && b.is_wanted());
    }

    #[test]
    fn a_client_that_goes_on_beyond_the_limit_is_hurried_by_all_that_wait() {
        let budget = Arc::new(MemoryBudget::new(1000));
        let (a, b) = (budget.account(&user(1)), budget.account(&user(2)));
        assert!(b.may_exceed());
        let _half = Share::take(&a, 500);
        a.wait(1);
        assert!(b.is_wanted());
        b.is_complete();
        assert!(!b.is_wanted());
    }

    #[test]
    fn a_share_that_is_resized_gives_back_what_it_took() {
        let budget = Arc::new(MemoryBudget::new(1000));
        let account = budget.account(&user(1));
        let mut share = Share::take(&account, 10);
        share.resize(400);
        assert_eq!(budget.used.load(Ordering::Relaxed), 400);
        drop(share);
        assert_eq!(budget.used.load(Ordering::Relaxed), 0);
    }
}
