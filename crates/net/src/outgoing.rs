//! Sending messages: headers gathered in runs, payloads sent from their buffers.

use std::collections::VecDeque;
use std::ops::Deref;

use crate::Stream;

/// How many empty header buffers are kept.
const SPARE: usize = 16;

#[derive(Debug)]
enum Piece<P> {
    Heads(Vec<u8>),
    Payload(P),
}

impl<P: Deref<Target = [u8]>> Piece<P> {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Heads(bytes) => bytes,
            Self::Payload(payload) => payload,
        }
    }
}

/// Bytes to be sent, in order. A payload is dropped as soon as all of it is sent.
#[derive(Debug)]
pub struct Outgoing<P> {
    pieces: VecDeque<Piece<P>>,
    /// Bytes of the first piece that are sent.
    sent: usize,
    /// Bytes ever appended, and bytes ever sent.
    appended: u64,
    gone: u64,
    spare: Vec<Vec<u8>>,
}

impl<P> Default for Outgoing<P> {
    fn default() -> Self {
        let (pieces, spare) = (VecDeque::new(), Vec::new());
        Self { pieces, sent: 0, appended: 0, gone: 0, spare }
    }
}

impl<P: Deref<Target = [u8]>> Outgoing<P> {
    /// Whether nothing waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Bytes that wait.
    #[must_use]
    pub fn unsent(&self) -> u64 {
        self.appended - self.gone
    }

    /// The end of what was appended, for [`Outgoing::has_sent`].
    #[must_use]
    pub fn end(&self) -> u64 {
        self.appended
    }

    /// Whether all before `end` is sent: the peer can know it.
    #[must_use]
    pub fn has_sent(&self, end: u64) -> bool {
        self.gone >= end
    }

    /// Appends what `encode` appends, all of it or nothing: a header, and what belongs to it.
    ///
    /// # Errors
    /// Those of `encode`.
    pub fn head<E>(&mut self, encode: impl FnOnce(&mut Vec<u8>) -> Result<(), E>) -> Result<(), E> {
        if let Some(Piece::Heads(heads)) = self.pieces.back_mut() {
            let before = heads.len();
            let encoded = encode(heads);
            self.appended += (heads.len() - before) as u64;
            return encoded;
        }
        let mut heads = self.spare.pop().unwrap_or_default();
        let encoded = encode(&mut heads);
        self.appended += heads.len() as u64;
        if heads.is_empty() {
            self.spare.push(heads);
        } else {
            self.pieces.push_back(Piece::Heads(heads));
        }
        encoded
    }

    /// The payload that belongs to the header appended last.
    pub fn payload(&mut self, payload: P) {
        if !payload.is_empty() {
            self.appended += payload.len() as u64;
            self.pieces.push_back(Piece::Payload(payload));
        }
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.pieces.clear();
        self.sent = 0;
        self.gone = self.appended;
    }

    /// Sends what the socket takes. Returns whether it took anything.
    ///
    /// # Errors
    /// The connection is broken.
    pub fn send(&mut self, stream: &Stream) -> rustix::io::Result<bool> {
        let mut moved = false;
        while !self.pieces.is_empty() {
            let pieces = self.pieces.iter().map(Piece::bytes);
            match stream.send_gathered(pieces, self.sent, self.pieces.len())? {
                0 => break,
                n => self.consume(n),
            }
            moved = true;
        }
        Ok(moved)
    }

    fn consume(&mut self, sent: usize) {
        self.sent += sent;
        self.gone += sent as u64;
        while let Some(first) = self.pieces.front() {
            let len = first.bytes().len();
            if self.sent < len {
                break;
            }
            self.sent -= len;
            if let Some(Piece::Heads(mut heads)) = self.pieces.pop_front()
                && self.spare.len() < SPARE
            {
                heads.clear();
                self.spare.push(heads);
            }
        }
    }
}
