//! What a channel has learnt about a server that was not advertised.
//!
//! Some servers advertise what they then refuse. The first refusal is remembered; nothing is lost
//! by it, because a refused request has changed nothing.

use wire::constants::BASE_ALLOCATION;
use wire::{Framing, Negotiated};

use wire::TransmissionFlags as Flags;

/// Longest effect (not payload) in a compact request: a multiple of every legal block size.
const COMPACT: u64 = (u32::MAX - 0xffff) as u64;

/// What a channel has learnt.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Habits {
    /// Reads ask for one piece (DF): a caller that knows the map has no use for holes in replies,
    /// and a server need not look for them. nbd-server advertises it and refuses it.
    pub(crate) whole_reads: bool,
    /// Longest zero, trim or prefetch in one request, in bytes.
    pub(crate) effect: u64,
}

impl Habits {
    pub(crate) fn of(session: &Negotiated) -> Self {
        let knows_map = session.context(BASE_ALLOCATION).is_some();
        Self {
            whole_reads: knows_map && session.flags.contains(Flags::SEND_DF),
            effect: if session.mode == Framing::Extended { u64::MAX } else { COMPACT },
        }
    }

    /// A request for an effect of `len` bytes was refused, perhaps only for its length (which a
    /// server may do). Returns whether to try again, in pieces as long as its longest payload.
    pub(crate) fn shorten(&mut self, len: u64, session: &Negotiated) -> bool {
        let payload = whole_blocks(session.max_payload().min(32 << 20), session);
        if payload == 0 || len <= payload {
            return false;
        }
        self.effect = self.effect.min(payload);
        true
    }

    /// The longest effect that does not end inside a block.
    pub(crate) fn effect(&self, session: &Negotiated) -> u64 {
        whole_blocks(self.effect, session)
    }
}

fn whole_blocks(len: u64, session: &Negotiated) -> u64 {
    len - len % u64::from(session.blocks.minimum.max(1))
}
