//! A range of a disk that a verb changes: its arguments, and doing it in several requests.
//!
//! A range longer than one request takes is cut, and several are in flight at a time. Every request
//! is waited for, also after one has failed, so that the result can be reported; only after a
//! signal to stop the wait is short.

use std::collections::BTreeSet;
use std::io::Write;
use std::ops::Range;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use ::copy::{CopyCounts, Report};
use clap::{ArgMatches, Command};
use device::Result as Answered;
use device::{Edge, Error, ErrorKind, Fault, Info, Operation, Outcome as Answer};
use disk::{Created, Creation, Made, OpenOptions, Stack};
use runtime::Context;
use serde_json::json;

use crate::arguments::{disk, json_flag, named, size, value};
use crate::failure::{ExitResult, Failure};
use crate::force;
use crate::output::VERSION;
use crate::progress::{self, Counting, Display, Show, SignalEvent, Signals};
use crate::{output, patience};

/// Requests in flight at a time.
const AT_ONCE: usize = 8;
/// Where a device can only write zeroes, requests are of this many bytes: several are then written
/// side by side, and the progress is visible.
const WRITTEN: u64 = 8 << 20;
/// How long to wait for requests in flight after a signal to stop.
const PATIENCE: Duration = Duration::from_secs(1);

/// The arguments that name a range.
pub(crate) fn arguments(command: Command) -> Command {
    let command = command
        .arg(disk())
        .arg(value("-o, --offset SIZE", "Where it begins [default: 0]"))
        .arg(value("-l, --length SIZE", "How long it is [default: to the end]"))
        .arg(force::argument())
        .arg(json_flag().help("Print what was done as JSON"));
    progress::arguments(patience::arguments(command))
}

/// A disk that is open for writing, and a range inside it.
pub(crate) struct RangeTarget {
    pub(crate) edge: Edge,
    pub(crate) range: Range<u64>,
    json: bool,
    /// A file that became longer for the range, or was created: it gets its length in the end.
    grown: Option<Option<Box<dyn Made>>>,
}

/// Why a range is not complete, and how much of it is done.
pub(crate) struct Undone {
    pub(crate) error: Error,
    /// Bytes that were done.
    pub(crate) done: u64,
    /// The first byte that may not be done.
    pub(crate) first: u64,
    /// The exit status, if it was stopped by a signal.
    pub(crate) stopped: Option<u8>,
}

/// A range that is being worked on.
struct Run {
    answers: (Sender<Ended>, Receiver<Ended>),
    signals: Signals,
    /// Written to when a request has ended.
    bell: Arc<UnixStream>,
    began: Instant,
    total: u64,
    /// The offsets of requests in flight.
    under_way: BTreeSet<u64>,
    count: usize,
    done: u64,
    failed: Option<(u64, Error)>,
    /// When the signal to stop came, and the exit status for it.
    stopping: Option<(Instant, u8)>,
}

type Ended = (Range<u64>, Answered<Answer>);

impl Run {
    fn new(total: u64) -> Result<Self, Failure> {
        let (signals, bell) = Signals::watch()?;
        Ok(Self {
            answers: channel(),
            signals,
            bell: Arc::new(bell),
            began: Instant::now(),
            total,
            under_way: BTreeSet::new(),
            count: 0,
            done: 0,
            failed: None,
            stopping: None,
        })
    }

    fn start(&mut self, edge: &Edge, piece: Range<u64>, operation: Operation) {
        let (tx, bell) = (self.answers.0.clone(), self.bell.clone());
        self.under_way.insert(piece.start);
        self.count += 1;
        let then = move |outcome| {
            // The receiver has gone when it was stopped.
            let _ = tx.send((piece, outcome));
            let _ = (&*bell).write(&[1]);
        };
        edge.submit(operation, Box::new(then));
    }

    /// Takes the results that have come.
    fn harvest(&mut self, edge: &Edge) {
        while let Ok((piece, outcome)) = self.answers.1.try_recv() {
            self.under_way.remove(&piece.start);
            match outcome {
                Ok(_) => self.done += piece.end - piece.start,
                Err(e) if self.failed.as_ref().is_none_or(|(at, _)| piece.start < *at) => {
                    let e = e.on(&edge.info().name);
                    let e = if piece.is_empty() { e } else { e.at(piece.start) };
                    self.failed = Some((piece.start, e));
                }
                Err(_) => {}
            }
        }
    }

    fn now(&self) -> CopyCounts {
        let elapsed = self.began.elapsed();
        CopyCounts { total: self.total, zeroed: self.done, elapsed, ..CopyCounts::default() }
    }

    /// Waits for a result, a signal, or the time to show the progress.
    fn wait(&mut self, display: &mut Display) {
        let mut period = display.period();
        if self.stopping.is_some() {
            period = Some(period.unwrap_or(PATIENCE).min(PATIENCE / 10));
        }
        match self.signals.next(period) {
            Some(SignalEvent::Over) => {}
            Some(SignalEvent::Show) => display.line(&self.now()),
            Some(SignalEvent::Stop(code)) => {
                // After a second signal it does not wait at all.
                let since = self.stopping.map_or(Some(Instant::now()), |_| None);
                let since = since.or_else(|| self.began.checked_sub(PATIENCE));
                self.stopping = Some((since.unwrap_or(self.began), code));
            }
            None => display.tick(&self.now()),
        }
    }

