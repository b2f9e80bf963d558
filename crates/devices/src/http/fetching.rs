//! Fetching ranges: what one thread does with one connection.
//!
//! Bytes are received into the chunks that they belong to. A chunk is handed on when all of it has
//! come, so a reader of the beginning of a long range does not wait for its end. When an answer
//! breaks off, what came is kept and the rest is asked for. A try that brings too little counts as
//! a failure, and after some of them in a row those that wait are told. What is no longer needed is
//! given up.

use std::collections::VecDeque;
use std::io::IoSliceMut;
use std::sync::Arc;

use device::{Buffer, ErrorKind};
use runtime::to_usize;

use super::answer::protocol;
use super::asking::{Answer, Asker};
use super::calling::Trouble;
use super::connection::{disconnected, unneeded};
use super::headway::Headway;
use super::origin::changed;
use super::passed::Passed;
use super::shared::Shared;
use super::window::{CHUNK, Run};

/// Chunks that are received into at once.
const AT_ONCE: usize = 4;
/// The rest of a range is given up only if it is more than this: a new connection takes time, too.
const WORTH: u64 = 1 << 20;

/// A range whose answer has begun.
pub(super) struct Begun {
    pub(super) run: Run,
    /// Bytes that were announced.
    pub(super) len: u64,
}

/// Fetches until there has been nothing to fetch for a while; first the answer that has `begun`, if
/// any.
pub(super) fn run(shared: &Arc<Shared>, mut asker: Asker, begun: Option<Begun>) {
    if let Some(Begun { run, len }) = begun {
        bring(shared, &mut asker, &run, Some(len));
    }
    while let Some(run) = shared.next() {
        bring(shared, &mut asker, &run, None);
    }
}

/// Brings a run of chunks, of whose first bytes `announced` are on their way already.
fn bring(shared: &Arc<Shared>, asker: &mut Asker, run: &Run, mut announced: Option<u64>) {
    let mut filling = Filling::new(shared, run);
    let (looks, needs) = (shared.clone(), run.clone());
    asker.while_needed(Arc::new(move || looks.needs(&needs)));
    let mut headway = Headway::new(filling.at);
    while !filling.is_full() {
        let before = filling.at;
        let tried = match announced.take() {
            Some(len) => receive(asker, &mut filling, len),
            None => try_once(asker, &mut filling),
        };
        let trouble = match tried {
            Ok(()) if filling.is_full() || headway.is_enough(filling.at) => continue,
            Ok(()) => too_little(&filling, before),
            Err(trouble) => trouble,
        };
        if trouble.error.kind() == ErrorKind::Cancelled {
            asker.hang_up();
            return shared.give_up(&filling.rest(), &trouble.error);
        }
        let failures = headway.failed(filling.at);
        let gives_up = !trouble.may_pass || failures > shared.retries;
        // A server that sends something each time need not be spared, unless it asks for that.
        let at_once = filling.at - before >= CHUNK && trouble.wait.is_none() && !trouble.throttled;
        if gives_up || !(at_once || shared.pause(&trouble, failures)) {
            let error = trouble.error.on(shared.origin.original()).at(filling.at);
            return shared.failed(&filling.rest(), &error);
        }
    }
    shared.went_well();
}

/// One request for the missing bytes. Receives some of them, or returns why not.
fn try_once(asker: &mut Asker, filling: &mut Filling<'_>) -> Result<(), Trouble> {
    match asker.ask(filling.at, filling.end, false)? {
        Answer::Part(len, _) => receive(asker, filling, len),
        Answer::Whole(_) => {
            // The beginning of the object is not the requested range.
            asker.hang_up();
            let action = "GET: the server sends the whole object for a range of it";
            Err(Trouble::passing(protocol(action)))
        }
        Answer::Beyond(size) => {
            let size = size.map_or("fewer".into(), |size| size.to_string());
            Err(Trouble::lasting(changed(&format!("it has {size} bytes now"))))
        }
    }
}

/// Receives the `len` bytes that were announced.
fn receive(asker: &mut Asker, filling: &mut Filling<'_>, len: u64) -> Result<(), Trouble> {
    let mut left = len;
    while left > 0 {
        let n = filling.receive(asker, left)?;
        if n == 0 {
            return Err(ended_early(asker, left));
        }
        left = left.saturating_sub(n);
        if !filling.needed && filling.end - filling.at > WORTH {
            return Err(Trouble::lasting(unneeded()));
        }
    }
    let mut more = [0];
    if asker.fill(&mut [IoSliceMut::new(&mut more)])? > 0 {
        return Err(too_much(asker));
    }
    Ok(())
}

