//! Servers that lie, drip, change their minds or announce what they never send.

use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ::device::{Device, ErrorKind};
use net::{Received, Stream, Until};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::socket_send_buffer_size;

use super::site::{Asked, Reply, Site, Step, content, cut, good, plain, whole};
use super::tests::{MIB, is_all, open, read};

#[track_caller]
fn fails(disk: &Arc<dyn Device>, offset: usize, kind: ErrorKind) -> String {
    let error = read(disk, offset, 1000).unwrap_err();
    assert_eq!(error.kind(), kind, "{error}");
    error.to_string()
}

#[test]
fn a_length_that_no_server_has_is_an_error_once_it_does_not_come() {
    for bits in [45, 62] {
        let site = Site::new(move |_| {
            let length = format!("Content-Length: {}", 1u64 << bits);
            [plain("200 OK", &[&length], b"xxx"), vec![Step::Close]].concat()
        });
        let disk = open(&site.url("/"), &["retry=1"]).unwrap();
        assert_eq!(disk.info().size, 1 << bits);
        for offset in [0, 1 << 40] {
            fails(&disk, offset, ErrorKind::Disconnected);
        }
        assert!(site.asked().len() <= 2, "{}", site.asked().len());
    }
    let more = u64::try_from(i64::MAX).unwrap() + 1;
    let length = format!("Content-Length: {more}");
    let site = Site::new(move |_| plain("200 OK", &[&length], b"xxx"));
    let error = open(&site.url("/"), &["retry=0"]).err().unwrap().to_string();
    assert!(error.contains("more bytes than a disk can have"), "{error}");
}

#[test]
fn parts_of_a_byte_are_failures_in_a_row() {
    let bytes = content(4 * MIB);
    let all = bytes.clone();
    let site = Site::new(move |asked| {
        let (start, _) = asked.range.unwrap();
        good(&Asked { range: Some((start, start + 1)), ..asked.clone() }, &all, &[])
    });
    let disk = open(&site.url("/"), &["retry=2", "connections=1"]).unwrap();
    let said = fails(&disk, MIB, ErrorKind::Protocol);
    assert!(said.contains("the server repeatedly sends only 1 of"), "{said}");
    // The first range, and the one that is read.
    assert!(site.asked().len() <= 2 * 3, "{}", site.asked().len());
}

#[test]
fn small_honest_parts_are_followed_however_many_there_are() {
    let bytes = content(4 * MIB);
    let all = bytes.clone();
    let site = Site::new(move |asked| {
        let (start, end) = asked.range.unwrap();
        let range = Some((start, end.min(start + 4096)));
        good(&Asked { range, ..asked.clone() }, &all, &["ETag: \"1\""])
    });
    is_all(&open(&site.url("/"), &["retry=0"]).unwrap(), &bytes, MIB);
}

#[test]
fn a_server_that_falls_silent_after_a_few_bytes_each_time_is_given_up() {
    let bytes = content(4 * MIB);
    let all = bytes.clone();
    let ranges = Site::new(move |asked| match asked.number {
        0 => good(asked, &all, &[]),
        _ => cut(good(asked, &all, &[]), 300, Step::Hang),
    });
    let disk = open(&ranges.url("/"), &["retry=2", "timeout=0.2", "connections=1"]).unwrap();
    fails(&disk, MIB, ErrorKind::TimedOut);
    assert_eq!(ranges.asked().len(), 1 + 3);

    // Without ranges the first try brings a chunk, and each one after it a little more than the one
    // before.
    let pass = Site::new(move |asked| {
        cut(whole(asked, &bytes, &[]), 100_000 + 1000 * asked.number, Step::Hang)
    });
    let disk = open(&pass.url("/"), &["retry=2", "timeout=0.2"]).unwrap();
    fails(&disk, MIB, ErrorKind::TimedOut);
    assert_eq!(pass.asked().len(), 1 + 2);
}

#[test]
fn a_pass_that_begins_again_with_other_bytes_is_an_error_and_never_a_mixture() {
    let bytes = content(8 * MIB);
    for differs in [None, Some(0), Some(3 * MIB)] {
        let (first, mut second) = (bytes.clone(), bytes.clone());
        if let Some(place) = differs {
            second[place] ^= 1;
        }
        let site = Site::new(move |asked| match asked.number {
            0 => cut(whole(asked, &first, &[]), 5 * MIB + 77, Step::Close),
            _ => whole(asked, &second, &[]),
        });
        let disk = open(&site.url("/"), &["retry=1"]).unwrap();
        if differs.is_none() {
            is_all(&disk, &bytes, 300_000);
            continue;
        }
        let said = fails(&disk, 6 * MIB, ErrorKind::Changed);
        assert!(said.contains("has different bytes"), "{said}");
        assert!(read(&disk, 0, 1000).unwrap() == bytes[..1000], "what came before is still right");
        fails(&disk, 7 * MIB, ErrorKind::Changed);
        assert_eq!(site.asked().len(), 2);
    }
}

