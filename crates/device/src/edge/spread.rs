//! One operation as many pieces, several of them under way at a time.
//!
//! Pieces that end at once are started one after the other, but not without end on a thread that
//! has other things to do (a reactor, the timers): after some of them a thread of the pool goes on.

use runtime::{WorkPool, contained, has_time};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{ZERO_PIECE, zeroes};

use crate::{Done, Edge, Error, ErrorKind, Fault, Operation, Outcome, Result};

/// Pieces under way at a time.
const WIDTH: usize = 16;
/// Pieces of zeroes written as data under way at a time. One: who zeroes much is not in the way of
/// others, and does not look as fast as a device that zeroes in one request. A client that wants
/// more has several requests under way.
const ZEROING: usize = 1;
/// Pieces started in a row on a thread that has other things to do.
const ROW: usize = 64;

/// One of many operations: what to do, and what to do with its outcome.
pub type Piece = (Operation, Arrival);
/// Takes the outcome of a piece that succeeded. It must be short.
pub type Arrival = Option<Box<dyn FnOnce(Outcome) + Send>>;
type Finish = Box<dyn FnOnce(Result<()>) + Send>;

type Submit = Box<dyn Fn(Operation, Done) + Send + Sync>;

struct Spread {
    submit: Submit,
    pool: WorkPool,
    /// Pieces under way at a time.
    width: usize,
    state: Mutex<State>,
}

struct State {
    pieces: Box<dyn Iterator<Item = Piece> + Send>,
    finish: Option<Finish>,
    failed: Option<Error>,
    in_flight: usize,
    /// Somebody starts pieces.
    starting: bool,
}

/// Runs `pieces` on the device of `edge`; then `finish`, with the first failure if there was one. After a
/// failure no more pieces are started, and those under way are waited for.
pub(super) fn spread(
    edge: &Edge,
    pieces: impl Iterator<Item = Piece> + Send + 'static,
    finish: impl FnOnce(Result<()>) + Send + 'static,
) {
    let device = edge.device().clone();
    let submit: Submit = Box::new(move |operation, done| device.submit(operation, done));
    begin(submit, edge.pool(), WIDTH, pieces, finish);
}

impl Edge {
    /// Starts `pieces` on this edge, up to `width` (≥ 1) of them under way at a time, and
    /// returns at once; then `finish`, with the first failure if there was one. After a failure
    /// no more are started, and those under way are waited for.
    pub fn submit_all(
        &self,
        pieces: impl Iterator<Item = Piece> + Send + 'static,
        width: usize,
        finish: impl FnOnce(Result<()>) + Send + 'static,
    ) {
        let edge = self.clone();
        let submit: Submit = Box::new(move |operation, done| edge.submit(operation, done));
        begin(submit, self.pool(), width.max(1), pieces, finish);
    }

    /// Writes zeroes as data, whatever the device could do instead, and returns at once; then
    /// `done`. Durable by then if `fua`.
    pub fn submit_zeroes(&self, offset: u64, len: u64, fua: bool, done: Done) {
        let edge = self.clone();
        let each = fua && self.needs_fua_each();
        let pieces = zero_pieces((offset, len), self.longest(), each);
        self.submit_all(pieces, ZEROING, move |result| match result {
            Ok(()) if fua && !each => edge.submit(Operation::Flush, done),
            other => done(other.map(|()| Outcome::Done)),
        });
    }
}

/// Zeroes whole blocks of the device of `edge` by writing them, in pieces, each with FUA if `fua`.
pub(super) fn spread_zeroes(
    edge: &Edge,
    (offset, len): (u64, u64),
    fua: bool,
    finish: impl FnOnce(Result<()>) + Send + 'static,
) {
    let device = edge.device().clone();
    let submit: Submit = Box::new(move |operation, done| device.submit(operation, done));
    let pieces = zero_pieces((offset, len), edge.longest(), fua);
    begin(submit, edge.pool(), ZEROING, pieces, finish);
}

fn zero_pieces(
    (offset, len): (u64, u64),
    longest: usize,
    fua: bool,
) -> impl Iterator<Item = Piece> + Send {
    let step = longest.clamp(1, ZERO_PIECE) as u64;
    (0..len.div_ceil(step)).filter_map(move |i| -> Option<Piece> {
        let at = i * step;
        let n = usize::try_from(step.min(len - at)).ok()?;
        Some((Operation::Write { offset: offset + at, data: zeroes(n)?, fua }, None))
    })
}

