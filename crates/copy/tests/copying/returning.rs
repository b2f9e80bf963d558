//! A source whose server is lost and comes back, perhaps with other bytes: a target is never a
//! mixture of two disks.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use copy::{Anew, Cancel, FailedCopy, Options, Progress, Report};
use device::model::Model;
use device::{
    Blocking, Client, Connected, Edge, ErrorKind, Operation, OperationKind, Outcome, Session,
};
use trial::{Fate, TestDevice};

use crate::support::*;

const SIZE: usize = 1 << 20;

/// The path to the server, which reconnects by itself.
#[derive(Default)]
struct Way {
    epoch: AtomicU64,
    /// Reads may show what was kept of the disk that was there before.
    keeps: bool,
}

impl Session for Way {
    fn connect(&self, _: &Client, done: Connected) {
        done(Ok(None));
    }
    fn reconnects(&self) -> bool {
        true
    }
    fn epoch(&self) -> u64 {
        self.epoch.load(SeqCst)
    }
    fn keeps_bytes(&self) -> bool {
        self.keeps
    }
}

/// A disk whose server is lost at certain operations (in order), with what it then does to the
/// disk.
fn losing(
    disk: &Arc<Model>,
    at: Vec<usize>,
    map: bool,
    change: impl Fn(&Model, usize) + Send + Sync + 'static,
) -> (Edge, Arc<TestDevice>) {
    losing_by(Way::default(), disk, at, map, change)
}

fn losing_by(
    way: Way,
    disk: &Arc<Model>,
    at: Vec<usize>,
    map: bool,
    change: impl Fn(&Model, usize) + Send + Sync + 'static,
) -> (Edge, Arc<TestDevice>) {
    let (way, count, model) = (Arc::new(way), Mutex::new(0), disk.clone());
    let epoch = way.clone();
    let device = TestDevice::over(disk.clone()).hooked(move |operation| {
        // What an operation sees, and in which epoch, is one step.
        let mut count = count.lock().unwrap();
        *count += 1;
        if let Some(n) = at.iter().position(|at| at == &*count) {
            change(&model, n);
            epoch.epoch.fetch_add(1, SeqCst);
        }
        match operation {
            Operation::Read { offset, mut buffer } => {
                model.read_at(&mut buffer, offset).unwrap();
                Fate::done(Operation::Read { offset, buffer })
            }
            Operation::Resolve { offset, len, max } => {
                let (len, mut extents) = (len.min(1 << 20), Vec::new());
                model.resolve(offset, len, max.min(5), &mut extents).unwrap();
                Fate::Answer(Ok(Outcome::Extents(extents)))
            }
            other => Fate::Pass(other),
        }
    });
    let device = device.session_of(way).info_with(|info| info.abilities.extents = map).shared();
    (edge(device.clone()), device)
}

fn options(random: &mut Random) -> Options {
    Options {
        threads: Some(1 + random.below(3) as usize),
        request_size: 16 << 10,
        sparse: Some(4096).filter(|_| random.below(3) > 0),
        no_extents: random.below(4) == 0,
        ..Options::default()
    }
}

/// Copies to a disk of old bytes, which forgets nothing.
fn copied(
    from: &Edge,
    options: &Options,
) -> (std::result::Result<Report, Box<FailedCopy>>, Vec<u8>) {
    let target = Arc::new(Model::new(SIZE));
    fill(&target, 0xee);
    let result = run(from, &edge(target.clone()), options);
    (result, target.bytes())
}

#[test]
fn one_block_that_changed_while_the_server_was_away_is_never_mixed_in() {
    let (mut refused, mut whole) = (0, 0);
    for seed in 0..50 {
        let mut random = Random(seed);
        let disk = Arc::new(Model::new(SIZE));
        random_disk(&disk, &mut random, 512);
        let old = disk.bytes();
        let (lost, place) = (1 + random.below(70) as usize, random.below(SIZE as u64 / 512) * 512);
        let erases = random.below(3) == 0;
        let change = move |disk: &Model, _: usize| {
            let bytes = if erases { [0; 512] } else { [0xa7; 512] };
            disk.write_at(&bytes, place, false).unwrap();
        };
        let (from, _) = losing(&disk, vec![lost], seed % 3 > 0, change);
        let options = options(&mut random);
        let (result, bytes) = copied(&from, &options);
        match result {
            Ok(_) => {
                assert!(bytes == old || bytes == disk.bytes(), "{seed}: mixed: {options:?}");
                whole += 1;
            }
            Err(failed) => {
                assert_eq!(failed.error.kind(), ErrorKind::Changed, "{seed}: {failed}");
                assert!(!failed.report.left.is_empty());
                refused += 1;
            }
        }
    }
    assert!(refused > 10 && whole > 10, "{refused} were refused, and {whole} not");
}

#[test]
fn a_source_that_comes_back_as_it_was_is_read_again_as_far_as_it_had_been_read() {
    for seed in 0..30 {
        let mut random = Random(seed);
        let disk = Arc::new(Model::new(SIZE));
        random_disk(&disk, &mut random, 1);
        let losses: Vec<usize> = (0..seed % 4).map(|n| 3 + 11 * n as usize).collect();
        let (from, seen) = losing(&disk, losses.clone(), seed % 2 == 0, |_, _| {});
        let (result, bytes) = copied(&from, &options(&mut random));
        let report = result.unwrap();
        assert!(bytes == disk.bytes(), "{seed}");
        assert_eq!(report.confirmed > 0, !losses.is_empty(), "{seed}: {report:?}");
        assert!(report.confirmed <= SIZE as u64);
        let read: u64 = seen.seen_of(OperationKind::Read).iter().map(|read| read.len).sum();
        // Each byte once, and once more if it was read before a loss; a few for the map's cost.
        let most = if losses.is_empty() { SIZE as u64 } else { 2 * SIZE as u64 };
        assert!(read <= most + (1 << 20), "{seed}: {read} bytes were read");
    }
}

