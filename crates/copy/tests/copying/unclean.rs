//! Targets whose contents are not known: a clean one costs its data and no more, and no old
//! byte is left in one that is not, whatever it can do and however little it says.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;

use copy::Options;
use device::model::Model;
use device::{Abilities, Blocking, Error, ErrorKind, Extent, Fault, Info, Result, ZeroFlags};

use crate::support::*;

const KIB: usize = 1 << 10;
/// Data, then a hole.
const LAID_OUT: [(usize, usize); 6] = [
    (256 * KIB, 700 * KIB),
    (64 * KIB, 64 * KIB),
    (300 * KIB, 2000 * KIB),
    (8 * KIB, 1000 * KIB),
    (500 * KIB, 129 * KIB),
    (100 * KIB, 0),
];

/// What becomes of a request to zero.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Zeroing {
    /// There is none.
    None,
    /// It is advertised, and refused.
    Refused,
    /// It writes no bytes, and does not advertise whether it is fast.
    Unsaid,
    /// It writes no bytes, and advertises that it is fast.
    Fast,
    /// It writes the bytes, and refuses to be fast.
    Slow,
    /// The same, and it refuses all but the blocks of 64 KiB.
    SlowAndPicky,
}

const ALL: [Zeroing; 6] = [
    Zeroing::None,
    Zeroing::Refused,
    Zeroing::Unsaid,
    Zeroing::Fast,
    Zeroing::Slow,
    Zeroing::SlowAndPicky,
];

/// A disk that counts what it writes. No `TestDevice`: what zeroing costs is what is tested.
struct Disk {
    model: Model,
    info: Info,
    zeroing: Zeroing,
    unreadable: bool,
    read: AtomicU64,
    written: AtomicU64,
    zeroed: Mutex<Vec<(u64, u64)>>,
}

impl Disk {
    fn new(size: usize, zeroing: Zeroing, extents: bool) -> Self {
        let model = Model::new(size);
        let said = |list: &[Zeroing]| !list.contains(&zeroing);
        let abilities = Abilities {
            zero: said(&[Zeroing::None]),
            fast_zero: said(&[Zeroing::None, Zeroing::Unsaid]),
            extents,
            take: false,
            ..all_abilities()
        };
        let info = Info { abilities, ..model.info().clone() };
        Self {
            model,
            info,
            zeroing,
            unreadable: false,
            read: AtomicU64::new(0),
            written: AtomicU64::new(0),
            zeroed: Mutex::default(),
        }
    }

    fn full_of(self, byte: u8) -> Self {
        fill(&self.model, byte);
        self
    }
}

impl Blocking for Disk {
    fn info(&self) -> &Info {
        &self.info
    }
    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        if self.unreadable {
            return Err(Error::new(ErrorKind::Io, Fault::File, "read").at(offset));
        }
        self.read.fetch_add(buf.len() as u64, SeqCst);
        self.model.read_at(buf, offset)
    }
    fn write_at(&self, data: &[u8], offset: u64, fua: bool) -> Result<()> {
        self.written.fetch_add(data.len() as u64, SeqCst);
        self.model.write_at(data, offset, fua)
    }
    fn zero(&self, offset: u64, len: u64, flags: ZeroFlags) -> Result<()> {
        let writes = matches!(self.zeroing, Zeroing::Slow | Zeroing::SlowAndPicky);
        if writes && flags.fast_only {
            return Err(Error::not_fast());
        }
        let picky = self.zeroing == Zeroing::SlowAndPicky;
        let uneven = !offset.is_multiple_of(64 << 10) || !len.is_multiple_of(64 << 10);
        if self.zeroing == Zeroing::Refused || (picky && uneven) {
            return Err(Error::unsupported("zero"));
        }
        self.written.fetch_add(if writes { len } else { 0 }, SeqCst);
        self.zeroed.lock().unwrap().push((offset, len));
        self.model.zero(offset, len, ZeroFlags { fast_only: false, ..flags })
    }
    fn flush(&self) -> Result<()> {
        self.model.flush()
    }
    fn resolve(&self, offset: u64, len: u64, max: usize, out: &mut Vec<Extent>) -> Result<()> {
        self.model.resolve(offset, len, max, out)
    }
}

