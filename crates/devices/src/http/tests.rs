//! The device against servers of all kinds.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use ::device::{Buffer, Device, ErrorKind, Operation, Outcome, Params, Result};
use runtime::{Behalf, Mutex, spread_bits, to_usize};

use super::site::{Asked, Reply, Site, Step, content, cut, good, part, plain, status, whole};
use crate::OpenOptions;

pub(super) const MIB: usize = 1 << 20;

/// Opens it by a first range of 64 KiB, so that small objects have more than one.
pub(super) fn open(url: &str, words: &[&str]) -> Result<Arc<dyn Device>> {
    open_with(url, words, 64 << 10)
}

fn open_with(url: &str, words: &[&str], first: u64) -> Result<Arc<dyn Device>> {
    let mut params = Params::parse(words.iter().copied()).unwrap();
    params.add("url", url);
    super::open_with(&params, &OpenOptions::default(), first)
}

pub(super) fn read(disk: &Arc<dyn Device>, offset: usize, len: usize) -> Result<Vec<u8>> {
    let buffer = Buffer::zeroed(len);
    match disk.run(Operation::Read { offset: offset as u64, buffer })? {
        Outcome::Read(buffer) => Ok(buffer.to_vec()),
        other => panic!("{other:?}"),
    }
}

/// Reads all of it in order, `step` bytes at a time.
#[track_caller]
pub(super) fn is_all(disk: &Arc<dyn Device>, wanted: &[u8], step: usize) {
    assert_eq!(disk.info().size, wanted.len() as u64);
    for offset in (0..wanted.len()).step_by(step) {
        let len = step.min(wanted.len() - offset);
        let bytes = read(disk, offset, len).unwrap();
        assert!(bytes == wanted[offset..offset + len], "differs at {offset}");
    }
}

/// A correct server of `content`, except where `odd` has another answer.
fn site(content: &[u8], odd: impl Fn(&Asked) -> Option<Reply> + Send + Sync + 'static) -> Site {
    let content = content.to_vec();
    Site::new(move |asked| odd(asked).unwrap_or_else(|| good(asked, &content, &["ETag: \"1\""])))
}

#[test]
fn all_of_an_object_is_read_in_order_and_each_byte_comes_once() {
    for size in [1, 65_535, 65_536, 65_537, 20 * MIB + 3] {
        let bytes = content(size);
        let site = site(&bytes, |_| None);
        let disk = open(&site.url("/disk"), &[]).unwrap();
        is_all(&disk, &bytes, 300_000);
        let asked = site.bytes_asked();
        // The first request does not know the size.
        assert!(asked <= size.max(65_536) + 65_536, "{size}: {asked}");
        assert!(site.asked().iter().all(|asked| asked.method == "GET"));
        let longest = site.asked().iter().filter_map(|a| a.range).map(|(s, e)| e - s).max();
        assert!(longest <= Some(8 * MIB));
    }
}

#[test]
fn an_empty_object_is_a_disk_of_no_bytes_however_that_is_said() {
    for answer in [
        status("416 Range Not Satisfiable", &["Content-Range: bytes */0"]),
        plain("200 OK", &["Content-Length: 0"], b""),
    ] {
        let site = Site::new(move |_| answer.clone());
        assert_eq!(open(&site.url("/"), &[]).unwrap().info().size, 0);
    }
}

#[test]
fn many_readers_at_random_get_what_is_there_and_share_what_has_come() {
    let bytes = content(30 * MIB);
    let site = site(&bytes, |_| None);
    let disk = open(&site.url("/disk"), &[]).unwrap();
    std::thread::scope(|scope| {
        for reader in 0..8u64 {
            let (disk, bytes) = (&disk, &bytes);
            scope.spawn(move || {
                for step in 0..200 {
                    let [place, len] = [0, 1].map(|n| spread_bits((reader * 200 + step) * 2 + n));
                    let offset = to_usize(place) % bytes.len();
                    let len = (1 + to_usize(len) % 200_000).min(bytes.len() - offset);
                    assert!(read(disk, offset, len).unwrap() == bytes[offset..offset + len]);
                }
            });
        }
    });
    // All of it fits into the window.
    assert!(site.bytes_asked() <= bytes.len() + 65_536);
    assert!(site.connections() <= 8);
}

