//! Objects that are written, into a store that checks signatures and sums and fails in every way.

use std::sync::Arc;
use std::time::Duration;

use ::device::{Buffer, Operation, Outcome, Params, Result};
use runtime::{Context, Mutex, OperatorLog, spread_bits, to_usize};

use super::super::site::{Asked, Reply, Step, content, plain};
use super::super::tests::MIB;
use super::stand_in::{Kept, SECRET, Store, refused};
use crate::{Created, Creation, OpenOptions};

const PATH: &str = "/b/k";

fn begin(store: &Store, more: &[&str], size: u64) -> Result<Created> {
    begin_in(&Context::default(), store, more, size)
}

fn begin_in(context: &Context, store: &Store, more: &[&str], size: u64) -> Result<Created> {
    let mut words = store.words(PATH);
    words.extend(more.iter().map(|word| (*word).to_owned()));
    let params = Params::parse(words.iter().map(String::as_str)).unwrap();
    let creation = Creation::of(size, OpenOptions::read_write());
    super::create(&params, &creation, context)
}

/// Writes all of it in pieces, in an order that is not theirs, and makes it appear.
fn write(created: &Created, bytes: &[u8]) -> Result<()> {
    let device = created.edge.device();
    let piece = 300_000;
    let mut places: Vec<usize> = (0..bytes.len().div_ceil(piece)).collect();
    places.chunks_mut(5).for_each(<[usize]>::reverse);
    let (tell, told) = std::sync::mpsc::channel();
    for at in &places {
        let part = &bytes[at * piece..bytes.len().min((at + 1) * piece)];
        let data = Buffer::copy_of(part).into();
        let operation = Operation::Write { offset: (at * piece) as u64, data, fua: false };
        let tell = tell.clone();
        // After a failure nobody waits for the others.
        device.submit(operation, Box::new(move |done| drop(tell.send(done))));
    }
    for _ in &places {
        told.recv().unwrap().map(|done| assert!(matches!(done, Outcome::Done)))?;
    }
    device.finish()?;
    let made = created.made.as_ref().unwrap();
    made.appear().map_err(|e| *e.into_inner().unwrap().downcast::<::device::Error>().unwrap())
}

fn put(store: &Store, more: &[&str], bytes: &[u8]) -> Result<()> {
    let created = begin(store, more, bytes.len() as u64)?;
    write(&created, bytes)
}

