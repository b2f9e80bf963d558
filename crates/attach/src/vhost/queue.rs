//! A queue of a guest (virtio 1.2, 2.7 "Split Virtqueues"): requests that it makes available, and
//! those that are done.
//!
//! Nothing in a ring is believed: a chain of descriptors has a length at most, what lies outside of
//! the guest's memory is not touched, and an index that jumps ends the queue. What is in flight is
//! written to a region that outlives this process where the front end gives one ("Inflight I/O
//! tracking"), so that the next process does what this one was stopped at.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::thread;
use std::time::{Duration, Instant};

use device::{Error, Result};
use runtime::{Condvar, Mutex};

use super::memory::{GuestBytes, GuestMemory};
use super::protocol;
use crate::fields::Fields;

/// Descriptors of a request, at most, where the queue itself is shorter.
const CHAIN: usize = 256;
/// Bytes of requests that a guest is told of together, at most, and what each counts at least.
const GATHERED: u64 = 64 << 10;
const FLOOR: u64 = 4 << 10;
/// It is told of a part of what is in flight, at least: it has enough to wait for.
const FEW: u16 = 2;
/// Bytes of a descriptor.
const DESCRIPTOR: usize = 16;
const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;
/// `avail->flags`: the guest wants no notification.
const NO_INTERRUPT: u16 = 1;
/// Bytes before the rings in `struct vring_avail` and `vring_used`: flags and index.
const RING: usize = 4;
const INDEX: usize = 2;

/// The flight of a request, in the region of its queue: `struct DescStateSplit`.
const STATE: usize = 16;
/// Before those: `features`, `version`, `desc_num`, `last_batch_head` and `used_idx`.
const STATES: usize = 16;
const VERSION_AT: usize = 8;
const NUMBER_AT: usize = 10;
const LAST_HEAD_AT: usize = 12;
const USED_AT: usize = 14;

/// Bytes that the region of a queue of `size` descriptors takes.
pub(super) fn region_len(size: u16) -> usize {
    (STATES + usize::from(size) * STATE).next_multiple_of(64)
}

/// Where the rings of a queue lie, in addresses of the front end.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RingAddresses {
    pub(super) descriptors: u64,
    pub(super) used: u64,
    pub(super) available: u64,
}

/// A part of a request in the guest's memory.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct GuestRange {
    pub(super) address: u64,
    pub(super) len: u32,
}

/// A request: what we read, and what we write.
#[derive(Debug, Default)]
pub(super) struct DescriptorChain {
    pub(super) head: u16,
    pub(super) readable: Vec<GuestRange>,
    pub(super) writable: Vec<GuestRange>,
}

/// What a queue is made of.
#[derive(Clone, Debug, Default)]
pub(super) struct QueueParts {
    pub(super) size: u16,
    pub(super) rings: RingAddresses,
    /// Where the ring of available requests goes on.
    pub(super) base: u16,
    /// Both sides say by an index when they want to be notified (`VIRTIO_F_RING_EVENT_IDX`).
    pub(super) has_events: bool,
    pub(super) memory: Arc<GuestMemory>,
    pub(super) inflight: Option<GuestBytes>,
    pub(super) call: Option<Arc<OwnedFd>>,
}

/// A queue that runs.
#[derive(Debug)]
pub(super) struct Virtqueue {
    pub(super) parts: QueueParts,
    descriptors: GuestBytes,
    available: GuestBytes,
    used: GuestBytes,
    call: Mutex<Option<Arc<OwnedFd>>>,
    state: Mutex<QueueState>,
    less: Condvar,
}

#[derive(Debug, Default)]
struct QueueState {
    /// The next entry of the ring of available requests.
    next: u16,
    /// The next entry of the ring of used ones.
    used: u16,
    /// Requests in flight.
    pending: u16,
    /// Somebody waits for their end.
    is_awaited: bool,
    /// What the guest has been told of the ring of used requests.
    told: u16,
    /// Bytes of requests that it has not been told of.
    untold: u64,
    /// The thread of the queue is busy, and tells the guest before it rests.
    gathers: bool,
    /// Numbers requests, so that they are done again in their order.
    counter: u64,
    /// Heads that the process before this one was stopped at.
    again: VecDeque<u16>,
}

fn broken(what: &str) -> Error {
    protocol(format!("the guest's queue: {what}"))
}

impl Virtqueue {
    pub(super) fn new(mut parts: QueueParts) -> Result<Self> {
        let n = usize::from(parts.size);
        let event = if parts.has_events { 2 } else { 0 };
        let ring =
            |address, len| parts.memory.ring(address, len).ok_or_else(|| broken("lies nowhere"));
        let descriptors = ring(parts.rings.descriptors, n * DESCRIPTOR)?;
        let available = ring(parts.rings.available, RING + n * 2 + event)?;
        let used = ring(parts.rings.used, RING + n * 8 + event)?;
        let indexes = available.load(INDEX).and_then(|_| used.load(INDEX));
        let index = indexes.ok_or_else(|| broken("is not aligned"))?;
        let mut state =
            QueueState { next: parts.base, used: index, told: index, ..QueueState::default() };
        if let Some(region) = &parts.inflight {
            let resumed = resume(region, parts.size, &mut state);
            resumed.ok_or_else(|| broken("its region is too short"))?;
        }
        let (call, state) = (Mutex::new(parts.call.take()), Mutex::new(state));
        Ok(Self { parts, descriptors, available, used, call, state, less: Condvar::new() })
    }