#[test]
fn long_reads_that_are_in_flight_together_are_answered_each() {
    let bytes = content(40 * MIB);
    let site = site(&bytes, |_| None);
    let disk = open(&site.url("/disk"), &[]).unwrap();
    let (tell, told) = std::sync::mpsc::channel();
    for mib in (0..40).rev() {
        let tell = tell.clone();
        let read = Operation::Read { offset: mib * MIB as u64, buffer: Buffer::zeroed(MIB) };
        disk.submit(read, Box::new(move |outcome| tell.send((mib, outcome)).unwrap()));
    }
    for _ in 0..40 {
        let (mib, outcome) = told.recv().unwrap();
        let Ok(Outcome::Read(buffer)) = outcome else { panic!("{outcome:?}") };
        let start = to_usize(mib) * MIB;
        assert!(*buffer == bytes[start..start + MIB]);
    }
}

#[test]
fn a_server_that_closes_after_each_answer_or_without_notice_costs_no_read() {
    let bytes = content(5 * MIB);
    let closes = |say: bool| {
        let content = bytes.clone();
        Site::new(move |asked| {
            let headers = if say { &["Connection: close"][..] } else { &[] };
            [good(asked, &content, headers), vec![Step::Close]].concat()
        })
    };
    for say in [true, false] {
        let site = closes(say);
        let disk = open(&site.url("/disk"), &["retry=0"]).unwrap();
        is_all(&disk, &bytes, MIB);
    }
}

#[test]
fn a_body_that_breaks_off_is_gone_on_with_where_it_broke() {
    let bytes = content(6 * MIB);
    let broken = bytes.clone();
    let site = site(&bytes, move |asked| {
        let (start, end) = asked.range?;
        // Every long answer ends after 100,000 bytes.
        if end - start <= 100_000 {
            return None;
        }
        Some(cut(good(asked, &broken, &["ETag: \"1\""]), 100_000, Step::Close))
    });
    let disk = open(&site.url("/disk"), &["retry=1"]).unwrap();
    is_all(&disk, &bytes, 2 * MIB);
}

#[test]
fn a_server_that_breaks_off_without_a_byte_is_an_error_after_some_tries_and_can_recover() {
    let bytes = content(MIB);
    let dead = Arc::new(AtomicUsize::new(0));
    let switch = dead.clone();
    let site =
        site(&bytes, move |_| (switch.load(Ordering::Relaxed) > 0).then(|| vec![Step::Close]));
    let disk = open(&site.url("/disk"), &["retry=1"]).unwrap();
    dead.store(1, Ordering::Relaxed);
    let error = read(&disk, 500_000, 1000).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Disconnected, "{error}");
    assert!(error.to_string().contains("at offset 458752"), "{error}");
    dead.store(0, Ordering::Relaxed);
    is_all(&disk, &bytes, 100_000);
}

#[test]
fn another_size_is_another_object() {
    let (short, long) = (content(MIB), content(4 * MIB));
    for (first, second) in [(&long, &short), (&short, &long)] {
        let (first, second) = (first.clone(), second.clone());
        let site = Site::new(move |asked| {
            good(asked, if asked.number == 0 { &first } else { &second }, &[])
        });
        let disk = open(&site.url("/disk"), &["retry=0"]).unwrap();
        let end = to_usize(disk.info().size);
        let error = read(&disk, end - 1000, 1000).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Changed, "{error}");
    }
}

