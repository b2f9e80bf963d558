//! Pieces in the send queue: bytes in memory, and bytes that leave from their place.

use std::sync::Arc;

use device::{Buffer, Place, Result};

use crate::execute::Served;
use serving::Share;

/// Something to be sent.
#[derive(Debug)]
pub(crate) enum Out {
    Bytes(Vec<u8>),
    /// With its share of the server's memory.
    Data(Buffer, #[expect(dead_code, reason = "held until it is sent")] Share),
    Place(Placed),
}

impl Out {
    pub(crate) fn len(&self) -> u64 {
        match self {
            Self::Bytes(b) => b.len() as u64,
            Self::Data(b, _) => b.len() as u64,
            Self::Place(placed) => placed.len,
        }
    }

    /// Bytes of memory it holds.
    pub(super) fn weight(&self) -> u64 {
        match self {
            Self::Bytes(b) => (b.capacity() as u64).max(64),
            Self::Data(b, _) => b.len() as u64,
            Self::Place(_) => 64,
        }
    }

    /// The part of that which is not counted yet.
    pub(super) fn uncounted(&self) -> u64 {
        if let Self::Data(..) = self { 0 } else { self.weight() }
    }

    pub(super) fn bytes(&self) -> Option<&[u8]> {
        match self {
            Self::Bytes(b) => Some(b),
            Self::Data(b, _) => Some(b),
            Self::Place(_) => None,
        }
    }
}

/// Bytes that leave from their place.
#[derive(Debug)]
pub(crate) struct Placed {
    pub(super) place: Place,
    pub(super) len: u64,
    /// The device and offset, to read them if they cannot be sent.
    pub(super) served: Arc<Served>,
    pub(super) offset: u64,
    pub(super) seen: Seen,
}

/// When bytes were last found in memory.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Seen {
    Now,
    /// When the socket had stopped the queue this many times.
    After(u64),
    LongAgo,
}

impl Placed {
    /// `len` bytes at `offset` of what is served, which lie at `place` and were seen in memory
    /// just now.
    pub(crate) fn new(place: Place, len: u64, served: &Arc<Served>, offset: u64) -> Self {
        Self { place, len, served: served.clone(), offset, seen: Seen::Now }
    }

    /// They are not sent now: they have to be checked again then.
    pub(crate) fn waits(&mut self) {
        self.seen = Seen::LongAgo;
    }

    /// Where the bytes are, of what is served.
    pub(crate) fn offset(&self) -> u64 {
        self.offset
    }

    /// Whether `len` bytes, `skip` on, can be sent without waiting.
    pub(super) fn is_resident(&self, skip: u64, len: u64, stops: u64) -> bool {
        self.seen == Seen::After(stops) || self.place.advanced(skip).is_resident(len)
    }

    /// Without its first `by` bytes.
    pub(super) fn advance(&mut self, by: u64) {
        self.place = self.place.advanced(by);
        self.offset += by;
        self.len -= by;
    }
}

/// Bytes that must be read before the queue can go on.
pub(super) struct Fetch {
    pub(super) served: Arc<Served>,
    pub(super) offset: u64,
    pub(super) len: u64,
    /// Of the bytes that are read, counted from the beginning.
    pub(super) share: Share,
}

impl Fetch {
    /// The result of such a read.
    pub(super) fn buffer(&self) -> Buffer {
        self.served.buffers.take_whole(usize::try_from(self.len).unwrap_or(0))
    }

    /// Logs the error. The client only sees the connection end.
    pub(super) fn failed(&self, why: &dyn std::fmt::Display) {
        self.served.voice.failed(format_args!("a read at {}: {why}", self.offset));
    }
}

/// A reply that is ready, and the bytes that its request counted as.
pub(super) struct Reply {
    pub(super) bytes: u64,
    pub(super) pieces: Vec<Out>,
}

impl Reply {
    /// One that was made while others were served: its place may have been checked long ago.
    pub(super) fn of_elsewhere(bytes: u64, mut pieces: Vec<Out>) -> Self {
        for piece in &mut pieces {
            if let Out::Place(placed) = piece {
                placed.waits();
            }
        }
        Self { bytes, pieces }
    }
}

/// The result of a read elsewhere.
pub(super) type Fetched = Result<Buffer>;
