//! A range of a disk that a verb changes: its arguments, and doing it in several requests.
//!
//! A range longer than one request takes is cut, and several are under way at a time. Every
//! request is waited for, also after one has failed, so that what was done can be told.

use std::ops::Range;
use std::process::ExitCode;
use std::sync::mpsc::channel;

use clap::{Arg, ArgMatches, Command};
use device::{Edge, Error, Operation, WorkPool, parse_size};
use devices::OpenOptions;
use serde_json::json;

use crate::failure::{Failure, Outcome};
use crate::info::{disk, json_flag, name};
use crate::output;

/// Requests under way at a time, and threads for what the device cannot do without waiting.
const AT_ONCE: usize = 8;
/// Where a device writes zeroes because it cannot do otherwise, so many bytes are one request:
/// several are then written side by side.
const WRITTEN: u64 = 64 << 20;

/// The arguments that name a range.
pub(crate) fn arguments(command: Command) -> Command {
    let size =
        |id: &'static str, help: &'static str| Arg::new(id).long(id).value_name("SIZE").help(help);
    command
        .arg(disk())
        .arg(size("offset", "Where it begins [default: 0]"))
        .arg(size("length", "How long it is [default: to the end]"))
        .arg(json_flag().help("Print what was done as JSON"))
}

/// A disk that is open for writing, and a range inside it.
pub(crate) struct Target {
    pub(crate) edge: Edge,
    pub(crate) range: Range<u64>,
    json: bool,
}

/// Why a range is not done, and how much of it is.
pub(crate) struct Undone {
    pub(crate) error: Error,
    /// Bytes that were done.
    pub(crate) done: u64,
    /// The first byte that is not known to be.
    pub(crate) first: u64,
}

impl Target {
    /// Reads the arguments and opens the disk: as it is, whatever its bytes mean. `what` is done
    /// to it.
    pub(crate) fn open(matches: &ArgMatches, what: &str) -> Result<Self, Failure> {
        let size = |id: &str| -> Result<Option<u64>, Failure> {
            let text = matches.get_one::<String>(id);
            let size = text.map(|text| parse_size(text)).transpose();
            size.map_err(|e| Failure::usage(format!("--{id}: {e}")))
        };
        let (offset, length) = (size("offset")?.unwrap_or(0), size("length")?);
        let device = devices::open(&name(matches)?, &OpenOptions::read_write())?;
        let edge = Edge::new(device, WorkPool::undivided(AT_ONCE));
        edge.check(what, offset, length.unwrap_or(0))?;
        let length = length.unwrap_or(edge.info().size - offset);
        Ok(Self { edge, range: offset..offset + length, json: matches.get_flag("json") })
    }

    /// How many bytes are to be done.
    pub(crate) fn length(&self) -> u64 {
        self.range.end - self.range.start
    }

    /// Does what `operation` makes of an offset and a length, for all of the range. The first
    /// request goes alone if it is to show whether it can be done at all.
    pub(crate) fn all(
        &self,
        operation: impl Fn(u64, u64) -> Operation,
        first_alone: bool,
    ) -> Result<usize, Box<Undone>> {
        let (tx, rx) = channel();
        let mut pieces = pieces(&self.range, self.longest()).peekable();
        let (mut under_way, mut count, mut done) = (0_usize, 0, 0);
        let mut failed: Option<(u64, Error)> = None;
        loop {
            let most = if first_alone && done == 0 { 1 } else { AT_ONCE };
            while under_way < most
                && failed.is_none()
                && let Some(piece) = pieces.next()
            {
                let tx = tx.clone();
                let (offset, len) = (piece.start, piece.end - piece.start);
                let then = move |outcome| drop(tx.send((piece, outcome)));
                self.edge.submit(operation(offset, len), Box::new(then));
                under_way += 1;
                count += 1;
            }
            if under_way == 0 {
                break;
            }
            // Every request is answered, so this ends.
            let Ok((piece, outcome)) = rx.recv() else { break };
            under_way -= 1;
            match outcome {
                Ok(_) => done += piece.end - piece.start,
                Err(e) if failed.as_ref().is_none_or(|(at, _)| piece.start < *at) => {
                    failed = Some((piece.start, e.on(&self.edge.info().name).at(piece.start)));
                }
                Err(_) => {}
            }
        }
        match failed {
            Some((first, error)) => Err(Box::new(Undone { error, done, first })),
            None => Ok(count),
        }
    }

    fn longest(&self) -> u64 {
        let info = self.edge.info();
        let block = u64::from(info.blocks.minimum).max(1);
        let longest = self.edge.device().longest_effect();
        let longest = if info.abilities.zero { longest } else { longest.min(WRITTEN) };
        (longest - longest % block).max(block)
    }

    /// Makes what was done durable, and says it, if that was asked for.
    pub(crate) fn finish(&self, requests: usize) -> Outcome {
        let info = self.edge.info();
        if info.abilities.flush {
            self.edge.flush().map_err(|e| e.on(&info.name))?;
        }
        if !self.json {
            return Ok(ExitCode::SUCCESS);
        }
        let (offset, length) = (self.range.start, self.length());
        let done = json!({ "offset": offset, "length": length, "requests": requests });
        output::finish(|out| writeln!(out, "{done}").map(|()| ExitCode::SUCCESS))
    }
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
