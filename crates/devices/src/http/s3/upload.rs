//! An object that is written: in parts that go up in parallel, or at once where it is short.
//!
//! Bytes come in order, from one thread. A part goes up when it is full, with a sum that the store
//! compares; how many are in memory is bounded, and who writes waits for room. The object is there
//! when [`Upload::complete`] has been acknowledged and what is there is what was sent, and not
//! before; and only if none was there, unless it is to be replaced. Until then nothing is seen of
//! it. What is not completed is given up: no part of it stays.
//!
//! An answer can be lost on its way when the store has done what it was asked. So each upload has a
//! mark of its own, which the object gets as metadata: it is ours, or it is not.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use device::{Error, ErrorKind, Fault, Result};
use hyper::body::Bytes;
use hyper::{Method, StatusCode};
use md5::{Digest, Md5};
use runtime::{Condvar, Mutex, MutexGuard, OperatorLog, to_usize};

use super::super::answer::{http_date, protocol};
use super::super::calling::Caller;
use super::super::credentials::base64;
use super::super::xml;
use super::params::encoded;
use super::parts::PartSizes;
use super::signature::hex;
use super::store::{ObjectStore, StoreAnswer, StoreRequest};
use super::stray::{shown, strays, warning};
use crate::records::new_mark;

/// Bytes of parts in memory, but for one that is longer by itself.
const ROOM: u64 = 96 << 20;
/// How long a part in flight may take to arrive when an upload is given up, before it is cut off.
const ARRIVING: Duration = Duration::from_secs(2);
/// How long one that is cut off is waited for.
const GIVING_UP: Duration = Duration::from_secs(10);
/// The header with the mark.
const MARK: &str = "x-amz-meta-diskferry-upload";
pub(super) const SUM: &str = "x-amz-checksum-crc32";

/// How an object is made.
#[derive(Clone, Copy, Debug)]
pub(super) struct UploadManner {
    pub(super) sizes: PartSizes,
    /// Whether one that is there is replaced.
    pub(super) replaces: bool,
    /// Whether no other program writes it meanwhile.
    pub(super) is_exclusive: bool,
    /// Parts in flight, at most.
    pub(super) most: usize,
}

/// See the module.
pub(super) struct Upload {
    name: String,
    store: ObjectStore,
    manner: UploadManner,
    mark: String,
    log: OperatorLog,
    state: Mutex<State>,
    changed: Condvar,
}

runtime::debug_as!(Upload, |upload| "Upload({})", upload.name);

#[derive(Default)]
struct State {
    /// The part that is being filled, and its length when it is full.
    filling: Vec<u8>,
    len: u64,
    /// The store's time before it was asked for anything.
    since: Option<SystemTime>,
    /// Bytes of all parts before.
    before: u64,
    /// The store may have begun uploads whose names did not arrive, and that are to be ended.
    lost: bool,
    /// The upload, once there is more than one part.
    id: Option<String>,
    /// Parts that have been handed out.
    count: u32,
    waiting: VecDeque<Part>,
    in_flight: usize,
    threads: usize,
    /// Bytes of parts that are in memory.
    held: u64,
    sent: BTreeMap<u32, SentPart>,
    failed: Option<Error>,
    /// No more parts come.
    over: bool,
    /// The object is there.
    complete: bool,
}

struct Part {
    number: u32,
    bytes: Bytes,
    len: u64,
}

struct SentPart {
    etag: String,
    sum: String,
}