#[test]
fn a_strong_etag_is_sent_and_a_weak_one_is_not() {
    let bytes = content(MIB);
    let site = site(&bytes, |asked| match asked.header("if-match") {
        Some(etag) if etag != "\"1\"" => Some(status("412 Precondition Failed", &[])),
        _ => None,
    });
    let disk = open(&site.url("/disk"), &[]).unwrap();
    is_all(&disk, &bytes, 100_000);
    let asked = site.asked();
    assert!(asked[0].header("if-match").is_none());
    assert!(asked[1..].iter().all(|asked| asked.header("if-match") == Some("\"1\"")));
    assert!(asked.iter().all(|asked| asked.header("accept-encoding") == Some("identity")));
    let weak = bytes.clone();
    let site = Site::new(move |asked| good(asked, &weak, &["ETag: W/\"1\""]));
    is_all(&open(&site.url("/disk"), &[]).unwrap(), &bytes, 100_000);
    assert!(site.asked().iter().all(|asked| asked.header("if-match").is_none()));
}

#[test]
fn a_server_that_refuses_if_match_is_asked_without_and_its_answers_are_compared() {
    let bytes = content(4 * MIB);
    let refuses = |asked: &Asked| asked.header("if-match").map(|_| status("403 Forbidden", &[]));
    let good_site = site(&bytes, refuses);
    is_all(&open(&good_site.url("/disk"), &["retry=0"]).unwrap(), &bytes, 100_000);
    let other = bytes.clone();
    let changing = site(&bytes, move |asked| {
        refuses(asked).or((asked.number > 2).then(|| good(asked, &other, &["ETag: \"2\""])))
    });
    let disk = open(&changing.url("/disk"), &["retry=0"]).unwrap();
    assert!(read(&disk, MIB, 10).is_ok());
    assert_eq!(read(&disk, 3 * MIB, 10).unwrap_err().kind(), ErrorKind::Changed);
}

#[test]
fn chunked_bodies_with_extensions_and_trailers_are_decoded_and_wrong_lengths_refused() {
    let bytes = content(MIB);
    let chunked = |content: Vec<u8>, extra: &'static [u8], less: usize| {
        Site::new(move |asked| {
            let (range, bytes) = part(asked, &content);
            let bytes = &bytes[..bytes.len() - less];
            let mut body = Vec::new();
            for piece in bytes.chunks(10_000).chain([extra]).filter(|piece| !piece.is_empty()) {
                body.extend_from_slice(format!("{:x};a=b\r\n", piece.len()).as_bytes());
                body.extend_from_slice(piece);
                body.extend_from_slice(b"\r\n");
            }
            body.extend_from_slice(b"0\r\nX-Trailer: 1\r\n\r\n");
            plain("206 Partial Content", &[&range, "Transfer-Encoding: chunked"], &body)
        })
    };
    let disk = open(&chunked(bytes.clone(), b"", 0).url("/"), &["retry=0"]).unwrap();
    is_all(&disk, &bytes, 100_000);
    let long = chunked(bytes.clone(), b"more", 0);
    let error = open(&long.url("/"), &["retry=0"]).err().unwrap().to_string();
    assert!(error.contains("length"), "{error}");
    let short = chunked(bytes, b"", 1);
    assert!(open(&short.url("/"), &["retry=0"]).is_err());
}

#[test]
fn no_server_is_waited_for_without_end() {
    let bytes = content(MIB);
    let sleepy = |reply: fn(&Asked, &[u8]) -> Reply| {
        let bytes = bytes.clone();
        site(&bytes.clone(), move |asked| (asked.number > 0).then(|| reply(asked, &bytes)))
    };
    let silent = sleepy(|_, _| vec![Step::Hang]);
    let stalled =
        sleepy(|asked, bytes| cut(good(asked, bytes, &["ETag: \"1\""]), 1000, Step::Hang));
    for site in [silent, stalled] {
        let disk = open(&site.url("/disk"), &["retry=0", "timeout=0.2"]).unwrap();
        assert_eq!(read(&disk, 500_000, 10).unwrap_err().kind(), ErrorKind::TimedOut);
    }
}

