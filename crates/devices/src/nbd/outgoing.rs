//! Requests on their way out: headers gathered in runs, payloads sent from where they lie.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::os::fd::BorrowedFd;

use device::Slice;
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendFlags, send, sendmsg};

/// How many pieces one sendmsg gathers.
const PIECES: usize = 64;
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
    spare: Vec<Vec<u8>>,
}

impl Outgoing {
    pub(crate) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Appends what `encode` appends, all of it or nothing: a header, and what belongs to it.
    pub(crate) fn head<E>(
        &mut self,
        encode: impl FnOnce(&mut Vec<u8>) -> Result<(), E>,
    ) -> Result<(), E> {
        if let Some(Piece::Heads(heads)) = self.pieces.back_mut() {
            return encode(heads);
        }
        let mut heads = self.spare.pop().unwrap_or_default();
        let encoded = encode(&mut heads);
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
            self.pieces.push_back(Piece::Payload(slice));
        }
    }

    /// Forgets everything.
    pub(crate) fn clear(&mut self) {
        self.pieces.clear();
        self.sent = 0;
    }

    /// Sends what the socket takes; whether it took anything.
    pub(crate) fn send(&mut self, socket: BorrowedFd<'_>) -> rustix::io::Result<bool> {
        let mut moved = false;
        while !self.pieces.is_empty() {
            match self.send_some(socket) {
                Ok(0) | Err(Errno::AGAIN) => break,
                Ok(n) => {
                    moved = true;
                    self.consume(n);
                }
                Err(Errno::INTR) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(moved)
    }

    fn send_some(&self, socket: BorrowedFd<'_>) -> rustix::io::Result<usize> {
        let mut slices = [IoSlice::new(&[]); PIECES];
        let mut count = 0;
        let mut skip = self.sent;
        for (slot, piece) in slices.iter_mut().zip(&self.pieces) {
            *slot = IoSlice::new(piece.bytes().get(skip..).unwrap_or_default());
            skip = 0;
            count += 1;
        }
        let mut flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        if self.pieces.len() > count {
            flags |= SendFlags::MORE;
        }
        match slices.get(..count) {
            Some([one]) => send(socket, one, flags),
            Some(many) => sendmsg(socket, many, &mut SendAncillaryBuffer::default(), flags),
            None => Ok(0),
        }
    }

    fn consume(&mut self, sent: usize) {
        self.sent += sent;
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