#[test]
fn what_changes_meanwhile_or_is_not_identified_any_more_is_an_error_and_never_mixed() {
    let bytes = content(4 * MIB);
    const DATE: &str = "Last-Modified: Sun, 06 Nov 1994 08:49:37 GMT";
    const LATER: &str = "Last-Modified: Mon, 07 Nov 1994 08:49:37 GMT";
    let (without, other, modified) =
        ("this response has none", "its ETag differs", "it was modified");
    for (before, after, why) in [
        (&["ETag: \"1\""][..], &[][..], without),
        (&[DATE], &[], without),
        (&["ETag: W/\"1\""], &[DATE], without),
        (&["ETag: \"1\""], &["ETag: \"2\""], other),
        (&["ETag: W/\"1\""], &["ETag: W/\"2\""], other),
        (&[DATE], &[LATER], modified),
        (&["ETag: \"1\"", DATE], &[DATE], ""),
        (&["ETag: \"1\"", DATE], &["ETag: \"1\""], ""),
        (&[], &[DATE], ""),
    ] {
        let all = bytes.clone();
        let site = Site::new(move |asked| {
            good(asked, &all, if asked.number == 0 { before } else { after })
        });
        let disk = open(&site.url("/"), &["retry=0"]).unwrap();
        if why.is_empty() {
            is_all(&disk, &bytes, MIB);
        } else {
            let said = fails(&disk, 3 * MIB, ErrorKind::Changed);
            assert!(said.contains(why), "{said}");
        }
    }
}

#[test]
fn an_object_is_not_sent_again_and_again_for_a_chunk_more_of_it() {
    let bytes = content(24 * MIB);
    let site = Site::new(move |asked| {
        cut(whole(asked, &bytes, &[]), 16 * MIB + 70_000 * asked.number, Step::Close)
    });
    let disk = open(&site.url("/"), &["retry=2"]).unwrap();
    fails(&disk, 23 * MIB, ErrorKind::Disconnected);
    assert_eq!(site.asked().len(), 1 + 2);
}

#[test]
fn bytes_under_a_transfer_coding_besides_chunked_are_never_the_disks() {
    for coding in ["gzip, chunked", "gzip"] {
        let site = Site::new(move |_| {
            let coding = format!("Transfer-Encoding: {coding}");
            [plain("200 OK", &[&coding], b"5\r\nhello\r\n0\r\n\r\n"), vec![Step::Close]].concat()
        });
        let error = open(&site.url("/"), &["retry=0"]).err().unwrap().to_string();
        assert!(error.contains("transfer codings besides chunked (gzip"), "{error}");
    }
}

/// The length of a request that a Unix socket does not take whole, even after a few records of it
/// were read.
fn long() -> usize {
    let (one, _) = UnixStream::pair().unwrap();
    socket_send_buffer_size(&one).unwrap() + (128 << 10)
}

/// Accepts a connection that comes soon.
fn accept(listener: &UnixListener) -> Option<UnixStream> {
    let soon = Timespec { tv_sec: 5, tv_nsec: 0 };
    let come = poll(&mut [PollFd::new(listener, PollFlags::IN)], Some(&soon)).unwrap();
    (come > 0).then(|| listener.accept().unwrap().0)
}

/// What comes until it is `enough`, or until the end, which may be amid a record.
fn what_comes(client: &Stream, enough: impl Fn(&[u8]) -> bool) -> Vec<u8> {
    let (mut all, mut piece) = (Vec::new(), vec![0; 4096]);
    while !enough(&all) {
        match client.receive(&mut piece) {
            Ok(Received::Bytes(n)) => all.extend_from_slice(&piece[..n]),
            Ok(Received::Nothing) => {
                Until::within(Duration::from_secs(10)).readable(client).unwrap();
            }
            Ok(Received::End) | Err(_) => break,
        }
    }
    all
}

fn tell(client: &Stream, reply: &Reply) {
    for step in reply {
        let Step::Send(bytes) = step else { continue };
        assert_eq!(client.send(bytes), Ok(bytes.len()));
    }
}

/// A server at `path` answers a long request when it has read the beginning of it, and reads on
/// after the next request has come: that must not be on the same connection.
pub(super) fn hastens(
    path: &Path,
    url: &str,
    words: &[&str],
    ready: impl Fn(UnixStream) -> Stream + Send + 'static,
) {
    let listener = UnixListener::bind(path).unwrap();
    let server = std::thread::spawn(move || {
        let hasty = ready(accept(&listener).unwrap());
        let mut first = what_comes(&hasty, |bytes| !bytes.is_empty());
        tell(&hasty, &plain("302 Found", &["Location: /next", "Content-Length: 0"], b""));
        let Some(next) = accept(&listener) else { return (first, Vec::new()) };
        let next = ready(next);
        let second = what_comes(&next, |bytes| bytes.ends_with(b"\r\n\r\n"));
        tell(&next, &plain("200 OK", &["Content-Length: 5"], b"bytes"));
        first.extend(what_comes(&hasty, |_| false));
        (first, second)
    });
    let socket = format!("unix-socket-path={}", path.display());
    let len = long();
    let header = format!("header=X-Long: {}", "x".repeat(len));
    let words = [&[&*socket, &*header, "retry=0"], words].concat();
    let disk = open(url, &words);
    let (first, second) = server.join().unwrap();
    std::fs::remove_file(path).unwrap();
    assert!(second.starts_with(b"GET /next ") && second.len() > len, "on a connection of its own");
    assert!(first.starts_with(b"GET / ") && first.len() < len, "{}", first.len());
    assert_eq!(disk.unwrap().info().size, 5);
}

#[test]
fn a_connection_is_not_used_again_whose_request_was_answered_before_it_had_left() {
    let name = format!("diskferry-hasty-{}", std::process::id());
    let path = std::env::temp_dir().join(name);
    hastens(&path, "http://h/", &[], |client| Stream::new(client.into()).unwrap());
}