#[test]
fn an_overloaded_server_is_left_alone_for_as_long_as_it_asks() {
    let bytes = content(4 * MIB);
    let times: Arc<Mutex<Vec<std::time::Instant>>> = Arc::default();
    let seen = times.clone();
    let site = site(&bytes, move |asked| {
        if asked.number == 0 || asked.number > 3 {
            return None;
        }
        seen.lock().push(std::time::Instant::now());
        let answer =
            if asked.number == 1 { "429 Too Many Requests" } else { "503 Service Unavailable" };
        Some(status(answer, &["Retry-After: 1"]))
    });
    let disk = open(&site.url("/disk"), &["retry=5", "connections=1"]).unwrap();
    is_all(&disk, &bytes, 4 * MIB);
    let times = times.lock();
    for two in times.windows(2) {
        assert!(two[1] - two[0] >= Duration::from_secs(1));
    }
    assert_eq!(times.len(), 3);
}

#[test]
fn an_open_that_the_server_defers_is_tried_again_and_one_that_it_refuses_is_not() {
    let bytes = content(1000);
    let site = site(&bytes, |asked| {
        (asked.number < 2).then(|| status("503 Service Unavailable", &["Retry-After: 0"]))
    });
    is_all(&open(&site.url("/disk"), &[]).unwrap(), &bytes, 1000);
    for (answer, kind) in [
        ("404 Not Found", ErrorKind::NotFound),
        ("401 Unauthorized", ErrorKind::PermissionDenied),
        ("403 Forbidden", ErrorKind::PermissionDenied),
        ("405 Method Not Allowed", ErrorKind::Io),
    ] {
        let site = Site::new(move |_| status(answer, &[]));
        let error = open(&site.url("/disk?secret"), &[]).err().unwrap();
        assert_eq!(error.kind(), kind, "{error}");
        assert!(!error.to_string().contains("secret"), "{error}");
        assert_eq!(site.asked().len(), 1);
    }
}

#[test]
fn answers_that_are_no_http_or_have_no_end_are_errors() {
    for answer in [
        b"hello\r\n\r\n".to_vec(),
        b"HTTP/1.1 206 Partial Content\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello"
            .to_vec(),
        [b"HTTP/1.1 200 OK\r\nX: ".to_vec(), vec![b'x'; 200_000]].concat(),
        [b"HTTP/1.1 200 OK\r\n".to_vec(), b"X: y\r\n".repeat(1000), b"\r\n".to_vec()].concat(),
    ] {
        let site = Site::new(move |_| vec![Step::Send(answer.clone()), Step::Close]);
        assert!(open(&site.url("/"), &["retry=0"]).is_err());
    }
}

#[test]
fn a_size_that_no_range_tells_is_asked_for_in_other_ways() {
    for way in ["suffix", "head", "none"] {
        let bytes = content(300_000);
        let content = bytes.clone();
        let site = Site::new(move |asked| {
            let size = content.len();
            if asked.method == "HEAD" && way == "head" {
                return good(asked, &content, &[]);
            }
            if asked.header("range") == Some("bytes=-1") && way == "suffix" {
                let range = format!("Content-Range: bytes {}-{}/*", size - 1, size - 1);
                return plain("206 Partial Content", &[&range, "Content-Length: 1"], b"x");
            }
            let Some((start, end)) = asked.range else { return status("403 Forbidden", &[]) };
            let end = end.min(size);
            let range = format!("Content-Range: bytes {start}-{}/*", end - 1);
            let length = format!("Content-Length: {}", end - start);
            plain("206 Partial Content", &[&range, &length], &content[start..end])
        });
        match open(&site.url("/disk"), &["retry=0"]) {
            Ok(disk) => is_all(&disk, &bytes, 100_000),
            Err(e) => assert!(way == "none" && e.to_string().contains("size"), "{way}: {e}"),
        }
    }
}

fn without_ranges(content: Vec<u8>, told: bool) -> Site {
    Site::new(move |asked| {
        if told {
            return whole(asked, &content, &["ETag: \"1\""]);
        }
        [plain("200 OK", &["Connection: close"], &content), vec![Step::Close]].concat()
    })
}

