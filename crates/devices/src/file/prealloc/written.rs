//! Zeroes that are written, by the best way there is: FALLOC_FL_WRITE_ZEROES, by which the disk
//! does it; on a block device BLKZEROOUT; else direct writes, several in flight; else writes
//! through the page cache.
//!
//! A way that the system lacks is not tried again. A failure is never a reason to try another way.
//! The caller chooses the range: its old contents are gone.

use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;

use runtime::Mutex;
use rustix::io::Errno;

use super::pace::Pace;
use super::system::{DirectDescriptor, Kernel, System};
use crate::file::block;
use crate::file::zero::Rung;
use crate::preallocation::{PreallocationWatch, ZeroMethod};

/// Less than this is written through the page cache: it goes to the disk with its neighbours.
const LEAST: u64 = 256 << 10;
/// The longest requests, in bytes: they cannot be stopped.
const WRITE_ZEROES: u64 = 256 << 20;
const ZERO_OUT: u64 = 64 << 20;
const DIRECT: u64 = 8 << 20;
const CACHED: u64 = 1 << 20;
/// Direct writes in flight at a time.
const AT_ONCE: u64 = 4;

/// The requests that a file or block device still supports.
#[derive(Debug)]
pub(crate) struct Written {
    /// Requests are of multiples of this, in bytes; writes through the page cache need not be.
    grain: u64,
    write_zeroes: Rung,
    zero_out: Rung,
    direct: Rung,
    opened: DirectDescriptor,
    why: Option<String>,
}

/// The rate and the observer of a run.
pub(crate) struct PacedRun<'a> {
    pub(crate) watch: &'a PreallocationWatch,
    pub(crate) pace: Option<&'a Pace>,
}

impl PacedRun<'_> {
    /// The length of a piece that is `longest` at most, a multiple of `grain`.
    fn piece(&self, longest: u64, grain: u64) -> u64 {
        let longest = self.pace.map_or(longest, |pace| longest.min(pace.longest()));
        (longest - longest % grain).max(grain)
    }

    fn wait(&self, len: u64) {
        if let Some(pace) = self.pace {
            pace.wait(len, self.watch);
        }
    }
}

impl Written {
    /// What `fd` may be asked for, in multiples of `grain` bytes.
    pub(crate) fn of(fd: BorrowedFd<'_>, grain: u64, is_device: bool) -> Self {
        let limit = block::queue_limit(fd, "write_zeroes_unmap_max_bytes");
        Self::new(grain, is_device, limit)
    }

    /// The same where the queue's limit for zeroes that it need not write is known, or is not.
    fn new(grain: u64, is_device: bool, limit: Option<u64>) -> Self {
        let why = (limit == Some(0))
            .then(|| "the disk's queue has write_zeroes_unmap_max_bytes 0".to_owned());
        Self {
            grain: grain.max(1),
            write_zeroes: Rung::new(limit != Some(0)),
            zero_out: Rung::new(is_device),
            direct: Rung::new(true),
            opened: DirectDescriptor::new(),
            why,
        }
    }

    /// Why the disk is not asked to zero by itself, where it is not.
    pub(crate) fn why(&self) -> Option<String> {
        let refused = || "the kernel, the file system or the disk refuses FALLOC_FL_WRITE_ZEROES";
        (!self.write_zeroes.is_there())
            .then(|| self.why.clone().unwrap_or_else(|| refused().to_owned()))
    }

    /// Writes zeroes over a range. Parts of blocks at its ends are written, too. A request to stop
    /// ends it early, as `watch` shows.
    pub(crate) fn zero(
        &self,
        fd: BorrowedFd<'_>,
        range: Range<u64>,
        job: &PacedRun<'_>,
    ) -> io::Result<()> {
        self.zero_by(&Kernel { fd, direct: &self.opened }, range, job)
    }

    fn zero_by(
        &self,
        system: &dyn System,
        range: Range<u64>,
        job: &PacedRun<'_>,
    ) -> io::Result<()> {
        let mut at = range.start;
        // Ranges begin with a block, but for those that the user chose.
        let first = at.checked_next_multiple_of(self.grain).unwrap_or(u64::MAX).min(range.end);
        if at < first {
            self.all_of(system, at..first, job)?;
            at = first;
        }
        // Requests that the kernel cuts by itself come one after the other.
        while at < range.end && self.asks() && !job.watch.is_stopped() {
            at += self.step(system, at..range.end, job)?;
        }
        self.side_by_side(system, at..range.end, job)
    }

