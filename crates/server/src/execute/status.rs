//! Block status: the map of a range, from memory where it is remembered, else from elsewhere.

use device::{Extent, ExtentKind, Operation, Outcome, Result};
use wire::constants::{BASE_ALLOCATION, allocation};
use wire::{CommandFlags, ErrorCode, ReplyWriter, Request, StatusExtent};

use super::blocks::whole_blocks;
use super::elsewhere::Ending;
use super::{Run, Served, error_code};

/// Extents in one block status reply.
const STATUS_EXTENTS: usize = 2048;
/// Extents that a reactor looks up for one; more are looked up elsewhere.
const FEW_EXTENTS: usize = 64;
/// A block status counts as what its reply may take.
const STATUS_COST: u64 = 40 << 10;

impl Run<'_> {
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
        match self.status_here(query.length, max.min(FEW_EXTENTS), max) {
            Ok(Some(extents)) => {
                let (served, writer, request) = (self.served.clone(), self.writer, self.request);
                let result = Ok(Outcome::Extents(extents));
                self.gather.put(self.link, |out| {
                    encode_status(&served, &request, &writer, &query.contexts, result, out);
                });
            }
            Ok(None) => {
                let operation =
                    Operation::Resolve { offset: self.request.offset, len: query.length, max };
                let mut ending = Ending::begin(self, STATUS_COST, None);
                ending.contexts = query.contexts;
                ending.submit(operation);
            }
            Err(e) => self.failed(&e),
        }
    }

    /// The extents of a range, if they are to be had at once and are few, or all that is wanted.
    fn status_here(&self, len: u64, few: usize, max: usize) -> Result<Option<Vec<Extent>>> {
        let (edge, offset) = (&self.served.edge, self.request.offset);
        if self.link.has_work() && few < max {
            // Who asks for much at once is not looked up for here only to begin again elsewhere.
            return Ok(None);
        }
        let mut extents = Vec::new();
        let known = edge.resolve_now(offset, len, few, &mut extents)?;
        let covered = extents.last().is_some_and(|e| e.end() - offset >= len);
        Ok((known && (covered || few >= max)).then_some(extents))
    }
}

/// The status of every context asked for.
pub(super) fn encode_status(
    served: &Served,
    request: &Request,
    writer: &ReplyWriter,
    contexts: &[u32],
    result: Result<Outcome>,
    out: &mut Vec<u8>,
) {
    let extents = match result {
        Ok(Outcome::Extents(extents)) => extents,
        Ok(_) => Vec::new(),
        Err(e) => return writer.error(error_code(&e), &e.to_string(), out),
    };
    let told = served.edge.info().advertised.map_or(1, |sizes| u64::from(sizes.minimum));
    let extents = whole_blocks(extents, request.offset.saturating_add(request.length), told);
    let start = out.len();
    for (i, id) in contexts.iter().enumerate() {
        let known =
            served.session.contexts.iter().any(|(c, name)| c == id && name == BASE_ALLOCATION);
        let list = extents.iter().map(|e| StatusExtent {
            length: e.len,
            flags: if known { allocation_flags(e.kind) } else { 0 },
        });
        let last = i + 1 == contexts.len();
        if writer.block_status(*id, list, STATUS_EXTENTS, last, out) == 0 {
            out.truncate(start);
            return writer.error(ErrorCode::EIO, "nothing is known of this range", out);
        }
    }
}

fn allocation_flags(kind: ExtentKind) -> u64 {
    match kind {
        ExtentKind::Data => 0,
        ExtentKind::Hole => allocation::HOLE | allocation::ZERO,
        ExtentKind::Zero => allocation::ZERO,
    }
}