/// A body that ended before all of it came.
pub(super) fn ended_early(asker: &mut Asker, left: u64) -> Trouble {
    asker.hang_up();
    let action = format!("receive the body: it ended {left} bytes early");
    Trouble::passing(disconnected(action))
}

/// An answer in order that brings next to nothing of what was asked for.
fn too_little(filling: &Filling<'_>, before: u64) -> Trouble {
    let (came, asked) = (filling.at - before, filling.end - before);
    let action = format!("GET: the server repeatedly sends only {came} of {asked} requested bytes");
    Trouble::passing(protocol(action))
}

/// A body that continues after its end.
pub(super) fn too_much(asker: &mut Asker) -> Trouble {
    asker.hang_up();
    let action = "receive the body: it is longer than announced";
    Trouble::lasting(protocol(action))
}

/// Chunks that are being filled, one after the other.
pub(super) struct Filling<'a> {
    shared: &'a Arc<Shared>,
    /// The next byte, and the one after the last.
    pub(super) at: u64,
    pub(super) end: u64,
    /// Chunks to be filled; the next byte belongs to the first.
    chunks: VecDeque<Buffer>,
    /// Whether missing bytes are still needed.
    needed: bool,
    /// What was handed on, if that may come again.
    pub(super) passed: Option<Passed>,
}

impl<'a> Filling<'a> {
    pub(super) fn new(shared: &'a Arc<Shared>, run: &Run) -> Self {
        let bytes = shared.state.lock().window.bytes_of(run);
        let (at, end) = (bytes.start, bytes.end);
        Self { shared, at, end, chunks: VecDeque::new(), needed: true, passed: None }
    }

    pub(super) fn is_full(&self) -> bool {
        self.at >= self.end
    }

    /// The chunks that are not full.
    pub(super) fn rest(&self) -> Run {
        self.at / CHUNK..self.end.div_ceil(CHUNK)
    }

    /// Drops what came of a chunk that is not full: all of it has to come again.
    pub(super) fn drop_begun(&mut self) {
        self.at -= self.at % CHUNK;
    }

    /// Receives some of the next `most` bytes, if that many are missing: how many. 0 at the end of
    /// what was asked for.
    pub(super) fn receive(&mut self, asker: &mut Asker, most: u64) -> Result<u64, Trouble> {
        let n = asker.fill(&mut self.room(most))? as u64;
        self.came(n);
        Ok(n)
    }

    /// Takes bytes that came in another way, no more than are missing.
    pub(super) fn take(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() && !self.is_full() {
            let mut n = 0;
            if let Some(place) = self.room(bytes.len() as u64).first_mut() {
                n = place.len().min(bytes.len());
                let (now, later) = bytes.split_at(n);
                place.get_mut(..n).unwrap_or_default().copy_from_slice(now);
                bytes = later;
            }
            self.came(n as u64);
        }
    }

    /// The places of the next bytes, no more than `most` of them.
    fn room(&mut self, most: u64) -> Vec<IoSliceMut<'_>> {
        let most = most.min(self.end.saturating_sub(self.at));
        let first = self.at / CHUNK;
        let wanted = (self.at % CHUNK + most).div_ceil(CHUNK);
        for i in self.chunks.len()..AT_ONCE.min(to_usize(wanted)) {
            let start = (first + i as u64) * CHUNK;
            let len = to_usize((self.end - start).min(CHUNK));
            self.chunks.push_back(self.shared.buffers.take(len));
        }
        let mut skip = to_usize(self.at % CHUNK);
        let mut left = to_usize(most);
        let mut places = Vec::with_capacity(self.chunks.len());
        for chunk in &mut self.chunks {
            let place = chunk.get_mut(std::mem::take(&mut skip)..).unwrap_or_default();
            let len = place.len().min(left);
            left -= len;
            let Some(place) = place.get_mut(..len).filter(|place| !place.is_empty()) else { break };
            places.push(IoSliceMut::new(place));
        }
        places
    }

    /// This many bytes were received into those places.
    fn came(&mut self, n: u64) {
        let first = self.at / CHUNK;
        self.at += n;
        let full = if self.is_full() { self.chunks.len() as u64 } else { self.at / CHUNK - first };
        let full = to_usize(full).min(self.chunks.len());
        if full > 0 {
            let chunks: Vec<Buffer> = self.chunks.drain(..full).collect();
            if let Some(passed) = &mut self.passed {
                chunks.iter().for_each(|chunk| passed.add(chunk));
            }
            let rest = self.rest();
            self.needed = self.shared.arrived(first, chunks, &rest);
        }
    }
}
