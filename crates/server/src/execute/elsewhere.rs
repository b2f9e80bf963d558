//! Operations that a reactor does not run: where they run instead, and the reply when they end.

use std::sync::Arc;
use std::time::Instant;

use device::{Done, Edge, Error, ErrorKind, Fault, Operation, OperationKind, Outcome, Result};
use runtime::{Wanted, has_time, taking_time};
use serving::Share;
use wire::{ReplyWriter, Request};

use super::status::Survey;
use super::{FLOOR, RequestRun, Served, error_code, is_drop, kind};
use crate::link::{Link, Out};

/// A reactor does not even submit operations on more bytes than this: a filter may run them at
/// once.
const LONG_WORK: u64 = 16 << 20;

/// Starts an operation for a client. `done` is called from any thread, or dropped if the client has
/// gone before its turn comes.
pub(crate) fn start(edge: &Edge, link: &Arc<Link>, operation: Operation, done: Done) {
    let behalf = link.behalf();
    if has_time() || work_of(&operation) <= LONG_WORK {
        return behalf.run(|| edge.submit(operation, done));
    }
    let (edge, link, pool) = (edge.clone(), link.clone(), edge.pool().clone());
    behalf.run(|| {
        pool.run(move || {
            if link.is_wanted() {
                start(&edge, &link, operation, done);
            }
        });
    });
}

/// How many bytes an operation has to process. The map of a range needs none of its bytes.
fn work_of(operation: &Operation) -> u64 {
    match operation.kind() {
        OperationKind::Resolve | OperationKind::Status => 0,
        _ => operation.range().map_or(0, |(_, len)| len),
    }
}

/// The same; on a thread that may block, the operation may run here.
pub(super) fn go_on(edge: &Edge, link: &Arc<Link>, operation: Operation, done: Done) {
    if has_time() {
        taking_time(|| start(edge, link, operation, done));
    } else {
        start(edge, link, operation, done);
    }
}

impl Wanted for Link {
    fn is_wanted(&self) -> bool {
        !self.is_broken()
    }
}

/// A device has answered another question.
pub(super) fn senseless() -> Error {
    Error::new(ErrorKind::Io, Fault::Us, "the device gave an answer that makes no sense")
}

/// What is needed to answer a request when its operation ends elsewhere. A request whose `Ending`
/// is dropped without an answer (a panic ended its work) is answered with an error.
pub(super) struct Ending {
    pub(super) served: Arc<Served>,
    pub(super) link: Arc<Link>,
    pub(super) writer: ReplyWriter,
    pub(super) request: Request,
    /// Of a block status.
    pub(super) survey: Survey,
    bytes: u64,
    /// For the bytes that were allocated when the request came; kept with the reply's data.
    share: Option<Share>,
    begun: Instant,
    answered: bool,
}

impl Ending {
    pub(super) fn begin(run: &mut RequestRun<'_>, bytes: u64, share: Option<Share>) -> Self {
        run.ends = false;
        let bytes = bytes.max(FLOOR);
        run.link.begin(bytes);
        let share = share.or_else(|| Some(Share::take(&run.served.account, bytes)));
        Self {
            served: run.served.clone(),
            link: run.link.clone(),
            writer: run.writer,
            request: run.request,
            survey: Survey::default(),
            bytes,
            share,
            begun: run.begun,
            answered: false,
        }
    }

    /// Starts an operation; the reply follows when it ends.
    pub(super) fn submit(self, operation: Operation) {
        let (edge, link) = (self.served.edge.clone(), self.link.clone());
        start(&edge, &link, operation, Box::new(move |result| self.finish(result)));
    }

    /// Whether the client has gone. Then its operations are not begun: a client that reconnected
    /// may have repeated them, and changed the same bytes since.
    fn is_moot(&self) -> bool {
        self.link.is_broken()
    }

    pub(super) fn finish(mut self, result: Result<Outcome>) {
        match result {
            Ok(told @ (Outcome::Extents(_) | Outcome::Status(_))) => {
                self.survey.put(&self.served, &self.request, told);
                match self.survey.next(&self.request) {
                    Some(question) => self.submit(question),
                    None => {
                        let mut reply = Vec::new();
                        self.survey.encode(&self.writer, &mut reply);
                        self.end(vec![Out::Bytes(reply)]);
                    }
                }
            }
            other => {
                let pieces = self.pieces(other);
                self.end(pieces);
            }
        }
    }

    fn count(&self) {
        self.served.tally.answered(kind(&self.request), 1, self.begun.elapsed());
    }

    fn pieces(&mut self, result: Result<Outcome>) -> Vec<Out> {
        let mut head = Vec::with_capacity(64);
        let mut data = None;
        match result {
            Ok(Outcome::Read(buffer)) if buffer.len() as u64 == self.request.length => {
                let len = u32::try_from(buffer.len()).unwrap_or(u32::MAX);
                self.writer.read_data(self.request.offset, len, true, &mut head);
                let len = buffer.len() as u64;
                let share =
                    self.share.take().unwrap_or_else(|| Share::take(&self.served.account, len));
                data = Some(Out::Data(buffer, share));
            }
            Ok(Outcome::Done) => self.writer.done(&mut head),
            Err(e) if is_drop(&e) => self.link.abandon(),
            other => {
                let e = other.err().unwrap_or_else(senseless);
                self.served.tell(&self.request, &e);
                self.served.refused(error_code(&e));
                self.writer.error(error_code(&e), &e.without_names(), &mut head);
            }
        }
        std::iter::once(Out::Bytes(head)).chain(data).collect()
    }

    pub(super) fn end(mut self, pieces: Vec<Out>) {
        self.answered = true;
        self.count();
        self.link.end(self.bytes, pieces);
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        if !self.answered {
            self.count();
            let lost = Error::new(ErrorKind::Io, Fault::Us, "the request was given up");
            let pieces = if self.is_moot() { Vec::new() } else { self.pieces(Err(lost)) };
            self.link.end(self.bytes, pieces);
        }
    }
}
