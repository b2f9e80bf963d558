//! Extents: what a range of a device holds and, if known, where that lies.

use std::any::Any;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use crate::residency::{is_cached, is_resident};

/// What an extent holds.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum ExtentKind {
    /// Data: it may be anything.
    Data,
    /// Reads as zeroes and occupies no room (NBD: HOLE and ZERO).
    Hole,
    /// Reads as zeroes but occupies room (NBD: ZERO).
    Zero,
}

impl ExtentKind {
    /// Whether the extent is known to read as zeroes.
    pub fn reads_zero(self) -> bool {
        matches!(self, Self::Hole | Self::Zero)
    }
}

/// A run of bytes of one kind.
#[derive(Clone, Debug)]
pub struct Extent {
    /// First byte, as an offset into the device.
    pub start: u64,
    /// Length in bytes; never 0.
    pub len: u64,
    /// What is there.
    pub kind: ExtentKind,
    /// Of data: it occupies no room, and yet is not known to read as zeroes (NBD: HOLE without
    /// ZERO). It is told to those who ask for the map, and treated as data.
    pub roomless: bool,
    /// Which layer of a chain of images it comes from: 0 for the one that was opened, 1 for what
    /// lies below it, and so on.
    pub depth: u16,
    /// Whether that layer says so itself. False for a hole of which no image of the chain says
    /// anything, and that is one because nothing is below.
    pub present: bool,
    /// Where that layer's container keeps it, if it is kept in one, whether or not this process has
    /// the container open.
    pub home: Option<Home>,
    /// Where the bytes lie, if they lie as they are in a file that this process has open.
    pub place: Option<Place>,
}

/// Where a container keeps bytes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Home {
    /// In which of the container's files, the first of which is 0.
    pub file: u16,
    /// Of the first byte, in bytes from the beginning of that file; where it is packed, of what
    /// must be unpacked.
    pub offset: u64,
    /// In which form.
    pub stored: Stored,
}

/// The form in which a container keeps bytes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Stored {
    /// As they are.
    Plain,
    /// Compressed.
    Packed {
        /// To so many bytes.
        len: u32,
    },
    /// Encrypted, byte for byte.
    Encrypted,
}

impl Home {
    /// The home of what begins `by` bytes further on. Only all of what is packed can be unpacked.
    #[must_use]
    pub fn advanced(self, by: u64) -> Self {
        match self.stored {
            Stored::Packed { .. } => self,
            Stored::Plain | Stored::Encrypted => {
                Self { offset: self.offset.saturating_add(by), ..self }
            }
        }
    }
}

impl Extent {
    /// An extent of the layer that was opened, with neither home nor place.
    pub fn new(start: u64, len: u64, kind: ExtentKind) -> Self {
        Self { start, len, kind, roomless: false, depth: 0, present: true, home: None, place: None }
    }

    /// The same, with a place.
    #[must_use]
    pub fn at(self, place: Option<Place>) -> Self {
        Self { place, ..self }
    }

    /// The same, which occupies no room if it is data, and yet may be anything.
    #[must_use]
    pub fn without_room(self, roomless: bool) -> Self {
        Self { roomless: roomless && self.kind == ExtentKind::Data, ..self }
    }

    /// The same, of which no layer says anything.
    #[must_use]
    pub fn absent(self) -> Self {
        Self { present: false, ..self }
    }

    /// The same, seen from the layer above.
    #[must_use]
    pub fn deeper(self) -> Self {
        Self { depth: self.depth.saturating_add(1), ..self }
    }

    /// The first byte after the extent.
    pub fn end(&self) -> u64 {
        self.start.saturating_add(self.len)
    }

    /// The part of the extent from `start` to `end`, offsets into the device; `None` if there is
    /// none.
    #[must_use]
    pub fn part(&self, start: u64, end: u64) -> Option<Self> {
        let from = start.max(self.start);
        let len = end.min(self.end()).checked_sub(from).filter(|n| *n > 0)?;
        let by = from - self.start;
        let home = self.home.map(|home| home.advanced(by));
        let place = self.place.as_ref().map(|place| place.advanced(by));
        Some(Self { start: from, len, home, place, ..*self })
    }

    /// Whether `next` continues this one, in the device and wherever it lies, and is of the same
    /// kind.
    fn goes_on(&self, next: &Self) -> bool {
        let homes = match (self.home, next.home) {
            (Some(mine), Some(its)) => mine.advanced(self.len) == its,
            (None, None) => true,
            _ => false,
        };
        let places = match (&self.place, &next.place) {
            (Some(mine), Some(its)) => mine.goes_on(self.len, its),
            (None, None) => true,
            _ => false,
        };
        self.end() == next.start
            && self.kind == next.kind
            && self.roomless == next.roomless
            && self.depth == next.depth
            && self.present == next.present
            && homes
            && places
    }
}

