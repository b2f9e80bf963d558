//! Objects below a key as records: see [`Records`].
//!
//! Conditions (`If-None-Match: *`, `If-Match`) are the store's. An answer to one that says that
//! someone was there, or that did not come, is resolved by reading: the request may have been done
//! before the answer was lost, and was then refused when it was tried again. Nothing is removed but
//! on request, and an object is never replaced without a condition.
//!
//! What the store answers has limits: the bytes of a record and of a page of a list, the entries of
//! a list.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use device::{Error, ErrorKind, Fault, Params, Result};
use hyper::body::Bytes;
use hyper::header::HeaderMap;
use hyper::{Method, StatusCode};
use runtime::Mutex;

use super::super::answer::{http_date, iso_time, protocol};
use super::super::calling::Caller;
use super::super::shared::back_off;
use super::super::xml;
use super::params::{S3Params, encoded};
use super::store::{LONGEST, ObjectStore, StoreAnswer, StoreRequest};
use super::upload::{SUM, sum_of};
use crate::records::{FoundRecord, LONGEST_RECORD, ListedRecord, RecordTag, Records};

/// Bytes of the key below which they are, at most: a page of a list has to fit into an answer.
const LONGEST_KEY: usize = 512;
/// Entries of a page.
const PAGE: usize = 500;
/// Pages without any record, since other objects may lie there, too: a list has an end.
const BARREN: usize = 1000;
/// Connections that are kept for the next request.
const KEPT: usize = 8;
/// How often a write is tried again that another one, which is not over, stands in the way of.
const CONFLICTS: u32 = 4;

/// Opens the records below the key that `params` name.
///
/// # Errors
/// The parameters make no sense, or there are no keys.
pub(crate) fn open(params: &Params, within: Option<Duration>) -> Result<Arc<dyn Records>> {
    let S3Params { name, mut http, key, .. } = super::wanted(params)?;
    let prefix = key.trim_end_matches('/').to_owned();
    if prefix.is_empty() || prefix.len() > LONGEST_KEY {
        let why = format!("a prefix for records has 1 to {LONGEST_KEY} bytes");
        return Err(Error::invalid(why).on(name));
    }
    if http.url.target.contains('?') {
        return Err(Error::invalid("records have no version=").on(name));
    }
    let mut conflicts = CONFLICTS;
    if let Some(within) = within {
        // A connection, and an answer.
        (http.ways.patience, http.retries) = (http.ways.patience.min(within / 2), 0);
        conflicts = 0;
    }
    let name = name.trim_end_matches('/').to_owned();
    let store = ObjectStore::new(http, key)?;
    Ok(Arc::new(S3Records { name, prefix, store, callers: Mutex::default(), conflicts }))
}

/// See the module.
struct S3Records {
    name: String,
    prefix: String,
    store: ObjectStore,
    callers: Mutex<Vec<Caller>>,
    /// How often a write waits for another one.
    conflicts: u32,
}

runtime::debug_as!(S3Records, |records| "S3Records({})", records.name);

impl S3Records {
    fn ask(&self, action: &str, request: &StoreRequest) -> Result<StoreAnswer> {
        let kept = self.callers.lock().pop();
        let mut caller = kept.unwrap_or_else(|| self.store.caller());
        let answer = self.store.ask(&mut caller, action, request);
        let mut callers = self.callers.lock();
        if callers.len() < KEPT {
            callers.push(caller);
        }
        // What comes as an error was tried again, unless that could not help.
        answer.map_err(|e| match e.kind() {
            ErrorKind::Io => Error::new(ErrorKind::TimedOut, e.fault(), action).with_source(e),
            _ => e,
        })
    }

