//! The inbox of a connection: replies that became ready elsewhere, until its reactor sends them.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::Link;
use super::out::{Out, Reply};
use crate::gather::Gather;

/// How often a reactor looks for more before it leaves.
const LOOKS: usize = 3;

impl Link {
    /// Counts a request that is worked on elsewhere. The thread that ends one checks afterwards
    /// whether the connection is paused, and the reactor, after it has paused it, whether something
    /// is in flight: in one total order, or both could miss the other.
    pub(crate) fn begin(&self, bytes: u64) {
        self.busy.fetch_add(1, Ordering::AcqRel);
        self.busy_bytes.fetch_add(bytes, Ordering::AcqRel);
    }

    /// A request that was worked on elsewhere is done with.
    pub(crate) fn ended(&self, bytes: u64) {
        self.forget(bytes);
        if self.is_paused() {
            self.bell.call(self.token);
        }
    }

    fn forget(&self, bytes: u64) {
        let of_all = self.busy_bytes.fetch_sub(bytes, Ordering::AcqRel);
        let in_flight = self.busy.fetch_sub(1, Ordering::SeqCst);
        debug_assert!(of_all >= bytes && in_flight > 0, "each request ends once");
    }

    /// Ends a request that was worked on elsewhere, with its reply.
    pub(crate) fn end(self: &Arc<Self>, bytes: u64, pieces: Vec<Out>) {
        let reply = Reply::of_elsewhere(bytes, pieces);
        let is_alone = self.busy.load(Ordering::Acquire) == 1;
        if is_alone && !self.inbox.is_attended() && !self.inbox.is_closed() {
            self.send(reply.pieces);
            return self.ended(bytes);
        }
        match self.inbox.put(reply) {
            Ok(true) => self.bell.call(self.token),
            Ok(false) => {}
            Err(reply) => self.forget(reply.bytes),
        }
    }

    /// The reactor begins to work on the connection.
    pub(crate) fn attend(&self) {
        self.inbox.attend();
    }

    /// The reactor is about to leave: sends what is gathered, together with the replies that are
    /// ready. Returns whether there were any.
    pub(crate) fn leave(self: &Arc<Self>, gather: &mut Gather) -> bool {
        let mut any = false;
        for _ in 0..LOOKS {
            let replies = self.inbox.take();
            if replies.is_empty() && gather.len() == 0 {
                if self.inbox.try_leave() {
                    return any;
                }
                continue;
            }
            any |= !replies.is_empty();
            let ended: Vec<u64> = replies.iter().map(|reply| reply.bytes).collect();
            let mut long = Vec::new();
            for reply in replies {
                match &reply.pieces[..] {
                    [Out::Bytes(short)] => gather.put(self, |out| out.extend_from_slice(short)),
                    _ => long.extend(reply.pieces),
                }
            }
            gather.put_pieces(self, long);
            ended.into_iter().for_each(|bytes| self.forget(bytes));
        }
        // More came meanwhile; other connections have their turn first.
        if self.inbox.leave() {
            self.bell.call(self.token);
        }
        any
    }

    /// The reactor has closed the connection.
    pub(crate) fn close(&self) {
        self.inbox.close().iter().for_each(|reply| self.forget(reply.bytes));
    }
}