impl Upload {
    pub(super) fn new(
        name: String,
        store: ObjectStore,
        manner: UploadManner,
        log: OperatorLog,
    ) -> Result<Arc<Self>> {
        let (mark, state, changed) = (new_mark()?, Mutex::default(), Condvar::new());
        Ok(Arc::new(Self { name, store, manner, mark, log, state, changed }))
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Refuses what is there already, unless it is to be replaced, before anything is sent. A store
    /// may not say; it is asked again in the end.
    ///
    /// # Errors
    /// It is there, or the store cannot be asked.
    pub(super) fn refuse_existing(&self) -> Result<()> {
        let asked = StoreRequest::new(Method::HEAD, "");
        let answer = self.store.ask(&mut self.store.caller(), "look for the object", &asked)?;
        self.state.lock().since = answer.header("date").and_then(http_date);
        match answer.status.as_u16() {
            200 if !self.manner.replaces => Err(there_already()),
            200 | 403 | 404 => Ok(()),
            _ => Err(self.store.refusal("look for the object", &answer)),
        }
    }

    /// Takes the next bytes. Waits while there is no room for them.
    ///
    /// # Errors
    /// What went before could not be sent.
    pub(super) fn write(self: &Arc<Self>, mut bytes: &[u8]) -> Result<()> {
        let mut state = self.state.lock();
        while !bytes.is_empty() {
            if state.len > 0 && state.filling.len() as u64 == state.len {
                state = self.hand_out(state)?;
            }
            if state.len == 0 {
                let len = self.manner.sizes.at(state.before);
                state = self.changed.wait_while(state, |state| {
                    state.failed.is_none() && state.held > 0 && state.held + len > ROOM
                });
                state.len = len;
                state.held += len;
                // Its pages come as it is filled.
                state.filling = Vec::with_capacity(to_usize(len));
            }
            if let Some(e) = &state.failed {
                return Err(e.duplicate());
            }
            let room = to_usize(state.len) - state.filling.len();
            let (now, later) = bytes.split_at(bytes.len().min(room));
            state.filling.extend_from_slice(now);
            bytes = later;
        }
        Ok(())
    }

    /// The part that was filled goes up.
    fn hand_out<'a>(
        self: &'a Arc<Self>,
        mut state: MutexGuard<'a, State>,
    ) -> Result<MutexGuard<'a, State>> {
        if state.id.is_none() {
            drop(state);
            let id = self.begin()?;
            state = self.state.lock();
            state.id = Some(id);
        }
        if let Some(e) = &state.failed {
            return Err(e.duplicate());
        }
        state.count += 1;
        let bytes = Bytes::from(std::mem::take(&mut state.filling));
        let len = std::mem::take(&mut state.len);
        state.before += bytes.len() as u64;
        let number = state.count;
        state.waiting.push_back(Part { number, bytes, len });
        if state.threads < self.manner.most && state.threads < state.in_flight + state.waiting.len()
        {
            let sending = self.clone();
            let work = move || {
                if let Err(panic) = runtime::contained("an upload", || sending.send_all()) {
                    sending.fail(Error::from(panic));
                }
            };
            let started = std::thread::Builder::new().name("s3".into()).spawn(work);
            started.map_err(|e| Error::os("start a thread", e))?;
            state.threads += 1;
        }
        self.changed.notify_all();
        Ok(state)
    }

    /// Begins an upload of several parts.
    fn begin(&self) -> Result<String> {
        let mut asked = StoreRequest::new(Method::POST, "uploads=");
        asked.headers.push((MARK, self.mark.clone()));
        asked.headers.push(("x-amz-checksum-algorithm", "CRC32".into()));
        asked.headers.push(("content-type", "application/octet-stream".into()));
        let (action, mut lost) = ("begin the upload", 0);
        let answer = self.store.ask_counting(&mut lost, &mut self.store.caller(), action, &asked);
        let id = answer.and_then(|answer| {
            if !answer.is_done() {
                return Err(self.store.refusal(action, &answer));
            }
            let id = xml::text(&answer.body, "UploadId").filter(|id| !id.is_empty());
            lost += u32::from(id.is_none());
            id.ok_or_else(|| protocol(format!("{action}: the store names none")))
        });
        if lost == 0 {
            return id;
        }
        if self.manner.is_exclusive {
            self.state.lock().lost = true;
            return id;
        }
        let since = self.state.lock().since;
        match (warning(strays(&self.store, since, id.as_deref().ok())), id) {
            (Some(what), Err(e)) => Err(Error::new(e.kind(), e.fault(), what).with_source(e)),
            (Some(what), Ok(id)) => {
                self.log.say(format_args!("{}: {what}", self.name));
                Ok(id)
            }
            (None, id) => id,
        }
    }

    /// A thread that sends parts until there are no more.
    fn send_all(&self) {
        let mut caller = self.store.caller();
        let mut state = self.state.lock();
        loop {
            state = self.changed.wait_while(state, |state| {
                state.failed.is_none() && !state.over && state.waiting.is_empty()
            });
            let Some(part) = state.waiting.pop_front().filter(|_| state.failed.is_none()) else {
                break;
            };
            let id = state.id.clone().unwrap_or_default();
            state.in_flight += 1;
            drop(state);
            let sent = self.send(&mut caller, &id, &part);
            let (number, len) = (part.number, part.len);
            drop(part);
            state = self.state.lock();
            state.in_flight -= 1;
            state.held -= len;
            match sent {
                Ok(sent) => {
                    state.sent.insert(number, sent);
                }
                Err(e) => {
                    state.failed.get_or_insert(e);
                    state.waiting.clear();
                }
            }
            self.changed.notify_all();
        }
        state.threads -= 1;
        self.changed.notify_all();
    }

    fn send(&self, caller: &mut Caller, id: &str, part: &Part) -> Result<SentPart> {
        let query = format!("partNumber={}&uploadId={}", part.number, encoded(id, false));
        let asked =
            StoreRequest { body: part.bytes.clone(), ..StoreRequest::new(Method::PUT, query) };
        let sum = sum_of(&part.bytes);
        let asked = StoreRequest { headers: vec![(SUM, sum.clone())], ..asked };
        let action = format!("send part {}", part.number);
        let answer = self.store.ask(caller, &action, &asked)?;
        if !answer.is_done() {
            return Err(self.store.refusal(&action, &answer));
        }
        let etag = self.etag(&action, &answer, &part.bytes, &sum)?;
        Ok(SentPart { etag, sum })
    }

    /// The ETag of what was sent, once the store has shown that it has just that.
    fn etag(&self, action: &str, answer: &StoreAnswer, bytes: &[u8], sum: &str) -> Result<String> {
        let etag = answer.header("etag").filter(|etag| !etag.is_empty());
        let etag = etag.ok_or_else(|| protocol(format!("{action}: no ETag came")))?.to_owned();
        let verified = match answer.header(SUM) {
            Some(told) => told == sum,
            // One that does not know that sum: its ETag is the MD5 of what it has.
            None => etag.trim_matches('"').eq_ignore_ascii_case(&hex(&Md5::digest(bytes))),
        };
        if verified {
            return Ok(etag);
        }
        let action = format!("{action}: the store does not confirm what was sent");
        Err(Error::new(ErrorKind::Mismatch, Fault::Peer, action))
    }

    fn fail(&self, error: Error) {
        self.state.lock().failed.get_or_insert(error);
        self.changed.notify_all();
    }

    /// All bytes have come: sends the last part, and waits for all.
    ///
    /// # Errors
    /// A part could not be sent.
    pub(super) fn finish(self: &Arc<Self>) -> Result<()> {
        let mut state = self.state.lock();
        if state.count > 0 && !state.filling.is_empty() {
            state = self.hand_out(state)?;
        }
        state.over = true;
        self.changed.notify_all();
        let state = self.changed.wait_while(state, |state| {
            state.failed.is_none() && (state.in_flight > 0 || !state.waiting.is_empty())
        });
        match &state.failed {
            Some(e) => Err(e.duplicate()),
            None if state.sent.len() == state.count as usize => Ok(()),
            None => Err(Error::new(ErrorKind::Io, Fault::Us, "send the parts: one is missing")),
        }
    }

    /// Makes the object of what was sent. Does nothing where it has.
    ///
    /// # Errors
    /// One is there by now, or the store has not made it.
    pub(super) fn complete(&self) -> Result<()> {
        let state = self.state.lock();
        if state.complete {
            return Ok(());
        }
        if let Some(e) = &state.failed {
            return Err(e.duplicate());
        }
        if !state.over {
            return Err(Error::new(
                ErrorKind::Io,
                Fault::Us,
                "complete the object: bytes are missing",
            ));
        }
        let size = state.before + state.filling.len() as u64;
        let asked = match &state.id {
            Some(id) => completion(id, &state.sent),
            None => self.single(&state.filling),
        };
        drop(state);
        let asked = StoreRequest { headers: self.condition(asked.headers), ..asked };
        self.make(&asked, size)?;
        let mut state = self.state.lock();
        state.complete = true;
        state.filling = Vec::new();
        let lost = std::mem::take(&mut state.lost);
        drop(state);
        self.end_lost(lost);
        Ok(())
    }

    /// A request that makes all of it at once.
    fn single(&self, bytes: &[u8]) -> StoreRequest {
        let headers = vec![
            (MARK, self.mark.clone()),
            (SUM, sum_of(bytes)),
            ("content-type", "application/octet-stream".into()),
        ];
        let body = Bytes::copy_from_slice(bytes);
        StoreRequest { headers, body, ..StoreRequest::new(Method::PUT, "") }
    }

    fn condition(&self, mut headers: Vec<(&'static str, String)>) -> Vec<(&'static str, String)> {
        if !self.manner.replaces {
            headers.push(("if-none-match", "*".into()));
        }
        headers
    }

    fn make(&self, asked: &StoreRequest, size: u64) -> Result<()> {
        let action = "complete the object";
        let mut caller = self.store.caller();
        let answer = self.store.ask(&mut caller, action, asked);
        let looked = StoreRequest::new(Method::HEAD, "");
        let found = self.store.ask(&mut caller, "look at the object", &looked);
        let is_ours =
            |found: &StoreAnswer| found.is_done() && found.header(MARK) == Some(&self.mark);
        let found = match (found, answer) {
            // Whatever came of the answer: it is there.
            (Ok(found), _) if is_ours(&found) => found,
            (_, Err(e)) => return Err(e),
            (_, Ok(answer)) if answer.status.as_u16() == 412 => return Err(there_already()),
            (_, Ok(answer)) if !answer.is_done() => {
                return Err(self.store.refusal(action, &answer));
            }
            (Err(e), Ok(_)) => {
                let action = "the store has created the object, but it cannot be inspected";
                return Err(Error::new(e.kind(), e.fault(), action).with_source(e));
            }
            (Ok(found), Ok(_)) if found.is_done() => {
                let action = "look at the object: it is not the one that was created";
                return Err(Error::new(ErrorKind::Mismatch, Fault::Peer, action));
            }
            (Ok(found), Ok(_)) => return Err(self.store.refusal("look at the object", &found)),
        };
        let length = found.header("content-length").and_then(|text| text.parse().ok());
        if length == Some(size) {
            return Ok(());
        }
        let told = length.map_or("no".into(), |length: u64| length.to_string());
        let action = format!("look at the object: it has {told} bytes, and {size} were sent");
        Err(Error::new(ErrorKind::Mismatch, Fault::Peer, action))
    }

    /// Gives up what is not complete: nothing of it stays. Returns whether there was something.
    pub(super) fn give_up(&self) -> bool {
        let mut state = self.state.lock();
        if state.complete {
            return false;
        }
        let first = !matches!(&state.failed, Some(e) if e.kind() == ErrorKind::Cancelled);
        if first {
            let error = Error::new(ErrorKind::Cancelled, Fault::User, "the upload was abandoned");
            state.failed = Some(error);
        }
        state.waiting.clear();
        state.filling = Vec::new();
        self.store.stop_trying();
        self.changed.notify_all();
        // A part that arrives after the end of the upload might stay; and one that is cut off still
        // arrives where something in between has all of it already.
        let is_in_flight = |state: &mut State| state.in_flight > 0;
        let (state, _) = self.changed.wait_timeout_while(state, ARRIVING, is_in_flight);
        self.store.close();
        let (mut state, _) = self.changed.wait_timeout_while(state, GIVING_UP, is_in_flight);
        let (id, lost) = (state.id.take(), std::mem::take(&mut state.lost));
        drop(state);
        if let Some(id) = id {
            self.end(&id);
        }
        self.end_lost(lost);
        first
    }

    /// Ends the uploads of this object that the store began for us, and whose names did not arrive,
    /// when nothing of ours is in flight any more.
    fn end_lost(&self, lost: bool) {
        if !lost {
            return;
        }
        let since = self.state.lock().since;
        let mut found = strays(&self.store, since, None);
        let late = found.iter_mut().flat_map(|found| found.extract_if(.., |upload| upload.is_late));
        late.for_each(|upload| self.end(&upload.id));
        if let Some(what) = warning(found) {
            self.log.say(format_args!("{}: {what}", self.name));
        }
    }

    fn end(&self, id: &str) {
        let asked = StoreRequest::new(Method::DELETE, format!("uploadId={}", encoded(id, false)));
        let action = "end the upload";
        let ended = self.store.ask_last(action, &asked).and_then(|answer| {
            // One that is not there was ended by a try whose answer was lost.
            let is_gone = answer.is_done() || answer.status == StatusCode::NOT_FOUND;
            if is_gone { Ok(()) } else { Err(self.store.refusal(action, &answer)) }
        });
        if let Err(e) = ended {
            let id = shown(id).unwrap_or_default();
            self.log.say(format_args!("{}: the store keeps the upload {id}: {e}", self.name));
        }
    }
}

/// What completes an upload of parts.
fn completion(id: &str, sent: &BTreeMap<u32, SentPart>) -> StoreRequest {
    let mut body =
        String::from("<CompleteMultipartUpload xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">");
    for (number, SentPart { etag, sum }) in sent {
        let etag = xml::escaped(etag);
        body += &format!(
            "<Part><PartNumber>{number}</PartNumber><ETag>{etag}</ETag>\
             <ChecksumCRC32>{sum}</ChecksumCRC32></Part>"
        );
    }
    body += "</CompleteMultipartUpload>";
    let query = format!("uploadId={}", encoded(id, false));
    let headers = vec![("content-type", "application/xml".into())];
    StoreRequest { headers, body: body.into(), ..StoreRequest::new(Method::POST, query) }
}

/// The sum that a store compares.
pub(super) fn sum_of(bytes: &[u8]) -> String {
    base64(&crc32fast::hash(bytes).to_be_bytes())
}

fn there_already() -> Error {
    let action = "create: an object of that name exists; add overwrite=true to replace it";
    Error::new(ErrorKind::Denied, Fault::User, action)
}
