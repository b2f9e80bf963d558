//! Dirty bitmaps that are started and stopped while a disk is served: what was written since, for
//! backups that follow it.
//!
//! A layer over the disk, the same for every device, sees each write, zero and trim before it
//! begins, and sets the bits first. A bitmap begins at one moment: a change that has not ended by
//! then is in it. So whatever a copy that begins afterwards does not see, the bitmap has. They are
//! in memory, and end with the server. Nothing here waits for the disk, and the disk waits for
//! nothing here.

mod bits;
mod layer;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use device::{Edge, Error, ErrorKind, Fault, Filtered, Result, StatusRun};
use runtime::{Mutex, RwLock};

use bits::DirtyBits;
use layer::Recorder;

/// Bitmaps of a disk, at most.
const MOST: usize = 64;
/// Bytes of memory of a bitmap, at most.
const BYTES_MAX: u64 = 64 << 20;
/// Bytes of the longest name, as in qcow2.
const NAME_MAX: usize = 1023;
/// Bytes that a bit stands for: as in qcow2.
const GRANULARITY: std::ops::RangeInclusive<u64> = 512..=2 << 30;
/// The granularity of a bitmap for which none was named.
pub const USUAL_GRANULARITY: u64 = 64 << 10;
/// What the context of a bitmap is called, before its name.
const CONTEXT: &str = "qemu:dirty-bitmap:";

/// The bitmaps of a disk that is served. Cheap to clone; all clones are one.
#[derive(Clone)]
pub struct LiveBitmaps(Arc<Shared>);

runtime::debug_as!(LiveBitmaps);

struct Shared {
    size: u64,
    /// Contexts of the disk itself.
    below: Vec<Arc<str>>,
    is_chosen_by_name: bool,
    state: RwLock<State>,
    changes: Mutex<Changes>,
    clients: AtomicU64,
}

/// Whoever changes it waits for those that set bits, which never wait for anything else.
#[derive(Default)]
struct State {
    list: Vec<LiveBitmap>,
    /// The number of the last one.
    last: u64,
}

#[derive(Clone)]
struct LiveBitmap {
    /// Never used again, as a name may be.
    number: u64,
    name: String,
    context: Arc<str>,
    granularity_bits: u32,
    records: bool,
    bits: Arc<DirtyBits>,
}

/// Ranges that are being changed, by number.
#[derive(Default)]
struct Changes {
    last: u64,
    ranges: BTreeMap<u64, (u64, u64)>,
}

/// What is known of a bitmap.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct BitmapStatus {
    /// Its name.
    pub name: String,
    /// The name of its status context.
    pub context: String,
    /// Bytes that a bit stands for.
    pub granularity: u64,
    /// Whether what is written now is recorded.
    pub records: bool,
    /// Bytes in the granules that were written.
    pub dirty: u64,
}

/// What is done with a bitmap.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum BitmapAction {
    /// Make one.
    Add {
        /// Bytes that a bit stands for: a power of two.
        granularity: u64,
        /// Whether it records at once.
        records: bool,
    },
    /// Forget everything that was recorded.
    Clear,
    /// Record no more.
    Disable,
    /// Record from now on.
    Enable,
    /// Remove it. Clients that read it get errors from then on.
    Remove,
}

impl LiveBitmaps {
    /// The disk with a layer that records what is written, and its bitmaps: none yet.
    #[must_use]
    pub fn over(disk: &Edge) -> (Edge, Self) {
        let info = disk.info();
        let all = Self(Arc::new(Shared {
            size: info.size,
            below: info.contexts.clone(),
            is_chosen_by_name: disk.device().is_chosen_by_name(),
            state: RwLock::default(),
            changes: Mutex::default(),
            clients: AtomicU64::new(0),
        }));
        let layer = Filtered::device(Recorder::new(all.clone()), disk.clone());
        (Edge::new(layer, disk.pool().clone()), all)
    }

    /// Does it. What is changed from then on is recorded as it says; so is what is being changed.
    ///
    /// # Errors
    /// There is no such bitmap, or there is one already; or it cannot be made.
    pub fn act(&self, name: &str, action: BitmapAction) -> Result<()> {
        match action {
            BitmapAction::Add { granularity, records } => self.add(name, granularity, records),
            BitmapAction::Clear => self.clear(name),
            BitmapAction::Disable | BitmapAction::Enable => {
                let mut state = self.0.state.write();
                let bitmap = find(&mut state, name).ok_or_else(|| self.unknown(name))?;
                let enables = action == BitmapAction::Enable;
                if enables && !bitmap.records {
                    self.set_changing(&bitmap.bits);
                }
                bitmap.records = enables;
                Ok(())
            }
            BitmapAction::Remove => {
                let mut state = self.0.state.write();
                let number = find(&mut state, name).ok_or_else(|| self.unknown(name))?.number;
                state.list.retain(|bitmap| bitmap.number != number);
                Ok(())
            }
        }
    }

