//! Clients with caches of their own see each other's flushed writes.

use std::sync::atomic::{AtomicUsize, Ordering};

use device::model::Model;
use device::{Abilities, BlockSizes, Blocking, Client, Connected, ErrorKind, Fault, ZeroFlags};
use trial::{Fate, TestDevice};

use super::*;
use crate::kit::tested::{client, connect, personal, put, simple};

/// A disk that gives each client a path with its own cache: others see a write only after a flush
/// on the writer's path, and a reader reads again only after a flush on its own. No [`TestDevice`]:
/// it is many disks.
struct Caching {
    disk: Arc<Mutex<Vec<u8>>>,
    cache: Mutex<Option<Vec<u8>>>,
    dirty: Mutex<bool>,
    info: Info,
    flushes: Arc<AtomicUsize>,
    broken: Arc<AtomicUsize>,
}

const SIZE: usize = 4096;

impl Caching {
    fn new(multi_conn: bool) -> Self {
        let all = Model::new(1).info().abilities;
        let abilities = Abilities { zero: false, fast_zero: false, multi_conn, ..all };
        let model = Model::with(SIZE, abilities, BlockSizes::ANY);
        Self {
            disk: Arc::new(Mutex::new(vec![0; SIZE])),
            cache: Mutex::default(),
            dirty: Mutex::default(),
            info: model.info().clone(),
            flushes: Arc::default(),
            broken: Arc::default(),
        }
    }

    fn another(&self) -> Self {
        Self {
            disk: self.disk.clone(),
            info: self.info.clone(),
            flushes: self.flushes.clone(),
            broken: self.broken.clone(),
            cache: Mutex::default(),
            dirty: Mutex::default(),
        }
    }

    fn cached(&self) -> Vec<u8> {
        let mut cache = self.cache.lock();
        cache.get_or_insert_with(|| self.disk.lock().clone()).clone()
    }
}

impl Blocking for Caching {
    fn info(&self) -> &Info {
        &self.info
    }
    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        let at = usize::try_from(offset).unwrap();
        buf.copy_from_slice(&self.cached()[at..at + buf.len()]);
        Ok(())
    }
    fn write_at(&self, data: &[u8], offset: u64, fua: bool) -> Result<()> {
        assert!(!fua, "FUA must be made of flush");
        let mut bytes = self.cached();
        let at = usize::try_from(offset).unwrap();
        bytes[at..at + data.len()].copy_from_slice(data);
        *self.cache.lock() = Some(bytes);
        *self.dirty.lock() = true;
        Ok(())
    }
    fn flush(&self) -> Result<()> {
        self.flushes.fetch_add(1, Ordering::SeqCst);
        if self.broken.load(Ordering::SeqCst) > 0 {
            return Err(Error::new(ErrorKind::Io, Fault::File, "flush"));
        }
        let cache = self.cache.lock().take();
        if std::mem::take(&mut *self.dirty.lock())
            && let Some(bytes) = cache
        {
            *self.disk.lock() = bytes;
        }
        Ok(())
    }
    fn session(&self) -> Option<&dyn device::Session> {
        Some(self)
    }
}

impl device::Session for Caching {
    fn connect(&self, _client: &Client, done: Connected) {
        done(Ok(Some(simple(Arc::new(self.another())))));
    }
}

fn three(disk: &Edge) -> Vec<Edge> {
    let own = |n| disk.beside(connect(disk, &client(n)).unwrap().unwrap());
    (1..4).map(own).collect()
}

fn first_byte(edge: &Edge) -> u8 {
    let mut byte = [0];
    edge.read(&mut byte, 0).unwrap();
    byte[0]
}

