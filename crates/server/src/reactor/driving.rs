//! The threads that drive reactors. After each turn they do the quick work that came up in it,
//! writes to disks, while the reactor lies in its seat (`runtime::Cover`): when a write does not
//! come back, another thread drives the reactor on. The reply is then given to it as replies of the
//! pool are, and the thread ends.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use runtime::{BegunJob, Cover, QuickJob, contained, deferring};

use super::{Due, Reactor, TICK};
use crate::shared::StillRunning;

/// After so many panics outside a connection's turn a reactor rests before it goes on.
const RESCUES: usize = 16;

/// After so much quick work the replies so far are sent: the client goes on while the rest is done.
const PORTION: Duration = Duration::from_micros(40);

/// A thread, and the reactor that it drives for as long as it has it.
pub(crate) struct Driver {
    reactor: Option<Box<Reactor>>,
    cover: Arc<Cover<Box<Reactor>>>,
    _running: StillRunning,
}

impl Driver {
    pub(crate) fn of(reactor: Box<Reactor>) -> Self {
        let cover = reactor.cover.clone();
        Self { cover, _running: StillRunning::new(reactor.shared.clone()), reactor: Some(reactor) }
    }

    /// Goes on with a reactor whose thread has not come back from a turn.
    pub(crate) fn take_over(reactor: Box<Reactor>) {
        Self::of(reactor).run();
    }

    pub(crate) fn run(mut self) {
        // Turns contain their own panics; should anything else panic, the connections that it may
        // have left in disorder end, and the thread goes on: as long as the server does not stop,
        // it is given new ones.
        let has_ended = |reactor: &Reactor| reactor.shared.stopping.load(Ordering::SeqCst);
        let may_end = |me: &Self| me.reactor.as_deref().is_none_or(has_ended);
        let close = |me: &mut Self| me.reactor.iter_mut().for_each(|reactor| reactor.close_all());
        go_on(&mut self, Self::react, close, may_end, TICK);
    }

    /// Until the server stops, or another thread drives the reactor.
    fn react(&mut self) {
        // What the last thread had not come to when the reactor was taken from it. Nothing else
        // may bring it up again: its client waits for the reply.
        self.quick_work();
        self.turns();
        while let Some(reactor) = &mut self.reactor {
            if !reactor.look() {
                return;
            }
            self.turns();
            self.reactor.iter_mut().for_each(|reactor| reactor.look_again());
            self.turns();
            if self.reactor.as_mut().is_none_or(|reactor| reactor.tidy()) {
                return;
            }
        }
    }

    fn turns(&mut self) {
        let next = |me: &mut Self| me.reactor.as_mut()?.due.pop_front();
        while let Some(due) = next(self) {
            self.turn(due);
        }
    }

    fn turn(&mut self, due: Due) {
        self.reactor.iter_mut().for_each(|reactor| reactor.turn(due));
        self.quick_work();
    }

    /// Does the quick work that came up, for as long as it has the reactor.
    fn quick_work(&mut self) {
        let next = |me: &mut Self| me.reactor.as_mut()?.deferred.pop_front();
        let mut begun = Instant::now();
        while let Some(work) = next(self) {
            if begun.elapsed() >= PORTION {
                self.reactor.iter_mut().for_each(|reactor| reactor.reply());
                begun = Instant::now();
            }
            if !self.cover.is_watched() {
                work.hand_over();
            } else if let Some(work) = work.begin() {
                self.step(work);
            }
        }
    }

    /// Does work that may stall, and loses the reactor if it does.
    fn step(&mut self, work: BegunJob) {
        let Some(reactor) = self.reactor.take() else { return };
        let (number, step) = (reactor.me, || deferring(|| work.run()).1);
        let (more, reactor) = self.cover.step(number, reactor, step);
        self.reactor = reactor;
        match &mut self.reactor {
            Some(reactor) => reactor.deferred.extend(more),
            None => more.into_iter().for_each(QuickJob::hand_over),
        }
    }
}

/// Does `work` until it ends by itself; when it panics it is done again, once `tidy` has cleaned
/// up. Where that happens again and again there is a `rest` between, so that it does not take a
/// processor, and it ends once it `may_end`.
fn go_on<T>(
    on: &mut T,
    work: impl Fn(&mut T),
    tidy: impl Fn(&mut T),
    may_end: impl Fn(&T) -> bool,
    rest: Duration,
) {
    let mut panics = 0;
    while contained("a reactor", || work(on)).is_err() {
        // What is not closed now, it tries again.
        let _ = contained("a reactor", || tidy(on));
        panics += 1;
        if panics >= RESCUES {
            if may_end(on) {
                return;
            }
            std::thread::sleep(rest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reactor_that_panics_goes_on_for_as_long_as_there_may_be_clients() {
        let (mut left, rest) = (3 * RESCUES, Duration::from_millis(1));
        let work = |left: &mut usize| {
            *left -= 1;
            assert_eq!(*left, 0, "a panic of a test");
        };
        go_on(&mut left, work, |_| {}, |_| false, rest);
        assert_eq!(left, 0, "all of them were survived");
        let mut left = 3 * RESCUES;
        go_on(&mut left, work, |_| panic!("a panic of a test"), |_| true, rest);
        assert_eq!(left, 2 * RESCUES, "it ends when the server stops");
    }
}
