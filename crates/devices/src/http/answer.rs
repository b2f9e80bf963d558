//! Interprets a server's answer to a range request, before any of its body is read.
//!
//! Only a 206 with the Content-Range that was asked for is the range. A 200 is the whole object,
//! however long. Everything else is a redirect, a refusal, or a reason to try again.

use std::time::{Duration, SystemTime};

use device::{Error, ErrorKind, Fault, Result};
use hyper::header::{self, HeaderMap, HeaderName};
use hyper::{Response, StatusCode, Version};

/// The longest wait that a server can ask for.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// The meaning of an answer.
#[derive(Debug)]
pub(super) enum Verdict {
    /// The bytes that were asked for follow, or the first of them.
    Part {
        /// How many bytes follow.
        len: u64,
        /// Size of the object, if given.
        size: Option<u64>,
    },
    /// The whole object follows; its size, if given.
    Whole(Option<u64>),
    /// Nothing is at this offset: the size of the object, if given.
    Beyond(Option<u64>),
    /// It is elsewhere.
    Redirect(String),
    /// Try again, after this time, if the server gives one.
    Later(Error, Option<Duration>),
    /// The object is not the one that was pinned.
    Changed(String),
    /// Refused, to a request like this.
    Forbidden(Error),
    /// No.
    No(Error),
}

/// The identity of the object.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(super) struct Validators {
    pub(super) etag: Option<String>,
    pub(super) modified: Option<String>,
}

impl Validators {
    pub(super) fn of(headers: &HeaderMap) -> Self {
        Self {
            etag: text(headers, header::ETAG).map(str::to_owned),
            modified: text(headers, header::LAST_MODIFIED).map(str::to_owned),
        }
    }

    /// The ETag, if it is a strong one.
    pub(super) fn strong(&self) -> Option<&str> {
        self.etag.as_deref().filter(|etag| etag.starts_with('"'))
    }

    /// What names this state of the object: another one is another state. A weak ETag may stay
    /// while bytes change, but not the date beside it.
    pub(super) fn version(&self) -> Option<String> {
        let (etag, modified) = (self.etag.as_deref(), self.modified.as_deref());
        match (self.strong(), etag.or(modified)) {
            (Some(strong), _) => Some(strong.to_owned()),
            (None, None) => None,
            (None, Some(_)) => {
                Some([etag, modified].into_iter().flatten().collect::<Vec<_>>().join(" "))
            }
        }
    }

    /// The difference to `now`, if any.
    pub(super) fn contradicted_by(&self, now: &Self) -> Option<String> {
        let differ = |a: &Option<String>, b: &Option<String>| match (a, b) {
            (Some(a), Some(b)) => a != b,
            _ => false,
        };
        let plain = |etag: &Option<String>| {
            etag.as_ref().map(|etag| etag.trim_start_matches("W/").to_owned())
        };
        if differ(&plain(&self.etag), &plain(&now.etag)) {
            return Some("its ETag differs".into());
        }
        // A strong ETag is more reliable than a date.
        let strong = self.strong().is_some() && self.etag == now.etag;
        if !strong && differ(&self.modified, &now.modified) {
            return Some("it was modified".into());
        }
        let both = |a: &Option<String>, b: &Option<String>| a.is_some() && b.is_some();
        let had_any = self.etag.is_some() || self.modified.is_some();
        if had_any && !both(&self.etag, &now.etag) && !both(&self.modified, &now.modified) {
            return Some("it had an ETag or a date, and this response has none".into());
        }
        None
    }
}

