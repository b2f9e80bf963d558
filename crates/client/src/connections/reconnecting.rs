//! Making connections: further ones in the background, and lost ones again.
//!
//! There is one set of timers for all of them, and one attempt at a time. A connection that is made
//! after one was lost leads to the same server if one of the others answers afterwards. If none
//! does, it may be another server, or the same one after a crash: the epoch grows, and connections
//! without an answer are given up. One that is made only because more may help waits for no answer
//! of the others (`doubt`). Before it is used, an export that comes back must be described as
//! before, and have the same bytes where canaries are.

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use device::{Buffer, Error, ErrorKind, Fault, Operation, Outcome, Result};

use super::Shared;
use super::care::Care;
use super::connection::SharedConnection;
use super::order::{Submission, Whose};
use super::same::check_same;
use crate::backoff;
use crate::reach::ReadyConnection;

/// How long a connection may take to prove that it is alive, and a disk that it is the same.
pub(super) const PROOF: Duration = Duration::from_secs(5);
/// The same for one with many requests before, as long as bytes move there.
const LONG_PROOF: Duration = Duration::from_secs(300);
/// Requests that are not to be repeated.
const NEVER: u32 = u32::MAX;

/// The state of making connections.
#[derive(Debug, Default)]
pub(crate) struct Establishing {
    /// How many there should be.
    pub(crate) wanted: usize,
    /// An attempt runs, or will.
    pub(crate) trying: bool,
    /// How many failed in a row.
    failed: u32,
    /// How many connections were lost, and how many when all were last asked for an answer.
    lost: u64,
    looked: u64,
    /// The server has shown that it allows only one.
    pub(crate) alone: bool,
    /// A timer checks whether one is enough again.
    pub(crate) looks_for_quiet: bool,
}

/// Why a connection was not accepted.
pub(crate) enum Refused {
    /// It leads to another disk.
    Another(Error),
    /// The server has another disk for each client, or allows one client: further attempts are
    /// useless.
    Alone(Error),
    /// It is unusable; the next one may not be.
    Useless(Error),
}

impl Refused {
    pub(crate) fn error(self) -> Error {
        match self {
            Self::Another(e) | Self::Alone(e) | Self::Useless(e) => e,
        }
    }
}

impl Shared {
    /// Sets how many connections there should be.
    pub(crate) fn want(self: &Arc<Self>, number: usize) {
        let mut state = self.state.lock();
        state.making.wanted = state.making.wanted.max(number.min(self.most));
        drop(state);
        self.make_more();
    }

    /// A connection was lost.
    pub(crate) fn lost_one(self: &Arc<Self>) {
        if self.reconnects() {
            let mut list = self.list.lock();
            let over: Vec<_> = list.extract_if(.., |connection| connection.is_over()).collect();
            self.trust_the_rest(&list);
            drop(list);
            self.state.lock().making.lost += over.len() as u64;
            self.let_go(over);
            self.make_more();
        }
    }

    /// Keeps unusable connections until they have sent the replies that they owe.
    pub(super) fn let_go(&self, over: Vec<Arc<SharedConnection>>) {
        let mut leaving = self.leaving.lock();
        leaving.extend(over);
        let done = leaving.extract_if(.., |connection| connection.under_way() == 0).collect();
        drop(leaving);
        // Not under the lock: this may drop the last reference.
        drop::<Vec<_>>(done);
    }

    /// Starts to make connections if there are too few.
    fn make_more(self: &Arc<Self>) {
        let have = self.list.lock().len();
        let mut state = self.state.lock();
        if state.making.trying
            || state.closed
            || state.another.is_some()
            || have >= state.making.wanted
        {
            return;
        }
        state.making.trying = true;
        drop(state);
        self.attempt();
    }

    fn attempt(self: &Arc<Self>) {
        let weak = Arc::downgrade(self);
        self.upstream.elsewhere(move || {
            if let Some(shared) = weak.upgrade() {
                let came =
                    shared.upstream.connect_within(shared.at_most()).map_err(Refused::Useless);
                let came = came.and_then(|connected| shared.admit(connected));
                shared.tried(came.map_err(|refused| shared.doubted(refused)));
            }
        });
    }

