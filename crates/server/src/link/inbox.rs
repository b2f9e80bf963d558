//! The inbox of a connection: replies that became ready elsewhere, until its reactor sends them.

use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, PoisonError};

use super::Link;
use super::out::{Out, Reply};
use crate::gather::Gather;

/// How often a reactor looks for more before it leaves.
const LOOKS: usize = 3;

#[derive(Default)]
pub(super) struct Inbox {
    replies: Vec<Reply>,
    /// The reactor is at work on the connection, and looks in here before it leaves.
    attended: bool,
    /// The reactor has been called.
    called: bool,
    /// This is not looked at any more.
    closed: bool,
}

impl Link {
    fn inbox(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a request that is worked on elsewhere. The thread that ends one checks afterwards whether the connection
    /// is paused, and the reactor, after it has paused it, whether something is in flight: in one total order, or both
    /// could miss the other.
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
        self.busy_bytes.fetch_sub(bytes, Ordering::AcqRel);
        self.busy.fetch_sub(1, Ordering::SeqCst);
    }

    /// Ends a request that was worked on elsewhere, with its reply.
    pub(crate) fn end(self: &Arc<Self>, bytes: u64, pieces: Vec<Out>) {
        let reply = Reply::of_elsewhere(bytes, pieces);
        let mut inbox = self.inbox();
        if inbox.closed {
            drop(inbox);
            return self.forget(bytes);
        }
        let is_alone = self.busy.load(Ordering::Acquire) == 1;
        if is_alone && !inbox.attended {
            drop(inbox);
            self.send(reply.pieces);
            return self.ended(bytes);
        }
        inbox.replies.push(reply);
        let must_call = !inbox.attended && !std::mem::replace(&mut inbox.called, true);
        drop(inbox);
        if must_call {
            self.bell.call(self.token);
        }
    }

    /// The reactor begins to work on the connection.
    pub(crate) fn attend(&self) {
        self.inbox().attended = true;
    }

    /// The reactor is about to leave: sends what is gathered, together with the replies that are
    /// ready. Returns whether there were any.
    pub(crate) fn leave(self: &Arc<Self>, gather: &mut Gather) -> bool {
        let mut any = false;
        for _ in 0..LOOKS {
            let mut inbox = self.inbox();
            let replies = std::mem::take(&mut inbox.replies);
            if replies.is_empty() && gather.len() == 0 {
                (inbox.attended, inbox.called) = (false, false);
                return any;
            }
            drop(inbox);
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
        let mut inbox = self.inbox();
        (inbox.attended, inbox.called) = (false, !inbox.replies.is_empty());
        if inbox.called {
            drop(inbox);
            self.bell.call(self.token);
        }
        any
    }

    /// The reactor has closed the connection.
    pub(crate) fn close(&self) {
        let mut inbox = self.inbox();
        inbox.closed = true;
        let replies = std::mem::take(&mut inbox.replies);
        drop(inbox);
        replies.iter().for_each(|reply| self.forget(reply.bytes));
    }
}
