//! Reading ranges that are to be zero, where zeroing would be writing: what is zero already is left
//! alone.
//!
//! The range is read in pieces, as the source is. After a piece that was not zero only the head of
//! the next one is read, and the pieces grow from one to the next, so that a target full of old
//! bytes costs little more than writing it; neighbours that are not zero are zeroed together.
//! Pieces that cannot be read are zeroed: they are not known to be zero.

use std::ops::Range;

use device::{Buffer, Operation};

use super::{Todo, Worker};
use crate::progress::Moved;
use crate::tickets::Task;
use crate::zero::ZeroBy;

impl Worker {
    /// The next operation for the target: a read only while there is room for its bytes, or nothing
    /// in flight would make room.
    pub(super) fn next_todo(&mut self) -> Option<Todo> {
        let first = self.backlog.front()?;
        let sizes = self.job.pair.sizes;
        let fits = self.held.has_room(sizes.request, sizes.queue);
        if !first.is_look() || (fits && self.writes.has_room()) || self.tickets.is_empty() {
            return self.backlog.pop_front();
        }
        let other = self.backlog.iter().position(|todo| !todo.is_look())?;
        self.backlog.remove(other)
    }

    /// Reads a range, except the parts at its ends that will not stay as they are: those are
    /// zeroed.
    pub(super) fn look_at(&mut self, range: Range<u64>) {
        let policy = &self.job.zeroes.policy;
        let (whole, ends) = (policy.tellable(&range), policy.do_it_unseen());
        let parts = [(range.start..whole.start, ends), (whole.end..range.end, ends)];
        for (part, how) in parts.into_iter().filter(|(part, _)| !part.is_empty()) {
            self.backlog.push_front(Todo::Zero(part, how));
        }
        if whole.is_empty() {
            // Other ranges may have waited for this read.
            self.clean_up();
        } else {
            self.look_at_piece(whole);
        }
    }

    /// Reads the first piece of a range, or its head, and leaves the rest for later.
    fn look_at_piece(&mut self, range: Range<u64>) {
        let request = self.job.pair.sizes.request;
        let block = u64::from(self.job.pair.target.info().blocks.minimum);
        let offset = range.start;
        let (head, piece) = self.job.zeroes.policy.piece(&range, request, block);
        let end = offset + piece;
        if end < range.end {
            self.backlog.push_front(Todo::Zero(end..range.end, ZeroBy::Reading));
        }
        // Never longer than a request.
        let len = usize::try_from(head).unwrap_or(0);
        let buffer = self.pool.take_whole(len);
        let load = Some(self.held.take(buffer.capacity()));
        self.looking += 1;
        self.writes.started();
        self.ask_target(Task::Look { offset, len, end }, Operation::Read { offset, buffer }, load);
    }

    /// A piece, or its head, was read.
    pub(super) fn looked(&mut self, bytes: &Buffer, piece: Range<u64>, epoch: u64) {
        let policy = &self.job.zeroes.policy;
        // Most are zero, and compared as a whole: one call, which is fast in every build.
        let zero =
            self.job.zeroes.buffer().get(..bytes.len()).is_some_and(|none| bytes[..] == *none);
        let read = piece.start + bytes.len() as u64;
        policy.saw(zero);
        if zero {
            self.retire(piece.start..read, Moved::Skipped, epoch);
            if read < piece.end {
                self.todo(Todo::Zero(read..piece.end, ZeroBy::Reading));
            }
        } else {
            self.is_dirty(piece);
        }
        self.clean_up();
    }

    /// A piece is to be zeroed, with its neighbours.
    fn is_dirty(&mut self, piece: Range<u64>) {
        if let Some(range) = self.dirt.add(piece) {
            self.todo(Todo::Zero(range, self.job.zeroes.policy.do_it_unseen()));
        }
    }

    /// When nothing more is being read, zeroes what was found.
    fn clean_up(&mut self) {
        if self.looking > 0 || self.backlog.iter().any(Todo::is_look) {
            return;
        }
        for range in self.dirt.leave() {
            self.todo(Todo::Zero(range, self.job.zeroes.policy.do_it_unseen()));
        }
    }

    /// A piece could not be read.
    pub(super) fn look_failed(&mut self, piece: Range<u64>) {
        self.is_dirty(piece);
        self.clean_up();
    }
}

impl Todo {
    fn is_look(&self) -> bool {
        matches!(self, Self::Zero(_, ZeroBy::Reading))
    }
}
