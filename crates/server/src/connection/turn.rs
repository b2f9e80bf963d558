//! What a reactor lends to whichever connection has its turn.

use std::ops::Range;
use std::time::{Duration, Instant};

use device::Buffer;
use serving::Answered;
use wire::{Command, Request};

use super::SMALL;
use crate::gather::Gather;

/// How long one turn may take, not counting its last request.
const SLICE: Duration = Duration::from_millis(1);
/// The clock is read after requests that cost this much together; a small one costs 1.
const LOOK_AT_CLOCK: u32 = 16;

/// A part of a buffer; empty if it is out of range.
pub(super) fn part(bytes: &[u8], range: Range<usize>) -> &[u8] {
    bytes.get(range).unwrap_or_default()
}

/// The same, to be written.
pub(super) fn part_mut(bytes: &mut [u8], range: Range<usize>) -> &mut [u8] {
    bytes.get_mut(range).unwrap_or_default()
}

/// Buffers of a reactor, lent to whichever connection has its turn.
#[derive(Debug)]
pub(crate) struct Turn {
    pub(crate) inbox: Buffer,
    pub(crate) gather: Gather,
    /// Requests that were answered in this turn.
    pub(crate) answered: Answered,
    /// When this turn is over.
    until: Instant,
    /// What requests have cost since the clock was looked at.
    spent: u32,
    pub(super) is_late: bool,
}

impl Turn {
    pub(crate) fn new(inbox: Buffer, gather: Gather) -> Self {
        Self {
            inbox,
            gather,
            answered: Answered::default(),
            until: Instant::now(),
            spent: 0,
            is_late: false,
        }
    }

    /// Returns the time.
    pub(super) fn begin_turn(&mut self) -> Instant {
        let now = Instant::now();
        (self.until, self.spent, self.is_late) = (now + SLICE, 0, false);
        now
    }

    /// Counts a request. Returns whether the turn is over; the clock is not read each time.
    pub(super) fn spend(&mut self, request: &Request) {
        let costly = request.length > SMALL || request.kind() == Some(Command::BlockStatus);
        self.spent += if costly { LOOK_AT_CLOCK } else { 1 };
        if self.spent >= LOOK_AT_CLOCK {
            self.spent = 0;
            self.is_late = Instant::now() >= self.until;
        }
    }
}
