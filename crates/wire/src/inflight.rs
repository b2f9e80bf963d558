//! Client: requests in flight, found by the cookie that the server echoes.
//!
//! A cookie is never used twice in a session, so a late or repeated reply can never be taken for
//! the answer to a newer request.

use crate::error::{Fatal, PeerMisbehaved};

/// Requests in flight, each with a `T` of the caller's. Lookup, insertion and removal cost O(1).
#[derive(Debug)]
pub struct InFlight<T> {
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
    /// Slots that will not be used again.
    retired: usize,
}

#[derive(Debug)]
struct Slot<T> {
    /// High half of the cookie; grows with every use of the slot.
    generation: u32,
    value: Option<T>,
}

impl<T> Default for InFlight<T> {
    fn default() -> Self {
        Self { slots: Vec::new(), free: Vec::new(), retired: 0 }
    }
}

impl<T> InFlight<T> {
    /// Requests in flight.
    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len() - self.retired
    }

    /// Whether none is in flight.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The cookie for a new request. The caller bounds the number in flight.
    pub fn insert(&mut self, value: T) -> u64 {
        let reuse = self.free.pop().and_then(|index| Some((index, self.slot(index)?)));
        if let Some((index, slot)) = reuse {
            slot.generation += 1;
            slot.value = Some(value);
            return cookie(slot.generation, index);
        }
        let index = u32::try_from(self.slots.len()).unwrap_or(u32::MAX);
        self.slots.push(Slot { generation: 1, value: Some(value) });
        cookie(1, index)
    }

    /// The request that a reply's cookie belongs to.
    ///
    /// # Errors
    ///
    /// There is none: the server replied twice, or to something that was never asked.
    pub fn find(&mut self, cookie: u64) -> Result<&mut T, Fatal> {
        let (generation, index) = parts(cookie);
        self.slot(index)
            .filter(|slot| slot.generation == generation)
            .and_then(|slot| slot.value.as_mut())
            .ok_or(Fatal(PeerMisbehaved::UnknownCookie))
    }

    /// Takes a request out, answered or given up.
    pub fn remove(&mut self, cookie: u64) -> Option<T> {
        let (generation, index) = parts(cookie);
        let slot = self.slot(index).filter(|slot| slot.generation == generation)?;
        let value = slot.value.take()?;
        // A slot whose generations are used up is retired rather than repeated: it stays out of
        // the free list, and costs a few bytes once in four thousand million requests.
        if generation < u32::MAX {
            self.free.push(index);
        } else {
            self.retired += 1;
        }
        Some(value)
    }

    /// Takes everything out; for when the connection is lost. The cookies handed out so far stay
    /// unknown for ever.
    pub fn drain(&mut self) -> impl Iterator<Item = T> + '_ {
        let all: Vec<T> = self.slots.iter_mut().filter_map(|slot| slot.value.take()).collect();
        self.free.clear();
        self.retired = self.slots.len();
        all.into_iter()
    }

    fn slot(&mut self, index: u32) -> Option<&mut Slot<T>> {
        self.slots.get_mut(usize::try_from(index).ok()?)
    }
}

fn cookie(generation: u32, index: u32) -> u64 {
    u64::from(generation) << 32 | u64::from(index)
}

fn parts(cookie: u64) -> (u32, u32) {
    let [a, b, c, d, e, f, g, h] = cookie.to_be_bytes();
    (u32::from_be_bytes([a, b, c, d]), u32::from_be_bytes([e, f, g, h]))
}