#[test]
fn what_one_wrote_and_another_flushed_is_read_by_a_third_also_out_of_a_stale_cache() {
    for track in ["connection", "fast", "off"] {
        let below = Arc::new(Caching::new(false));
        let word = format!("multi-conn-track-dirty={track}");
        let disk = put("multi-conn", simple(below.clone()), &[&word]).unwrap();
        assert!(disk.info().abilities.multi_conn && !disk.info().abilities.fua);
        let c = three(&disk);
        for byte in 1..4 {
            assert_eq!(first_byte(&c[2]), byte - 1);
            c[0].write(&[byte], 0, false).unwrap();
            assert_eq!(first_byte(&c[2]), byte - 1);
            c[1].flush().unwrap();
            assert_eq!(first_byte(&c[2]), byte, "{track}");
            // All clients see FUA writes, too.
            c[0].write(&[byte + 100], 0, true).unwrap();
            assert_eq!(first_byte(&c[1]), byte + 100);
            c[0].write(&[byte], 0, true).unwrap();
            c[2].zero(10, 10, ZeroFlags { fua: true, ..ZeroFlags::default() }).unwrap();
        }
    }
}

#[test]
fn a_flush_with_nothing_to_cover_is_left_out_unless_tracking_is_off() {
    for (track, more) in [("connection", 0), ("fast", 0), ("off", 1)] {
        let below = Arc::new(Caching::new(false));
        let word = format!("multi-conn-track-dirty={track}");
        let disk = put("multi-conn", simple(below.clone()), &[&word]).unwrap();
        let c = three(&disk);
        c[0].write(&[1], 0, false).unwrap();
        c[0].flush().unwrap();
        let before = below.flushes.load(Ordering::SeqCst);
        assert_eq!(before, 1);
        c[0].flush().unwrap();
        assert_eq!(below.flushes.load(Ordering::SeqCst), before + more, "{track}");
    }
}

#[test]
fn a_failed_flush_is_not_forgotten() {
    let below = Arc::new(Caching::new(false));
    let disk = put("multi-conn", simple(below.clone()), &[]).unwrap();
    let c = three(&disk);
    c[0].write(&[1], 0, false).unwrap();
    below.broken.store(1, Ordering::SeqCst);
    assert!(c[1].flush().is_err());
    assert!(c[1].flush().is_err(), "still not durable");
    below.broken.store(0, Ordering::SeqCst);
    c[1].flush().unwrap();
    assert_eq!(first_byte(&c[2]), 1);
}

#[test]
fn writes_that_a_leaving_client_did_not_flush_are_flushed() {
    let below = Arc::new(Caching::new(false));
    let disk = put("multi-conn", simple(below.clone()), &[]).unwrap();
    let mut c = three(&disk);
    c[0].write(&[7], 0, false).unwrap();
    drop(c.remove(0));
    assert_eq!(first_byte(&c[0]), 7);
    // And that way the other clients learn of a loss.
    c[0].write(&[8], 0, false).unwrap();
    below.broken.store(1, Ordering::SeqCst);
    drop(c.remove(0));
    below.broken.store(0, Ordering::SeqCst);
    assert!(c[0].flush().is_err());
}

#[test]
fn clients_belong_together_by_whatever_name_they_came() {
    for exportname in ["true", "false"] {
        let below = Arc::new(Caching::new(false));
        let word = format!("multi-conn-exportname={exportname}");
        let disk = put("multi-conn", simple(below.clone()), &[&word]).unwrap();
        let named = |number, export: &str| {
            let this_client = Client { export: export.to_owned(), ..client(number) };
            personal(&disk, &this_client)
        };
        let (a, b) = (named(1, ""), named(2, "disk"));
        a.write(&[5], 0, false).unwrap();
        b.flush().unwrap();
        assert_eq!(first_byte(&b), 5);
    }
}

#[test]
fn modes_offer_what_they_say() {
    let offers = |has: bool, mode: &str| {
        let word = format!("multi-conn-mode={mode}");
        let disk = put("multi-conn", simple(Arc::new(Caching::new(has))), &[&word]).unwrap();
        disk.info().abilities.multi_conn
    };
    for has in [false, true] {
        assert!(offers(has, "auto") && offers(has, "emulate") && offers(has, "unsafe"));
        assert!(!offers(has, "disable"));
        assert_eq!(offers(has, "plugin"), has);
    }
    let all = Model::new(1).info().abilities;
    let no_flush = Abilities { flush: false, fua: false, multi_conn: false, ..all };
    let model = || Arc::new(Model::with(SIZE, no_flush, BlockSizes::ANY));
    assert!(put("multi-conn", simple(model()), &["multi-conn-mode=emulate"]).is_err());
    assert!(!put("multi-conn", simple(model()), &[]).unwrap().info().abilities.multi_conn);
}