#[test]
fn a_server_without_ranges_is_read_in_one_pass() {
    let bytes = content(72 * MIB);
    let site = without_ranges(bytes.clone(), true);
    let disk = open(&site.url("/disk"), &["retry=0"]).unwrap();
    is_all(&disk, &bytes, 700_000);
    assert_eq!(site.asked().len(), 1, "one request");
    let error = read(&disk, 0, 10).unwrap_err().to_string();
    assert!(error.contains("no longer in memory"), "{error}");
    // Bytes ahead of the window can be read, past those that were not.
    let disk = open(&site.url("/disk"), &["retry=0"]).unwrap();
    assert!(read(&disk, 71 * MIB, 1000).unwrap() == bytes[71 * MIB..][..1000]);
    assert!(read(&disk, 0, 10).is_err());
}

#[test]
fn what_fits_into_memory_needs_neither_ranges_nor_a_length() {
    let bytes = content(3 * MIB);
    let site = without_ranges(bytes.clone(), false);
    let disk = open(&site.url("/disk"), &[]).unwrap();
    assert!(read(&disk, 2 * MIB, 1000).unwrap() == bytes[2 * MIB..][..1000]);
    is_all(&disk, &bytes, 100_000);
    assert_eq!(site.asked().len(), 1);
    let site = without_ranges(content(65 * MIB), false);
    let error = open(&site.url("/disk"), &[]).err().unwrap().to_string();
    assert!(error.contains("does not report the size"), "{error}");
}

#[test]
fn a_pass_that_breaks_off_skips_what_has_come_and_goes_on() {
    let bytes = content(20 * MIB);
    let content = bytes.clone();
    let site = Site::new(move |asked| {
        let reply = whole(asked, &content, &["ETag: \"1\""]);
        if asked.number == 3 {
            return reply;
        }
        cut(reply, (asked.number + 1) * 5 * MIB + 777, Step::Close)
    });
    is_all(&open(&site.url("/disk"), &["retry=1"]).unwrap(), &bytes, MIB);
    assert_eq!(site.asked().len(), 4);
}

#[test]
fn a_range_that_is_answered_with_everything_is_never_taken_for_it() {
    let bytes = content(MIB);
    let all = bytes.clone();
    let site =
        site(&bytes, move |asked| (asked.number > 0).then(|| whole(asked, &all, &["ETag: \"1\""])));
    let disk = open(&site.url("/disk"), &["retry=1"]).unwrap();
    let error = read(&disk, 500_000, 10).unwrap_err().to_string();
    assert!(error.contains("whole object"), "{error}");
}

#[test]
fn reads_that_wait_end_when_the_disk_is_closed() {
    let bytes = content(MIB);
    let site = site(&bytes, |asked| (asked.number > 0).then(|| vec![Step::Hang]));
    let disk = open(&site.url("/disk"), &[]).unwrap();
    let (tell, told) = std::sync::mpsc::channel();
    let read = Operation::Read { offset: 500_000, buffer: Buffer::zeroed(10) };
    disk.submit(read, Box::new(move |outcome| tell.send(outcome.map(|_| ())).unwrap()));
    drop(disk);
    assert_eq!(told.recv().unwrap().unwrap_err().kind(), ErrorKind::Cancelled);
}

#[test]
fn a_redirect_is_walked_once_and_again_from_the_beginning_when_it_expires() {
    let bytes = content(4 * MIB);
    let content = bytes.clone();
    let site = Site::new(move |asked| {
        let since = asked.number > 3;
        match asked.path.as_str() {
            "/disk" => {
                let to = if since { "Location: /b/c?sig=2" } else { "Location: a/b" };
                status("302 Found", &[to])
            }
            "/a/b" if !since => status("307 Temporary Redirect", &["Location: ../b/c?sig=1"]),
            "/b/c?sig=1" if !since => good(asked, &content, &["ETag: \"1\""]),
            "/b/c?sig=2" => good(asked, &content, &["ETag: \"1\""]),
            _ => status("403 Forbidden", &[]),
        }
    });
    let disk = open(&site.url("/disk"), &["retry=0", "connections=1"]).unwrap();
    is_all(&disk, &bytes, 200_000);
    let paths: Vec<_> = site.asked().iter().map(|asked| asked.path.clone()).collect();
    assert_eq!(paths[..3], ["/disk", "/a/b", "/b/c?sig=1"]);
    assert_eq!(paths.iter().filter(|path| *path == "/disk").count(), 2, "{paths:?}");
}