fn begin(
    submit: Submit,
    pool: &WorkPool,
    width: usize,
    pieces: impl Iterator<Item = Piece> + Send + 'static,
    finish: impl FnOnce(Result<()>) + Send + 'static,
) {
    let state = State {
        pieces: Box::new(pieces),
        finish: Some(Box::new(finish)),
        failed: None,
        in_flight: 0,
        starting: false,
    };
    let (pool, state) = (pool.clone(), Mutex::new(state));
    Arc::new(Spread { submit, pool, width, state }).start();
}

/// The answer of a piece. One that is dropped instead is a failure, so that all come to an end.
struct Owed {
    spread: Arc<Spread>,
    arrival: Option<Arrival>,
}

impl Owed {
    fn keep(mut self, result: Result<Outcome>) {
        if let Some(arrival) = self.arrival.take() {
            self.spread.clone().ended(arrival, result);
        }
    }
}

impl Drop for Owed {
    fn drop(&mut self) {
        if self.arrival.take().is_some() {
            let action = "a piece of a request was not answered; this is a defect";
            let lost = Error::new(ErrorKind::Io, Fault::Us, action);
            self.spread.clone().ended(None, Err(lost));
        }
    }
}

impl Spread {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts what may be started. Pieces that end at once come back here while they are being
    /// started, so this is a loop and not a recursion.
    fn start(self: Arc<Self>) {
        let mut state = self.lock();
        if state.starting {
            return;
        }
        state.starting = true;
        let mut row = 0;
        while state.failed.is_none() && state.in_flight < self.width {
            row += 1;
            if row > ROW && !has_time() {
                state.starting = false;
                drop(state);
                let pool = self.pool.clone();
                return pool.run(move || self.start());
            }
            let Some((operation, arrival)) = state.pieces.next() else { break };
            state.in_flight += 1;
            drop(state);
            let owed = Owed { spread: self.clone(), arrival: Some(arrival) };
            let done: Done = Box::new(move |result| owed.keep(result));
            // If this panics, what was owed is dropped, and that is the end of the piece.
            let _ = contained("a piece of a request", || (self.submit)(operation, done));
            state = self.lock();
        }
        state.starting = false;
        // It is not the width that stopped us if nothing is under way.
        if state.in_flight == 0
            && let Some(finish) = state.finish.take()
        {
            let result = state.failed.take().map_or(Ok(()), Err);
            drop(state);
            finish(result);
        }
    }

    fn ended(self: Arc<Self>, arrival: Arrival, result: Result<Outcome>) {
        let failed = match (result, arrival) {
            (Ok(outcome), Some(arrival)) => {
                contained("a piece", || arrival(outcome)).err().map(Error::from)
            }
            (Ok(_), None) => None,
            (Err(e), _) => Some(e),
        };
        let mut state = self.lock();
        state.in_flight -= 1;
        if state.failed.is_none() {
            state.failed = failed;
        }
        drop(state);
        self.start();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;
    use crate::{Device, Info, model::Model};

    /// Panics when it is asked to read, or forgets the question.
    struct Broken(Model, bool);

    impl Device for Broken {
        fn info(&self) -> &Info {
            self.0.info()
        }
        fn read_at(&self, _buf: &mut [u8], _offset: u64) -> Result<()> {
            Ok(())
        }
        fn write_at(&self, _data: &[u8], _offset: u64, _fua: bool) -> Result<()> {
            Ok(())
        }
        fn flush(&self) -> Result<()> {
            Ok(())
        }
        fn submit(&self, operation: Operation, done: Done) {
            if let Operation::Read { .. } = operation {
                assert!(!self.1, "on purpose");
                return drop(done);
            }
            done(Ok(Outcome::Done));
        }
    }

    #[test]
    fn a_piece_that_panics_or_is_forgotten_is_a_failure_of_the_whole() {
        for panics in [true, false] {
            let device = Arc::new(Broken(Model::new(512), panics));
            let edge = Edge::new(device, WorkPool::new(1));
            let (tx, rx) = mpsc::channel();
            let piece = |i: u64| -> Piece {
                let read = Operation::Read { offset: i, buffer: crate::Buffer::zeroed(1) };
                (if i == 3 { read } else { Operation::Flush }, None)
            };
            spread(&edge, (0..9).map(piece), move |result| tx.send(result.is_err()).unwrap());
            assert_eq!(rx.try_recv(), Ok(true));
        }
    }

    #[test]
    fn a_panic_of_who_takes_the_outcome_is_a_failure_too() {
        let edge = Edge::new(Arc::new(Model::new(512)), WorkPool::new(1));
        let (tx, rx) = mpsc::channel();
        let piece = || -> Piece { (Operation::Flush, Some(Box::new(|_| panic!("on purpose")))) };
        spread(&edge, std::iter::repeat_with(piece).take(3), move |result| {
            tx.send(result.is_err()).unwrap();
        });
        assert_eq!(rx.try_recv(), Ok(true));
    }
}
