//! Which operations are tried again, and what a loss means for a flush.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use device::model::Model;
use device::{Abilities, BlockSizes, Blocking as _, Buffer, ZeroFlags};
use runtime::Mutex;
use trial::{Fate, TestDevice};

use super::*;
use crate::kit::tested::{client, connect, personal, put, read, simple, start};

/// A device whose next operations fail, behind a path that breaks.
struct Shaky {
    device: Arc<TestDevice>,
    path: Arc<Path>,
}

#[derive(Default)]
struct Path {
    /// The errors of the next reopenings.
    closed: Mutex<Vec<ErrorKind>>,
    reopened: AtomicUsize,
    epoch: AtomicU64,
}

impl Shaky {
    fn new(failures: &[ErrorKind]) -> Self {
        Self::over(Model::new(1 << 20), failures)
    }

    fn over(model: Model, failures: &[ErrorKind]) -> Self {
        let path = Arc::<Path>::default();
        let device = TestDevice::over(model).session_of(path.clone()).shared();
        device.fail_next(failures.to_vec());
        Self { device, path }
    }

    /// The next operation finds the connection broken.
    fn breaks(&self) {
        self.device.fail_next([ErrorKind::Disconnected]);
    }

    /// Operations and reopenings.
    fn counts(&self) -> (usize, usize) {
        (self.device.seen().len(), self.path.reopened.load(Ordering::Relaxed))
    }
}

impl device::Session for Path {
    fn reopen(&self) -> Result<()> {
        self.reopened.fetch_add(1, Ordering::Relaxed);
        let failure = self.closed.lock().pop();
        failure.map_or(Ok(()), |kind| Err(Error::new(kind, Fault::Peer, "reopen")))?;
        self.epoch.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
    fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Relaxed)
    }
}

const IO: ErrorKind = ErrorKind::Io;

fn over(shaky: &Shaky, words: &[&str]) -> Edge {
    let soon: &[&str] = if words.concat().contains("delay") { &[] } else { &["retry-delay=1ms"] };
    put("retry", simple(shaky.device.clone()), &[soon, words].concat()).unwrap()
}

#[test]
fn what_fails_is_tried_again_after_the_device_was_reopened() {
    let shaky = Shaky::new(&[IO, ErrorKind::Disconnected, IO, IO]);
    let disk = over(&shaky, &[]);
    disk.write(&[7; 5000], 100, false).unwrap();
    assert_eq!(shaky.counts(), (5, 4));
    shaky.device.fail_next([IO]);
    let mut read = [0; 5000];
    disk.read(&mut read, 100).unwrap();
    assert_eq!(read, [7; 5000]);
}

#[test]
fn an_operation_that_always_fails_is_given_up_with_its_own_error() {
    let shaky = Shaky::new(&[IO; 20]);
    let disk = over(&shaky, &["retries=3"]);
    assert_eq!(disk.read(&mut [0; 1], 0).unwrap_err().kind(), IO);
    assert_eq!(shaky.counts(), (4, 3));
    let none = over(&shaky, &["retries=0"]);
    assert!(none.read(&mut [0; 1], 0).is_err());
    assert_eq!(shaky.counts(), (5, 3));
}