    fn asks(&self) -> bool {
        self.write_zeroes.is_there() || self.zero_out.is_there()
    }

    fn all_of(&self, system: &dyn System, range: Range<u64>, job: &PacedRun<'_>) -> io::Result<()> {
        let mut at = range.start;
        while at < range.end && !job.watch.is_stopped() {
            at += self.step(system, at..range.end, job)?;
        }
        Ok(())
    }

    /// Several writes in flight at a time, where the range is long enough.
    fn side_by_side(
        &self,
        system: &dyn System,
        range: Range<u64>,
        job: &PacedRun<'_>,
    ) -> io::Result<()> {
        let piece = job.piece(DIRECT, self.grain);
        let threads = (range.end.saturating_sub(range.start) / piece).min(AT_ONCE);
        if threads <= 1 {
            return self.all_of(system, range, job);
        }
        let (next, failed) = (Mutex::new(range.start), Mutex::new(None));
        let take = || {
            let mut next = next.lock();
            let part = *next..range.end.min(next.saturating_add(piece));
            *next = part.end;
            let over = job.watch.is_stopped() || failed.lock().is_some();
            (!part.is_empty() && !over).then_some(part)
        };
        let work = || {
            while let Some(part) = take() {
                if let Err(e) = self.all_of(system, part, job) {
                    failed.lock().get_or_insert(e);
                }
            }
        };
        std::thread::scope(|scope| {
            for _ in 1..threads {
                // With fewer threads it takes longer.
                let _ = std::thread::Builder::new().name("zeroes".into()).spawn_scoped(scope, work);
            }
            work();
        });
        failed.lock().take().map_or(Ok(()), Err)
    }

    /// Zeroes something at the start of a range that is not empty; how many bytes.
    fn step(&self, system: &dyn System, range: Range<u64>, job: &PacedRun<'_>) -> io::Result<u64> {
        let (at, len) = (range.start, range.end - range.start);
        let whole = if at.is_multiple_of(self.grain) { len - len % self.grain } else { 0 };
        if whole >= LEAST.max(self.grain) {
            type Ask<'a> = &'a dyn Fn(u64) -> rustix::io::Result<u64>;
            let write_zeroes: Ask<'_> = &|n| system.write_zeroes(at, n).map(|()| n);
            let zero_out: Ask<'_> = &|n| system.zero_out(at, n).map(|()| n);
            let direct: Ask<'_> = &|n| system.write_direct(at, n);
            for (rung, way, longest, ask) in [
                (&self.write_zeroes, ZeroMethod::WriteZeroes, WRITE_ZEROES, write_zeroes),
                (&self.zero_out, ZeroMethod::ZeroOut, ZERO_OUT, zero_out),
                (&self.direct, ZeroMethod::Direct, DIRECT, direct),
            ] {
                if !rung.is_there() {
                    continue;
                }
                let piece = whole.min(job.piece(longest, self.grain));
                job.wait(piece);
                if job.watch.is_stopped() {
                    return Ok(0);
                }
                match rung.try_it(|| ask(piece).and_then(something))? {
                    Some(done) => {
                        job.watch.zeroed(way, done);
                        return Ok(done);
                    }
                    // It is refused for this range, or altogether; neither will change.
                    None => rung.take_out(),
                }
            }
        }
        let piece = len.min(job.piece(CACHED, 1));
        job.wait(piece);
        let done =
            crate::file::transfer::retry(|| system.write_cached(at, piece).and_then(something))?;
        job.watch.zeroed(ZeroMethod::Cached, done);
        Ok(done)
    }
}

