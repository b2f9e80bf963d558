//! What a cache must do besides returning what was written; see also the random stacks.

use device::Blocking as _;
use std::sync::Arc;
use std::sync::mpsc::Receiver;

use device::model::Model;
use device::{Admission, Client, ExtentKind};
use trial::TestDevice;

use super::*;
use crate::kit::store::BlockAccess;
use crate::kit::tested::{bytes, client, put_in, read, start};
use crate::table;
use runtime::Context;

const BLOCK: u64 = 64 << 10;
const SIZE: usize = 1 << 20;

fn over(probe: &Arc<TestDevice>, words: &[&str]) -> (Edge, Context) {
    let context = Context::new(WorkPool::new(2));
    (put_in(&context, "cache", probe.clone(), words).unwrap(), context)
}

fn all_are_done(waiting: Vec<Receiver<Result<Outcome>>>) {
    for one in waiting {
        one.recv().unwrap().unwrap();
    }
}

fn writes(asked: &[String]) -> Vec<&str> {
    asked.iter().map(String::as_str).filter(|a| a.starts_with("write")).collect()
}

#[test]
fn reads_of_one_missing_block_share_one_read_below_and_misses_of_others_do_not_wait() {
    let probe = TestDevice::new(SIZE);
    probe.model().write_at(&[1; SIZE], 0, false).unwrap();
    let (disk, _context) = over(&probe, &["cache-on-read=true"]);
    probe.hold();
    let mut waiting: Vec<_> = (0..5).map(|i| start(&disk, read(i * 4096, 4096))).collect();
    assert_eq!(probe.held().len(), 1);
    waiting.push(start(&disk, read(BLOCK, 4096)));
    waiting.push(start(&disk, read(5 * BLOCK + 3, 5)));
    assert_eq!(probe.held().len(), 3);
    probe.release();
    all_are_done(waiting);
    assert_eq!(probe.asked(), ["read 0+65536", "read 65536+65536", "read 327680+65536"]);
    assert_eq!(bytes(&disk, 0, 4096), [1; 4096]);
    assert_eq!(probe.asked(), [""; 0]);
}

#[test]
fn what_is_read_is_not_kept_unless_asked_for() {
    let probe = TestDevice::new(SIZE);
    let (disk, _context) = over(&probe, &[]);
    bytes(&disk, 5, 10);
    bytes(&disk, 5, 10);
    assert_eq!(probe.asked(), ["read 5+10", "read 5+10"]);
    disk.prefetch(5, 10).unwrap();
    bytes(&disk, 5, 10);
    assert_eq!(probe.asked(), ["read 0+65536"]);
}

#[test]
fn a_flush_writes_back_all_that_is_dirty_and_then_flushes_below() {
    let probe = TestDevice::new(SIZE);
    let (disk, _context) = over(&probe, &[]);
    disk.write(&[1; 3 << 16], 0, false).unwrap();
    disk.write(&[2; 10], 9 * BLOCK, false).unwrap();
    assert_eq!(probe.asked(), ["read 589824+65536"]);
    assert_eq!(probe.model().bytes(), [0; SIZE]);
    disk.flush().unwrap();
    let asked = probe.asked();
    assert_eq!(asked.last().unwrap(), "flush");
    assert_eq!(writes(&asked), ["write 0+196608", "write 589824+65536"]);
    assert_eq!(probe.model().bytes(), bytes(&disk, 0, SIZE));
    probe.asked();
    disk.flush().unwrap();
    assert_eq!(probe.asked(), ["flush"]);
}

#[test]
fn a_flush_fails_as_long_as_something_cannot_be_written_back() {
    let probe = TestDevice::new(SIZE);
    let (disk, _context) = over(&probe, &[]);
    disk.write(&[1; 5000], 77, false).unwrap();
    probe.fail(Some("write"));
    for _ in 0..2 {
        assert_eq!(disk.flush().unwrap_err().kind(), ErrorKind::Io);
        assert!(!probe.asked().contains(&"flush".to_owned()));
    }
    probe.fail(Some("flush"));
    disk.flush().unwrap_err();
    probe.fail(None);
    disk.flush().unwrap();
    assert_eq!(probe.model().bytes()[77..5077], [1; 5000]);
}