    /// An attempt has ended.
    fn tried(self: &Arc<Self>, came: std::result::Result<(), Refused>) {
        let mut state = self.state.lock();
        match came {
            Ok(()) => {
                (state.making.failed, state.making.trying, state.last) = (0, false, None);
                drop(state);
                self.changed.notify_all();
                self.make_more();
            }
            Err(Refused::Alone(e)) => {
                (state.making.trying, state.last) = (false, Some(e));
                (state.making.wanted, state.making.alone) = (1, true);
                drop(state);
                self.changed.notify_all();
                // The last connection may have been lost meanwhile.
                self.make_more();
            }
            Err(Refused::Another(e)) => {
                (state.making.trying, state.last) = (false, Some(e.duplicate()));
                state.another = Some(e.duplicate());
                drop(state);
                self.changed.notify_all();
                if self.choose().is_none() {
                    self.fail_waiting(&e);
                }
            }
            Err(Refused::Useless(e)) => {
                state.last = Some(e);
                state.making.failed = state.making.failed.saturating_add(1);
                let failed = state.making.failed;
                state.making.trying = self.reconnects() && !state.closed;
                if !state.making.trying {
                    state.making.wanted = 0;
                    drop(state);
                    return self.changed.notify_all();
                }
                drop(state);
                self.changed.notify_all();
                let weak = Arc::downgrade(self);
                self.upstream.timers.after(backoff::wait(failed), move || {
                    if let Some(shared) = weak.upgrade() {
                        // There may be enough by now.
                        shared.state.lock().making.trying = false;
                        shared.make_more();
                    }
                });
            }
        }
    }

    /// Adds a connection for all callers, if it leads to the right disk.
    pub(crate) fn admit(
        self: &Arc<Self>,
        connected: ReadyConnection,
    ) -> std::result::Result<(), Refused> {
        let same = check_same(&self.session, connected.session());
        same.map_err(|e| Refused::Another(e.on(self.name())))?;
        let new = self.adopt(connected);
        let looked =
            if self.reconnects() { self.look_closely(&new) } else { self.look_at_others(&new) };
        let looked = looked.and_then(|()| self.compare(&new));
        if let Err(refused) = looked.and_then(|driven| self.publish(&new, driven)) {
            new.close();
            return Err(refused);
        }
        if !new.is_trusted() {
            self.trust_later(&new);
        }
        if new.is_over() {
            // It was lost before it was in the list, so its loss would not be noticed there.
            self.lost_one();
        }
        self.serve_waiting();
        Ok(())
    }

    /// `driven`: the reactor watches it already.
    fn publish(
        &self,
        new: &Arc<SharedConnection>,
        driven: bool,
    ) -> std::result::Result<(), Refused> {
        let closed = self.state.lock().closed;
        let mut list = self.list.lock();
        // If it reconnects by itself, this one was asked something, and is watched, too.
        if self.is_watched() && !self.reconnects() && !driven {
            let watch = self.upstream.reactor().and_then(|reactor| reactor.add(new));
            watch.map_err(Refused::Useless)?;
        }
        if closed || list.len() >= self.most {
            let action = "connect: the connection is no longer needed";
            let error = Error::new(ErrorKind::Cancelled, Fault::Us, action);
            return Err(Refused::Useless(error.on(self.name())));
        }
        list.push(new.clone());
        // The others may have been lost since they were checked.
        self.trust_the_rest(&list);
        drop(list);
        self.times.fetch_add(1, std::sync::atomic::Ordering::AcqRel);
        Ok(())
    }

    /// Notices which connections are lost: one may not have been checked for a while.
    pub(crate) fn look(&self) {
        // Operations that end now call back, so not under the lock.
        self.all().iter().for_each(|connection| connection.ready());
    }

    /// The check where it reconnects only on request: if any connection is lost, the server may
    /// have restarted, so the epoch grows.
    fn look_at_others(&self, new: &SharedConnection) -> std::result::Result<(), Refused> {
        self.look();
        let others = self.list.lock();
        if others.iter().any(|connection| connection.is_over()) {
            self.keep.grow();
        }
        self.doubts_beside(new, &others);
        Ok(())
    }

    /// Whether the new connection leads to the same server, or at least to the same disk.
    fn look_closely(&self, new: &Arc<SharedConnection>) -> std::result::Result<(), Refused> {
        let watch = self.upstream.reactor().and_then(|reactor| reactor.add(new));
        watch.map_err(Refused::Useless)?;
        let state = self.state.lock();
        let (losses, looked) = (state.making.lost, state.making.looked);
        drop(state);
        let lost = self.listen_to_canaries(new)?;
        if !lost && losses == looked && self.doubts(new) {
            return Ok(());
        }
        let lives = self.prove_others();
        if lost || !lives {
            self.keep.grow();
            self.all().iter().for_each(|one| one.trust(true));
        }
        self.state.lock().making.looked = losses;
        Ok(())
    }

