//! What a channel has learnt about a server that was not advertised.
//!
//! Some servers advertise what they then refuse. The first refusal is remembered; nothing is lost
//! by it, because a refused request has changed nothing.

use wire::constants::BASE_ALLOCATION;
use wire::{Framing, Negotiated, StatusExtent};

use wire::TransmissionFlags as Flags;

/// Longest effect (not payload) in a compact request: a multiple of every legal block size.
const COMPACT: u64 = (u32::MAX - 0xffff) as u64;

/// Bytes of which the status is asked for at first, where requests have 32 bits: such servers are
/// older, some of them send each extent of a long range by itself, and so the first come early.
const FIRST_STATUS: u64 = 256 << 20;

/// What a channel has learnt.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Habits {
    /// Reads ask for one piece (DF): a caller that knows the map has no use for holes in replies,
    /// and a server need not look for them. nbd-server advertises it and refuses it.
    pub(crate) whole_reads: bool,
    /// Longest zero, trim or prefetch in one request, in bytes.
    pub(crate) effect: u64,
    /// Bytes of an extent, on average, where the status was asked for last.
    each: Option<u64>,
}

impl Habits {
    pub(crate) fn of(session: &Negotiated) -> Self {
        let knows_map = session.context(BASE_ALLOCATION).is_some();
        Self {
            whole_reads: knows_map && session.flags.contains(Flags::SEND_DF),
            effect: if session.mode == Framing::Extended { u64::MAX } else { COMPACT },
            each: None,
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

    /// The longest range to ask the status of where `max` extents are wanted, in bytes. Some
    /// servers send all extents of a range however many there are: to ask for all of a disk again
    /// and again, and use the first few of a million, takes a time that grows with their square.
    pub(crate) fn status(&self, max: usize, session: &Negotiated) -> u64 {
        let wanted = match self.each {
            _ if max <= 1 => u64::MAX,
            None if session.mode == Framing::Extended => u64::MAX,
            None => FIRST_STATUS,
            Some(each) => {
                let max = u64::try_from(max).unwrap_or(u64::MAX);
                each.saturating_mul(max).saturating_mul(2)
            }
        };
        let block = u64::from(session.blocks.minimum.max(1));
        whole_blocks(self.effect.min(wanted), session).max(block)
    }

    /// The status was told, where `max` extents were wanted. A long one among them has the next
    /// request ask for more.
    pub(crate) fn told(&mut self, extents: &[StatusExtent], max: usize) {
        let near = extents.iter().take(max.saturating_mul(2)).map(|extent| extent.length);
        let count = u64::try_from(near.len()).unwrap_or(u64::MAX);
        if max > 1 && count > 0 {
            self.each = Some(near.fold(0, u64::saturating_add) / count);
        }
    }
}

fn whole_blocks(len: u64, session: &Negotiated) -> u64 {
    len - len % u64::from(session.blocks.minimum.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_is_asked_than_twice_what_is_used_and_more_again_behind_short_extents() {
        let session = Negotiated { mode: Framing::Extended, ..Negotiated::default() };
        let mut habits = Habits::of(&session);
        let extents = |lengths: &[u64]| -> Vec<_> {
            lengths.iter().map(|length| StatusExtent { length: *length, flags: 0 }).collect()
        };
        assert_eq!(habits.status(64, &session), u64::MAX);
        let older = Negotiated { mode: Framing::Structured, ..session.clone() };
        assert_eq!(Habits::of(&older).status(64, &older), FIRST_STATUS);
        habits.told(&extents(&[4096; 100_000]), 64);
        assert_eq!(habits.status(64, &session), 128 * 4096);
        assert_eq!(habits.status(1024, &session), 2048 * 4096);
        assert_eq!(habits.status(1, &session), u64::MAX, "one is all that is sent");
        habits.told(&extents(&[4096, 4096, 504 << 10]), 64);
        assert!(habits.status(64, &session) > 16 << 20);
        habits.told(&extents(&[u64::MAX, 1]), 64);
        habits.told(&extents(&[1]), 64);
        assert_eq!(habits.status(64, &session), 128);
        let blocks = wire::BlockConstraints { minimum: 512, ..session.blocks };
        let session = Negotiated { blocks, ..session };
        assert_eq!(habits.status(64, &session), 512, "a block at least");
    }
}