    fn found(&self, name: &str) -> Result<Option<FoundRecord>> {
        let action = "read the record";
        let answer = self.ask(action, &below(Method::GET, name))?;
        if is_missing(&answer) {
            return Ok(None);
        }
        if answer.status != StatusCode::OK {
            return Err(self.store.refusal(action, &answer));
        }
        let tag = tag_of(&answer, action)?;
        let written = answer.header("last-modified").and_then(http_date);
        let age = age(&answer.headers, written);
        if answer.body.len() > LONGEST_RECORD {
            let action = format!("{action}: it has more than {LONGEST_RECORD} bytes");
            return Err(Error::new(ErrorKind::Limit, Fault::Peer, action));
        }
        Ok(Some(FoundRecord { bytes: answer.body, tag, age }))
    }

    /// Writes a record if the condition holds.
    fn put(
        &self,
        name: &str,
        bytes: &[u8],
        condition: (&'static str, &str),
    ) -> Result<Option<RecordTag>> {
        let action = "write the record";
        let headers = vec![
            (condition.0, condition.1.to_owned()),
            (SUM, sum_of(bytes)),
            ("content-type", "application/json".to_owned()),
            // An empty body would have none.
            ("content-length", bytes.len().to_string()),
        ];
        let body = Bytes::copy_from_slice(bytes);
        let asked = StoreRequest { headers, body, ..below(Method::PUT, name) };
        let mut conflicts = 0;
        loop {
            let answer = self.ask(action, &asked);
            match &answer {
                Ok(answer) if answer.is_done() => return tag_of(answer, action).map(Some),
                Ok(answer) if !says_that_someone_was_there(answer) => {
                    return Err(self.store.refusal(action, answer));
                }
                Ok(_) | Err(_) => {}
            }
            match (self.found(name), answer) {
                (Ok(Some(found)), _) if found.bytes == bytes => return Ok(Some(found.tag)),
                // The first cause tells more.
                (_, Err(e)) | (Err(e), Ok(_)) => return Err(e),
                (Ok(_), Ok(answer)) if answer.status != StatusCode::CONFLICT => return Ok(None),
                (Ok(_), Ok(_)) if conflicts < self.conflicts => {
                    conflicts += 1;
                    std::thread::sleep(back_off(conflicts, u64::from(conflicts)));
                }
                (Ok(_), Ok(answer)) => {
                    let why = self.store.refusal(action, &answer);
                    let action = "write the record: another write of it is not over";
                    let e = Error::new(ErrorKind::TimedOut, Fault::Peer, action);
                    return Err(e.with_source(why));
                }
            }
        }
    }

    /// A page of a list, and what the next one begins with, if there is one.
    fn page(&self, prefix: &str, next: &str) -> Result<(Vec<ListedRecord>, Option<String>)> {
        let action = "list the records";
        let whole = encoded(&format!("{}/{prefix}", self.prefix), false);
        let from = match next {
            "" => String::new(),
            next => format!("continuation-token={}&", encoded(next, false)),
        };
        let query = format!("{from}list-type=2&max-keys={PAGE}&prefix={whole}");
        let asked = StoreRequest { of_bucket: true, ..StoreRequest::new(Method::GET, query) };
        let answer = self.ask(action, &asked)?;
        if answer.status != StatusCode::OK || !answer.is_done() {
            return Err(self.store.refusal(action, &answer));
        }
        if answer.body.len() as u64 > LONGEST {
            let action = format!("{action}: a page has more than {LONGEST} bytes");
            return Err(Error::new(ErrorKind::Limit, Fault::Peer, action));
        }
        let entries = xml::elements(&answer.body, "Contents");
        let entries = entries.filter_map(|entry| self.entry(entry, prefix, &answer.headers));
        let entries: Vec<_> = entries.collect();
        let is_cut = match xml::text(&answer.body, "IsTruncated").as_deref() {
            Some("true") => true,
            Some("false") => false,
            _ => {
                return Err(protocol(format!(
                    "{action}: the store does not say whether the list is complete"
                )));
            }
        };
        let next = xml::text(&answer.body, "NextContinuationToken").filter(|_| is_cut);
        if is_cut && next.as_deref().is_none_or(str::is_empty) {
            return Err(protocol(format!(
                "{action}: the store does not say how the list continues"
            )));
        }
        Ok((entries, next))
    }

    /// What is listed, if it is a record: other objects may lie there, too.
    fn entry(&self, entry: &[u8], prefix: &str, headers: &HeaderMap) -> Option<ListedRecord> {
        let key = xml::text(entry, "Key")?;
        let name = key.strip_prefix(&self.prefix)?.strip_prefix('/')?;
        let is_plain = name.bytes().all(|b| b.is_ascii_alphanumeric() || b".-".contains(&b));
        if !is_plain || !name.starts_with(prefix) || name.is_empty() {
            return None;
        }
        let written = xml::text(entry, "LastModified").and_then(|text| iso_time(&text));
        let bytes = xml::text(entry, "Size")?.parse().ok()?;
        Some(ListedRecord { name: name.to_owned(), bytes, age: age(headers, written) })
    }
}

impl Records for S3Records {
    fn shown(&self, name: &str) -> String {
        if name.is_empty() { self.name.clone() } else { format!("{}/{name}", self.name) }
    }

