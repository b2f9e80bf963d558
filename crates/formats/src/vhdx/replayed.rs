//! A container with the changes of its log.

use std::sync::Arc;

use device::{
    Abilities, Device, Edge, Error, Extent, ExtentKind, Info, Operation, Outcome, Result,
};

use crate::kit::{Layer, Layered, at_once, read};

use super::log::{Changes, SECTOR};

/// The container, read-only. It has no map and no places, because its file has other bytes.
struct Replayed {
    info: Info,
    below: Edge,
    changes: Changes,
}

pub(super) fn open(below: Edge, changes: Changes) -> Arc<dyn Device> {
    let last = changes.data.last_key_value().map_or(0, |(at, _)| at + SECTOR);
    let zeroes = changes.zeroes.iter().next_back().map_or(0, |last| last.end);
    let size = below.info().size.max(changes.len).max(last).max(zeroes);
    let info = Info { abilities: Abilities::READ, ..Info::new(below.info().name.clone(), size) };
    Layered::device(Replayed { info, below, changes })
}

impl Replayed {
    /// Fills all of `bytes`; false if that would have to wait.
    async fn fill(&self, offset: u64, bytes: &mut [u8], may_wait: bool) -> Result<bool> {
        let there = self.below.info().size.saturating_sub(offset);
        let there = usize::try_from(there).unwrap_or(usize::MAX).min(bytes.len());
        let (lies, beyond) = bytes.split_at_mut(there);
        beyond.fill(0);
        if there > 0 && !self.below.read_now(lies, offset)? {
            let found = read(&self.below, offset, there, may_wait).await?;
            let Some(found) = found else { return Ok(false) };
            lies.copy_from_slice(&found);
        }
        self.change(offset, bytes);
        Ok(true)
    }

    fn change(&self, offset: u64, bytes: &mut [u8]) {
        let end = offset + bytes.len() as u64;
        let mut each = |start: u64, stop: u64, new: Option<&[u8]>| {
            let (from, to) = (start.max(offset), stop.min(end));
            let part =
                |base: u64| usize::try_from(from - base).ok().zip(usize::try_from(to - base).ok());
            if from >= to {
                return;
            }
            let Some((a, b)) = part(offset) else { return };
            let Some(room) = bytes.get_mut(a..b) else { return };
            match new.and_then(|new| part(start).and_then(|(a, b)| new.get(a..b))) {
                Some(new) => room.copy_from_slice(new),
                None => room.fill(0),
            }
        };
        let zeroes = self.changes.zeroes.within(offset..end);
        zeroes.for_each(|part| each(part.start, part.end, None));
        let first = offset.saturating_sub(SECTOR - 1);
        let data = self.changes.data.range(first..end);
        data.for_each(|(at, new)| each(*at, at + SECTOR, Some(new)));
    }
}

impl Layer for Replayed {
    fn info(&self) -> &Info {
        &self.info
    }

    fn below(&self) -> Vec<&Edge> {
        vec![&self.below]
    }

    async fn run(self: Arc<Self>, operation: Operation) -> Result<Outcome> {
        match operation {
            Operation::Read { offset, mut buffer } => {
                self.fill(offset, &mut buffer, true).await?;
                Ok(Outcome::Read(buffer))
            }
            Operation::Resolve { offset, len, .. } => {
                Ok(Outcome::Extents(vec![Extent::new(offset, len, ExtentKind::Data)]))
            }
            Operation::Flush | Operation::Prefetch { .. } => Ok(Outcome::Done),
            Operation::Status { .. }
            | Operation::Take { .. }
            | Operation::Trim { .. }
            | Operation::Write { .. }
            | Operation::Zero { .. } => Err(Error::unsupported(operation.kind().name())),
        }
    }

    fn read_now(&self, offset: u64, buffer: &mut [u8]) -> Result<bool> {
        at_once(self.fill(offset, buffer, false)).unwrap_or(Ok(false))
    }
}