    /// The next request, which is in flight from now on until [`complete`](Self::complete).
    ///
    /// # Errors
    /// The ring makes no sense: the queue is of no use any more.
    pub(super) fn pop(&self) -> Result<Option<DescriptorChain>> {
        let mut state = self.state.lock();
        let again = state.again.pop_front();
        let Some(head) = again.map_or_else(|| self.next(&mut state), |head| Ok(Some(head)))? else {
            return Ok(None);
        };
        state.pending += 1;
        drop(state);
        let chain = self.chain(head);
        if chain.is_err() {
            self.landed(&mut self.state.lock());
        }
        chain.map(Some)
    }

    /// The head of the next request in the ring, which has begun.
    fn next(&self, state: &mut QueueState) -> Result<Option<u16>> {
        let size = self.parts.size;
        let index = self.available.load(INDEX).ok_or_else(|| broken("has no index"))?;
        match index.wrapping_sub(state.next) {
            0 => return Ok(None),
            waiting if waiting > size => return Err(broken("its index jumps")),
            _ if state.pending >= size => {
                return Err(broken("more requests are in flight than there are descriptors"));
            }
            _ => {}
        }
        let head = self.available.load(RING + usize::from(state.next % size) * 2);
        let head = head.filter(|head| *head < size);
        let head = head.ok_or_else(|| broken("a request has no descriptor"))?;
        if let Some(region) = &self.parts.inflight {
            region.write(state_of(head) + 8, &state.counter.to_ne_bytes());
            region.store(state_of(head), 1);
        }
        state.counter = state.counter.wrapping_add(1);
        state.next = state.next.wrapping_add(1);
        Ok(Some(head))
    }

    /// A request is not in flight any more.
    fn landed(&self, state: &mut QueueState) {
        state.pending -= 1;
        if state.pending == 0 && state.is_awaited {
            // A system call.
            self.less.notify_all();
        }
    }

    /// The thread of the queue is busy from now on.
    pub(super) fn gather(&self) {
        self.state.lock().gathers = true;
    }

    /// The thread of the queue is about to rest: tells the guest what it does not know, and asks to
    /// be notified of the next request; whether there is one already.
    pub(super) fn rest(&self) -> bool {
        let mut state = self.state.lock();
        state.gathers = false;
        self.tell(&mut state);
        if !state.again.is_empty() {
            return true;
        }
        if self.parts.has_events {
            self.used.store(RING + usize::from(self.parts.size) * 8, state.next);
            fence(Ordering::SeqCst);
        }
        self.is_beyond(state.next)
    }

    /// Whether there is another request.
    pub(super) fn has_more(&self) -> bool {
        let next = self.state.lock().next;
        self.is_beyond(next)
    }

    /// Whether the guest has made more available than is before `next`.
    fn is_beyond(&self, next: u16) -> bool {
        self.available.load(INDEX).is_some_and(|index| index != next)
    }

    /// The thread of the queue has nothing to do: tells the guest what it does not know, and looks
    /// for so long whether there is another request, of which it need not be notified; whether
    /// there is one. It gives the processor away each time: the guest may need it.
    pub(super) fn look_out(&self, patience: Duration) -> bool {
        let mut state = self.state.lock();
        state.gathers = false;
        self.tell(&mut state);
        // Only this thread takes requests.
        let next = state.next;
        drop(state);
        let begun = Instant::now();
        while begun.elapsed() < patience {
            if self.is_beyond(next) {
                return true;
            }
            thread::yield_now();
        }
        false
    }

    /// The request with this head, of so many bytes, is done; `written` bytes of it are new in the
    /// guest's memory. The guest is told at once, or of several together.
    pub(super) fn complete(&self, head: u16, bytes: u64, written: u32) {
        let mut state = self.state.lock();
        let region = self.parts.inflight.as_ref();
        if let Some(region) = region {
            // It is about to be told to the guest.
            region.store(LAST_HEAD_AT, head);
        }
        let at = RING + usize::from(state.used % self.parts.size) * 8;
        let entry = [u32::from(head).to_le_bytes(), written.to_le_bytes()];
        self.used.write(at, entry.as_flattened());
        state.used = state.used.wrapping_add(1);
        self.used.store(INDEX, state.used);
        if let Some(region) = region {
            region.store(state_of(head), 0);
            region.store(USED_AT, state.used);
        }
        state.untold += bytes.max(FLOOR);
        self.landed(&mut state);
        let done = state.used.wrapping_sub(state.told);
        let is_much = state.untold >= GATHERED && done >= state.pending / FEW;
        if !state.gathers || is_much {
            self.tell(&mut state);
        }
    }