fn laid_out() -> (Arc<Model>, u64) {
    let size = LAID_OUT.iter().map(|(data, hole)| data + hole).sum();
    let source = Model::new(size);
    let (mut at, mut bytes) = (0, 0);
    for (data, hole) in LAID_OUT {
        source.write_at(&vec![at as u8 | 1; data], at as u64, false).unwrap();
        (at, bytes) = (at + data + hole, bytes + data as u64);
    }
    (Arc::new(source), bytes)
}

fn options() -> Options {
    Options { apart: true, test_fast_zero: false, ..Options::default() }
}

#[test]
fn a_clean_target_costs_its_data_and_no_more() {
    let (source, data) = laid_out();
    for zeroing in ALL {
        for extents in [false, true] {
            let target = Arc::new(Disk::new(source.bytes().len(), zeroing, extents));
            let report = run(&edge(source.clone()), &edge(target.clone()), &options()).unwrap();
            let written = target.written.load(SeqCst);
            assert!(written <= data + data / 100, "{zeroing:?} {extents}: {written} of {data}");
            assert_eq!(target.model.bytes(), source.bytes(), "{zeroing:?} {extents}");
            assert_eq!(report.done(), source.bytes().len() as u64);
        }
    }
}

#[test]
fn what_is_fast_is_not_read_first() {
    let (source, _) = laid_out();
    for zeroing in [Zeroing::Fast, Zeroing::Unsaid] {
        let target = Arc::new(Disk::new(source.bytes().len(), zeroing, false).full_of(0xaa));
        run(&edge(source.clone()), &edge(target.clone()), &options()).unwrap();
        assert_eq!(target.read.load(SeqCst), 0, "{zeroing:?}");
        assert_eq!(target.model.bytes(), source.bytes());
    }
}

#[test]
fn a_target_full_of_old_bytes_is_hardly_read_and_none_of_them_is_left() {
    let (source, data) = laid_out();
    let size = source.bytes().len() as u64;
    for zeroing in ALL {
        let target = Arc::new(Disk::new(source.bytes().len(), zeroing, false).full_of(0xaa));
        let one = Options { requests: Some(1), threads: Some(1), ..options() };
        run(&edge(source.clone()), &edge(target.clone()), &one).unwrap();
        assert_eq!(target.model.bytes(), source.bytes(), "{zeroing:?}");
        let read = target.read.load(SeqCst);
        assert!(read <= (size - data) / 8, "{zeroing:?}: {read}");
    }
}

#[test]
fn a_target_that_cannot_be_read_is_not_taken_for_clean() {
    let (source, _) = laid_out();
    for zeroing in ALL {
        let disk = Disk::new(source.bytes().len(), zeroing, false).full_of(0xaa);
        let target = Arc::new(Disk { unreadable: true, ..disk });
        run(&edge(source.clone()), &edge(target.clone()), &options()).unwrap();
        assert_eq!(target.model.bytes(), source.bytes(), "{zeroing:?}");
    }
}

#[test]
fn an_allocated_copy_does_not_leave_the_zeroes_of_the_target_alone() {
    let (source, _) = laid_out();
    for zeroing in ALL {
        let target = Arc::new(Disk::new(source.bytes().len(), zeroing, false));
        let allocated = Options { allocated: true, ..options() };
        run(&edge(source.clone()), &edge(target.clone()), &allocated).unwrap();
        assert_eq!(target.read.load(SeqCst), 0, "{zeroing:?}");
    }
}

