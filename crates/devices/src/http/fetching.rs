//! Fetching ranges: what one thread does with one connection.
//!
//! A chunk is handed on when all of it has come, so who reads the beginning of a long range does not
//! wait for its end. When an answer breaks off, what came is kept and the rest is asked for. Only a
//! try that brings nothing counts as a failure, and after some of them in a row those who wait are told.

use std::sync::Arc;

use device::{Buffer, Error, ErrorKind, Fault};

use super::asking::{Answer, Asker, Trouble};
use super::origin::changed;
use super::shared::Shared;
use super::window::{CHUNK, Run};

/// Fetches until there has been nothing to fetch for a while.
pub(super) fn run(shared: &Arc<Shared>, mut asker: Asker) {
    while let Some(run) = shared.next() {
        let mut filling = Filling::new(shared, &run);
        bring(shared, &mut asker, &mut filling);
        if filling.is_full() {
            shared.went_well();
        }
    }
}

fn bring(shared: &Arc<Shared>, asker: &mut Asker, filling: &mut Filling<'_>) {
    let mut failures = 0;
    while !filling.is_full() {
        let before = filling.at;
        let Err(trouble) = try_once(asker, filling) else { continue };
        if filling.at > before {
            failures = 0;
        }
        failures += 1;
        let gives_up = !trouble.may_pass || failures > shared.retries;
        if gives_up || !shared.pause(&trouble, failures) {
            let error = trouble.error.on(shared.origin.original()).at(filling.at);
            return shared.failed(filling.rest(), &error);
        }
    }
}

/// One request for what is missing. Brings some of it, or says why not.
fn try_once(asker: &mut Asker, filling: &mut Filling<'_>) -> Result<(), Trouble> {
    match asker.ask(filling.at, filling.end, false)? {
        Answer::Part(len, _) => receive(asker, filling, len),
        Answer::Whole(_) => {
            // The beginning of the object is not what was asked for.
            asker.hang_up();
            let action = "GET: the server sends the whole object for a range of it";
            Err(Trouble::passing(Error::new(ErrorKind::Protocol, Fault::Peer, action)))
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
    loop {
        let Some(bytes) = asker.next()? else {
            if left == 0 {
                return Ok(());
            }
            let action = format!("receive the body: it ended {left} bytes early");
            asker.hang_up();
            return Err(Trouble::passing(Error::new(ErrorKind::Disconnected, Fault::Peer, action)));
        };
        let Some(less) = left.checked_sub(bytes.len() as u64) else {
            asker.hang_up();
            let action = "receive the body: more came than was announced";
            return Err(Trouble::lasting(Error::new(ErrorKind::Protocol, Fault::Peer, action)));
        };
        left = less;
        filling.take(&bytes);
    }
}

/// Chunks that are being filled, one after the other.
pub(super) struct Filling<'a> {
    shared: &'a Arc<Shared>,
    /// The next byte, and the one after the last.
    pub(super) at: u64,
    pub(super) end: u64,
    /// The chunk that the next byte belongs to, if some of it has come.
    chunk: Option<Buffer>,
}

impl<'a> Filling<'a> {
    pub(super) fn new(shared: &'a Arc<Shared>, run: &Run) -> Self {
        let bytes = shared.lock().window.bytes_of(run);
        Self { shared, at: bytes.start, end: bytes.end, chunk: None }
    }

    pub(super) fn is_full(&self) -> bool {
        self.at >= self.end
    }

    /// The chunks that are not full.
    pub(super) fn rest(&self) -> Run {
        self.at / CHUNK..self.end.div_ceil(CHUNK)
    }

    /// Takes the next bytes, of which there are no more than are missing.
    pub(super) fn take(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() && !self.is_full() {
            let index = self.at / CHUNK;
            let start = index * CHUNK;
            let len = usize::try_from((self.end - start).min(CHUNK)).unwrap_or(0);
            let chunk = self.chunk.get_or_insert_with(|| self.shared.buffers.take(len));
            let from = usize::try_from(self.at - start).unwrap_or(usize::MAX);
            let room = chunk.get_mut(from..).unwrap_or_default();
            let n = room.len().min(bytes.len());
            let (now, later) = bytes.split_at(n);
            if n == 0 {
                return;
            }
            room.get_mut(..n).unwrap_or_default().copy_from_slice(now);
            bytes = later;
            self.at += n as u64;
            let full = from + n == chunk.len();
            if let Some(chunk) = self.chunk.take_if(|_| full) {
                self.shared.arrived(index, chunk);
            }
        }
    }
}
