//! Sending requests: headers gathered in runs, payloads sent from their buffers.

use std::collections::VecDeque;

use device::Slice;
use net::Stream;

/// How many empty header buffers are kept.
const SPARE: usize = 16;

#[derive(Debug)]
enum Piece {
    Heads(Vec<u8>),
    Payload(Slice),
}

impl Piece {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Heads(bytes) => bytes,
            Self::Payload(slice) => slice,
        }
    }
}

/// Bytes to be sent, in order.
#[derive(Debug, Default)]
pub(crate) struct Outgoing {
    pieces: VecDeque<Piece>,
    /// Bytes of the first piece that are sent.
    sent: usize,
    /// Bytes ever appended, and bytes ever sent.
    appended: u64,
    gone: u64,
    spare: Vec<Vec<u8>>,
}

impl Outgoing {
    pub(crate) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Bytes that wait.
    pub(crate) fn unsent(&self) -> u64 {
        self.appended - self.gone
    }

    /// The end of the stream of requests, for [`Outgoing::has_sent`].
    pub(crate) fn end(&self) -> u64 {
        self.appended
    }

    /// Whether all before `end` is sent: the peer can know it.
    pub(crate) fn has_sent(&self, end: u64) -> bool {
        self.gone >= end
    }

    /// Appends what `encode` appends, all of it or nothing: a header, and what belongs to it.
    pub(crate) fn head<E>(
        &mut self,
        encode: impl FnOnce(&mut Vec<u8>) -> Result<(), E>,
    ) -> Result<(), E> {
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
    pub(crate) fn payload(&mut self, slice: Slice) {
        if !slice.is_empty() {
            self.appended += slice.len() as u64;
            self.pieces.push_back(Piece::Payload(slice));
        }
    }

    /// Forgets everything.
    pub(crate) fn clear(&mut self) {
        self.pieces.clear();
        self.sent = 0;
        self.gone = self.appended;
    }

    /// Sends what the socket takes. Returns whether it took anything.
    pub(crate) fn send(&mut self, stream: &Stream) -> rustix::io::Result<bool> {
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