/// Judges the answer to a request for the bytes `start..end` (not empty).
pub(super) fn judge<B>(answer: &Response<B>, start: u64, end: u64) -> Verdict {
    let (status, headers) = (answer.status(), answer.headers());
    let refused = |kind, fault| {
        let reason = status.canonical_reason().unwrap_or("an unknown status");
        Error::new(kind, fault, format!("GET: the server answers {} ({reason})", status.as_u16()))
    };
    match status {
        StatusCode::PARTIAL_CONTENT | StatusCode::OK => {
            if let Err(e) = is_plain(headers) {
                return Verdict::No(e);
            }
            if status == StatusCode::OK {
                return Verdict::Whole(content_length(headers));
            }
            part(headers, start, end).unwrap_or_else(Verdict::No)
        }
        StatusCode::RANGE_NOT_SATISFIABLE => {
            let range = text(headers, header::CONTENT_RANGE).and_then(ContentRange::parse);
            Verdict::Beyond(range.and_then(|range| range.size))
        }
        StatusCode::MOVED_PERMANENTLY
        | StatusCode::FOUND
        | StatusCode::SEE_OTHER
        | StatusCode::TEMPORARY_REDIRECT
        | StatusCode::PERMANENT_REDIRECT => match text(headers, header::LOCATION) {
            Some(location) => Verdict::Redirect(location.to_owned()),
            None => Verdict::No(protocol("GET: the server redirects to nowhere")),
        },
        StatusCode::PRECONDITION_FAILED => Verdict::Changed("its ETag differs".into()),
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN | StatusCode::GONE => {
            Verdict::Forbidden(refused(ErrorKind::PermissionDenied, Fault::Peer))
        }
        StatusCode::NOT_FOUND => Verdict::Forbidden(refused(ErrorKind::NotFound, Fault::User)),
        StatusCode::TOO_MANY_REQUESTS
        | StatusCode::SERVICE_UNAVAILABLE
        | StatusCode::REQUEST_TIMEOUT
        | StatusCode::INTERNAL_SERVER_ERROR
        | StatusCode::BAD_GATEWAY
        | StatusCode::GATEWAY_TIMEOUT => {
            Verdict::Later(refused(ErrorKind::Io, Fault::Peer), retry_after(headers))
        }
        StatusCode::PROXY_AUTHENTICATION_REQUIRED => {
            Verdict::No(refused(ErrorKind::PermissionDenied, Fault::User))
        }
        _ => Verdict::No(refused(ErrorKind::Io, Fault::Peer)),
    }
}

/// Whether another request can follow over the same connection, by the head of an answer.
pub(super) fn keeps_alive<B>(answer: &Response<B>) -> bool {
    let headers = answer.headers();
    let says = |what: &str| {
        let values = headers.get_all(header::CONNECTION).iter();
        let mut words = values.filter_map(|v| v.to_str().ok()).flat_map(|v| v.split(','));
        words.any(|word| word.trim().eq_ignore_ascii_case(what))
    };
    let (chunked, long) =
        (headers.contains_key(header::TRANSFER_ENCODING), content_length(headers).is_some());
    // With both, implementations may disagree about the end (RFC 9112, 6.3).
    let framed = chunked != long || !chunked && has_no_body(answer.status());
    match answer.version() {
        Version::HTTP_11 => framed && !says("close"),
        Version::HTTP_10 => long && !chunked && says("keep-alive"),
        _ => false,
    }
}

fn has_no_body(status: StatusCode) -> bool {
    matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED)
}

/// Whether the server asks for less: 429 or 503.
pub(super) fn is_throttled(status: StatusCode) -> bool {
    matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE)
}

fn part(headers: &HeaderMap, start: u64, end: u64) -> Result<Verdict> {
    let mut ranges = headers.get_all(header::CONTENT_RANGE).iter();
    let (Some(value), None) = (ranges.next(), ranges.next()) else {
        return Err(protocol("GET: a partial response without a single Content-Range"));
    };
    let range = value.to_str().ok().and_then(ContentRange::parse);
    let Some(ContentRange { bytes: Some((first, last)), size }) = range else {
        return Err(protocol("GET: the Content-Range of the response is invalid"));
    };
    if first != start || last >= end || size.is_some_and(|size| last >= size) {
        let asked = end - 1;
        let action = format!("GET: received bytes {first}-{last} instead of {start}-{asked}");
        return Err(protocol(action));
    }
    // Within the requested range, which is not empty: no overflow.
    let len = last - first + 1;
    if content_length(headers).is_some_and(|told| told != len) {
        return Err(protocol("GET: the length of the response does not match its range"));
    }
    Ok(Verdict::Part { len, size })
}