#[test]
fn writethrough_and_fua_write_below_before_they_answer() {
    let probe = TestDevice::new(SIZE);
    let (disk, _context) = over(&probe, &["cache=writethrough"]);
    disk.write(&[1; 1 << 17], 100, false).unwrap();
    assert_eq!(probe.asked(), ["write 100+131072"]);
    // The block in the middle is whole.
    bytes(&disk, BLOCK, 65536);
    assert_eq!(probe.asked(), [""; 0]);

    let (disk, _context) = over(&probe, &[]);
    disk.write(&[3; 10], 5, false).unwrap();
    disk.write(&[4; 10], 15, false).unwrap();
    probe.asked();
    let flushes = probe.model().flushes();
    disk.write(&[5; 10], 10, true).unwrap();
    assert_eq!(writes(&probe.asked()), ["write 10+10"]);
    assert_eq!(probe.model().flushes(), flushes + 1);
    assert_eq!(bytes(&disk, 5, 20), [[3; 5], [5; 5], [5; 5], [4; 5]].concat());
    disk.flush().unwrap();
    assert_eq!(probe.model().bytes()[5..25], bytes(&disk, 5, 20));
}

#[test]
fn unsafe_neither_flushes_nor_writes_through() {
    let probe = TestDevice::new(SIZE);
    let (disk, context) = over(&probe, &["cache=unsafe"]);
    disk.write(&[1; 1 << 16], 0, true).unwrap();
    disk.flush().unwrap();
    assert_eq!(probe.asked(), [""; 0]);
    context.control.end();
    assert_eq!(probe.model().bytes()[..1 << 16], [1; 1 << 16]);
    assert!(context.control.take_complaints().is_empty());
}

#[test]
fn no_more_is_kept_than_the_limit_and_what_was_not_used_for_long_goes_first() {
    let probe = TestDevice::new(SIZE);
    probe.model().write_at(&[1; SIZE], 0, false).unwrap();
    let words = ["cache-on-read=true", "cache-max-size=256K", "cache-low-threshold=75"];
    let (disk, _context) = over(&probe, &words);
    // Above 243 of 256 K, blocks are evicted down to 192.
    for block in [0, 1, 2, 0, 3] {
        bytes(&disk, block * BLOCK, 10);
    }
    // Block 1 was evicted before the last read was answered; 0 had been used again.
    probe.asked();
    bytes(&disk, 0, 10);
    assert_eq!(probe.asked(), [""; 0]);
    bytes(&disk, BLOCK, 10);
    assert_eq!(probe.asked(), ["read 65536+65536"]);
}

#[test]
fn the_map_shows_what_is_dirty_as_data_and_what_is_zeroed_as_what_it_is_below() {
    let probe = TestDevice::new(SIZE);
    let (disk, _context) = over(&probe, &[]);
    disk.write(&[2; 1 << 16], BLOCK, false).unwrap();
    let mut extents = Vec::new();
    disk.resolve(0, 4 * BLOCK, 10, &mut extents).unwrap();
    let kinds: Vec<_> = extents.iter().map(|e| (e.start, e.kind)).collect();
    let hole = ExtentKind::Hole;
    assert_eq!(kinds, [(0, hole), (BLOCK, ExtentKind::Data), (2 * BLOCK, hole)]);
    probe.asked();
    disk.zero(0, SIZE as u64, ZeroFlags { may_unmap: true, ..ZeroFlags::default() }).unwrap();
    assert_eq!(probe.asked(), ["zero 0+1048576"]);
    disk.flush().unwrap();
    assert_eq!(bytes(&disk, 0, SIZE), [0; SIZE]);
    assert_eq!(probe.model().bytes(), [0; SIZE]);
}

/// A cache over `below`, and a function that gives a client one of its own, by its path and name.
fn shared(context: &Context, below: Edge) -> (Arc<Cache>, impl Fn(&Edge, &str) -> Edge) {
    let complaints = context.control.complaints();
    let settings = Settings::read(&Params::default(), &context.pool, complaints).unwrap();
    let cache = Arc::new(Cache::new(Arc::new(settings), below.clone(), Standing::Base));
    let base = cache.clone();
    let connect = move |path: &Edge, export: &str| {
        let client = &Client { export: export.to_owned(), ..client(1) };
        let (admission, over) = (Admission::free(), Over::new(&*base, below.clone()));
        let mut arrival = Arrival { client, admission, below: path.clone(), has_own_path: true };
        let own = base.for_client(&over, &mut arrival).unwrap();
        path.beside(Filtered::shared(own, arrival.below))
    };
    (cache, connect)
}

fn end(cache: &Cache) {
    let (tx, rx) = std::sync::mpsc::channel();
    let inner = cache.inner.clone();
    spawn(async move {
        inner.end().await;
        tx.send(()).unwrap();
    });
    rx.recv().unwrap();
}