#[test]
fn another_object_behind_a_new_redirect_is_refused() {
    let bytes = content(MIB);
    let site = Site::new(move |asked| match (asked.path.as_str(), asked.number > 1) {
        ("/disk", false) => status("302 Found", &["Location: /one"]),
        ("/disk", true) => status("302 Found", &["Location: /two"]),
        ("/one", false) => good(asked, &bytes, &["ETag: \"1\""]),
        ("/one", true) => status("410 Gone", &[]),
        _ => good(asked, &bytes, &["ETag: \"2\""]),
    });
    let disk = open(&site.url("/disk"), &["retry=0"]).unwrap();
    assert_eq!(read(&disk, 500_000, 10).unwrap_err().kind(), ErrorKind::Changed);
}

#[test]
fn bytes_that_were_prefetched_are_there_when_they_are_read() {
    let bytes = content(4 * MIB);
    let site = site(&bytes, |_| None);
    let disk = open(&site.url("/disk"), &[]).unwrap();
    disk.run(Operation::Prefetch { offset: MIB as u64, len: MIB as u64 }).unwrap();
    assert!(read(&disk, MIB, MIB).unwrap() == bytes[MIB..2 * MIB]);
    assert_eq!(site.bytes_asked(), MIB + 65_536);
}

#[test]
fn whatever_breaks_at_random_what_is_read_is_right_or_an_error() {
    let bytes = content(24 * MIB);
    let truth = bytes.clone();
    // Every other request fails in some way; some failures are no reason to try again.
    let site = site(&bytes, move |asked| {
        let dice = spread_bits(asked.number as u64);
        let (start, end) = asked.range?;
        if asked.number == 0 {
            return None;
        }
        let etag = ["ETag: \"1\""];
        let mut reply = good(asked, &truth, &etag);
        let shifted = Asked { range: Some((start + 1, end)), ..asked.clone() };
        match dice % 24 {
            0..4 => {
                if let Some(Step::Send(bytes)) = reply.first_mut() {
                    bytes.truncate(to_usize(dice) % bytes.len());
                }
                reply.push(Step::Close);
            }
            4 => reply = vec![Step::Close],
            5 => reply = status("503 Service Unavailable", &["Retry-After: 0"]),
            6 => reply = whole(asked, &truth, &etag),
            7 => reply = good(&shifted, &truth, &etag),
            8 => reply = good(asked, &truth, &["ETag: \"2\""]),
            9 => reply = status("500 Internal Server Error", &[]),
            10 => {
                // Stray bytes behind the answer.
                reply.push(Step::Send(b"HTTP/1.1 206 Partial Content\r\n".to_vec()));
            }
            11 => reply = [vec![Step::Wait(Duration::from_millis(3))], reply].concat(),
            _ => {}
        }
        Some(reply)
    });
    let disk = open(&site.url("/disk"), &["retry=3", "timeout=20"]).unwrap();
    let (good, failed) = (AtomicUsize::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for reader in 0..4 {
            let (disk, bytes, good, failed) = (&disk, &bytes, &good, &failed);
            scope.spawn(move || {
                for step in 0..100 {
                    let len = 1 + (step * 7919) % 400_000;
                    // Two go through it in order, two jump.
                    let offset = if reader < 2 { step * 240_000 } else { step * 9_999_991 }
                        % (bytes.len() - len);
                    match read(disk, offset, len) {
                        Ok(read) => {
                            assert!(read == bytes[offset..offset + len], "wrong bytes at {offset}");
                            good.fetch_add(1, Ordering::Relaxed);
                        }
                        Err(_) => drop(failed.fetch_add(1, Ordering::Relaxed)),
                    }
                }
            });
        }
    });
    let (good, failed) = (good.into_inner(), failed.into_inner());
    assert!(good > 100 && failed > 0, "{good} {failed}");
}

