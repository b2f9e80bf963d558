//! Payloads that do not come with their request in one piece: received straight into the device
//! where that is memory, else into a buffer of their own, or past it when the request was refused.

use device::{Buffer, Window};
use net::Received;
use serving::Share;
use wire::{Command, ReplyWriter, Request};

use super::turn::{part, part_mut};
use super::{Connection, LONG_PAYLOAD, Phase, SMALL, Turn};
use crate::execute::{Payload, RequestRun, Served, kind};

/// How much of a payload is received before the others have their turn, and before it is asked
/// again whether there is room.
const STEP: usize = 1 << 20;

/// A request whose payload is still arriving.
#[derive(Debug)]
pub(super) struct Incoming {
    request: Request,
    into: Into,
}

impl Incoming {
    /// Bytes of memory that it holds.
    pub(super) fn held(&self) -> u64 {
        match &self.into {
            Into::Buffer { buffer, filled, .. } => buffer.taken().max(*filled) as u64,
            Into::Window { .. } | Into::Nowhere { .. } => 0,
        }
    }

    /// Whether something is done once it is there.
    pub(super) fn changes(&self) -> bool {
        !matches!(self.into, Into::Nowhere { .. })
    }

    /// Whether receiving more of it needs memory that was not counted at the start. A small one,
    /// which is served even when memory is short, has all of its buffer from the start.
    pub(super) fn takes_memory(&self) -> bool {
        matches!(&self.into, Into::Buffer { buffer, .. } if buffer.len() as u64 > SMALL)
    }
}

#[derive(Debug)]
pub(super) enum Into {
    Buffer {
        buffer: Buffer,
        filled: usize,
        share: Share,
    },
    /// Straight into the device: written as it arrives.
    Window {
        window: Window,
        filled: usize,
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
        turn: &Turn,
        request: &Request,
        body: usize,
        end: usize,
    ) -> Option<usize> {
        self.header_only = request.payload > LONG_PAYLOAD;
        let there = part(&turn.inbox, body..end);
        let Ok(len) = usize::try_from(request.payload) else { return Some(0) };
        if len <= there.len() {
            return Some(len);
        }
        // Decrypted bytes pass through our memory, and are written in the usual way.
        if request.kind() == Some(Command::Write)
            && !served.session.tls
            && let Some(window) = served.edge.window(request.offset, len)
            && let Ok(filled) = window.put(0, there)
        {
            let into = Into::Window { window, filled };
            self.incoming = Some(Incoming { request: *request, into });
            return None;
        }
        let mut buffer = served.buffers.take(len);
        let Some(start) = buffer.get_mut(..there.len()) else {
            // It is longer than what has arrived.
            self.finish(false);
            return None;
        };
        start.copy_from_slice(there);
        // Memory is counted as it is filled: until then the system has not allocated it, unless the
        // buffer is small or was used before.
        let share = Share::take(self.link.account(), buffer.taken().max(there.len()) as u64);
        let into = Into::Buffer { buffer, filled: there.len(), share };
        self.incoming = Some(Incoming { request: *request, into });
        None
    }

    /// Skips a payload that must not be used. Returns how much of it was there.
    pub(super) fn drain(
        &mut self,
        turn: &mut Turn,
        request: Request,
        reply: Vec<u8>,
        body: usize,
        end: usize,
    ) -> usize {
        let there = (end - body) as u64;
        if request.payload <= there {
            turn.gather.put(&self.link, |out| out.extend_from_slice(&reply));
            return usize::try_from(request.payload).unwrap_or(0);
        }
        let into = Into::Nowhere { left: request.payload - there, reply };
        self.incoming = Some(Incoming { request, into });
        end - body
    }

    /// Receives into a device's own memory. If the system has no memory for the bytes, they cannot
    /// be skipped either, so the connection ends.
    fn recv_into(&mut self, window: &Window, at: usize) -> Received {
        let got = self.link.stream().receive_into(window, at);
        if let Err(e) = got {
            self.voice.failed(format_args!("a write into memory: {e}"));
        }
        self.received(got)
    }

    /// Receives more of a payload. Returns whether the socket may hold more.
    pub(super) fn receive_payload(&mut self, turn: &mut Turn, mut incoming: Incoming) -> bool {
        let (received, complete) = match &mut incoming.into {
            Into::Buffer { buffer, filled, share } => {
                let end = buffer.len().min(*filled + STEP);
                let received = self.recv(part_mut(buffer, *filled..end));
                if let Received::Bytes(n) = received {
                    *filled += n;
                    share.resize(buffer.taken().max(*filled) as u64);
                }
                (received, *filled == buffer.len())
            }
            Into::Window { window, filled } => {
                let received = self.recv_into(window, *filled);
                if let Received::Bytes(n) = received {
                    *filled += n;
                }
                (received, *filled == window.len())
            }
            Into::Nowhere { left, .. } => {
                let want = usize::try_from(*left).unwrap_or(usize::MAX).min(turn.inbox.len());
                let received = self.recv(part_mut(&mut turn.inbox, 0..want));
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
                self.link.account().is_complete();
                self.complete(turn, incoming);
                true
            }
        }
    }

    pub(super) fn complete(&mut self, turn: &mut Turn, incoming: Incoming) {
        let Phase::Transmission(served) = &self.phase else { return };
        let Incoming { request, into } = incoming;
        match into {
            Into::Nowhere { reply, .. } => {
                turn.gather.put(&self.link, |out| out.extend_from_slice(&reply));
            }
            Into::Window { .. } => {
                let writer = ReplyWriter::new(served.session.mode, &request);
                served.begun(&request);
                turn.gather.put(&self.link, |out| writer.done(out));
                turn.answered.add(kind(&request));
            }
            Into::Buffer { buffer, share, .. } => {
                let writer = ReplyWriter::new(served.session.mode, &request);
                let (gather, begun) = (&mut turn.gather, self.active);
                let mut run = RequestRun {
                    served,
                    link: &self.link,
                    gather,
                    request,
                    writer,
                    begun,
                    ends: true,
                };
                if run.execute(Payload::Owned(buffer, share)) {
                    turn.answered.add(kind(&request));
                }
            }
        }
    }
}
