//! A mailbox: any thread puts items in, and one, its attendant, takes them out.
//!
//! The attendant is called only when it is away: while it attends, it looks in again before it
//! leaves. It takes no lock where there is nothing to take.

use std::fmt;

use crate::sync::{AtomicU8, Mutex, Ordering};

/// The attendant is here.
const ATTENDED: u8 = 1;
/// It has been called.
const CALLED: u8 = 2;
/// There are items. Changed only under the lock, together with them.
const FILLED: u8 = 4;
/// Nothing is put in any more. Set only under the lock.
const CLOSED: u8 = 8;

/// See the module.
pub struct Mailbox<T> {
    state: AtomicU8,
    items: Mutex<Vec<T>>,
}

impl<T> Default for Mailbox<T> {
    fn default() -> Self {
        Self { state: AtomicU8::new(0), items: Mutex::new(Vec::new()) }
    }
}

impl<T> fmt::Debug for Mailbox<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Mailbox")
    }
}

impl<T> Mailbox<T> {
    fn has(&self, flag: u8) -> bool {
        self.state.load(Ordering::Acquire) & flag != 0
    }

    /// Changes the state to `next` of it, or not at all. Returns the state before.
    fn update(&self, next: impl Fn(u8) -> Option<u8>) -> Result<u8, u8> {
        self.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, next)
    }

    /// Puts an item in. Returns whether the caller has to call the attendant, which is away.
    ///
    /// # Errors
    /// It is closed; the item comes back.
    pub fn put(&self, item: T) -> Result<bool, T> {
        let mut items = self.items.lock();
        if self.has(CLOSED) {
            return Err(item);
        }
        items.push(item);
        let called = |state| state | FILLED | if state & ATTENDED == 0 { CALLED } else { 0 };
        let (Ok(before) | Err(before)) = self.update(|state| Some(called(state)));
        debug_assert_eq!(before & FILLED != 0, items.len() > 1, "it is filled when it has items");
        Ok(before & (ATTENDED | CALLED) == 0)
    }

    /// Whether the attendant is here.
    pub fn is_attended(&self) -> bool {
        self.has(ATTENDED)
    }

    /// Whether nothing is put in any more.
    pub fn is_closed(&self) -> bool {
        self.has(CLOSED)
    }

    /// The attendant comes.
    pub fn attend(&self) {
        self.state.fetch_or(ATTENDED, Ordering::AcqRel);
    }

    /// Takes all items out, in the order in which they were put in.
    pub fn take(&self) -> Vec<T> {
        if !self.has(FILLED) {
            return Vec::new();
        }
        let mut items = self.items.lock();
        self.state.fetch_and(!FILLED, Ordering::AcqRel);
        std::mem::take(&mut *items)
    }

    /// The attendant leaves if there is nothing; whether it has left.
    pub fn try_leave(&self) -> bool {
        debug_assert!(self.is_attended(), "who is not there does not leave");
        let away = |state| (state & FILLED == 0).then_some(state & !(ATTENDED | CALLED));
        self.update(away).is_ok()
    }

    /// The attendant leaves whatever there is. Returns whether there is something: then it counts
    /// as called, and has to come again.
    pub fn leave(&self) -> bool {
        debug_assert!(self.is_attended(), "who is not there does not leave");
        let called = |state| if state & FILLED == 0 { 0 } else { CALLED };
        let away = |state| Some(state & !(ATTENDED | CALLED) | called(state));
        let (Ok(before) | Err(before)) = self.update(away);
        before & FILLED != 0
    }

    /// Nothing is put in any more. Returns what was not taken out.
    pub fn close(&self) -> Vec<T> {
        let mut items = self.items.lock();
        self.state.fetch_or(CLOSED, Ordering::AcqRel);
        self.state.fetch_and(!FILLED, Ordering::AcqRel);
        std::mem::take(&mut *items)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_attendant_is_called_once_and_only_when_it_is_away() {
        let mailbox = Mailbox::default();
        assert_eq!((mailbox.put(1), mailbox.put(2)), (Ok(true), Ok(false)));
        mailbox.attend();
        assert_eq!((mailbox.put(3), mailbox.try_leave()), (Ok(false), false));
        assert_eq!(mailbox.take(), [1, 2, 3]);
        assert!(mailbox.take().is_empty() && mailbox.is_attended());
        assert!(mailbox.try_leave() && !mailbox.is_attended());
        assert_eq!(mailbox.put(4), Ok(true));
        mailbox.attend();
        assert!(mailbox.leave(), "something is there");
        assert_eq!(mailbox.put(5), Ok(false), "it is on its way");
        mailbox.attend();
        assert_eq!(mailbox.take(), [4, 5]);
        assert!(!mailbox.leave());
        assert_eq!(mailbox.put(6), Ok(true));
        assert_eq!((mailbox.close(), mailbox.put(7)), (vec![6], Err(7)));
        assert!(mailbox.is_closed() && mailbox.take().is_empty());
    }
}