    fn add(&self, name: &str, granularity: u64, records: bool) -> Result<()> {
        let wrong = |why: String| Err(Error::invalid(format!("bitmap `{name}`: {why}")));
        if self.0.is_chosen_by_name {
            let why = "clients of this export choose the disk by its name, and the bitmap would \
                       mix the disks";
            return wrong(why.to_owned());
        }
        if name.is_empty() || name.len() > NAME_MAX || name.chars().any(char::is_control) {
            return wrong(format!("a name has 1 to {NAME_MAX} bytes, and no control characters"));
        }
        if !GRANULARITY.contains(&granularity) || !granularity.is_power_of_two() {
            return wrong("a granularity is a power of two from 512 to 2G".to_owned());
        }
        let granularity_bits = granularity.trailing_zeros();
        let bytes = bits::words(self.0.size, granularity_bits).saturating_mul(8);
        if bytes > BYTES_MAX {
            let why = format!("it would take {bytes} bytes of memory, and {BYTES_MAX} are allowed");
            return wrong(format!("{why}; add a larger --granularity"));
        }
        let context: Arc<str> = format!("{CONTEXT}{name}").into();
        let exists = || Err(Error::invalid(format!("bitmap `{name}`: the name is in use")));
        if self.0.below.contains(&context) {
            return exists();
        }
        // Not under the lock: it may be large.
        let bits = Arc::new(DirtyBits::new(self.0.size, granularity_bits)?);
        let mut state = self.0.state.write();
        if find(&mut state, name).is_some() {
            return exists();
        }
        if state.list.len() >= MOST {
            return wrong(format!("there are {MOST} already; `bitmap remove` one"));
        }
        if records {
            self.set_changing(&bits);
        }
        state.last += 1;
        let (number, name) = (state.last, name.to_owned());
        state.list.push(LiveBitmap { number, name, context, granularity_bits, records, bits });
        Ok(())
    }

    fn clear(&self, name: &str) -> Result<()> {
        let known = find(&mut self.0.state.write(), name).map(|bitmap| bitmap.granularity_bits);
        let known = known.ok_or_else(|| self.unknown(name))?;
        // Not under the lock.
        let fresh = Arc::new(DirtyBits::new(self.0.size, known)?);
        let mut state = self.0.state.write();
        // It may be another one by now.
        let bitmap = find(&mut state, name).filter(|bitmap| bitmap.granularity_bits == known);
        let bitmap = bitmap.ok_or_else(|| self.unknown(name))?;
        if bitmap.records {
            self.set_changing(&fresh);
        }
        bitmap.bits = fresh;
        Ok(())
    }

    /// All of them, in the order in which they were made.
    #[must_use]
    pub fn list(&self) -> Vec<BitmapStatus> {
        let list = self.0.state.read().list.clone();
        let status = |bitmap: LiveBitmap| BitmapStatus {
            dirty: bitmap.bits.dirty_bytes(),
            granularity: 1 << bitmap.granularity_bits,
            context: bitmap.context.as_ref().to_owned(),
            name: bitmap.name,
            records: bitmap.records,
        };
        list.into_iter().map(status).collect()
    }

    /// The bitmaps that the disk itself has, as its image does: by name.
    #[must_use]
    pub fn of_the_disk(&self) -> Vec<String> {
        let names = self.0.below.iter().filter_map(|context| context.strip_prefix(CONTEXT));
        names.map(str::to_owned).collect()
    }

    /// Clients that have chosen the disk.
    #[must_use]
    pub fn clients(&self) -> u64 {
        self.0.clients.load(Ordering::Relaxed)
    }

    fn unknown(&self, name: &str) -> Error {
        let action = if self.of_the_disk().iter().any(|known| known == name) {
            format!(
                "bitmap `{name}`: it is the image's, and is changed only where nobody serves it"
            )
        } else {
            format!("bitmap `{name}`: there is none of that name; `list` shows them")
        };
        Error::new(ErrorKind::NotFound, Fault::User, action)
    }