#[test]
fn where_the_device_answers_for_all_one_flush_is_enough_and_none_too_few() {
    let model = Arc::new(Model::new(SIZE));
    assert!(model.info().abilities.multi_conn);
    let disk = put("multi-conn", simple(model.clone()), &[]).unwrap();
    let mut c = three(&disk);
    c[0].write(&[1], 0, false).unwrap();
    // This client has done nothing, but its flush covers the other's write.
    c[1].flush().unwrap();
    assert_eq!(model.flushes(), 1);
    c[0].flush().unwrap();
    c[2].flush().unwrap();
    assert_eq!(model.flushes(), 1);
    // Also when the other has gone.
    c[0].write(&[1], 0, false).unwrap();
    drop(c.remove(0));
    c[0].flush().unwrap();
    assert_eq!(model.flushes(), 2);
    c[0].flush().unwrap();
    assert_eq!(model.flushes(), 2);
}

/// A disk whose flushes end when the test says so.
fn holding() -> Arc<TestDevice> {
    let hold_flushes = |operation| match operation {
        Operation::Flush => Fate::Hold(operation),
        other => Fate::Pass(other),
    };
    TestDevice::over(Model::new(SIZE)).hooked(hold_flushes).shared()
}

#[test]
fn the_loss_of_a_client_that_left_is_also_reported_to_a_flush_that_had_begun() {
    let below = holding();
    let disk = put("multi-conn", below.clone(), &["multi-conn-mode=emulate"]).unwrap();
    let mut c = three(&disk);
    c[0].write(&[1], 0, false).unwrap();
    drop(c.remove(0));
    let (tx, rx) = std::sync::mpsc::channel();
    c[0].submit(Operation::Flush, Box::new(move |result| tx.send(result).unwrap()));
    // The disk reports a loss once: here to the flush for the client that left.
    assert_eq!(below.held().len(), 2);
    let (_, done) = below.take_held(0);
    done(Err(Error::new(ErrorKind::Io, Fault::File, "flush")));
    below.release();
    assert!(rx.recv().unwrap().is_err());
}

#[test]
fn no_flush_is_answered_before_one_that_covers_it_has_ended() {
    for mode in ["emulate", "plugin"] {
        let below = holding();
        let word = format!("multi-conn-mode={mode}");
        let disk = put("multi-conn", below.clone(), &[&word]).unwrap();
        let c = three(&disk);
        c[0].write(&[1], 0, false).unwrap();
        let ended = Arc::new(AtomicUsize::new(0));
        let flush = |edge: &Edge| {
            let ended = ended.clone();
            let then = move |_| {
                ended.fetch_add(1, Ordering::SeqCst);
            };
            edge.submit(Operation::Flush, Box::new(then));
        };
        flush(&c[1]);
        flush(&c[2]);
        assert_eq!(ended.load(Ordering::SeqCst), 0, "{mode}");
        let release = || below.release_one(below.held().len() - 1);
        release();
        release();
        assert_eq!(ended.load(Ordering::SeqCst), 2, "{mode}");
        // Now nothing is dirty.
        flush(&c[1]);
        assert_eq!(ended.load(Ordering::SeqCst), 3, "{mode}");
        // A flush does not cover a write that ended while it was in flight.
        c[0].write(&[1], 0, false).unwrap();
        flush(&c[1]);
        c[0].write(&[2], 0, false).unwrap();
        release();
        flush(&c[1]);
        assert_eq!(ended.load(Ordering::SeqCst), 4, "{mode}");
        release();
        assert_eq!(ended.load(Ordering::SeqCst), 5, "{mode}");
    }
}