#[test]
fn no_stale_byte_is_left_whatever_the_target_held_and_can_do() {
    let mut random = Random(1104);
    for round in 0..40 {
        let size = 700_000 + random.below(10) as usize;
        let source = Arc::new(Model::new(size));
        random_disk(&source, &mut random, 1);
        let zeroing = ALL[random.below(ALL.len() as u64) as usize];
        let disk = Disk::new(size, zeroing, random.below(2) == 0);
        random_disk(&disk.model, &mut random, 1);
        let target = Arc::new(Disk { unreadable: random.below(8) == 0, ..disk });
        let options = Options {
            requests: Some(random.pick(&[1, 3, 64])),
            request_size: random.pick(&[4096, 65536, 256 << 10]),
            threads: Some(random.pick(&[1, 3])),
            sparse: random.pick(&[None, Some(4096), Some(65536)]),
            test_fast_zero: random.below(2) == 0,
            skip_zeroes: random.below(2) == 0,
            queue_size: Some(random.pick(&[1, 70_000, 16 << 20])),
            apart: true,
            ..Options::default()
        };
        let report = run(&edge(source.clone()), &edge(target.clone()), &options);
        let context = format!("round {round}: {zeroing:?}, {options:?}");
        let report = report.unwrap_or_else(|e| panic!("{context}: {e}"));
        assert!(target.model.bytes() == source.bytes(), "{context}");
        assert_eq!(report.done(), size as u64, "{context}");
    }
}

#[test]
fn a_wipe_writes_every_byte_once_whatever_is_known_of_the_target() {
    let (source, _) = laid_out();
    let size = source.bytes().len() as u64;
    for zeroing in ALL {
        for options in [
            options(),
            Options { target_is_zero: true, ..options() },
            Options { sparse: None, no_extents: true, ..options() },
        ] {
            let target = Arc::new(Disk::new(size as usize, zeroing, true));
            let wipe = Options { wipe: true, ..options };
            run(&edge(source.clone()), &edge(target.clone()), &wipe).unwrap();
            assert_eq!(target.written.load(SeqCst), size, "{zeroing:?}");
            assert!(target.zeroed.lock().unwrap().is_empty(), "{zeroing:?}");
            assert_eq!(target.model.bytes(), source.bytes());
        }
    }
}

#[test]
fn a_claim_that_is_true_costs_a_few_short_reads() {
    let (source, data) = laid_out();
    let target = Arc::new(Disk::new(source.bytes().len(), Zeroing::Slow, false));
    let claimed = Options { target_is_zero: true, check_zero: true, ..options() };
    run(&edge(source.clone()), &edge(target.clone()), &claimed).unwrap();
    assert_eq!(target.model.bytes(), source.bytes());
    assert_eq!(target.written.load(SeqCst), data);
    assert!(target.read.load(SeqCst) <= 64 * 4096);
}

#[test]
fn a_claim_that_is_false_is_an_error_that_names_the_offset_and_changes_nothing() {
    let (source, _) = laid_out();
    let size = source.bytes().len() as u64;
    let (first, last) = ((256 * KIB) as u64, (956 * KIB) as u64);
    // Both ends, where data ends, just before it begins again, and in data.
    for at in [0, size - 1, first, first + 4095, last - 1, last - 4096] {
        let target = Arc::new(Disk::new(size as usize, Zeroing::Fast, true));
        target.model.write_at(&[1], at, false).unwrap();
        let claimed = Options { target_is_zero: true, check_zero: true, ..options() };
        let failed = run(&edge(source.clone()), &edge(target.clone()), &claimed).unwrap_err();
        assert_eq!(failed.error.offset(), Some(at), "{failed}");
        assert!(failed.to_string().contains("does not read as zeroes"), "{failed}");
        assert!(!failed.report.touched && target.written.load(SeqCst) == 0, "{failed}");
    }
}

#[test]
fn a_claim_about_a_target_that_cannot_be_read_is_not_believed() {
    let (source, _) = laid_out();
    let disk = Disk::new(source.bytes().len(), Zeroing::Fast, true);
    let target = Arc::new(Disk { unreadable: true, ..disk });
    let claimed = Options { target_is_zero: true, check_zero: true, ..options() };
    let failed = run(&edge(source), &edge(target.clone()), &claimed).unwrap_err();
    assert!(!failed.report.touched, "{failed}");
}