/// Appends `next` to `list`, joined to the last extent if it continues that: in the device, in its
/// container and in its file, in one layer, of one kind, and under one lease.
pub fn merge_extent(list: &mut Vec<Extent>, next: Extent) {
    match list.last_mut() {
        Some(last) if last.goes_on(&next) => last.len += next.len,
        _ => list.push(next),
    }
}

/// Where bytes lie: an open file and an offset into it. A place is a lease: the bytes stay at that
/// offset until they cannot be seen any more.
///
/// Where the bytes never move while the file is open (a disk that *is* the file), there is nothing
/// to guard. Otherwise the place has a *guard*, and holding it, or a clone of it, holds the
/// lease. The rules:
///
/// - *A user of a place* keeps its guard until the bytes cannot be seen any more. For a copy that
///   is until they are copied. sendfile passes pages and not copies: the peer at the other end of
///   the socket sees changes to them until it has received them all. So a server keeps the guards
///   of what it sent until the socket reports that all was delivered, and where the socket cannot
///   report that, until the connection has ended and its client had time to read what it was sent
///   last.
/// - *The owner of the file* does not reuse what was freed while a guard given before lives: it
///   goes into quarantine. It may be zeroed there, since a late reader may see an overlapping
///   change; it must never hold what belongs to another offset. A guard may stand for many places
///   (all that an image gave, say), but what is freed is not held by a guard that was first given
///   afterwards. A place that lies in an image in an image is guarded by both.
/// - A peer that does not read must not take the disk's room: when the quarantine grows beyond a
///   bound that the owner chooses, the owner gives no more places until it has drained, and bytes
///   are copied.
#[derive(Clone)]
pub struct Place {
    file: Arc<OwnedFd>,
    offset: u64,
    in_memory: bool,
    guard: Option<Guard>,
    keeper: Option<Arc<dyn Keeper>>,
}

/// Looks after the pages of a file that is to leave few of them in the page cache.
pub trait Keeper: Send + Sync {
    /// `len` bytes (≥ 1) from `offset` of the file are in memory, and are about to be taken from
    /// there at once. False: they are to be read through the device. Never waits for a disk.
    fn passes(&self, offset: u64, len: u64) -> bool;
}

/// A lease of bytes in a file, see [`Place`]. Guards are the same if they are clones of one, or
/// of the same ones ([`is_same_guard`]).
pub type Guard = Arc<dyn Any + Send + Sync>;

/// The leases of two owners: of a file, and of a file in it.
struct Both(Guard, Guard);

/// Whether two guards are the same.
#[must_use]
pub fn is_same_guard(one: &Guard, other: &Guard) -> bool {
    Arc::ptr_eq(one, other)
        || match (one.downcast_ref::<Both>(), other.downcast_ref::<Both>()) {
            (Some(a), Some(b)) => is_same_guard(&a.0, &b.0) && is_same_guard(&a.1, &b.1),
            _ => false,
        }
}

impl Place {
    /// A place in a file whose bytes never move while it is open.
    pub fn new(file: Arc<OwnedFd>, offset: u64) -> Self {
        Self { file, offset, in_memory: false, guard: None, keeper: None }
    }

    /// The same, of a file that lies in memory: nothing there has to be waited for.
    #[must_use]
    pub fn in_memory(self) -> Self {
        Self { in_memory: true, ..self }
    }

    /// The same, of a file whose pages have a keeper: only resident bytes may be taken from here;
    /// what is read through the descriptor would stay in memory without the keeper's knowledge.
    #[must_use]
    pub fn kept_by(self, keeper: Arc<dyn Keeper>) -> Self {
        Self { keeper: Some(keeper), ..self }
    }

    /// Whether only what is resident may be taken from here.
    pub fn is_kept(&self) -> bool {
        self.keeper.is_some()
    }

    /// A place whose owner must not reuse the bytes while `guard`, or a clone of it, lives; nor
    /// while a guard that it has already lives.
    #[must_use]
    pub fn guarded(self, guard: Guard) -> Self {
        let guard = match self.guard {
            Some(before) => Arc::new(Both(before, guard)),
            None => guard,
        };
        Self { guard: Some(guard), ..self }
    }

    /// The guard, which must be kept until the bytes cannot be seen any more.
    pub fn guard(&self) -> Option<&Guard> {
        self.guard.as_ref()
    }

    /// The file's descriptor. Always used with offsets; the file position means nothing.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// The offset of the first byte in the file.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// The place `by` bytes further on.
    #[must_use]
    pub fn advanced(&self, by: u64) -> Self {
        Self { offset: self.offset.saturating_add(by), ..self.clone() }
    }

    /// Whether `len` bytes can be taken from here without waiting for a disk or for a lock of the
    /// file. In doubt, no. True only for the moment: a later send asks again. Bytes that a device
    /// refused to read at once may be behind a lock, and are not sent from their place, whatever
    /// this returns.
    pub fn is_resident(&self, len: u64) -> bool {
        len == 0 || self.in_memory || self.passes(len) && is_resident(self.fd(), self.offset, len)
    }