#[test]
fn opening_that_fails_is_a_try_that_failed() {
    let shaky = Shaky::new(&[ErrorKind::Disconnected]);
    shaky.path.closed.lock().extend([ErrorKind::NotFound; 3]);
    let disk = over(&shaky, &[]);
    disk.read(&mut [0; 1], 0).unwrap();
    assert_eq!(shaky.counts(), (2, 4));
    shaky.breaks();
    shaky.path.closed.lock().extend([ErrorKind::NotFound; 6]);
    assert_eq!(disk.read(&mut [0; 1], 0).unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
fn a_permanent_error_is_not_tried_again() {
    use ErrorKind as K;
    for kind in [
        K::Cancelled,
        K::InvalidInput,
        K::Limit,
        K::Mismatch,
        K::NoSpace,
        K::NotFast,
        K::OutOfBounds,
        K::PermissionDenied,
        K::ReadOnly,
    ] {
        let shaky = Shaky::new(&[kind]);
        let disk = over(&shaky, &[]);
        assert_eq!(disk.write(&[1; 10], 0, false).unwrap_err().kind(), kind);
        assert_eq!(shaky.counts(), (1, 0), "{kind:?}");
    }
}

#[test]
fn a_flush_that_the_disk_failed_is_not_tried_again_but_one_that_did_not_arrive_is() {
    let shaky = Shaky::new(&[IO]);
    assert!(over(&shaky, &[]).flush().is_err());
    assert_eq!(shaky.counts(), (1, 0));
    let shaky = Shaky::new(&[ErrorKind::Disconnected]);
    over(&shaky, &[]).flush().unwrap();
    assert_eq!(shaky.counts(), (2, 1));
}

#[test]
fn a_flush_does_not_cover_what_was_acknowledged_before_the_reconnect() {
    for change in [
        Operation::Write { offset: 0, data: Buffer::zeroed(10).into(), fua: false },
        Operation::Zero { offset: 0, len: 10, flags: ZeroFlags::default() },
        Operation::Trim { offset: 0, len: 10, fua: false },
    ] {
        let shaky = Shaky::new(&[]);
        let disk = over(&shaky, &[]);
        // Nothing is at stake yet.
        shaky.breaks();
        disk.flush().unwrap();
        disk.device().run(change).unwrap();
        shaky.breaks();
        disk.read(&mut [0; 1], 0).unwrap();
        let e = disk.flush().unwrap_err();
        assert_eq!(e.kind(), IO);
        assert!(e.to_string().contains("may be lost"), "{e}");
        disk.flush().unwrap();
        // The same when it is the flush itself that finds the connection broken.
        disk.write(&[1; 10], 0, false).unwrap();
        shaky.breaks();
        assert!(disk.flush().is_err());
        disk.flush().unwrap();
        // Durable writes are not at stake.
        disk.write(&[1; 10], 0, true).unwrap();
        shaky.breaks();
        disk.flush().unwrap();
    }
}

#[test]
fn what_a_flush_over_another_connection_made_durable_is_done_again() {
    let can = Abilities { fua: false, ..Model::new(1).info().abilities };
    let shaky = Shaky::over(Model::with(1 << 20, can, BlockSizes::ANY), &[]);
    let disk = over(&shaky, &[]);
    let (path, is_same) = (shaky.path.clone(), AtomicBool::new(true));
    // The first flush goes over another path, which another client made.
    shaky.device.on(move |operation| {
        if matches!(operation, Operation::Flush) && is_same.swap(false, Ordering::Relaxed) {
            path.epoch.fetch_add(1, Ordering::Relaxed);
        }
        Fate::Pass(operation)
    });
    disk.write(&[1; 10], 0, true).unwrap();
    // Written and flushed over two paths, and again over one.
    assert_eq!((shaky.device.model().log().len(), shaky.device.model().flushes()), (2, 2));
}

#[test]
fn every_client_learns_that_its_changes_may_be_lost() {
    let shaky = Shaky::new(&[]);
    let all = over(&shaky, &[]);
    let client = |number| {
        let own = connect(&all, &client(number)).unwrap().unwrap();
        all.beside(own)
    };
    let (one, two) = (client(1), client(2));
    one.write(&[1; 10], 0, false).unwrap();
    two.write(&[1; 10], 0, false).unwrap();
    shaky.breaks();
    one.read(&mut [0; 1], 0).unwrap();
    assert!(one.flush().is_err() && two.flush().is_err());
    assert!(one.flush().is_ok() && two.flush().is_ok() && client(3).flush().is_ok());
}

#[test]
fn a_fast_zero_that_may_have_begun_is_never_called_not_fast() {
    let shaky = Shaky::new(&[IO, ErrorKind::NotFast]);
    shaky.device.model().write_at(&[1; 4096], 0, false).unwrap();
    let disk = over(&shaky, &[]);
    disk.zero(0, 4096, ZeroFlags { fast_only: true, ..ZeroFlags::default() }).unwrap();
    assert_eq!(shaky.device.model().bytes()[..4096], [0; 4096]);
    assert_eq!(shaky.counts(), (3, 1));
}

#[test]
fn after_a_failure_nothing_is_written_if_that_is_set() {
    let shaky = Shaky::new(&[IO]);
    let all = over(&shaky, &["retry-readonly=yes"]);
    let for_client = |number| personal(&all, &client(number));
    let (one, other) = (for_client(1), for_client(2));
    let e = one.write(&[1; 10], 0, false).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::ReadOnly);
    one.read(&mut [0; 10], 0).unwrap();
    assert_eq!(one.zero(0, 10, ZeroFlags::default()).unwrap_err().kind(), ErrorKind::ReadOnly);
    other.write(&[1; 10], 0, false).unwrap();
}

#[test]
fn many_operations_that_fail_together_share_one_reopening() {
    let shaky = Shaky::new(&[ErrorKind::Disconnected; 64]);
    let disk = over(&shaky, &["retry-delay=50ms"]);
    let reads: Vec<_> = (0..64).map(|_| start(&disk, read(0, 16))).collect();
    assert!(reads.into_iter().all(|one| one.recv().unwrap().is_ok()));
    assert!(shaky.counts().1 < 8, "{:?}", shaky.counts());
}

#[test]
fn waits_double_and_never_overflow() {
    let settings =
        |words: &[&str]| Settings::read(&Params::parse(words.iter().copied()).unwrap()).unwrap();
    let usual = settings(&[]);
    let waits: Vec<_> = (1..=5).map(|tried| usual.wait(tried).as_secs()).collect();
    assert_eq!(waits, [2, 4, 8, 16, 32]);
    assert_eq!(settings(&["retry-exponential=no"]).wait(9).as_secs(), 2);
    assert_eq!(usual.wait(u64::MAX), LONGEST);
    assert_eq!(settings(&["retry-delay=0"]).wait(u64::MAX), Duration::ZERO);
}