    /// Sets the bits of what is being changed.
    fn set_changing(&self, bits: &DirtyBits) {
        self.0.changes.lock().ranges.values().for_each(|(at, len)| bits.set(*at, *len));
    }

    /// The context names for a client that comes now, each with the number of its bitmap.
    fn contexts(&self) -> Vec<(u64, Arc<str>)> {
        let state = self.0.state.read();
        state.list.iter().map(|bitmap| (bitmap.number, bitmap.context.clone())).collect()
    }

    fn status(&self, number: u64, (at, len): (u64, u64), max: usize) -> Result<Vec<StatusRun>> {
        let state = self.0.state.read();
        let bitmap = state.list.iter().find(|bitmap| bitmap.number == number);
        let bits = bitmap.map(|bitmap| bitmap.bits.clone());
        drop(state);
        let gone = || Error::new(ErrorKind::NotFound, Fault::User, "the bitmap was removed");
        Ok(bits.ok_or_else(gone)?.runs(at, len, max))
    }

    /// Does something that changes a range, and does not wait, with its bits set.
    fn recorded<T>(&self, offset: u64, len: u64, change: impl FnOnce() -> T) -> T {
        let state = self.0.state.read();
        state.record(offset, len);
        // A bitmap that begins now waits for the end of it.
        change()
    }

    /// Sets the bits of what is about to be changed; it has ended when this is dropped.
    fn begin(&self, offset: u64, len: u64) -> Change {
        let state = self.0.state.read();
        state.record(offset, len);
        let mut changes = self.0.changes.lock();
        changes.last += 1;
        let number = changes.last;
        changes.ranges.insert(number, (offset, len));
        Change { of: self.clone(), number }
    }
}

impl State {
    fn record(&self, offset: u64, len: u64) {
        let recording = self.list.iter().filter(|bitmap| bitmap.records);
        recording.for_each(|bitmap| bitmap.bits.set(offset, len));
    }
}

fn find<'a>(state: &'a mut State, name: &str) -> Option<&'a mut LiveBitmap> {
    state.list.iter_mut().find(|bitmap| bitmap.name == name)
}

/// A change that has not ended.
struct Change {
    of: LiveBitmaps,
    number: u64,
}