/// Refuses encoded bytes: they are not the object's.
fn is_plain(headers: &HeaderMap) -> Result<()> {
    is_chunked_at_most(headers)?;
    for value in headers.get_all(header::CONTENT_ENCODING) {
        let coding = value.to_str().unwrap_or("an unknown coding").trim();
        if !coding.is_empty() && !coding.eq_ignore_ascii_case("identity") {
            let coding: String = coding.chars().take(40).collect();
            let action =
                format!("GET: the response is encoded ({coding}), though that was not allowed");
            return Err(protocol(action));
        }
    }
    Ok(())
}

/// Refuses transfer codings besides one that is chunked: hyper takes that off, and looks at no
/// other.
fn is_chunked_at_most(headers: &HeaderMap) -> Result<()> {
    let mut codings = headers.get_all(header::TRANSFER_ENCODING).iter();
    let Some(coding) = codings.next() else { return Ok(()) };
    let coding = coding.to_str().unwrap_or("an unknown coding").trim();
    if coding.eq_ignore_ascii_case("chunked") && codings.next().is_none() {
        return Ok(());
    }
    let coding: String = coding.chars().take(40).collect();
    Err(protocol(format!("GET: the response has transfer codings besides chunked ({coding})")))
}

/// The server does not keep to the protocol.
pub(super) fn protocol(action: impl Into<String>) -> Error {
    Error::new(ErrorKind::Protocol, Fault::Peer, action)
}

/// A header that is text; the first, if there are several.
fn text(headers: &HeaderMap, name: HeaderName) -> Option<&str> {
    headers.get(name).and_then(|value| value.to_str().ok()).map(str::trim)
}

pub(super) fn content_length(headers: &HeaderMap) -> Option<u64> {
    text(headers, header::CONTENT_LENGTH).and_then(digits)
}

fn digits(text: &str) -> Option<u64> {
    text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

/// `bytes 0-99/1000`, `bytes */1000`, `bytes 0-99/*`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct ContentRange {
    /// First and last.
    pub(super) bytes: Option<(u64, u64)>,
    pub(super) size: Option<u64>,
}

impl ContentRange {
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (unit, rest) = text.trim().split_once(' ')?;
        let (bytes, size) = rest.trim().split_once('/')?;
        if !unit.eq_ignore_ascii_case("bytes") {
            return None;
        }
        let size = match size {
            "*" => None,
            size => Some(digits(size).filter(|size| *size <= i64::MAX as u64)?),
        };
        let bytes = match bytes {
            "*" => None,
            bytes => {
                let (first, last) = bytes.split_once('-')?;
                let (first, last) = (digits(first)?, digits(last)?);
                Some((first, last)).filter(|_| first <= last && last < i64::MAX as u64).map(Some)?
            }
        };
        Some(Self { bytes, size })
    }
}

/// How long the server asks us to wait: seconds or a date, no more than a minute.
pub(super) fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = text(headers, header::RETRY_AFTER)?;
    let wait = match digits(text) {
        Some(seconds) => Duration::from_secs(seconds),
        None => http_date(text)?.duration_since(SystemTime::now()).unwrap_or_default(),
    };
    Some(wait.min(LONGEST_WAIT))
}

/// `Sun, 06 Nov 1994 08:49:37 GMT`, the form that servers send.
pub(super) fn http_date(text: &str) -> Option<SystemTime> {
    let mut words = text.split_once(", ")?.1.split_ascii_whitespace();
    let day: i64 = words.next()?.parse().ok()?;
    let names =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let name = words.next()?;
    let month = i64::try_from(names.iter().position(|n| *n == name)?).ok()? + 1;
    let year: i64 = words.next()?.parse().ok()?;
    let mut clock = words.next()?.split(':').map(|n| n.parse::<i64>().ok());
    let (hour, minute, second) = (clock.next()??, clock.next()??, clock.next()??);
    let zone = words.next()? == "GMT";
    utc((year, month, day), (hour, minute, second)).filter(|_| zone)
}