#[test]
fn it_is_never_opened_for_writing() {
    let site = site(&content(10), |_| None);
    let params = Params::parse([format!("url={}", site.url("/")).as_str()]).unwrap();
    let options = OpenOptions::read_write();
    let error = super::open(&params, &options).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::ReadOnly);
    let options = OpenOptions { or_read_only: true, ..options };
    assert!(!super::open(&params, &options).unwrap().info().abilities.write);
}

/// Starts a read on behalf of a client, and reports the result later.
fn begin_read(
    disk: &Arc<dyn Device>,
    behalf: Behalf,
    offset: usize,
    len: usize,
) -> std::sync::mpsc::Receiver<Result<Outcome>> {
    let (tell, told) = std::sync::mpsc::channel();
    let read = Operation::Read { offset: offset as u64, buffer: Buffer::zeroed(len) };
    let done = Box::new(move |outcome| drop(tell.send(outcome)));
    behalf.run(|| disk.submit(read, done));
    told
}

/// Opened once for all that wait at it.
#[derive(Default)]
struct Barrier(Mutex<bool>, runtime::Condvar);

impl Barrier {
    fn open(&self) {
        *self.0.lock() = true;
        self.1.notify_all();
    }

    fn wait(&self) {
        let open = self.0.lock();
        drop(self.1.wait_while(open, |open| !*open));
    }
}

#[test]
fn a_client_that_reads_little_does_not_wait_for_all_that_another_client_reads() {
    let bytes = content(80 * MIB);
    let barrier = Arc::new(Barrier::default());
    let behind = barrier.clone();
    let site = site(&bytes, move |asked| {
        if asked.number > 0 {
            behind.wait();
        }
        None
    });
    let disk = open(&site.url("/disk"), &["connections=2"]).unwrap();
    let long: Vec<_> =
        (1..65).map(|mib| begin_read(&disk, Behalf::of_client(1), mib * MIB, MIB)).collect();
    let little = begin_read(&disk, Behalf::of_client(2), 75 * MIB, 4096);
    barrier.open();
    assert!(little.recv().unwrap().is_ok());
    for read in long {
        assert!(read.recv().unwrap().is_ok());
    }
    let at = site.asked().iter().position(|asked| asked.range.unwrap().0 == 75 * MIB).unwrap();
    // Those that were in flight, one turn of the other client, and one that came meanwhile.
    assert!(at <= 5, "{at}");
}

#[test]
fn what_a_client_wanted_that_has_gone_is_not_waited_for() {
    let bytes = content(40 * MIB);
    let hung = Arc::new(AtomicUsize::new(0));
    let hangs = hung.clone();
    let site = site(&bytes, move |asked| {
        let here = asked.range?.0 == 20 * MIB && hangs.fetch_add(1, Ordering::SeqCst) == 0;
        here.then(|| vec![Step::Hang])
    });
    // Reads end here only because the client has gone.
    let disk = open(&site.url("/disk"), &["connections=1", "timeout=3600"]).unwrap();
    let requester = Arc::new(AtomicBool::new(true));
    let behalf = Behalf::of_client(1).wanted_by(requester.clone());
    let wanted = begin_read(&disk, behalf, 20 * MIB, MIB);
    while hung.load(Ordering::SeqCst) == 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    requester.store(false, Ordering::Relaxed);
    assert_eq!(wanted.recv().unwrap().unwrap_err().kind(), ErrorKind::Cancelled);
    // The only connection is free again, and a request for the same bytes gets it.
    assert!(read(&disk, 20 * MIB, MIB).unwrap() == bytes[20 * MIB..21 * MIB]);
}