    fn goes_on(&self) -> bool {
        self.failed.is_none() && self.stopping.is_none()
    }

    fn is_given_up(&self) -> bool {
        self.stopping.is_some_and(|(since, _)| since.elapsed() >= PATIENCE)
    }
}

impl RangeTarget {
    /// Reads the arguments and opens the disk: as it is, whatever its bytes mean. `what` is done
    /// to it.
    pub(crate) fn open(matches: &ArgMatches, what: &str) -> Result<Self, Failure> {
        let context = Context::default().with_patience(patience::asked(matches)?);
        Self::open_as_it_is(matches, what, &context)
    }

    fn open_as_it_is(matches: &ArgMatches, what: &str, context: &Context) -> Result<Self, Failure> {
        let (offset, length) = wanted(matches)?;
        let (disk, options) = (named(matches)?, options(matches));
        force::refuse_used(&disk, options.force)?;
        let edge = disk::open(&disk, &Stack::default(), &options, context)?.edge;
        let size = edge.info().size;
        if offset > size || length.is_some_and(|length| length > size - offset) {
            let option = if offset > size { "offset" } else { "length" };
            let end = format!("beyond the end of the disk ({size} bytes)");
            return Err(Failure::new(format!("{disk}: {what}: --{option} is {end}")));
        }
        let length = length.unwrap_or(size - offset);
        let json = matches.get_flag("json");
        Ok(Self { edge, range: offset..offset + length, json, grown: None })
    }

    /// The same, but a missing file is created, and one that ends inside the range becomes longer.
    pub(crate) fn open_or_grow(matches: &ArgMatches, what: &str) -> Result<Self, Failure> {
        let (offset, length) = wanted(matches)?;
        let context = Context::default().with_patience(patience::asked(matches)?);
        let disk = named(matches)?;
        let end = length.and_then(|length| offset.checked_add(length));
        let (Some(end), true) = (end, disk.may_be_made()) else {
            return Self::open_as_it_is(matches, what, &context);
        };
        let found = disk::open(&disk, &Stack::default(), &OpenOptions::read_only(), &context);
        let is_short = match found {
            Ok(found) => found.edge.info().size < end,
            Err(e) => e.kind() == ErrorKind::NotFound,
        };
        if !is_short {
            return Self::open_as_it_is(matches, what, &context);
        }
        let creation = Creation::of(end, options(matches));
        force::refuse_used(&disk, creation.options.force)?;
        let created = disk::create(&disk, &Stack::default(), &creation, &context)?;
        let json = matches.get_flag("json");
        let Created { edge, made, .. } = created;
        Ok(Self { edge, range: offset..end, json, grown: Some(made) })
    }

    /// The length of the range in bytes.
    pub(crate) fn length(&self) -> u64 {
        self.range.end - self.range.start
    }

    /// Runs the `operation` of an offset and a length over all of the range, and shows the
    /// progress. The first request goes alone if it is to show whether it can be done at all.
    fn all(
        &self,
        run: &mut Run,
        operation: impl Fn(u64, u64) -> Operation,
        first_alone: bool,
        display: &mut Display,
    ) -> Result<usize, Box<Undone>> {
        let undone = |error, done, first, stopped| Undone { error, done, first, stopped };
        let mut pieces = pieces(&self.range, self.longest()).peekable();
        loop {
            let most = if first_alone && run.done == 0 { 1 } else { AT_ONCE };
            while run.under_way.len() < most
                && run.goes_on()
                && let Some(piece) = pieces.next()
            {
                let operation = operation(piece.start, piece.end - piece.start);
                run.start(&self.edge, piece, operation);
                run.harvest(&self.edge);
            }
            if run.under_way.is_empty() || run.is_given_up() {
                break;
            }
            run.wait(display);
            run.harvest(&self.edge);
        }
        display.tick(&run.now());
        let next = pieces.peek().map(|piece| piece.start);
        let first = run.under_way.first().copied().into_iter().chain(next).min();
        match (run.failed.take(), run.stopping) {
            (Some((at, error)), _) => {
                let first = first.map_or(at, |first| first.min(at));
                Err(Box::new(undone(error, run.done, first, None)))
            }
            (None, Some((_, code))) if first.is_some() => {
                let error = Error::new(ErrorKind::Cancelled, Fault::User, "stopped as asked");
                let error = error.on(&self.edge.info().name);
                Err(Box::new(undone(error, run.done, first.unwrap_or(0), Some(code))))
            }
            _ => Ok(run.count),
        }
    }