    fn notify(&self) {
        if let Some(call) = &*self.call.lock() {
            // It does not wait; a counter that is full is a notification, too.
            let _ = rustix::io::write(call, &1_u64.to_ne_bytes());
        }
    }

    /// Notifies the guest by another descriptor from now on, and once: of what the last one was
    /// too late for.
    pub(super) fn call_by(&self, call: Option<Arc<OwnedFd>>) {
        *self.call.lock() = call;
        self.notify();
    }

    /// Notifies the guest of what it has not been told of, if it wants to hear of that.
    fn tell(&self, state: &mut QueueState) {
        let (before, now) = (state.told, state.used);
        (state.told, state.untold) = (now, 0);
        if before == now {
            return;
        }
        fence(Ordering::SeqCst);
        let wants = match self.parts.has_events {
            true => {
                let event = self.available.load(RING + usize::from(self.parts.size) * 2);
                // `vring_need_event`: it is one of the entries that are new.
                let since = |event: u16| now.wrapping_sub(event).wrapping_sub(1);
                event.is_none_or(|event| since(event) < now.wrapping_sub(before))
            }
            false => self.available.load(0).is_none_or(|flags| flags & NO_INTERRUPT == 0),
        };
        if wants {
            self.notify();
        }
    }

    /// Waits until nothing is in flight; where the ring of available requests goes on.
    pub(super) fn drain(&self) -> u16 {
        let mut state = self.state.lock();
        state.is_awaited = true;
        while state.pending > 0 {
            state = self.less.wait(state);
        }
        state.next
    }

    /// The descriptors of a request.
    fn chain(&self, head: u16) -> Result<DescriptorChain> {
        let mut chain = DescriptorChain { head, ..DescriptorChain::default() };
        let (mut table, mut at) = (None, head);
        // One more may lead to a table.
        for _ in 0..=CHAIN.max(usize::from(self.parts.size)) {
            let one = self.descriptor(table, at);
            let (range, flags, next) = one.ok_or_else(|| broken("a descriptor is missing"))?;
            if flags & INDIRECT != 0 {
                let is_first = table.is_none() && flags & NEXT == 0;
                if !is_first || range.len == 0 || !range.len.is_multiple_of(16) {
                    return Err(broken("an indirect table is out of place"));
                }
                (table, at) = (Some(range), 0);
                continue;
            }
            if flags & WRITE != 0 {
                chain.writable.push(range);
            } else if chain.writable.is_empty() {
                chain.readable.push(range);
            } else {
                return Err(broken("a readable descriptor follows a writable one"));
            }
            if flags & NEXT == 0 {
                return Ok(chain);
            }
            at = next;
        }
        Err(broken("a descriptor chain is too long"))
    }

    /// The descriptor with this number, of the queue or of an indirect table, its flags, and the
    /// number of the next one.
    fn descriptor(&self, table: Option<GuestRange>, number: u16) -> Option<(GuestRange, u16, u16)> {
        let mut bytes = [0; DESCRIPTOR];
        let at = usize::from(number) * DESCRIPTOR;
        match table {
            None => self.descriptors.read(at, &mut bytes)?,
            Some(table) if at < usize::try_from(table.len).ok()? => {
                self.parts.memory.read(table.address.checked_add(at as u64)?, &mut bytes)?;
            }
            Some(_) => return None,
        }
        let mut fields = Fields(&bytes);
        let (address, len) = (u64::from_le(fields.u64()?), u32::from_le(fields.u32()?));
        let (flags, next) = (u16::from_le(fields.u16()?), u16::from_le(fields.u16()?));
        Some((GuestRange { address, len }, flags, next))
    }
}

/// Where the state of the request with this head is in the region of its queue.
fn state_of(head: u16) -> usize {
    STATES + usize::from(head) * STATE
}

/// Takes up what a region says; one that is new says nothing.
fn resume(region: &GuestBytes, size: u16, state: &mut QueueState) -> Option<()> {
    // A machine that starts anew has another driver by now, whose queue may have another length.
    region.store(NUMBER_AT, size)?;
    if region.load(VERSION_AT)? == 0 {
        region.store(USED_AT, state.used)?;
        return region.store(VERSION_AT, 1);
    }
    if region.load(USED_AT)? != state.used {
        // Stopped between telling the guest and writing that down.
        region.store(state_of(region.load(LAST_HEAD_AT)?), 0)?;
        region.store(USED_AT, state.used)?;
    }
    let mut heads = Vec::new();
    for head in 0..size {
        if region.load(state_of(head))? & 0xff != 0 {
            let mut counter = [0; 8];
            region.read(state_of(head) + 8, &mut counter)?;
            heads.push((u64::from_ne_bytes(counter), head));
        }
    }
    heads.sort_unstable();
    state.counter = heads.last().map_or(0, |(counter, _)| counter.wrapping_add(1));
    // All that was taken and not told to the guest is done again, and nothing else.
    let taken = u16::try_from(heads.len()).ok()?;
    state.next = state.used.wrapping_add(taken);
    state.again = heads.into_iter().map(|(_, head)| head).collect();
    Some(())
}