#[test]
fn a_client_that_wants_the_same_bytes_gets_them_when_the_first_one_leaves() {
    let bytes = content(40 * MIB);
    let barrier = Arc::new(Barrier::default());
    let behind = barrier.clone();
    let site = site(&bytes, move |asked| {
        if asked.number == 1 {
            behind.wait();
        }
        None
    });
    let disk = open(&site.url("/disk"), &["connections=1", "timeout=3600"]).unwrap();
    let requester = Arc::new(AtomicBool::new(true));
    let behalf = Behalf::of_client(1).wanted_by(requester.clone());
    let gone = begin_read(&disk, behalf, 20 * MIB, 4 * MIB);
    let stays = begin_read(&disk, Behalf::of_client(2), 22 * MIB, 1000);
    requester.store(false, Ordering::Relaxed);
    barrier.open();
    let Ok(Outcome::Read(buffer)) = stays.recv().unwrap() else { panic!("it stays") };
    assert!(*buffer == bytes[22 * MIB..22 * MIB + 1000]);
    drop(gone);
}

#[test]
fn the_first_request_brings_all_of_a_small_object() {
    for size in [1, 65_537, 8 * MIB] {
        let bytes = content(size);
        let site = site(&bytes, |_| None);
        let disk = open_with(&site.url("/disk"), &[], super::FIRST).unwrap();
        is_all(&disk, &bytes, 300_000);
        assert_eq!(site.asked().len(), 1);
    }
}

#[test]
fn a_disk_is_open_and_its_beginning_read_before_the_first_answer_has_ended() {
    let bytes = content(20 * MIB);
    let barrier = Arc::new(Barrier::default());
    let (behind, whole) = (barrier.clone(), bytes.clone());
    let site = Site::new(move |asked| {
        let (start, end) = asked.range.unwrap();
        let mut reply = good(asked, &whole, &[]);
        if asked.number == 0 {
            assert_eq!((start, end), (0, 8 * MIB));
            let Some(Step::Send(bytes)) = reply.first_mut() else { panic!() };
            let rest = bytes.split_off(MIB);
            let behind = behind.clone();
            reply.push(Step::Run(Arc::new(move || behind.wait())));
            reply.push(Step::Send(rest));
        }
        reply
    });
    let disk = open_with(&site.url("/disk"), &[], super::FIRST).unwrap();
    assert!(read(&disk, 0, 500_000).unwrap() == bytes[..500_000]);
    // Others wait for nothing.
    assert!(read(&disk, 15 * MIB, 10).unwrap() == bytes[15 * MIB..15 * MIB + 10]);
    barrier.open();
    is_all(&disk, &bytes, MIB);
    let asked = site.asked().into_iter().filter_map(|asked| asked.range);
    let sum: usize = asked.map(|(start, end)| end.min(20 * MIB) - start).sum();
    assert_eq!(sum, 20 * MIB, "each byte once");
    assert!(site.asked().len() < 20, "{}", site.asked().len());
}

#[test]
fn a_body_that_goes_on_beyond_its_range_is_left_and_its_connection_not_used_again() {
    let bytes = content(100_000);
    let whole = bytes.clone();
    let site = Site::new(move |asked| {
        let (start, end) = asked.range.unwrap();
        // Short enough to come in one piece, with what would be the next answer.
        let less = Asked { range: Some((start, end.min(start + 9000))), ..asked.clone() };
        let mut reply = good(&less, &whole, &[]);
        let stray = plain("206 Partial Content", &["Content-Length: 5"], b"stray");
        if let (Some(Step::Send(bytes)), Some(Step::Send(more))) =
            (reply.first_mut(), stray.first())
        {
            bytes.extend_from_slice(more);
        }
        reply
    });
    let disk = open(&site.url("/disk"), &["retry=0", "connections=1"]).unwrap();
    is_all(&disk, &bytes, 100_000);
    assert_eq!(site.connections(), site.asked().len());
}