#[test]
fn clients_of_one_disk_share_its_cache_whatever_name_they_came_by() {
    let probe = TestDevice::new(SIZE);
    let context = Context::new(WorkPool::new(2));
    let below = probe.edge(&context.pool);
    let (cache, connect) = shared(&context, below.clone());
    let (a, b) = (connect(&below, ""), connect(&below.beside(probe.clone()), "disk"));
    // It reads the whole block, and holds its lock.
    b.write(&[2; 4096], 8192, false).unwrap();
    a.write(&[1; 4096], 0, false).unwrap();
    assert_eq!(bytes(&b, 0, 4096), [1; 4096]);
    a.flush().unwrap();
    b.flush().unwrap();
    assert_eq!(probe.model().bytes()[..4096], [1; 4096]);
    assert_eq!(probe.model().bytes()[8192..12288], [2; 4096]);
    // A path that leads to another disk.
    let other = TestDevice::new(2 * SIZE);
    let apart = connect(&other.edge(&context.pool), "disk");
    assert_eq!(bytes(&apart, 0, 4096), [0; 4096]);
    apart.write(&[3; 4096], 2 * SIZE as u64 - 4096, false).unwrap();
    assert!(a.info().abilities.multi_conn && !apart.info().abilities.multi_conn);
    drop(apart);
    end(&cache);
    assert_eq!(other.model().bytes()[2 * SIZE - 4096..], [3; 4096]);
    assert_eq!(other.asked().last().unwrap(), "flush");
    assert!(context.control.take_complaints().is_empty());
}

#[test]
fn a_client_with_a_path_of_its_own_leaves_nothing_dirty_behind_and_the_end_flushes_it() {
    let probe = TestDevice::new(SIZE);
    let context = Context::new(WorkPool::new(2));
    let below = probe.edge(&context.pool);
    let (cache, connect) = shared(&context, below.clone());
    let (a, b) = (connect(&below, "x"), connect(&below, "x"));
    a.write(&[7; 10], 0, false).unwrap();
    assert_eq!(bytes(&b, 0, 10), [7; 10]);
    drop(a);
    end(&cache);
    assert_eq!(probe.model().bytes()[..10], [7; 10]);
    assert_eq!(probe.asked().last().unwrap(), "flush");
    assert!(context.control.take_complaints().is_empty());
}

#[test]
fn dirty_blocks_that_a_leaving_client_could_not_write_back_are_written_back_by_another() {
    let (gone, probe) = (TestDevice::new(SIZE), TestDevice::new(SIZE));
    let context = Context::new(WorkPool::new(2));
    let below = probe.edge(&context.pool);
    let (cache, connect) = shared(&context, below.clone());
    let a = connect(&below.beside(gone.clone()), "x");
    a.write(&[7; 1 << 16], 0, false).unwrap();
    gone.fail(Some("write"));
    drop(a);
    end(&cache);
    assert_eq!(probe.model().bytes()[..10], [7; 10]);
    assert!(context.control.take_complaints().is_empty());
}

/// Paths without multi-conn: a flush covers one path only.
fn alone() -> Arc<TestDevice> {
    let device = TestDevice::over(Model::new(SIZE));
    device.info_with(|info| info.abilities.multi_conn = false).shared()
}

#[test]
fn where_a_flush_of_one_path_does_not_cover_the_others_all_go_over_one() {
    let (probe, own) = (alone(), [alone(), alone()]);
    let context = Context::new(WorkPool::new(2));
    let below = probe.edge(&context.pool);
    let (cache, connect) = shared(&context, below.clone());
    let [a, b] = own.clone().map(|own| connect(&below.beside(own), ""));
    a.write(&[1; 10], 0, false).unwrap();
    // B writes back A's blocks, as it does on eviction.
    b.flush().unwrap();
    assert_eq!(bytes(&b, 0, 10), [1; 10]);
    a.flush().unwrap();
    assert_eq!(probe.asked(), ["read 0+65536", "write 0+65536", "flush", "flush"]);
    drop((a, b));
    end(&cache);
    assert!(own.iter().all(|own| own.asked().is_empty()));
}

#[test]
fn a_flush_that_failed_for_one_client_of_a_path_fails_once_for_the_others() {
    let probe = alone();
    let context = Context::new(WorkPool::new(2));
    let below = probe.edge(&context.pool);
    let (_cache, connect) = shared(&context, below.clone());
    let (a, b) = (connect(&below, ""), connect(&below, ""));
    a.write(&[1; 10], 0, false).unwrap();
    probe.fail(Some("flush"));
    b.flush().unwrap_err();
    probe.fail(None);
    // The lost writes may be A's, and the device need not report them twice.
    a.flush().unwrap_err();
    a.flush().unwrap();
    b.flush().unwrap();
    connect(&below, "").flush().unwrap();
}