    /// Does all of it, makes it durable, and reports the result; `done` is the participle for the
    /// range ("zeroed"), and `explain` turns a failure into a message.
    pub(crate) fn run(
        &self,
        matches: &ArgMatches,
        done: &'static str,
        (operation, first_alone): (impl Fn(u64, u64) -> Operation, bool),
        explain: impl FnOnce(&Undone) -> Failure,
    ) -> ExitResult {
        let began = Instant::now();
        let mut display = Display::new(Show::asked(matches), Counting::All(done));
        let total = self.length();
        let mut run = Run::new(total)?;
        let result = self.all(&mut run, operation, first_alone, &mut display);
        let finished = match result {
            Ok(requests) => self
                .grow()
                .and_then(|()| self.flush(&mut run, done, &mut display))
                .map(|()| requests),
            Err(undone) => {
                let failure = explain(&undone);
                Err(undone.stopped.map_or(failure, |code| {
                    let first = undone.first;
                    let Undone { error, done: n, .. } = &*undone;
                    let what = format!("{n} of {total} bytes were {done} and may not be durable");
                    let line = format!("{error}; {what}; the first that may not be is at {first}");
                    Failure::new(line).with_code(code)
                }))
            }
        };
        if let Some(Some(made)) = &self.grown {
            match &finished {
                Ok(_) => made.keep(),
                Err(_) => drop(made.remove()),
            }
        }
        match finished {
            Ok(requests) => {
                let elapsed = began.elapsed();
                let report = Report { total, zeroed: total, elapsed, ..Report::default() };
                let now = CopyCounts { total, zeroed: total, elapsed, ..CopyCounts::default() };
                display.succeed(&now, &report);
                self.print(requests)
            }
            Err(failure) => {
                let code = failure.code();
                display.fail(&failure, None);
                Ok(ExitCode::from(code))
            }
        }
    }

    /// Gives a file its length, if it changed, and makes a new one's name durable.
    fn grow(&self) -> Result<(), Failure> {
        let Some(made) = &self.grown else { return Ok(()) };
        self.edge.device().finish()?;
        let synced = made.as_ref().map_or(Ok(()), |made| made.sync_name());
        synced.map_err(|e| {
            Failure::new(format!("{}: sync its directory: {e}", self.edge.info().name))
        })
    }

    fn longest(&self) -> u64 {
        let info = self.edge.info();
        let block = u64::from(info.blocks.minimum).max(1);
        let longest = self.edge.info().longest_effect;
        let longest = if info.abilities.zero { longest } else { longest.min(WRITTEN) };
        (longest - longest % block).max(block)
    }

    /// Makes what was `done` durable. After a signal to stop, the wait for this is short, too.
    fn flush(&self, run: &mut Run, done: &str, display: &mut Display) -> Result<(), Failure> {
        let Info { name, abilities, .. } = self.edge.info();
        if !abilities.flush {
            return Ok(());
        }
        run.start(&self.edge, self.range.end..self.range.end, Operation::Flush);
        run.harvest(&self.edge);
        while !run.under_way.is_empty() && !run.is_given_up() {
            run.wait(display);
            run.harvest(&self.edge);
        }
        match (run.failed.take(), run.stopping) {
            (Some((_, error)), _) => Err(error.into()),
            (None, Some((_, code))) if !run.under_way.is_empty() => {
                let error = Error::new(ErrorKind::Cancelled, Fault::User, "stopped as asked");
                let line = format!("{}; all was {done}, and may not be durable", error.on(name));
                Err(Failure::new(line).with_code(code))
            }
            _ => Ok(()),
        }
    }

    /// Says what was done, if that was asked for.
    fn print(&self, requests: usize) -> ExitResult {
        if !self.json {
            return Ok(ExitCode::SUCCESS);
        }
        let (offset, length) = (self.range.start, self.length());
        let done =
            json!({ "version": VERSION, "offset": offset, "length": length, "requests": requests });
        output::finish(|out| writeln!(out, "{done}").map(|()| ExitCode::SUCCESS))
    }
}

fn options(matches: &ArgMatches) -> OpenOptions {
    OpenOptions { force: force::asked(matches), ..OpenOptions::read_write() }
}

/// Where the range begins, and how long it is to be.
fn wanted(matches: &ArgMatches) -> Result<(u64, Option<u64>), Failure> {
    Ok((size(matches, "offset")?.unwrap_or(0), size(matches, "length")?))
}

/// Cuts a range at multiples of `longest`.
fn pieces(range: &Range<u64>, longest: u64) -> impl Iterator<Item = Range<u64>> + use<> {
    let (mut start, end) = (range.start, range.end);
    std::iter::from_fn(move || {
        let piece = start..end.min((start - start % longest).saturating_add(longest));
        start = piece.end;
        (!piece.is_empty()).then_some(piece)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_a_range_and_are_no_longer_than_allowed() {
        for (range, longest) in [(0..100, 30), (7..100, 30), (5..5, 1), (0..u64::MAX, u64::MAX)] {
            let mut at = range.start;
            for piece in pieces(&range, longest) {
                assert_eq!(piece.start, at);
                assert!(piece.end - piece.start <= longest);
                at = piece.end;
            }
            assert_eq!(at, range.end);
        }
    }
}