impl Drop for Change {
    fn drop(&mut self) {
        self.of.0.changes.lock().ranges.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::sync::mpsc::channel;

    use device::Operation;
    use runtime::WorkPool;
    use trial::{Fate, TestDevice};

    use super::*;

    const SIZE: u64 = 1 << 20;
    const ADD: BitmapAction = BitmapAction::Add { granularity: 512, records: true };

    fn dirty(bitmaps: &LiveBitmaps, name: &str) -> u64 {
        bitmaps.list().iter().find(|bitmap| bitmap.name == name).unwrap().dirty
    }

    #[test]
    fn what_is_being_written_when_a_bitmap_begins_or_is_cleared_is_in_it() {
        let (entered, begun) = channel();
        let (release, held) = channel::<()>();
        let (entered, held) = (Mutex::new(entered), Mutex::new(held));
        let disk = TestDevice::over(device::model::Model::new(1 << 20)).late(1);
        let disk = disk.hooked(move |operation| {
            if operation.changes() {
                entered.lock().send(()).unwrap();
                held.lock().recv().unwrap();
            }
            Fate::Pass(operation)
        });
        let (edge, bitmaps) = LiveBitmaps::over(&disk.shared().edge(&WorkPool::new(1)));
        let (done, ended) = channel();
        let data = device::Buffer::zeroed(1024).into();
        let write = Operation::Write { offset: 4096, data, fua: false };
        edge.submit(write, Box::new(move |result| done.send(result.is_ok()).unwrap()));
        begun.recv().unwrap();
        bitmaps.act("b", ADD).unwrap();
        bitmaps.act("off", BitmapAction::Add { granularity: 512, records: false }).unwrap();
        assert_eq!((dirty(&bitmaps, "b"), dirty(&bitmaps, "off")), (1024, 0));
        bitmaps.act("b", BitmapAction::Clear).unwrap();
        bitmaps.act("off", BitmapAction::Enable).unwrap();
        assert_eq!((dirty(&bitmaps, "b"), dirty(&bitmaps, "off")), (1024, 1024));
        release.send(()).unwrap();
        assert!(ended.recv().unwrap());
        bitmaps.act("b", BitmapAction::Clear).unwrap();
        bitmaps.act("late", ADD).unwrap();
        assert_eq!((dirty(&bitmaps, "b"), dirty(&bitmaps, "late")), (0, 0));
    }

    /// Changes the disk at random until the end, while `gate` lets it.
    fn change(edge: &Edge, seed: u64, gate: &RwLock<()>, (stop, done): (&AtomicBool, &AtomicU64)) {
        let mut n = seed;
        while !stop.load(Ordering::Relaxed) {
            n = n.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            let (at, len) = ((n >> 33) % (SIZE - 8192), 1 + (n >> 20) % 8192);
            let _held = gate.read();
            let data = vec![n.to_le_bytes()[4]; usize::try_from(len).unwrap()];
            let changed = match n >> 61 {
                0 => edge.zero(at, len, device::ZeroFlags::default()),
                1 => edge.trim(at, len, false),
                kind => edge.write(&data, at, kind == 2),
            };
            changed.unwrap();
            done.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn what_a_copy_that_begins_after_a_bitmap_lacks_is_in_it() {
        let (edge, bitmaps) = LiveBitmaps::over(&TestDevice::new(1 << 20).edge(&WorkPool::new(4)));
        let (gate, stop, done) = (RwLock::new(()), AtomicBool::new(false), AtomicU64::new(0));
        let (mut missing, mut clean) = (Vec::new(), 0);
        let whole = || {
            let mut bytes = vec![0; 1 << 20];
            for (n, piece) in bytes.chunks_mut(4096).enumerate() {
                edge.read(piece, n as u64 * 4096).unwrap();
            }
            bytes
        };
        std::thread::scope(|scope| {
            for seed in 1..=4 {
                let (edge, gate, told) = (&edge, &gate, (&stop, &done));
                scope.spawn(move || change(edge, seed, gate, told));
            }
            for round in 0..60 {
                let actions: &[_] = match round % 3 {
                    0 => &[BitmapAction::Remove, ADD],
                    1 => &[BitmapAction::Clear],
                    _ => &[BitmapAction::Disable, BitmapAction::Clear, BitmapAction::Enable],
                };
                // There is none to remove at first.
                actions.iter().for_each(|action| drop(bitmaps.act("b", *action)));
                let (before, so_far) = (whole(), done.load(Ordering::Relaxed));
                while done.load(Ordering::Relaxed) < so_far + 8 {
                    std::thread::yield_now();
                }
                let _held = gate.write();
                let (after, number) = (whole(), bitmaps.contexts()[0].0);
                let mut at = 0;
                for run in bitmaps.status(number, (0, SIZE), usize::MAX).unwrap() {
                    let range = at..at + usize::try_from(run.len).unwrap();
                    at = range.end;
                    let is_same = before[range.clone()] == after[range.clone()];
                    clean += usize::from(run.value == 0);
                    missing.extend((run.value == 0 && !is_same).then_some((round, range)));
                }
            }
            stop.store(true, Ordering::Relaxed);
        });
        assert_eq!(missing, []);
        assert!(clean > 0, "everything was dirty: nothing was shown");
    }

    #[test]
    fn a_bitmap_that_was_removed_tells_nobody_what_a_later_one_of_its_name_has() {
        let disk = TestDevice::new(1 << 20).edge(&WorkPool::new(1));
        let (edge, bitmaps) = LiveBitmaps::over(&disk);
        bitmaps.act("b", ADD).unwrap();
        let known = bitmaps.contexts();
        edge.write(&[1; 512], 0, false).unwrap();
        let runs = [StatusRun { len: 512, value: 1 }, StatusRun { len: SIZE - 512, value: 0 }];
        assert_eq!(bitmaps.status(known[0].0, (0, SIZE), 9).unwrap(), runs);
        assert!(bitmaps.act("b", ADD).is_err());
        bitmaps.act("b", BitmapAction::Remove).unwrap();
        bitmaps.act("b", ADD).unwrap();
        assert!(bitmaps.status(known[0].0, (0, SIZE), 9).is_err());
        let all = StatusRun { len: SIZE, value: 0 };
        assert_eq!(bitmaps.status(bitmaps.contexts()[0].0, (0, SIZE), 9).unwrap(), [all]);
        for wrong in ["", "a\nb", &"x".repeat(1024)] {
            assert!(bitmaps.act(wrong, ADD).is_err());
        }
        for granularity in [0, 256, 1000, 4 << 30, u64::MAX] {
            let add = BitmapAction::Add { granularity, records: true };
            assert!(bitmaps.act("c", add).is_err(), "{granularity}");
        }
    }
}