#[test]
fn clients_that_come_and_go_leave_nothing_behind() {
    let probe = TestDevice::new(SIZE);
    let context = Context::new(WorkPool::new(2));
    let below = probe.edge(&context.pool);
    let (cache, connect) = shared(&context, below.clone());
    for number in 0..100 {
        let own = connect(&below, "");
        own.write(&[1; 10], number * 1000, false).unwrap();
        drop(own);
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while cache.inner.blocks.dirty() > 0 {
            assert!(std::time::Instant::now() < deadline);
            std::thread::yield_now();
        }
    }
    let left = cache.inner.settings.leaving.lock().len();
    assert!(left < 5, "{left}");
}

#[test]
fn what_a_prefetch_brought_before_it_failed_can_be_made_to_go() {
    let probe = TestDevice::new(64 * SIZE);
    let (disk, _context) = over(&probe, &["cache-max-size=8M", "cache-on-read=true"]);
    // The first 4 MiB arrive; the rest does not.
    probe.fail(Some("read 4194304+"));
    disk.prefetch(0, 6 << 20).unwrap_err();
    probe.fail(None);
    for i in 0..100 {
        bytes(&disk, (8 << 20) + i * BLOCK, 10);
    }
    // Another task evicts in its own time; a block that finds no room is read but not cached.
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    loop {
        probe.asked();
        bytes(&disk, (8 << 20) + 99 * BLOCK, 10);
        if probe.asked().is_empty() {
            break;
        }
        assert!(std::time::Instant::now() < deadline, "there was no room for what is new");
        std::thread::yield_now();
    }
    let went = (0..64).any(|i| {
        bytes(&disk, i * BLOCK, 10);
        !probe.asked().is_empty()
    });
    assert!(went, "what is old did not go");
}

#[test]
fn what_was_zeroed_or_trimmed_below_is_durable_in_the_end() {
    type Change = fn(&Edge) -> device::Result<()>;
    let zero: Change = |disk| disk.zero(0, 1 << 17, ZeroFlags::default());
    let trim: Change = |disk| disk.trim(0, 1 << 17, false);
    for (change, word) in
        [(zero, "cache=unsafe"), (trim, "cache=unsafe"), (zero, "cache=writeback")]
    {
        let probe = TestDevice::new(SIZE);
        let (disk, context) = over(&probe, &[word]);
        change(&disk).unwrap();
        context.control.end();
        assert_eq!(probe.model().flushes(), 1, "{word}");
        assert!(context.control.take_complaints().is_empty());
    }
}

#[test]
fn of_caches_over_one_another_the_upper_one_ends_first() {
    let probe = TestDevice::new(SIZE);
    let context = Context::new(WorkPool::new(2));
    // It ignores flushes, so writes that arrive after its own end stay in it.
    let lower = Params::parse(["cache=unsafe"]).unwrap();
    let lower = table::open("cache", &lower, probe.edge(&context.pool), &context).unwrap();
    let upper = table::open("cache", &Params::default(), lower, &context).unwrap();
    upper.write(&[7; 10], 0, false).unwrap();
    context.control.end();
    assert_eq!(probe.model().bytes()[..10], [7; 10]);
    assert!(context.control.take_complaints().is_empty());
}

#[test]
fn a_block_that_is_being_read_cannot_be_taken_away() {
    let probe = TestDevice::new(SIZE);
    let context = Context::new(WorkPool::new(2));
    let params = Params::parse(["cache-on-read=/nonexistent/file"]).unwrap();
    let settings = Settings::read(&params, &context.pool, context.control.complaints()).unwrap();
    let below = probe.edge(&context.pool);
    let cache = Cache::new(Arc::new(settings), below.clone(), Standing::Base);
    let blocks = cache.inner.blocks.clone();
    let disk = Edge::new(Filtered::device(cache, below), context.pool.clone());
    disk.prefetch(0, 10).unwrap();
    probe.hold();
    // The first block is cached, the second one is not.
    let reading = start(&disk, read(0, 128 << 10));
    assert_eq!(probe.held().len(), 1);
    assert!(blocks.store().locks.try_take(0..1, BlockAccess::Own).is_none());
    probe.release();
    all_are_done(vec![reading]);
    assert!(blocks.store().locks.try_take(0..1, BlockAccess::Own).is_some());
}
