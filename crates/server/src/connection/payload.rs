//! Payloads that do not come with their request in one piece: received into a buffer of their own,
//! straight into a device that can do that, or past it when the request was refused.

use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Instant;

use device::{Buffer, Receive, Wait};
use wire::{Command, ErrorCode, ReplyWriter, Request};

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
    /// Straight into the device, as it arrives.
    Device {
        receiver: Arc<dyn Receive>,
        offset: u64,
        left: usize,
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
        if self.begin_in_device(served, request, there) {
            return None;
        }
        let mut buffer = served.buffers.take(len);
        buffer[..there.len()].copy_from_slice(there);
        let share = Share::take(&served.budget, request.payload);
        let into = Into::Buffer { buffer, filled: there.len(), share };
        self.incoming = Some(Incoming { request: *request, into });
        None
    }

    /// Lets a long write go straight into the device; `there` is what has come with the header.
    /// The answer: whether it does.
    fn begin_in_device(&mut self, served: &Served, request: &Request, there: &[u8]) -> bool {
        let begun = there.len() as u64;
        let Ok(left) = usize::try_from(request.payload - begun) else { return false };
        if left as u64 <= LONG_PAYLOAD
            || request.kind() != Some(Command::Write)
            || served.edge.info().wait != Wait::Never
        {
            return false;
        }
        let device = served.edge.device();
        let Some(receiver) = device.receiver(request.offset, request.payload) else { return false };
        if served.edge.write(there, request.offset, false).is_err() {
            return false;
        }
        let into = Into::Device { receiver, offset: request.offset + begun, left };
        self.incoming = Some(Incoming { request: *request, into });
        true
    }

    /// Receives more of a payload straight into the device. When the device has no room for it
    /// after all, the rest is read past, and the reply is an error.
    fn receive_in_device(&mut self, incoming: &mut Incoming) -> (Received, bool) {
        let Into::Device { receiver, offset, left } = &mut incoming.into else {
            return (Received::Nothing, false);
        };
        loop {
            match receiver.receive(self.link.socket(), *offset, *left) {
                Ok(0) => {
                    self.hang_up();
                    return (Received::End, false);
                }
                Ok(n) => {
                    self.moved = Instant::now();
                    *offset += n as u64;
                    *left -= n.min(*left);
                    return (Received::Bytes(n), *left == 0);
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => return (Received::Nothing, false),
                Err(e) if is_connection(&e) => {
                    self.link.abandon();
                    return (Received::End, false);
                }
                Err(_) => {
                    let mut reply = Vec::new();
                    let Phase::Transmission(served) = &self.phase else {
                        return (Received::End, false);
                    };
                    let writer = ReplyWriter::new(served.session.mode, &incoming.request);
                    writer.error(ErrorCode::ENOSPC, "no room in memory", &mut reply);
                    incoming.into = Into::Nowhere { left: *left as u64, reply };
                    return (Received::Bytes(0), false);
                }
            }
        }
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
            Into::Device { .. } => self.receive_in_device(&mut incoming),
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
            Into::Device { .. } => {
                let writer = ReplyWriter::new(served.session.mode, &request);
                let mut run =
                    Run { served, link: &self.link, gather: &mut desk.gather, request, writer };
                run.received();
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

/// Whether an error is the connection's own, and not that of the memory it was to fill.
fn is_connection(e: &std::io::Error) -> bool {
    use ErrorKind as K;
    matches!(
        e.kind(),
        K::BrokenPipe | K::ConnectionAborted | K::ConnectionReset | K::NotConnected | K::TimedOut
    )
}
