//! Behaviour of servers that is rare, and correct or nearly so.

use super::site::{Asked, Reply, Site, Step, content, good, part, plain, status};
use super::tests::{MIB, is_all, open, read};

/// What a good server answers, with another first line, and closes.
fn old(asked: &Asked, content: &[u8]) -> Reply {
    let mut reply = good(asked, content, &[]);
    if let Some(Step::Send(bytes)) = reply.first_mut() {
        assert!(bytes.starts_with(b"HTTP/1.1 "));
        bytes[7] = b'0';
    }
    reply.push(Step::Close);
    reply
}

#[test]
fn a_server_that_refuses_any_range_is_asked_for_all() {
    let bytes = content(2 * MIB);
    let whole = bytes.clone();
    let site = Site::new(move |asked| match asked.range {
        Some(_) => status("416 Range Not Satisfiable", &["Content-Range: bytes */2097152"]),
        None => good(asked, &whole, &[]),
    });
    is_all(&open(&site.url("/disk"), &["retry=0"]).unwrap(), &bytes, 300_000);
}

#[test]
fn a_part_without_a_length_ends_with_its_connection_and_the_rest_of_a_short_one_is_asked_for() {
    let bytes = content(2 * MIB);
    for short in [false, true] {
        let whole = bytes.clone();
        let site = Site::new(move |asked| {
            let (range, body) = part(asked, &whole);
            // Not the first request: it returns the size, and has retries of its own.
            let cut = if short && asked.number > 0 && body.len() > 100_000 { 7_000 } else { 0 };
            let body = &body[..body.len() - cut];
            [plain("206 Partial Content", &[&range], body), vec![Step::Close]].concat()
        });
        is_all(&open(&site.url("/disk"), &["retry=1"]).unwrap(), &bytes, MIB);
    }
}

#[test]
fn what_is_said_before_an_answer_is_skipped() {
    let bytes = content(MIB);
    let whole = bytes.clone();
    let site = Site::new(move |asked| {
        let early = b"HTTP/1.1 100 Continue\r\n\r\n\
                      HTTP/1.1 103 Early Hints\r\nLink: </style.css>; rel=preload\r\n\r\n";
        [vec![Step::Send(early.to_vec())], good(asked, &whole, &[])].concat()
    });
    is_all(&open(&site.url("/disk"), &["retry=0"]).unwrap(), &bytes, 300_000);
}

#[test]
fn a_server_that_never_comes_to_its_answer_is_not_listened_to_for_ever() {
    let early = b"HTTP/1.1 103 Early Hints\r\n\r\n".repeat(100_000);
    let site = Site::new(move |_| vec![Step::Send(early.clone())]);
    let error = open(&site.url("/disk"), &["retry=0", "timeout=3600"]).err().unwrap().to_string();
    assert!(error.contains("no reply"), "{error}");
}

#[test]
fn http_1_0_is_read_in_ranges_or_in_one_pass() {
    let bytes = content(3 * MIB);
    let whole = bytes.clone();
    let site = Site::new(move |asked| old(asked, &whole));
    is_all(&open(&site.url("/disk"), &["retry=0"]).unwrap(), &bytes, MIB);
    let whole = bytes.clone();
    let site = Site::new(move |_| {
        let head = b"HTTP/1.0 200 OK\r\n\r\n".to_vec();
        vec![Step::Send([&head[..], &whole].concat()), Step::Close]
    });
    is_all(&open(&site.url("/disk"), &["retry=0"]).unwrap(), &bytes, MIB);
}

#[test]
fn a_length_beside_chunks_is_right_or_an_error_and_its_connection_not_used_again() {
    let bytes = content(MIB);
    let whole = bytes.clone();
    let site = Site::new(move |asked| {
        let (range, bytes) = part(asked, &whole);
        let size = format!("{:x}\r\n", bytes.len());
        let body = [size.as_bytes(), bytes, b"\r\n0\r\n\r\n"].concat();
        let headers = [&range[..], "Content-Length: 5", "Transfer-Encoding: chunked"];
        plain("206 Partial Content", &headers, &body)
    });
    if let Ok(disk) = open(&site.url("/disk"), &["retry=0", "connections=1"]) {
        for offset in [0, 300_000, 900_000] {
            if let Ok(read) = read(&disk, offset, 1000) {
                assert!(read == bytes[offset..offset + 1000], "differs at {offset}");
            }
        }
    }
    assert_eq!(site.connections(), site.asked().len());
}