    /// Whether the keeper allows it. It is asked before the pages are checked: the check may make
    /// the system read ahead.
    fn passes(&self, len: u64) -> bool {
        self.keeper.as_ref().is_none_or(|keeper| {
            is_cached(self.fd(), self.offset, len) && keeper.passes(self.offset, len)
        })
    }

    /// Whether `next` is what lies `len` bytes on, under the same lease.
    #[must_use]
    pub fn goes_on(&self, len: u64, next: &Self) -> bool {
        let guards = match (&self.guard, &next.guard) {
            (Some(mine), Some(its)) => is_same_guard(mine, its),
            (None, None) => true,
            _ => false,
        };
        guards
            && Arc::ptr_eq(&self.file, &next.file)
            && self.offset.checked_add(len) == Some(next.offset)
    }
}

impl fmt::Debug for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Place").field("fd", &self.file).field("offset", &self.offset).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn touching_extents_of_one_kind_become_one() {
        let mut list = Vec::new();
        merge_extent(&mut list, Extent::new(0, 10, ExtentKind::Hole));
        merge_extent(&mut list, Extent::new(10, 5, ExtentKind::Hole));
        merge_extent(&mut list, Extent::new(15, 5, ExtentKind::Data));
        assert_eq!(list.len(), 2);
        assert_eq!(list[0].len, 15);
    }

    fn file() -> Arc<OwnedFd> {
        let flags = rustix::fs::MemfdFlags::CLOEXEC;
        Arc::new(rustix::fs::memfd_create("extents", flags).unwrap())
    }

    #[test]
    fn extents_become_one_only_where_they_go_on_in_everything_they_say() {
        let (file, guard): (_, Guard) = (file(), Arc::new(()));
        let plain = |offset| Some(Home { file: 0, offset, stored: Stored::Plain });
        let place = |offset| Place::new(file.clone(), offset).guarded(guard.clone());
        let first = Extent { home: plain(100), ..Extent::new(0, 10, ExtentKind::Data) };
        let first = first.at(Some(place(100)));
        let good = Extent { start: 10, len: 5, home: plain(110), ..first.clone() };
        let good = good.at(Some(place(110)));
        let joined = |next: &Extent| {
            let mut list = vec![first.clone()];
            merge_extent(&mut list, next.clone());
            list.len() == 1
        };
        assert!(joined(&good));
        let other_guard = Place::new(file.clone(), 110).guarded(Arc::new(()));
        for bad in [
            Extent { depth: 1, ..good.clone() },
            Extent { home: plain(111), ..good.clone() },
            Extent { home: good.home.map(|home| Home { file: 1, ..home }), ..good.clone() },
            Extent { home: None, ..good.clone() },
            Extent { kind: ExtentKind::Zero, ..good.clone() },
            good.clone().without_room(true),
            good.clone().at(Some(place(111))),
            good.clone().at(Some(other_guard)),
            good.clone().at(Some(Place::new(file.clone(), 110))),
            good.clone().at(None),
        ] {
            assert!(!joined(&bad), "{bad:?}");
        }
    }

    #[test]
    fn a_place_in_an_image_in_an_image_keeps_both_from_reusing_it() {
        let (lower, upper): (Guard, Guard) = (Arc::new(()), Arc::new(()));
        let held = || Place::new(file(), 0).guarded(lower.clone()).guarded(upper.clone());
        let guards = [held(), held()].map(|place| place.guard().unwrap().clone());
        assert_eq!((Arc::strong_count(&lower), Arc::strong_count(&upper)), (3, 3));
        assert!(is_same_guard(&guards[0], &guards[1]));
        for other in [&lower, &upper] {
            assert!(!is_same_guard(&guards[0], other));
            let more = Place::new(file(), 0).guarded(lower.clone()).guarded(Arc::new(()));
            assert!(!is_same_guard(&guards[0], more.guard().unwrap()));
        }
        drop(guards);
        assert_eq!((Arc::strong_count(&lower), Arc::strong_count(&upper)), (1, 1));
    }

    #[test]
    fn a_part_of_an_extent_lies_where_it_lay_and_what_is_packed_stays_whole() {
        let stored = Stored::Packed { len: 7 };
        let all = Extent {
            home: Some(Home { file: 0, offset: 50, stored }),
            ..Extent::new(100, 20, ExtentKind::Data)
        };
        let all = all.at(Some(Place::new(file(), 1000)));
        let part = all.part(105, 500).unwrap();
        assert_eq!((part.start, part.len), (105, 15));
        assert_eq!(part.home, all.home);
        assert_eq!(part.place.unwrap().offset(), 1005);
        assert!(all.part(0, 100).is_none() && all.part(120, 121).is_none());
        let plain =
            Extent { home: Some(Home { file: 0, offset: 50, stored: Stored::Plain }), ..all };
        assert_eq!(plain.part(0, 101).unwrap().home.unwrap().offset, 50);
        assert_eq!(plain.part(119, 120).unwrap().home.unwrap().offset, 69);
    }
}
