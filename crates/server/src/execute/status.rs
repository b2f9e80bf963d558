//! Block status: the status of a range in each of the requested contexts. The map comes from memory
//! where it is remembered, otherwise from elsewhere; the other contexts, which are the device's
//! own, are asked for one after the other.

use std::sync::Arc;

use device::{Extent, ExtentKind, Operation, Outcome, Result};
use wire::constants::{BASE_ALLOCATION, allocation};
use wire::{CommandFlags, ErrorCode, Framing, Negotiated, ReplyWriter, Request, StatusExtent};

use super::blocks::whole_blocks;
use super::elsewhere::Ending;
use super::{RequestRun, Served};

/// Extents in one block status reply, for each context.
const STATUS_EXTENTS: usize = 2048;
/// Extents that a reactor looks up for one; more are looked up elsewhere.
const FEW_EXTENTS: usize = 64;
/// A block status counts as what its reply may take, for each context.
const STATUS_COST: u64 = 40 << 10;

impl RequestRun<'_> {
    pub(super) fn block_status(&mut self, payload: &[u8]) {
        let query = match self.served.session.status_query(&self.request, payload) {
            Ok(query) => query,
            Err(refusal) => {
                let writer = self.writer;
                return self.gather.put(self.link, |out| writer.refuse(&refusal, out));
            }
        };
        self.writer = self.writer.with_length(query.length);
        self.request.length = query.length;
        let one = self.request.flags.contains(CommandFlags::REQ_ONE);
        let max = if one { 1 } else { STATUS_EXTENTS };
        let mut survey = Survey::new(&query.contexts, &self.served.session, max);
        match self.status_here(&survey, max.min(FEW_EXTENTS), max) {
            Ok(Some(extents)) => {
                survey.put(self.served, &self.request, Outcome::Extents(extents));
                let writer = self.writer;
                self.gather.put(self.link, |out| survey.encode(&writer, out));
            }
            Ok(None) => {
                let cost = STATUS_COST.saturating_mul(query.contexts.len() as u64);
                let mut ending = Ending::begin(self, cost, None);
                let question = survey.next(&self.request);
                ending.survey = survey;
                // There is one: the session refuses a status of no context.
                if let Some(question) = question {
                    ending.submit(question);
                }
            }
            Err(e) => self.failed(&e),
        }
    }

    /// The extents of a range, if they can be read at once and are few, or all that is wanted.
    fn status_here(&self, survey: &Survey, few: usize, max: usize) -> Result<Option<Vec<Extent>>> {
        let (edge, offset, len) = (&self.served.edge, self.request.offset, self.request.length);
        // A long request is not looked up here only to begin again elsewhere.
        if !survey.is_map() || (self.link.has_work() && few < max) {
            return Ok(None);
        }
        let mut extents = Vec::new();
        let known = edge.resolve_now(offset, len, few, &mut extents)?;
        let covered = extents.last().is_some_and(|e| e.end() - offset >= len);
        Ok((known && (covered || few >= max)).then_some(extents))
    }
}

/// A block status that is being answered: what was asked for, and what is known so far.
#[derive(Default)]
pub(super) struct Survey {
    /// The contexts, by id; `None` is the map.
    asked: Vec<(u32, Option<Arc<str>>)>,
    /// The results for as many of them, in order.
    told: Vec<Vec<StatusExtent>>,
    /// Extents wanted of each, at most.
    max: usize,
    /// The reply has 32 bits for each status.
    narrow: bool,
}

impl Survey {
    fn new(ids: &[u32], session: &Negotiated, max: usize) -> Self {
        let named = |id: &u32| {
            let (_, name) = session.contexts.iter().find(|(known, _)| known == id)?;
            Some((*id, (name != BASE_ALLOCATION).then(|| name.as_str().into())))
        };
        let narrow = session.mode != Framing::Extended;
        Self { asked: ids.iter().filter_map(named).collect(), told: Vec::new(), max, narrow }
    }

    /// Whether only the map was asked for.
    fn is_map(&self) -> bool {
        matches!(&*self.asked, [(_, None)])
    }

    /// What to ask the device next; `None`: all is known.
    pub(super) fn next(&self, request: &Request) -> Option<Operation> {
        let (offset, len, max) = (request.offset, request.length, self.max);
        Some(match &self.asked.get(self.told.len())?.1 {
            None => Operation::Resolve { offset, len, max },
            Some(context) => Operation::Status { context: context.clone(), offset, len, max },
        })
    }

    /// Takes the result of the last query.
    pub(super) fn put(&mut self, served: &Served, request: &Request, answer: Outcome) {
        self.told.push(match answer {
            Outcome::Extents(extents) => {
                let told = served.edge.info().advertised.map_or(1, |b| u64::from(b.minimum));
                let end = request.offset.saturating_add(request.length);
                let flags = |e: &Extent| StatusExtent { length: e.len, flags: allocation_flags(e) };
                whole_blocks(extents, end, told).iter().map(flags).collect()
            }
            Outcome::Status(runs) => {
                runs.iter().map(|run| StatusExtent { length: run.len, flags: run.value }).collect()
            }
            Outcome::Done | Outcome::Read(_) | Outcome::Taken(_) => Vec::new(),
        });
    }

    /// The reply: the status of every context asked for.
    pub(super) fn encode(&self, writer: &ReplyWriter, out: &mut Vec<u8>) {
        let start = out.len();
        for (i, ((id, _), told)) in self.asked.iter().zip(&self.told).enumerate() {
            if self.narrow && told.iter().any(|run| run.flags > u64::from(u32::MAX)) {
                out.truncate(start);
                let why = "a status here takes 64 bits, and so needs extended headers";
                return writer.error(ErrorCode::EOVERFLOW, why, out);
            }
            let last = i + 1 == self.asked.len();
            if writer.block_status(*id, told.iter().copied(), STATUS_EXTENTS, last, out) == 0 {
                out.truncate(start);
                return writer.error(ErrorCode::EIO, "nothing is known of this range", out);
            }
        }
    }
}

fn allocation_flags(extent: &Extent) -> u64 {
    match extent.kind {
        ExtentKind::Data if extent.roomless => allocation::HOLE,
        ExtentKind::Data => 0,
        ExtentKind::Hole => allocation::HOLE | allocation::ZERO,
        ExtentKind::Zero => allocation::ZERO,
    }
}

#[cfg(test)]
mod tests {
    use wire::constants::chunk;
    use wire::{Command, Framing};

    use super::*;

    #[test]
    fn a_status_of_64_bits_is_no_other_status_where_there_are_32() {
        let request = Request {
            flags: CommandFlags::NONE,
            command: Command::BlockStatus.to_wire(),
            cookie: 1,
            offset: 0,
            length: 8,
            payload: 0,
        };
        for (mode, flags, fits) in [
            (Framing::Structured, u64::from(u32::MAX), true),
            (Framing::Structured, 1 << 32, false),
            (Framing::Extended, 1 << 32, true),
        ] {
            let session =
                Negotiated { mode, contexts: vec![(1, "x:y".into())], ..Negotiated::default() };
            let mut survey = Survey::new(&[1], &session, 8);
            survey.told.push(vec![
                StatusExtent { length: 4, flags: 0 },
                StatusExtent { length: 4, flags },
            ]);
            let mut out = Vec::new();
            survey.encode(&ReplyWriter::new(mode, &request), &mut out);
            let kind = u16::from_be_bytes([out[6], out[7]]);
            assert_eq!(kind & chunk::ERROR_BIT == 0, fits, "{mode:?} {flags:#x}");
        }
    }
}