/// Nothing of it is there, and no upload: soon, for the thread that drops it last may be another.
#[track_caller]
fn nothing_is_left(store: &Store) {
    for _ in 0..3000 {
        if store.contents.lock().uploads.is_empty() {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    let contents = store.contents.lock();
    assert!(contents.objects.is_empty() && contents.uploads.is_empty());
}

#[track_caller]
fn is_there(store: &Store, bytes: &[u8]) {
    let contents = store.contents.lock();
    assert!(contents.objects[PATH].bytes == bytes, "other bytes are there");
    assert!(contents.uploads.is_empty(), "an upload is left");
}

fn is_part(asked: &Asked) -> bool {
    asked.path.contains("partNumber=")
}

fn is_completion(asked: &Asked) -> bool {
    asked.method == "POST" && asked.path.contains("uploadId=")
}

#[test]
fn an_object_is_there_when_all_of_it_is_and_not_before() {
    for size in [0, 1, 8 * MIB, 8 * MIB + 1, 30 * MIB + 5] {
        let bytes = content(size);
        let store = Store::new(|_| None);
        let created = begin(&store, &[], size as u64).unwrap();
        assert!(store.contents.lock().objects.is_empty());
        write(&created, &bytes).unwrap();
        is_there(&store, &bytes);
        let parts = store.site.asked().iter().filter(|asked| is_part(asked)).count();
        assert_eq!(parts, if size > 8 * MIB { size.div_ceil(8 * MIB) } else { 0 });
        // It is complete: nothing removes it any more.
        assert!(!created.made.as_ref().unwrap().remove());
        drop(created);
        is_there(&store, &bytes);
    }
}

#[test]
fn an_object_that_is_there_stays_unless_it_is_to_be_replaced() {
    let (old, new) = (content(100), content(20 * MIB));
    let store = Store::new(|_| None);
    store.put(PATH, &old);
    let error = put(&store, &[], &new).unwrap_err().to_string();
    assert!(error.contains("overwrite=true"), "{error}");
    is_there(&store, &old);
    put(&store, &["overwrite=true"], &new).unwrap();
    is_there(&store, &new);
    // One that appears meanwhile.
    let store = Arc::new(Store::new(|_| None));
    for bytes in [&new, &old] {
        store.contents.lock().objects.clear();
        let created = begin(&store, &[], bytes.len() as u64).unwrap();
        store.put(PATH, b"other");
        let error = write(&created, bytes).unwrap_err().to_string();
        assert!(error.contains("overwrite=true"), "{error}");
        drop(created);
        is_there(&store, b"other");
    }
}

#[test]
fn what_fails_is_tried_again_and_what_goes_on_failing_leaves_nothing() {
    let bytes = content(20 * MIB);
    for what in ["500", "503", "drop", "cut", "sum"] {
        for always in [false, true] {
            let store = Store::new(move |asked| {
                let odd = is_part(asked) && (always || asked.number % 3 == 0);
                odd.then(|| match what {
                    "500" => refused("500 Internal Server Error", "InternalError"),
                    "503" => refused("503 Slow Down", "SlowDown"),
                    "drop" => vec![Step::Close],
                    "cut" => {
                        let mut cut = plain("200 OK", &["Content-Length: 9"], b"abc");
                        cut.push(Step::Close);
                        cut
                    }
                    _ => refused("400 Bad Request", "XAmzContentChecksumMismatch"),
                })
            });
            let retries = if always { "retry=1" } else { "retry=8" };
            let done = put(&store, &[retries], &bytes);
            match done {
                Ok(()) if !always => is_there(&store, &bytes),
                Err(e) if always => {
                    assert!(!e.to_string().contains(SECRET), "{e}");
                    nothing_is_left(&store);
                }
                other => panic!("{what} {always}: {other:?}"),
            }
        }
    }
}

/// A part that the store took for another one is an error, never an object.
#[test]
fn an_answer_that_does_not_show_what_was_sent_is_an_error() {
    for headers in [
        &["ETag: \"1\"", "x-amz-checksum-crc32: AAAAAA=="][..],
        &["ETag: \"00000000000000000000000000000000\""],
        &[],
    ] {
        let answer = plain("200 OK", &[&["Content-Length: 0"], headers].concat(), b"");
        let store = Store::new(move |asked| is_part(asked).then(|| answer.clone()));
        assert!(put(&store, &[], &content(20 * MIB)).is_err(), "{headers:?}");
        nothing_is_left(&store);
    }
}

#[test]
fn an_error_inside_of_an_answer_of_success_is_an_error_and_one_that_may_pass_is_tried_again() {
    let bytes = content(20 * MIB);
    for (code, goes_on) in [("InternalError", true), ("InvalidPart", false)] {
        let seen = std::sync::atomic::AtomicUsize::new(0);
        let store = Store::new(move |asked| {
            let first =
                is_completion(asked) && seen.fetch_add(1, std::sync::atomic::Ordering::Relaxed) < 2;
            let body = format!("<Error><Code>{code}</Code></Error>");
            let length = format!("Content-Length: {}", body.len());
            first.then(|| plain("200 OK", &[&length], body.as_bytes()))
        });
        let done = put(&store, &[], &bytes);
        match goes_on {
            true => is_there(&store, &bytes),
            false => {
                assert!(done.unwrap_err().to_string().contains(code));
                nothing_is_left(&store);
            }
        }
    }
}

/// Whether it is done, or was done by another, is not known by the answer.
#[test]
fn an_answer_that_is_lost_when_the_object_is_there_is_no_failure() {
    for size in [5 * MIB, 20 * MIB] {
        let bytes = content(size);
        let store: Arc<std::sync::OnceLock<Arc<Store>>> = Arc::default();
        let (inner, lost) = (store.clone(), std::sync::atomic::AtomicBool::new(true));
        let made = Arc::new(Store::new(move |asked| {
            let makes = is_completion(asked) || asked.method == "PUT" && !is_part(asked);
            if !makes || !lost.swap(false, std::sync::atomic::Ordering::Relaxed) {
                return None;
            }
            let store = inner.get().unwrap();
            super::stand_in::answer(asked, &mut store.contents.lock());
            Some(vec![Step::Close])
        }));
        assert!(store.set(made.clone()).is_ok());
        put(&made, &[], &bytes).unwrap();
        is_there(&made, &bytes);
    }
}

#[test]
fn what_is_dropped_or_removed_is_given_up() {
    for removed in [false, true] {
        let store = Store::new(|_| None);
        let created = begin(&store, &[], 40 * MIB as u64).unwrap();
        created.edge.write(&content(25 * MIB), 0, false).unwrap();
        assert_eq!(store.contents.lock().uploads.len(), 1);
        // Less came than was announced.
        let error = created.edge.device().finish().unwrap_err().to_string();
        assert!(error.contains("incomplete"), "{error}");
        assert!(!removed || created.made.as_ref().unwrap().remove());
        drop(created);
        nothing_is_left(&store);
    }
}

#[test]
fn a_part_in_flight_arrives_before_its_upload_is_ended() {
    let order: Arc<Mutex<Vec<&str>>> = Arc::default();
    let noted = order.clone();
    let store = Store::new(move |asked| {
        let note = |what| {
            let mut noted = noted.lock();
            if !noted.contains(&what) {
                noted.push(what);
            }
        };
        match (is_part(asked), &*asked.method) {
            (true, _) if asked.path.contains("partNumber=1&") => {
                while !noted.lock().contains(&"refused") {
                    std::thread::sleep(Duration::from_millis(1));
                }
                // As behind a proxy that has all of it, whatever becomes of the connection.
                std::thread::sleep(Duration::from_millis(200));
                note("arrived");
                None
            }
            (true, _) => {
                note("refused");
                Some(refused("403 Forbidden", "AccessDenied"))
            }
            (false, "DELETE") => {
                note("ended");
                None
            }
            (false, _) => None,
        }
    });
    put(&store, &[], &content(20 * MIB)).unwrap_err();
    nothing_is_left(&store);
    assert_eq!(*order.lock(), ["refused", "arrived", "ended"]);
}

/// A store that fails now and then, in a way that `round` decides: connections that are dropped
/// before or after the request was carried out, answers that are cut off or slow, throttling,
/// failures, and sums that are said to be wrong.
fn breaking(round: u64) -> Arc<Store> {
    let cell: Arc<std::sync::OnceLock<Arc<Store>>> = Arc::default();
    let inner = cell.clone();
    let store = Arc::new(Store::new(move |asked| {
        let dice = spread_bits(round << 32 | asked.number as u64) >> 8;
        let answer = || super::stand_in::answer(asked, &mut inner.get().unwrap().contents.lock());
        match dice % 14 {
            0 => Some(vec![Step::Close]),
            1 => Some(refused("503 Slow Down", "SlowDown")),
            2 => Some(refused("500 Internal Server Error", "InternalError")),
            3 if asked.method == "PUT" => Some(refused("400 Bad Request", "BadDigest")),
            4 => Some(cut_off(answer(), dice)),
            5 => Some([vec![Step::Wait(Duration::from_millis(20))], answer()].concat()),
            _ => None,
        }
    }));
    assert!(cell.set(store.clone()).is_ok());
    store
}

/// The beginning of an answer, and the end of the connection.
fn cut_off(mut reply: Reply, dice: u64) -> Reply {
    if let Some(Step::Send(bytes)) = reply.iter_mut().rev().find(|s| matches!(s, Step::Send(_))) {
        bytes.truncate(to_usize((dice >> 8) % (bytes.len() as u64 + 1)));
    }
    reply.push(Step::Close);
    reply
}

/// How many rounds of failures at random there are.
fn rounds() -> u64 {
    std::env::var("S3_ROUNDS").ok().and_then(|n| n.parse().ok()).unwrap_or(4)
}

#[test]
fn whatever_breaks_at_random_what_is_there_is_right_or_nothing_is() {
    for round in 0..rounds() {
        let size = 8 * MIB + to_usize(spread_bits(round) % (20 << 20));
        let (bytes, store) = (content(size), breaking(round));
        let (context, said) = listening();
        let created = begin_in(&context, &store, &["retry=2"], bytes.len() as u64);
        let done = created.and_then(|created| write(&created, &bytes));
        let is_made = store.contents.lock().objects.contains_key(PATH);
        if let Err(e) = &done {
            // It can be there when the store could not be asked whether it is.
            assert!(!is_made || e.to_string().contains("has created the object"), "{e}");
            said.lock().push(e.to_string());
        }
        assert!(done.is_err() || is_made);
        if is_made {
            assert!(store.contents.lock().objects[PATH].bytes == bytes, "other bytes are there");
        }
        what_is_left_is_named(&store, &said);
    }
}

/// A context, and what its operator is told.
fn listening() -> (Context, Arc<Mutex<Vec<String>>>) {
    let said: Arc<Mutex<Vec<String>>> = Arc::default();
    let lines = said.clone();
    let log = OperatorLog::new(move |line| lines.lock().push(line.to_string()));
    (Context::default().with_log(log), said)
}

/// Each upload that the store keeps, soon: one whose name did not arrive, or that could not be
/// ended.
#[track_caller]
fn what_is_left_is_named(store: &Store, said: &Mutex<Vec<String>>) {
    for _ in 0..3000 {
        let said = said.lock().join("\n");
        if store.contents.lock().uploads.keys().all(|id| said.contains(id.as_str())) {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("of {:?}: {:?}", store.contents.lock().uploads.keys(), said.lock());
}

/// Writes an object to a store that began this many uploads whose names did not arrive; another
/// program has one of the same object, and one of another. What is left when there are no more than
/// `expected`, or that goes on for long, and what was said: the upload is given up by the last
/// thread that works for it.
fn upload_with_losses(
    (losses, ends_well): (usize, bool),
    words: &[&str],
    expected: usize,
) -> (Vec<String>, String) {
    let bytes = content(20 * MIB);
    let cell: Arc<std::sync::OnceLock<Arc<Store>>> = Arc::default();
    let (inner, seen) = (cell.clone(), std::sync::atomic::AtomicUsize::new(0));
    let store = Arc::new(Store::new(move |asked| {
        let begins = asked.method == "POST" && asked.path.ends_with("uploads=");
        if !begins || seen.fetch_add(1, std::sync::atomic::Ordering::Relaxed) >= losses {
            return None;
        }
        super::stand_in::answer(asked, &mut inner.get().unwrap().contents.lock());
        Some(vec![Step::Close])
    }));
    assert!(cell.set(store.clone()).is_ok());
    let other = Kept { path: PATH.into(), ..Kept::default() };
    store.contents.lock().uploads.insert("other".into(), other.clone());
    let elsewhere = Kept { path: format!("{PATH}.old"), ..other };
    store.contents.lock().uploads.insert("elsewhere".into(), elsewhere);
    let (context, said) = listening();
    let created = begin_in(&context, &store, words, bytes.len() as u64).unwrap();
    match write(&created, &bytes) {
        Ok(()) => assert!(ends_well && store.contents.lock().objects[PATH].bytes == bytes),
        Err(e) => {
            assert!(!ends_well);
            said.lock().push(e.to_string());
        }
    }
    drop(created);
    let left = || store.contents.lock().uploads.keys().cloned().collect::<Vec<_>>();
    let is_over = || {
        left().len() <= expected
            && left().iter().all(|id| {
                id == "elsewhere" || losses == 0 || said.lock().join("\n").contains(id.as_str())
            })
    };
    (0..3000)
        .take_while(|_| !is_over())
        .for_each(|_| std::thread::sleep(Duration::from_millis(10)));
    let said = said.lock().join("\n");
    (left(), said)
}

/// Nothing tells it from one of another program, which must go on.
#[test]
fn an_upload_whose_name_is_lost_is_named_and_that_of_another_program_is_not_ended() {
    for (losses, ends_well) in [(2, true), (9, false)] {
        let (left, said) = upload_with_losses((losses, ends_well), &["retry=2"], 2 + losses.min(3));
        assert_eq!(left.len(), 2 + losses.min(3), "{left:?}");
        assert!(left.contains(&"other".to_owned()) && left.contains(&"elsewhere".to_owned()));
        assert!(left.iter().all(|id| said.contains(id) != (id == "elsewhere")), "{said}");
        assert!(said.contains("if no other program writes the object"), "{said}");
    }
}

#[test]
fn of_an_object_that_no_other_program_writes_only_uploads_that_are_surely_ours_are_ended() {
    for (losses, ends_well) in [(2, true), (9, false)] {
        let words = ["retry=2", "exclusive=true"];
        let (left, said) = upload_with_losses((losses, ends_well), &words, 2);
        // When the other one began the store does not say: it is named.
        assert_eq!(left, ["elsewhere", "other"], "{said}");
        assert!(said.contains("an upload of it that nothing completes") && said.contains("other"));
    }
    // Where no name was lost nothing is looked for.
    let (left, _) = upload_with_losses((0, true), &["exclusive=true"], 2);
    assert_eq!(left, ["elsewhere", "other"]);
}

#[test]
fn whatever_breaks_at_random_what_is_read_is_right_or_an_error() {
    let mut right = 0;
    for round in 0..rounds() {
        let (bytes, store) = (content(6 * MIB), breaking(round));
        store.put(PATH, &bytes);
        let words = [store.words(PATH), vec!["retry=2".to_owned()]].concat();
        let params = Params::parse(words.iter().map(String::as_str)).unwrap();
        let opened = super::open_with(&params, &OpenOptions::read_only(), 64 << 10);
        let Ok(disk) = opened else { continue };
        let disk = ::device::Edge::new(disk, Context::default().pool);
        for n in 0..12 {
            let at = to_usize(spread_bits(round * 100 + n) % (5 << 20));
            let mut read = vec![0; 700_000];
            if disk.read(&mut read, at as u64).is_ok() {
                assert!(read == bytes[at..at + read.len()], "round {round}: other bytes at {at}");
                right += 1;
            }
        }
    }
    assert!(right > 0, "nothing was ever read");
}
