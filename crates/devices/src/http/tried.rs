//! A server's answers from memory, for fuzzing (`crate::parsers`).

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use ::device::{Error, Result};
use hyper::{Request, Response};
use net::Stream;

use super::answer::{Validators, Verdict, judge};
use super::connection::HttpConnection;
use super::payload::Payload;
use super::transport::HttpTransport;
use super::url::Url;
use super::xml;
use runtime::Bell;

/// Answers that one connection brings, at most.
const ANSWERS: usize = 4;
/// How long the server waits for the next request.
const ASKED_AGAIN: Duration = Duration::from_millis(20);
/// The separator between the answers to one request and the next.
const BETWEEN: &[u8] = b"\n--\n";
/// The range that is asked for.
const RANGE: (u64, u64) = (100, 200);

/// The error for a server that sends `bytes`, one part for each request, and hangs up.
pub(crate) fn tried(bytes: &[u8]) -> Vec<Error> {
    let mut wrong = Vec::new();
    // A store's answer has these.
    let _ = (xml::code(bytes), xml::text(bytes, "ETag"));
    if let Err(e) = ask(bytes, &mut wrong) {
        wrong.push(e);
    }
    wrong
}

fn ask(bytes: &[u8], wrong: &mut Vec<Error>) -> Result<()> {
    let (ours, theirs) = UnixStream::pair().map_err(|e| Error::os("pair", e))?;
    std::thread::scope(|scope| {
        scope.spawn(|| serve(bytes, theirs));
        listen(ours, wrong)
    })
}

/// Sends one part after each request, since what comes before it was asked for is never taken.
fn serve(bytes: &[u8], mut theirs: UnixStream) {
    // Without another request the answer is not complete, and never will be.
    let _ = theirs.set_read_timeout(Some(ASKED_AGAIN));
    let mut rest = Some(bytes);
    for _ in 0..ANSWERS {
        let Some(bytes) = rest.take() else { break };
        let end = bytes.windows(BETWEEN.len()).position(|window| window == BETWEEN);
        let (part, after) = bytes.split_at(end.unwrap_or(bytes.len()));
        rest = after.get(BETWEEN.len()..);
        if !theirs.read(&mut [0; 4096]).is_ok_and(|n| n > 0) || theirs.write_all(part).is_err() {
            break;
        }
    }
    let _ = theirs.shutdown(Shutdown::Write);
    let _ = theirs.read(&mut [0; 4096]);
}

fn listen(ours: UnixStream, wrong: &mut Vec<Error>) -> Result<()> {
    let bell = Arc::new(Bell::new().map_err(|e| Error::os("open", e))?);
    let transport = HttpTransport::new(Stream::new(ours.into()).map_err(|e| Error::os("pair", e))?);
    let mut connection = HttpConnection::new("h".into(), transport, &bell, Duration::from_secs(30));
    let mut known = Validators::default();
    for _ in 0..ANSWERS {
        let request = Request::get("/").header("host", "h").body(Payload::default());
        let request = request.map_err(|_| Error::invalid("request"))?;
        let answer = connection.ask(request)?;
        wrong.extend(judged(&answer));
        let now = Validators::of(answer.headers());
        if let Some(why) = known.contradicted_by(&now) {
            wrong.push(Error::unfit(why));
        }
        known = now;
        if !connection.drain() || !connection.is_ready_for("h") {
            break;
        }
    }
    Ok(())
}

/// The reason for which an answer is refused.
fn judged(answer: &Response<()>) -> Option<Error> {
    let (start, end) = RANGE;
    match judge(answer, start, end) {
        Verdict::Part { len, size } => {
            assert!(len > 0 && len <= end - start && size.is_none_or(|size| size > start));
            None
        }
        Verdict::Redirect(location) => {
            let base = Url::parse("https://user:secret@h/a/b?c").ok()?;
            let led = base.join(&location);
            if let Ok(url) = &led {
                assert!(
                    url.target.starts_with('/') && url.target.bytes().all(|b| b.is_ascii_graphic())
                );
                assert!(!url.to_string().contains("secret") || location.contains("secret"));
            }
            led.err()
        }
        Verdict::Later(e, wait) => {
            assert!(wait.is_none_or(|wait| wait <= Duration::from_secs(60)));
            Some(e)
        }
        Verdict::Changed(why) => Some(Error::unfit(why)),
        Verdict::Forbidden(e) | Verdict::No(e) => Some(e),
        Verdict::Whole(_) | Verdict::Beyond(_) => None,
    }
}