/// A volume of a thin pool that does not clear its blocks: what was never written reads as zeroes,
/// until something is written to the same room, which brings the old bytes there.
struct Thin {
    disk: Disk,
    room: u64,
    has: Mutex<std::collections::BTreeSet<u64>>,
}

impl Thin {
    fn new(size: usize, room: u64, zeroing: Zeroing) -> Self {
        let mut disk = Disk::new(size, zeroing, false);
        disk.info.room = room;
        Self { disk, room, has: Mutex::default() }
    }

    fn give_room(&self, offset: u64, len: u64) {
        for room in offset / self.room..(offset + len).div_ceil(self.room) {
            if self.has.lock().unwrap().insert(room) {
                let end = self.disk.info.size.min((room + 1) * self.room);
                let old = vec![0xaa; usize::try_from(end - room * self.room).unwrap()];
                self.disk.model.write_at(&old, room * self.room, false).unwrap();
            }
        }
    }
}

impl Blocking for Thin {
    fn info(&self) -> &Info {
        &self.disk.info
    }
    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.disk.read_at(buf, offset)
    }
    fn write_at(&self, data: &[u8], offset: u64, fua: bool) -> Result<()> {
        self.give_room(offset, data.len() as u64);
        self.disk.write_at(data, offset, fua)
    }
    fn zero(&self, offset: u64, len: u64, flags: ZeroFlags) -> Result<()> {
        if !flags.fast_only {
            self.give_room(offset, len);
        }
        self.disk.zero(offset, len, flags)
    }
    fn flush(&self) -> Result<()> {
        self.disk.flush()
    }
}

#[test]
fn what_reads_as_zeroes_until_its_neighbours_are_written_is_not_left_alone() {
    let mut random = Random(2211);
    for round in 0..60 {
        let size = 900_000 + random.below(10) as usize;
        let source = Arc::new(Model::new(size));
        random_disk(&source, &mut random, 1);
        let room = random.pick(&[4096, 65536, 3 * 32768, 1 << 20]);
        let zeroing = random.pick(&[Zeroing::None, Zeroing::Refused, Zeroing::Slow]);
        let target = Arc::new(Thin::new(size, room, zeroing));
        // Some of it was written before.
        for _ in 0..random.below(4) {
            let at = random.below(800_000);
            target.write_at(&[7; 5000], at, false).unwrap();
        }
        let used = !target.has.lock().unwrap().is_empty();
        let options = Options {
            requests: Some(random.pick(&[1, 3, 64])),
            request_size: random.pick(&[4096, 65536, 256 << 10]),
            threads: Some(random.pick(&[1, 3])),
            sparse: random.pick(&[None, Some(4096), Some(65536)]),
            target_is_zero: !used && random.below(2) == 0,
            apart: true,
            ..Options::default()
        };
        let report = run(&edge(source.clone()), &edge(target.clone()), &options);
        let context = format!("round {round}: room {room}, {zeroing:?}, {options:?}");
        let report = report.unwrap_or_else(|e| panic!("{context}: {e}"));
        assert!(target.disk.model.bytes() == source.bytes(), "{context}");
        assert_eq!(report.done(), size as u64, "{context}");
    }
}

#[test]
fn rooms_in_which_nothing_is_written_are_left_alone() {
    let (source, data) = laid_out();
    for zeroing in [Zeroing::None, Zeroing::Slow] {
        for told in [false, true] {
            let room = 64 << 10;
            let target = Arc::new(Thin::new(source.bytes().len(), room, zeroing));
            let options = Options { target_is_zero: told, ..options() };
            run(&edge(source.clone()), &edge(target.clone()), &options).unwrap();
            assert_eq!(target.disk.model.bytes(), source.bytes(), "{zeroing:?} {told}");
            // All of the rooms that have data, and at most one more for each of their ends.
            let written = target.disk.written.load(SeqCst);
            let most = data + 2 * room * LAID_OUT.len() as u64;
            assert!(written <= most, "{zeroing:?} {told}: {written} of {data}");
        }
    }
}
