//! The space in the two files: used, free, or freed but still visible to a reader.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Weak};

use device::{Error, ErrorKind, Fault, Result};

/// Slots are of whole units of so many bytes.
pub(super) const UNIT: u64 = 512;

/// Bytes of one of the files.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Slot {
    /// Which file, 0 or 1.
    pub(super) file: u8,
    pub(super) offset: u64,
    /// A multiple of [`UNIT`].
    pub(super) len: u64,
    /// The number of the lease that was given when it came into use: none of before sees it.
    pub(super) born: u64,
}

/// The right to look at, or write to, what was in use when it was given. Places have it too.
pub(super) type Lease = Arc<()>;

pub(super) struct Room {
    sizes: [u64; 2],
    /// Nothing is used from there on.
    ends: [u64; 2],
    /// The file that is appended to next.
    next: u8,
    free: BTreeMap<u64, Vec<Slot>>,
    /// What was freed, and the number of the first lease that was not given before.
    quarantine: Vec<(Slot, u64)>,
    /// Bytes in it.
    held: u64,
    /// Leases by number, of which the first has the number `first`. The last is `lease`.
    leases: VecDeque<Weak<()>>,
    first: u64,
    /// What is given until something is freed.
    lease: Lease,
    pub(super) reused: usize,
}

impl Room {
    /// Of files of these sizes, where what is used ends there.
    pub(super) fn new(sizes: [u64; 2], ends: [u64; 2]) -> Self {
        let lease = Lease::default();
        Self {
            sizes,
            ends,
            next: 0,
            free: BTreeMap::new(),
            quarantine: Vec::new(),
            held: 0,
            leases: [Arc::downgrade(&lease)].into(),
            first: 0,
            lease,
            reused: 0,
        }
    }

    pub(super) fn lease(&self) -> Lease {
        self.lease.clone()
    }

    /// Room for `len` bytes that no reader sees.
    pub(super) fn allocate(&mut self, len: u64) -> Result<Slot> {
        self.drain();
        let (len, born) = (len.next_multiple_of(UNIT), self.last());
        if let Some(slot) = self.free.get_mut(&len).and_then(Vec::pop) {
            self.reused += 1;
            return Ok(Slot { born, ..slot });
        }
        for _ in 0..2 {
            let file = self.next;
            self.next = 1 - file;
            let (end, size) = (&mut self.ends[usize::from(file)], self.sizes[usize::from(file)]);
            if len <= size.saturating_sub(*end) {
                let slot = Slot { file, offset: *end, len, born };
                *end += len;
                return Ok(slot);
            }
        }
        Err(Error::new(ErrorKind::NoSpace, Fault::File, "make room for a cluster"))
    }

    /// Frees what may still be seen by those that were given a lease.
    pub(super) fn free(&mut self, slot: Slot) {
        if Arc::strong_count(&self.lease) > 1 {
            self.lease = Lease::default();
            self.leases.push_back(Arc::downgrade(&self.lease));
        }
        self.quarantine.push((slot, self.last()));
        self.held += slot.len;
        self.drain();
    }

    /// The number of the lease that is given now.
    fn last(&self) -> u64 {
        self.first + self.leases.len() as u64 - 1
    }

    /// Bytes that were freed and may still be seen.
    pub(super) fn held(&mut self) -> u64 {
        self.drain();
        self.held
    }

    /// Reuses space that no reader sees any more.
    fn drain(&mut self) {
        while self.leases.len() > 1 && self.leases[0].strong_count() == 0 {
            self.leases.pop_front();
            self.first += 1;
        }
        let Self { quarantine, leases, first, free, held, .. } = self;
        quarantine.retain(|(slot, until)| {
            let seen = (*first..).zip(&*leases).any(|(number, lease)| {
                (slot.born..*until).contains(&number) && lease.strong_count() > 0
            });
            if !seen {
                *held -= slot.len;
                free.entry(slot.len).or_default().push(*slot);
            }
            seen
        });
    }
}