    /// Asks all other connections for an answer, and gives up those that do not answer. Returns
    /// whether a trusted one has.
    fn prove_others(&self) -> bool {
        let others = self.all();
        let asked: Vec<_> =
            others.iter().map(|one| (one.moves(), ask(one, vec![self.first_block()]))).collect();
        let begun = Instant::now();
        let mut lives = false;
        for (other, (moves, answers)) in others.iter().zip(asked) {
            let proved = proves(other, moves, &answers, begun);
            lives |= proved && other.is_trusted();
            if !proved {
                let action =
                    "talk to the server: other connections were lost, and this one is silent";
                other.give_up(Error::new(ErrorKind::TimedOut, Fault::Peer, action));
            }
        }
        lives
    }

    /// Checks the bytes that the disk must have. Returns true if some are missing that the server
    /// may have forgotten.
    fn listen_to_canaries(
        &self,
        new: &Arc<SharedConnection>,
    ) -> std::result::Result<bool, Refused> {
        let canaries = self.keep.canaries.all();
        let answers = ask(new, canaries.iter().map(super::canaries::Canary::range).collect());
        let until = Instant::now() + PROOF;
        let answers = wait_for(&answers, canaries.len(), until).map_err(Refused::Useless)?;
        let mut lost = false;
        for (at, answer) in answers {
            let Some(canary) = canaries.get(at) else { continue };
            let bytes = match answer {
                Ok(Outcome::Read(bytes)) => bytes,
                Ok(_) => continue,
                Err(e) => return Err(Refused::Useless(e)),
            };
            // We may have changed it since.
            if canary.is(&bytes) || !self.keep.canaries.still_has(canary) {
                continue;
            }
            if canary.is_firm() {
                let action = "connect again: this is another disk: its contents differ";
                let error = Error::new(ErrorKind::Changed, Fault::Peer, action);
                return Err(Refused::Another(error.at(canary.range().start).on(self.name())));
            }
            self.keep.canaries.lost(canary);
            lost = true;
        }
        Ok(lost)
    }

    /// Reconnects lost connections. A caller that comes while that is being done shares the result.
    pub(crate) fn reopen(self: &Arc<Self>) -> Result<()> {
        use std::sync::atomic::Ordering::{Acquire, Release};
        let before = self.reopened.load(Acquire);
        let mut last = self.reopening.lock();
        if self.reopened.load(Acquire) == before {
            let done = if self.reconnects() { self.restore() } else { self.replace_lost() };
            *last = done.err();
            self.reopened.fetch_add(1, Release);
        }
        last.as_ref().map_or(Ok(()), |e| Err(e.duplicate()))
    }

    /// Attempts until there is a connection, for as long as requests may wait for one; the others
    /// follow.
    fn restore(self: &Arc<Self>) -> Result<()> {
        let (begun, patience) = {
            let waiting = &self.state.lock().waiting;
            // Requests may have waited for it already.
            let all = if waiting.in_vain { None } else { self.keep.patience };
            (waiting.since.unwrap_or_else(Instant::now), all.unwrap_or_default())
        };
        let mut failed = 0;
        loop {
            let came = self.restore_now();
            let left = patience.saturating_sub(begun.elapsed());
            match came {
                Err(e) if is_lost(&Err(e.duplicate())) || e.kind() == ErrorKind::NotFound => {
                    let state = self.state.lock();
                    if left.is_zero() || state.closed {
                        return Err(e);
                    }
                    failed += 1;
                    // An attempt in the background may be quicker.
                    drop(self.changed.wait_timeout(state, backoff::wait(failed).min(left)));
                }
                done => return done,
            }
        }
    }

    /// One attempt, now, if there is no connection.
    fn restore_now(self: &Arc<Self>) -> Result<()> {
        self.lost_one();
        if self.choose().is_some() {
            return Ok(());
        }
        self.state.lock().another = None;
        let connected = self.upstream.connect()?;
        let admitted = self.admit(connected);
        let came = match admitted {
            // Another thread has made as many as are allowed.
            Err(_) if self.choose().is_some() => Ok(()),
            Err(Refused::Another(e)) => {
                self.state.lock().another = Some(e.duplicate());
                return Err(e);
            }
            other => other.map_err(Refused::error),
        };
        self.make_more();
        came
    }