/// A write of no bytes would be retried for ever.
fn something(n: u64) -> rustix::io::Result<u64> {
    if n == 0 { Err(Errno::IO) } else { Ok(n) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: u64 = 4096;
    const MIB: u64 = 1 << 20;

    /// A kernel that answers as a test wants, and remembers what it did.
    struct Fake {
        write_zeroes: Result<(), Errno>,
        zero_out: Result<(), Errno>,
        direct: Result<(), Errno>,
        cached: Result<(), Errno>,
        /// Bytes that a write takes at most.
        short: u64,
        calls: Mutex<Vec<(ZeroMethod, Range<u64>, bool)>>,
    }

    impl Fake {
        fn new(write_zeroes: Result<(), Errno>, direct: Result<(), Errno>) -> Self {
            let (zero_out, cached) = (Err(Errno::NOTTY), Ok(()));
            let (short, calls) = (u64::MAX, Mutex::default());
            Self { write_zeroes, zero_out, direct, cached, short, calls }
        }

        fn call(
            &self,
            way: ZeroMethod,
            at: u64,
            len: u64,
            answer: Result<(), Errno>,
        ) -> Result<(), Errno> {
            self.calls.lock().push((way, at..at + len, answer.is_ok()));
            answer
        }

        /// Which calls were made of a way, and of those that succeeded, that they cover `range`
        /// once.
        fn covers(&self, range: Range<u64>) {
            let mut done: Vec<_> = self.calls.lock().clone();
            done.retain(|(_, _, ok)| *ok);
            done.sort_by_key(|(_, r, _)| r.start);
            let mut at = range.start;
            for (_, part, _) in done {
                assert_eq!(part.start, at);
                at = part.end;
            }
            assert_eq!(at, range.end);
        }

        fn count(&self, way: ZeroMethod) -> usize {
            self.calls.lock().iter().filter(|(w, ..)| *w == way).count()
        }
    }

    impl System for Fake {
        fn write_zeroes(&self, at: u64, len: u64) -> Result<(), Errno> {
            assert!(at.is_multiple_of(BLOCK) && len.is_multiple_of(BLOCK));
            self.call(ZeroMethod::WriteZeroes, at, len, self.write_zeroes)
        }
        fn zero_out(&self, at: u64, len: u64) -> Result<(), Errno> {
            assert!(at.is_multiple_of(BLOCK) && len.is_multiple_of(BLOCK));
            self.call(ZeroMethod::ZeroOut, at, len, self.zero_out)
        }
        fn write_direct(&self, at: u64, len: u64) -> Result<u64, Errno> {
            assert!(at.is_multiple_of(BLOCK) && len.is_multiple_of(BLOCK));
            let len = len.min(self.short);
            self.call(ZeroMethod::Direct, at, len, self.direct).map(|()| len)
        }
        fn write_cached(&self, at: u64, len: u64) -> Result<u64, Errno> {
            let len = len.min(self.short);
            self.call(ZeroMethod::Cached, at, len, self.cached).map(|()| len)
        }
    }

    fn zero(fake: &Fake, written: &Written, range: Range<u64>) -> io::Result<PreallocationWatch> {
        let watch = PreallocationWatch::default();
        written.zero_by(fake, range, &PacedRun { watch: &watch, pace: None })?;
        Ok(watch)
    }

    #[test]
    fn a_disk_that_zeroes_by_itself_is_written_nothing_but_the_end() {
        let fake = Fake::new(Ok(()), Ok(()));
        let written = Written::new(BLOCK, false, Some(1 << 30));
        let end = 600 * MIB + 100;
        let watch = zero(&fake, &written, 0..end).unwrap();
        fake.covers(0..end);
        assert_eq!(watch.ways(), [(ZeroMethod::WriteZeroes, 600 * MIB), (ZeroMethod::Cached, 100)]);
        assert_eq!((fake.count(ZeroMethod::WriteZeroes), fake.count(ZeroMethod::Direct)), (3, 0));
        assert_eq!(written.why(), None);
    }

    #[test]
    fn a_queue_without_it_is_not_asked_and_one_that_is_unknown_is_asked_once() {
        for (limit, asked) in [(Some(0), 0), (None, 1), (Some(4096), 1)] {
            for refusal in [Errno::OPNOTSUPP, Errno::INVAL, Errno::NOSYS] {
                let fake = Fake::new(Err(refusal), Ok(()));
                let written = Written::new(BLOCK, false, limit);
                let watch = zero(&fake, &written, 0..40 * MIB).unwrap();
                zero(&fake, &written, 40 * MIB..80 * MIB).unwrap();
                fake.covers(0..80 * MIB);
                assert_eq!(fake.count(ZeroMethod::WriteZeroes), asked, "{limit:?} {refusal}");
                assert_eq!(fake.count(ZeroMethod::ZeroOut), 0, "no block device");
                assert_eq!(watch.ways(), [(ZeroMethod::Direct, 40 * MIB)]);
                assert!(written.why().is_some());
            }
        }
    }

    #[test]
    fn a_block_device_is_zeroed_by_the_kernel_and_written_where_that_cannot() {
        let mut fake = Fake::new(Err(Errno::OPNOTSUPP), Ok(()));
        fake.zero_out = Ok(());
        let written = Written::new(BLOCK, true, None);
        let watch = zero(&fake, &written, 0..100 * MIB).unwrap();
        fake.covers(0..100 * MIB);
        assert_eq!(watch.ways(), [(ZeroMethod::ZeroOut, 100 * MIB)]);
        let fake = Fake::new(Err(Errno::OPNOTSUPP), Ok(()));
        let watch = zero(&fake, &Written::new(BLOCK, true, None), 0..100 * MIB).unwrap();
        fake.covers(0..100 * MIB);
        assert_eq!(watch.ways(), [(ZeroMethod::Direct, 100 * MIB)]);
    }

    #[test]
    fn without_direct_writes_it_goes_through_the_page_cache_and_short_writes_are_carried_on() {
        let mut fake = Fake::new(Err(Errno::OPNOTSUPP), Err(Errno::INVAL));
        fake.short = 300_000;
        let watch = zero(&fake, &Written::new(BLOCK, false, None), 0..9 * MIB).unwrap();
        fake.covers(0..9 * MIB);
        assert_eq!(watch.ways(), [(ZeroMethod::Cached, 9 * MIB)]);
        let mut fake = Fake::new(Err(Errno::OPNOTSUPP), Ok(()));
        fake.short = 3 * MIB;
        zero(&fake, &Written::new(BLOCK, false, None), 0..90 * MIB).unwrap();
        fake.covers(0..90 * MIB);
    }

    #[test]
    fn a_failure_ends_it_and_nothing_else_is_tried() {
        for errno in [Errno::NOSPC, Errno::IO, Errno::PERM] {
            let fake = Fake::new(Err(errno), Ok(()));
            let e = zero(&fake, &Written::new(BLOCK, false, None), 0..90 * MIB).unwrap_err();
            assert_eq!(e.raw_os_error(), Some(errno.raw_os_error()));
            assert_eq!(
                (fake.count(ZeroMethod::WriteZeroes), fake.count(ZeroMethod::Direct)),
                (1, 0)
            );
            let fake = Fake::new(Err(Errno::OPNOTSUPP), Err(errno));
            let e = zero(&fake, &Written::new(BLOCK, false, None), 0..90 * MIB).unwrap_err();
            assert_eq!(e.raw_os_error(), Some(errno.raw_os_error()));
            assert_eq!(fake.count(ZeroMethod::Cached), 0);
        }
    }

    #[test]
    fn a_run_that_is_stopped_ends_with_the_writes_in_flight() {
        let fake = Fake::new(Err(Errno::OPNOTSUPP), Ok(()));
        let watch = PreallocationWatch::default();
        watch.stop();
        let written = Written::new(BLOCK, false, Some(0));
        written.zero_by(&fake, 0..90 * MIB, &PacedRun { watch: &watch, pace: None }).unwrap();
        assert!(fake.calls.lock().is_empty());
    }

    #[test]
    fn unaligned_ends_are_written_through_the_page_cache() {
        let fake = Fake::new(Ok(()), Ok(()));
        let watch = zero(&fake, &Written::new(BLOCK, false, None), 5..MIB + 7).unwrap();
        fake.covers(5..MIB + 7);
        let cached = BLOCK - 5 + 7;
        assert_eq!(
            watch.ways(),
            [(ZeroMethod::WriteZeroes, MIB - BLOCK), (ZeroMethod::Cached, cached)]
        );
    }
}
