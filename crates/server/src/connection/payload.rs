//! Payloads that do not come with their request in one piece: received into a buffer of their own,
//! or past it when the request was refused.

use device::Buffer;
use wire::{ReplyWriter, Request};

use super::{Connection, Desk, LONG_PAYLOAD, Phase, Received};
use crate::budget::Share;
use crate::execute::{Payload, Run, Served};

/// A request whose payload is on its way.
#[derive(Debug)]
pub(super) struct Incoming {
    request: Request,
    into: Into,
}

#[derive(Debug)]
pub(super) enum Into {
    Buffer {
        buffer: Buffer,
        filled: usize,
        share: Share,
    },
    /// A payload that must not be used; the reply is ready.
    Nowhere {
        left: u64,
        reply: Vec<u8>,
    },
}

impl Connection {
    /// How many bytes of payload lie at `body`, if all are there; otherwise what is there starts
    /// a buffer that receives the rest.
    pub(super) fn payload(
        &mut self,
        served: &Served,
        desk: &Desk,
        request: &Request,
        body: usize,
        end: usize,
    ) -> Option<usize> {
        self.header_only = request.payload > LONG_PAYLOAD;
        let there = &desk.inbox[body..end];
        let Ok(len) = usize::try_from(request.payload) else { return Some(0) };
        if len <= there.len() {
            return Some(len);
        }
        let mut buffer = served.buffers.take(len);
        buffer[..there.len()].copy_from_slice(there);
        let share = Share::take(&served.budget, request.payload);
        let into = Into::Buffer { buffer, filled: there.len(), share };
        self.incoming = Some(Incoming { request: *request, into });
        None
    }

    /// Passes over a payload that must not be used; the answer is how much of it was there.
    pub(super) fn drain(
        &mut self,
        desk: &mut Desk,
        request: Request,
        reply: Vec<u8>,
        body: usize,
        end: usize,
    ) -> usize {
        let there = (end - body) as u64;
        if request.payload <= there {
            desk.gather.put(&self.link, |out| out.extend_from_slice(&reply));
            return usize::try_from(request.payload).unwrap_or(0);
        }
        let into = Into::Nowhere { left: request.payload - there, reply };
        self.incoming = Some(Incoming { request, into });
        end - body
    }

    /// Receives more of a payload. The answer: whether the socket may hold more.
    pub(super) fn receive_payload(&mut self, desk: &mut Desk, mut incoming: Incoming) -> bool {
        let (received, complete) = match &mut incoming.into {
            Into::Buffer { buffer, filled, .. } => {
                let received = self.recv(&mut buffer[*filled..]);
                if let Received::Bytes(n) = received {
                    *filled += n;
                }
                (received, *filled == buffer.len())
            }
            Into::Nowhere { left, .. } => {
                let want = usize::try_from(*left).unwrap_or(usize::MAX).min(desk.inbox.len());
                let received = self.recv(&mut desk.inbox[..want]);
                if let Received::Bytes(n) = received {
                    *left -= n as u64;
                }
                (received, *left == 0)
            }
        };
        match (received, complete) {
            (Received::End, _) => false,
            (received, false) => {
                self.incoming = Some(incoming);
                matches!(received, Received::Bytes(_))
            }
            (_, true) => {
                self.complete(desk, incoming);
                true
            }
        }
    }

    pub(super) fn complete(&mut self, desk: &mut Desk, incoming: Incoming) {
        let Phase::Transmission(served) = &self.phase else { return };
        let Incoming { request, into } = incoming;
        match into {
            Into::Nowhere { reply, .. } => {
                desk.gather.put(&self.link, |out| out.extend_from_slice(&reply));
            }
            Into::Buffer { buffer, share, .. } => {
                let writer = ReplyWriter::new(served.session.mode, &request);
                let mut run =
                    Run { served, link: &self.link, gather: &mut desk.gather, request, writer };
                run.execute(Payload::Owned(buffer, share));
            }
        }
    }
}