    fn read(&self, name: &str) -> Result<Option<FoundRecord>> {
        self.found(name).map_err(|e| e.on(self.shown(name)))
    }

    fn list(&self, prefix: &str, most: usize) -> Result<Vec<ListedRecord>> {
        let (mut all, mut from, mut barren) = (Vec::new(), String::new(), 0);
        loop {
            let page = self.page(prefix, &from);
            let (entries, next) = page.map_err(|e| e.on(self.shown("")))?;
            barren += usize::from(entries.is_empty());
            all.extend(entries);
            if all.len() > most || barren > BARREN {
                let action =
                    format!("list the records: there are more than {most}, or they do not end");
                return Err(Error::new(ErrorKind::Limit, Fault::Peer, action).on(self.shown("")));
            }
            let Some(next) = next else { break };
            from = next;
        }
        all.sort_by(|one: &ListedRecord, other| one.name.cmp(&other.name));
        Ok(all)
    }

    fn create(&self, name: &str, bytes: &[u8]) -> Result<Option<RecordTag>> {
        self.put(name, bytes, ("if-none-match", "*")).map_err(|e| e.on(self.shown(name)))
    }

    fn replace(&self, name: &str, bytes: &[u8], tag: &RecordTag) -> Result<Option<RecordTag>> {
        self.put(name, bytes, ("if-match", &tag.0)).map_err(|e| e.on(self.shown(name)))
    }

    fn remove(&self, name: &str) -> Result<()> {
        let action = "remove the record";
        let removed = self.ask(action, &below(Method::DELETE, name)).and_then(|answer| {
            let is_gone = answer.is_done() || is_missing(&answer);
            if is_gone { Ok(()) } else { Err(self.store.refusal(action, &answer)) }
        });
        removed.map_err(|e| e.on(self.shown(name)))
    }
}

fn below(method: Method, name: &str) -> StoreRequest {
    StoreRequest { below: Some(name.to_owned()), ..StoreRequest::new(method, "") }
}

/// Whether there is no such object; a bucket that is missing is an error.
fn is_missing(answer: &StoreAnswer) -> bool {
    let is_key = answer.code.as_deref().is_none_or(|code| code == "NoSuchKey");
    answer.status == StatusCode::NOT_FOUND && is_key
}

fn says_that_someone_was_there(answer: &StoreAnswer) -> bool {
    let status = answer.status;
    status == StatusCode::PRECONDITION_FAILED
        || status == StatusCode::CONFLICT
        || is_missing(answer)
}

fn tag_of(answer: &StoreAnswer, action: &str) -> Result<RecordTag> {
    let tag = answer.header("etag").filter(|tag| !tag.is_empty());
    tag.map(|tag| RecordTag(tag.to_owned()))
        .ok_or_else(|| protocol(format!("{action}: no ETag came")))
}

/// How long ago something was written when the store answered, by its clock. It counts seconds.
fn age(headers: &HeaderMap, written: Option<SystemTime>) -> Option<Duration> {
    let now = headers.get("date").and_then(|date| http_date(date.to_str().ok()?))?;
    Some(now.duration_since(written?).unwrap_or_default())
}