    fn replace_lost(self: &Arc<Self>) -> Result<()> {
        self.state.lock().another = None;
        let mut lost: Vec<_> = self.list.lock().iter().filter(|c| c.is_over()).cloned().collect();
        if !self.promised {
            self.forget_others(&mut lost);
        }
        for (i, old) in lost.iter().enumerate() {
            let connected = self.upstream.connect()?;
            check_same(&self.session, connected.session()).map_err(|e| e.on(self.name()))?;
            let new = self.adopt(connected);
            self.look();
            let mut all = self.list.lock();
            let others: Vec<_> = all.iter().filter(|c| !c.is_over()).cloned().collect();
            // A connection that was just made may be lost again, after others used it.
            let is_new_epoch = i == 0
                || all.iter().any(|c| c.is_over() && !lost.iter().any(|o| Arc::ptr_eq(c, o)));
            if is_new_epoch {
                self.keep.grow();
                if !others.iter().any(|other| other.is_trusted()) {
                    others.iter().for_each(|other| other.trust(true));
                }
            }
            new.trust(others.is_empty() || !self.writes);
            if self.is_watched() {
                self.upstream.reactor()?.add(&new)?;
            }
            match all.iter_mut().find(|c| Arc::ptr_eq(c, old)) {
                Some(place) => *place = new.clone(),
                None => all.push(new.clone()),
            }
            drop(all);
            if !new.is_trusted() {
                self.trust_later(&new);
            }
            self.times.fetch_add(1, std::sync::atomic::Ordering::AcqRel);
            // A server that is shutting down may owe replies that would not be received now.
            old.close();
        }
        Ok(())
    }
}

pub(super) type Answer = (usize, Result<Outcome>);

/// Reads these ranges over one connection and no other.
pub(super) fn ask(
    connection: &Arc<SharedConnection>,
    ranges: Vec<std::ops::Range<u64>>,
) -> std::sync::mpsc::Receiver<Answer> {
    let (tell, told) = channel();
    for (at, range) in ranges.into_iter().enumerate() {
        let tell = tell.clone();
        // The receiver may have gone.
        ask_and_tell(connection, &range, move |outcome| drop(tell.send((at, outcome))));
    }
    told
}

/// Reads a range over one connection and no other, and reports the result.
pub(super) fn ask_and_tell(
    connection: &Arc<SharedConnection>,
    range: &std::ops::Range<u64>,
    tell: impl FnOnce(Result<Outcome>) + Send + 'static,
) {
    let len = usize::try_from(range.end - range.start).unwrap_or(0);
    let operation = Operation::Read { offset: range.start, buffer: Buffer::zeroed(len) };
    let mut order = Submission::new(Whose::Other(Box::new(tell)), Care::none());
    order.losses = NEVER;
    connection.submit(order, operation);
}

pub(super) fn wait_for(
    answers: &std::sync::mpsc::Receiver<Answer>,
    number: usize,
    until: Instant,
) -> Result<Vec<Answer>> {
    runtime::before_waiting();
    let late = || {
        let action = "connect again: the server does not answer";
        Error::new(ErrorKind::TimedOut, Fault::Peer, action)
    };
    let left = || until.saturating_duration_since(Instant::now());
    (0..number).map(|_| answers.recv_timeout(left()).map_err(|_| late())).collect()
}

/// Whether a connection has answered a request that was sent when its counter was `moves`. The
/// answer may come behind many others, so it is waited for while bytes move.
fn proves(
    connection: &Arc<SharedConnection>,
    mut moves: u64,
    answers: &std::sync::mpsc::Receiver<Answer>,
    begun: Instant,
) -> bool {
    let mut until = begun + PROOF;
    loop {
        if let Ok(answers) = wait_for(answers, 1, until) {
            // Any reply will do, also an error.
            return answers.iter().all(|(_, answer)| !is_lost(answer));
        }
        let now = connection.moves();
        if now == moves || connection.is_over() || begun.elapsed() > LONG_PROOF {
            return false;
        }
        (moves, until) = (now, Instant::now() + PROOF);
    }
}

/// Whether the error is not a reply of the server.
pub(super) fn is_lost(answer: &Result<Outcome>) -> bool {
    let lost = [ErrorKind::Disconnected, ErrorKind::Shutdown, ErrorKind::TimedOut];
    answer.as_ref().is_err_and(|e| lost.contains(&e.kind()) || e.kind() == ErrorKind::Protocol)
}