#[test]
fn the_progress_tells_that_what_was_read_before_a_loss_is_compared() {
    let (disk, way) = (Arc::new(Model::new(SIZE)), Arc::new(Way::default()));
    fill(&disk, 0x5a);
    let (progress, looks) = (Progress::default(), Arc::new(Mutex::new(Vec::new())));
    let (epoch, seen, compares) = (way.clone(), progress.clone(), looks.clone());
    let device = TestDevice::over(disk).session_of(way).hooked(move |operation| {
        let mut looks = compares.lock().unwrap();
        looks.push(seen.snapshot().comparing);
        epoch.epoch.fetch_add(u64::from(looks.len() == 5), SeqCst);
        Fate::Pass(operation)
    });
    let (from, to) = (edge(device.shared()), edge(Arc::new(Model::new(SIZE))));
    let options =
        Options { threads: Some(1), request_size: 16 << 10, bulk: false, ..Options::default() };
    run_until(&from, &to, &options, &progress, &Cancel::default()).unwrap();
    let looks = looks.lock().unwrap();
    assert!(!looks[0] && looks[looks.len() - 1] && looks.is_sorted(), "{looks:?}");
    assert!(!progress.snapshot().comparing);
}

#[test]
fn a_loss_beyond_what_keeps_bytes_of_the_disk_ends_the_copy() {
    let disk = Arc::new(Model::new(SIZE));
    random_disk(&disk, &mut Random(1), 512);
    // Never, while it is read, and before anything of it was read: tables may be of the disk
    // before.
    for lost in [None, Some(10), Some(0)] {
        let epoch = AtomicU64::new(u64::from(lost == Some(0)));
        let way = Way { keeps: true, epoch };
        let losses = lost.into_iter().collect();
        let (from, _) = losing_by(way, &disk, losses, false, |_, _| {});
        let options = Options { request_size: 16 << 10, ..Options::default() };
        let (result, bytes) = copied(&from, &options);
        match (lost, result) {
            (None, result) => assert!(result.is_ok() && bytes == disk.bytes()),
            (Some(_), result) => {
                let error = result.unwrap_err().error;
                assert_eq!(error.kind(), ErrorKind::Changed, "{error}");
            }
        }
    }
}

#[test]
fn what_is_read_beyond_kept_bytes_is_compared_with_the_source_opened_anew() {
    let (mut refused, mut whole) = (0, 0);
    for seed in 0..40 {
        let mut random = Random(seed);
        let disk = Arc::new(Model::new(SIZE));
        random_disk(&disk, &mut random, 512);
        let (lost, place) = (1 + random.below(70) as usize, random.below(SIZE as u64 / 512) * 512);
        let changes = random.below(2) == 0;
        let change = move |disk: &Model, _: usize| {
            if changes {
                disk.write_at(&[0xa7; 512], place, false).unwrap();
            }
        };
        let way = Way { keeps: true, ..Way::default() };
        let (from, _) = losing_by(way, &disk, vec![lost], seed % 3 > 0, change);
        // It is lost again while it is compared for the first time.
        let (times, again) = (Arc::new(AtomicU64::new(0)), disk.clone());
        let seen = times.clone();
        let anew = Anew::new(move || {
            let losses = if times.fetch_add(1, SeqCst) == 0 { vec![5] } else { Vec::new() };
            let way = Way { keeps: true, ..Way::default() };
            Ok(losing_by(way, &again, losses, true, |_, _| {}).0)
        });
        let options = Options { anew: Some(anew), ..options(&mut random) };
        let (result, bytes) = copied(&from, &options);
        match result {
            Ok(_) => {
                assert!(bytes == disk.bytes(), "{seed}: mixed: {options:?}");
                whole += seen.load(SeqCst);
            }
            Err(failed) => {
                assert_eq!(failed.error.kind(), ErrorKind::Changed, "{seed}: {failed}");
                assert!(changes, "{seed}: {failed}");
                refused += 1;
            }
        }
    }
    assert!(refused > 3 && whole > 20, "{refused} were refused, {whole} opened anew");
}

#[test]
fn a_target_that_forgets_while_the_source_is_lost_ends_as_the_source() {
    for seed in 0..30 {
        let mut random = Random(seed);
        let disk = Arc::new(Model::new(SIZE));
        random_disk(&disk, &mut random, 512);
        let old = disk.bytes();
        let place = random.below(SIZE as u64 / 512) * 512;
        let change = move |disk: &Model, n: usize| {
            if n == 1 {
                disk.write_at(&[0x5c; 512], place, false).unwrap();
            }
        };
        let (from, _) = losing(&disk, vec![7, 30], true, change);
        let temper = crate::breaking::Temper {
            lives: 60,
            forgets: true,
            mends_itself: true,
            ..Default::default()
        };
        let target = crate::breaking::Server::new(vec![0xee; SIZE], temper, seed);
        let options = options(&mut random);
        let result = run(&from, &outside(Arc::new(target.clone())), &options);
        let state = target.state();
        match result {
            Ok(_) => {
                let now = disk.bytes();
                assert!(state.now == old || state.now == now, "{seed}: mixed");
                assert!(state.now == state.kept, "{seed}: not durable");
            }
            Err(failed) => assert_eq!(failed.error.kind(), ErrorKind::Changed, "{seed}: {failed}"),
        }
    }
}
