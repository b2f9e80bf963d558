//! A container with the changes of its log.

use std::sync::Arc;

use device::{
    Abilities, Device, Edge, Error, Extent, ExtentKind, Info, Operation, Outcome, Result,
};

use crate::kit::{Layer, Layered, confused, read};

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
    /// How many of `len` bytes the file itself has.
    fn there(&self, offset: u64, len: usize) -> usize {
        let there = self.below.info().size.saturating_sub(offset);
        usize::try_from(there).unwrap_or(usize::MAX).min(len)
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
                let there = self.there(offset, buffer.len());
                let (lies, beyond) = buffer.split_at_mut(there);
                beyond.fill(0);
                if there > 0 {
                    let found = read(&self.below, offset, there, true).await?;
                    lies.copy_from_slice(&found.filter(|f| f.len() == there).ok_or_else(confused)?);
                }
                self.change(offset, &mut buffer);
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
        let there = self.there(offset, buffer.len());
        let (lies, beyond) = buffer.split_at_mut(there);
        beyond.fill(0);
        if there > 0 && !self.below.read_now(lies, offset)? {
            return Ok(false);
        }
        self.change(offset, buffer);
        Ok(true)
    }
}