/// `2026-01-31T23:59:59Z`, perhaps with a part of a second.
pub(super) fn iso_time(text: &str) -> Option<SystemTime> {
    let (date, clock) = text.strip_suffix('Z')?.split_once('T')?;
    let clock = clock.split('.').next().unwrap_or_default();
    let three = |text: &str, between: char| {
        let mut numbers = text.split(between).map(|n| n.parse::<i64>().ok());
        let found = (numbers.next()??, numbers.next()??, numbers.next()??);
        numbers.next().is_none().then_some(found)
    };
    utc(three(date, '-')?, three(clock, ':')?)
}

/// A time in UTC: year, month and day; hour, minute and second.
fn utc((year, month, day): (i64, i64, i64), clock: (i64, i64, i64)) -> Option<SystemTime> {
    let (hour, minute, second) = clock;
    let date = (1..=31).contains(&day) && (1..=12).contains(&month);
    let clock = (0..24).contains(&hour) && (0..60).contains(&minute) && (0..=60).contains(&second);
    if !date || !clock || !(1970..=9999).contains(&year) {
        return None;
    }
    // Days since 1970, with years that begin in March.
    let (y, m) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = 365 * y + y / 4 - y / 100 + y / 400 + (153 * m + 2) / 5 + day - 1 - 719_468;
    let seconds = days * 86_400 + hour * 3600 + minute * 60 + second;
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(u64::try_from(seconds).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(status: u16, headers: &[(&str, &str)]) -> String {
        let mut builder = Response::builder().status(status);
        for (name, value) in headers {
            builder = builder.header(*name, *value);
        }
        format!("{:?}", judge(&builder.body(()).unwrap(), 100, 200))
    }

    #[test]
    fn only_the_part_that_was_asked_for_is_taken() {
        let part = |range: &str| answer(206, &[("content-range", range)]);
        assert_eq!(part("bytes 100-199/1000"), "Part { len: 100, size: Some(1000) }");
        assert_eq!(part("bytes 100-149/*"), "Part { len: 50, size: None }");
        let wrong = "bytes 99-199/1000, bytes 0-99/1000, bytes 100-200/1000, bytes 101-199/1000, \
             bytes 100-199/150, bytes 100-99/1000, bytes 100-x/1000, pages 100-199/1000, \
             bytes */1000, bytes 100-199, bytes +100-199/1000, \
             bytes 100-199/99999999999999999999";
        for wrong in wrong.split(", ").chain([""]) {
            assert!(part(wrong).starts_with("No("), "{wrong}: {}", part(wrong));
        }
        assert!(answer(206, &[]).contains("without a single Content-Range"));
        let multipart = [("content-type", "multipart/byteranges; boundary=x")];
        assert!(answer(206, &multipart).starts_with("No("));
        let twice =
            [("content-range", "bytes 100-199/200"), ("content-range", "bytes 100-199/300")];
        assert!(answer(206, &twice).starts_with("No("));
        let long = [("content-range", "bytes 100-199/200"), ("content-length", "101")];
        assert!(answer(206, &long).contains("does not match its range"));
    }

    #[test]
    fn what_is_encoded_is_refused() {
        let range = ("content-range", "bytes 100-199/1000");
        assert!(answer(206, &[range, ("content-encoding", "gzip")]).contains("encoded (gzip)"));
        assert!(answer(200, &[("content-encoding", "br")]).contains("encoded (br)"));
        assert!(answer(206, &[range, ("content-encoding", "identity")]).starts_with("Part"));
    }

    #[test]
    fn no_transfer_coding_besides_chunked_is_taken_for_data() {
        let range = ("content-range", "bytes 100-199/1000");
        for coding in ["gzip, chunked", "gzip", "chunked, chunked", "identity", ""] {
            for status in [200, 206] {
                let said = answer(status, &[range, ("transfer-encoding", coding)]);
                assert!(said.contains("transfer codings"), "{coding}: {said}");
            }
        }
        let (chunked, gzip) = (("transfer-encoding", "Chunked"), ("transfer-encoding", "gzip"));
        assert!(answer(206, &[range, chunked]).starts_with("Part"));
        for both in [[gzip, chunked], [chunked, gzip]] {
            assert!(answer(200, &both).contains("transfer codings"), "{both:?}");
        }
    }

    #[test]
    fn each_status_means_what_it_means() {
        assert_eq!(answer(200, &[("content-length", "5")]), "Whole(Some(5))");
        assert_eq!(answer(200, &[]), "Whole(None)");
        assert_eq!(answer(416, &[("content-range", "bytes */7")]), "Beyond(Some(7))");
        assert_eq!(answer(416, &[]), "Beyond(None)");
        for status in [301, 302, 303, 307, 308] {
            assert_eq!(answer(status, &[("location", "/x")]), "Redirect(\"/x\")", "{status}");
        }
        assert!(answer(302, &[]).starts_with("No("));
        assert!(answer(412, &[]).starts_with("Changed("));
        for status in [401, 403, 404, 410] {
            assert!(answer(status, &[]).starts_with("Forbidden("), "{status}");
        }
        for status in [408, 429, 500, 502, 503, 504] {
            assert!(answer(status, &[]).starts_with("Later("), "{status}");
        }
        for status in [204, 304, 400, 405, 418, 501] {
            assert!(answer(status, &[]).starts_with("No("), "{status}");
        }
    }

    #[test]
    fn a_server_may_ask_us_to_wait_but_not_for_long() {
        let wait = |value: &str| {
            let answer = Response::builder().header("retry-after", value).body(()).unwrap();
            retry_after(answer.headers())
        };
        assert_eq!(wait("3"), Some(Duration::from_secs(3)));
        assert_eq!(wait("99999"), Some(LONGEST_WAIT));
        assert_eq!(wait("Sun, 06 Nov 1994 08:49:37 GMT"), Some(Duration::ZERO));
        assert_eq!(wait("Fri, 31 Dec 9999 23:59:59 GMT"), Some(LONGEST_WAIT));
        for odd in [
            "soon",
            "-1",
            "Sun, 06 Nov 1994",
            "Sun, 06 Foo 1994 08:49:37 GMT",
            "Sun, 06 Nov 1994 08:9223372036854775807:37 GMT",
        ] {
            assert_eq!(wait(odd), None, "{odd}");
        }
        let date = http_date("Sun, 06 Nov 1994 08:49:37 GMT").unwrap();
        let since = date.duration_since(SystemTime::UNIX_EPOCH).unwrap();
        assert_eq!(since.as_secs(), 784_111_777);
    }

    #[test]
    fn another_object_is_recognised_by_what_it_says_of_itself() {
        let of = |etag: Option<&str>, modified: Option<&str>| Validators {
            etag: etag.map(str::to_owned),
            modified: modified.map(str::to_owned),
        };
        let strong = of(Some("\"a\""), Some("1"));
        assert_eq!(strong.strong(), Some("\"a\""));
        assert_eq!(strong.contradicted_by(&of(Some("\"a\""), Some("2"))), None);
        assert_eq!(strong.contradicted_by(&of(None, Some("1"))), None);
        assert!(strong.contradicted_by(&of(None, Some("2"))).is_some());
        assert!(strong.contradicted_by(&of(Some("\"b\""), Some("1"))).is_some());
        let weak = of(Some("W/\"a\""), Some("1"));
        assert_eq!(weak.strong(), None);
        assert_eq!(weak.contradicted_by(&of(Some("\"a\""), Some("1"))), None);
        assert!(weak.contradicted_by(&of(Some("W/\"a\""), Some("2"))).is_some());
        assert_eq!(of(None, None).contradicted_by(&strong), None);
    }

    proptest::proptest! {
        #[test]
        fn nothing_that_a_server_says_of_ranges_and_dates_is_a_panic(
            start in "(bytes )?[-0-9*/ ]{0,50}",
            rest in "(Sun, )?([0-9A-Za-z:+-]{0,20} ){0,5}(GMT)?",
        ) {
            if let Some(ContentRange { bytes: Some((first, last)), size }) = ContentRange::parse(&start) {
                proptest::prop_assert!(first <= last && last < i64::MAX as u64);
                proptest::prop_assert!(size.is_none_or(|size| size <= i64::MAX as u64));
            }
            let _ = http_date(&rest);
        }
    }
}
