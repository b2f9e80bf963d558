//! Maps that cost more than they tell: counted below the copier, with a device that takes its time.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use copy::Options;
use device::model::Model;
use device::{Blocking, Error, ErrorKind, Extent, ExtentKind, Fault, Info, Result, ZeroFlags};

use super::support::{Endless, all_abilities, edge, run};

/// A disk whose map takes a while for each answer, and says little.
struct Slow {
    info: Info,
    takes: Duration,
    /// How much each answer is of.
    tells: u64,
    /// What is at an offset.
    kind: fn(u64) -> ExtentKind,
    asked: AtomicUsize,
    read: AtomicUsize,
    holes_read: AtomicUsize,
}

impl Slow {
    fn new(size: u64, takes: Duration, tells: u64, kind: fn(u64) -> ExtentKind) -> Arc<Self> {
        let mut info = Info::new("slow", size);
        info.abilities.extents = true;
        let count = AtomicUsize::default;
        let (asked, read, holes_read) = (count(), count(), count());
        Arc::new(Self { info, takes, tells, kind, asked, read, holes_read })
    }
}

impl Blocking for Slow {
    fn info(&self) -> &Info {
        &self.info
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        self.read.fetch_add(1, SeqCst);
        for (i, byte) in buffer.iter_mut().enumerate().step_by(4096) {
            let hole = (self.kind)(offset + i as u64).reads_zero();
            self.holes_read.fetch_add(usize::from(hole), SeqCst);
            *byte = u8::from(!hole);
        }
        Ok(())
    }

    fn write_at(&self, _: &[u8], _: u64, _: bool) -> Result<()> {
        Err(Error::new(ErrorKind::ReadOnly, Fault::User, "write"))
    }

    fn zero(&self, _: u64, _: u64, _: ZeroFlags) -> Result<()> {
        Err(Error::new(ErrorKind::ReadOnly, Fault::User, "zero"))
    }

    fn flush(&self) -> Result<()> {
        Ok(())
    }

    fn resolve(&self, offset: u64, len: u64, _: usize, out: &mut Vec<Extent>) -> Result<()> {
        self.asked.fetch_add(1, SeqCst);
        std::thread::sleep(self.takes);
        let len = len.min(self.tells - offset % self.tells);
        out.push(Extent::new(offset, len, (self.kind)(offset)));
        Ok(())
    }
}

#[test]
fn a_slow_map_that_tells_nothing_is_asked_no_more() {
    // 1024 answers of 5 ms each, if all are asked for.
    let slow = Slow::new(64 << 20, Duration::from_millis(5), 64 << 10, |_| ExtentKind::Data);
    let target = Arc::new(Model::new(64 << 20));
    let report = run(&edge(slow.clone()), &edge(target.clone()), &Options::default()).unwrap();
    assert_eq!(report.total, 64 << 20);
    assert!(slow.asked.load(SeqCst) < 40, "{:?}", slow.asked);
    assert!(target.bytes().iter().step_by(4096).all(|byte| *byte == 1));
}

#[test]
fn short_holes_of_a_slow_map_are_found_in_the_data() {
    let kind = |at: u64| if at >> 16 & 1 == 0 { ExtentKind::Hole } else { ExtentKind::Data };
    let slow = Slow::new(64 << 20, Duration::from_millis(5), 64 << 10, kind);
    let target = Arc::new(Model::new(64 << 20));
    let options = Options { target_is_zero: true, ..Options::default() };
    let report = run(&edge(slow.clone()), &edge(target.clone()), &options).unwrap();
    assert!(slow.asked.load(SeqCst) < 100, "{:?}", slow.asked);
    assert_eq!(report.copied, 32 << 20, "zeroes in data are no data");
    for (i, byte) in target.bytes().iter().enumerate().step_by(4096) {
        assert_eq!(*byte, u8::from(!kind(i as u64).reads_zero()));
    }
}

#[test]
fn long_holes_of_a_slow_map_are_never_read() {
    let slow = Slow::new(1 << 37, Duration::from_millis(2), 1 << 30, |_| ExtentKind::Hole);
    let target = Endless::new(1 << 37, all_abilities());
    let options = Options { target_is_zero: true, ..Options::default() };
    let report = run(&edge(slow.clone()), &edge(target), &options).unwrap();
    assert_eq!((report.skipped, report.copied), (1 << 37, 0));
    assert_eq!(slow.holes_read.load(SeqCst), 0);
    assert_eq!(slow.asked.load(SeqCst), 128);
}

#[test]
fn a_map_that_answers_at_once_is_asked_to_the_end() {
    let kind = |at: u64| if at >> 16 & 1 == 0 { ExtentKind::Hole } else { ExtentKind::Data };
    let slow = Slow::new(8 << 20, Duration::ZERO, 64 << 10, kind);
    let target = Arc::new(Model::new(8 << 20));
    run(&edge(slow.clone()), &edge(target), &Options::default()).unwrap();
    assert_eq!(slow.asked.load(SeqCst), 128);
    assert_eq!(slow.holes_read.load(SeqCst), 0);
}

#[test]
fn where_all_is_to_be_allocated_no_map_is_asked_for() {
    let slow = Slow::new(8 << 20, Duration::ZERO, 64 << 10, |_| ExtentKind::Hole);
    let target = Slow::new(8 << 20, Duration::ZERO, 64 << 10, |_| ExtentKind::Data);
    let target = Arc::new(Counted(target, Model::new(8 << 20)));
    let options = Options { sparse: None, allocated: true, no_extents: true, ..Options::default() };
    run(&edge(slow.clone()), &edge(target.clone()), &options).unwrap();
    assert_eq!(slow.asked.load(SeqCst), 0);
    assert_eq!(target.0.asked.load(SeqCst), 0);
    assert!(slow.read.load(SeqCst) > 0, "all is read");
}

/// A target that can be written, and counts requests for its map.
struct Counted(Arc<Slow>, Model);

impl Blocking for Counted {
    fn info(&self) -> &Info {
        self.1.info()
    }
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        self.1.read_at(buffer, offset)
    }
    fn write_at(&self, data: &[u8], offset: u64, fua: bool) -> Result<()> {
        self.1.write_at(data, offset, fua)
    }
    fn zero(&self, offset: u64, len: u64, flags: ZeroFlags) -> Result<()> {
        self.1.zero(offset, len, flags)
    }
    fn flush(&self) -> Result<()> {
        Ok(())
    }
    fn resolve(&self, offset: u64, len: u64, max: usize, out: &mut Vec<Extent>) -> Result<()> {
        self.0.asked.fetch_add(1, SeqCst);
        self.1.resolve(offset, len, max, out)
    }
}
