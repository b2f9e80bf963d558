//! `ext2`: shows one file of an ext2, ext3 or ext4 file system as a disk, read-only.
//!
//! Opening the filter finds the file by its path, and all its blocks; the file system is not
//! mounted, and nothing in it is changed. Each number in it is checked against the disk before it
//! is used, and its checksums where it has some. One whose journal is to be replayed is refused:
//! what lies in the journal only would be missing.

mod blocks;
mod directory;
#[cfg(test)]
mod tests;
mod volume;

use std::sync::Arc;

use device::{
    Abilities, Buffer, Done, Edge, Error, Extent, ExtentKind, Filter, Filtered, Operation, Outcome,
    Over, Result, merge_extent, param, values,
};
use runtime::{StepBudget, to_usize};

use crate::FilterKind;
use crate::kit::below;
use blocks::Run;
use volume::Volume;

pub(crate) const KIND: FilterKind = FilterKind {
    word: "ext2",
    summary: "exposes a file in an ext2, ext3 or ext4 file system as a disk; read-only",
    reads_only: true,
    params: &[param("ext2file", "PATH", "the file, by its whole path in the file system")],
    example: "serve --filter=ext2 file fs.img ext2file=/disks/disk.raw --run 'nbdinfo \"$uri\"'",
    open: |params, below, _| {
        let path = params.get("ext2file").unwrap_or_default();
        if !path.starts_with('/') {
            let why = match path {
                "exportname" => "clients do not choose the file here; name it",
                _ => "it must be a path from the root of the file system, as /disks/disk.raw",
            };
            return Err(values::wrong("ext2file", why));
        }
        let volume = Volume::open(&below)?;
        let file = directory::find(&volume, path)?;
        let size = file.size();
        let runs = Arc::new(blocks::of(&volume, &file)?);
        Ok(Filtered::device(FileIn { runs, size }, below))
    },
    ..FilterKind::PLAIN
};

/// What is wrong with the file system.
fn broken(why: &str) -> Error {
    Error::unfit(format!("the file system {why}"))
}

struct FileIn {
    runs: Arc<Vec<Run>>,
    /// Bytes of the file.
    size: u64,
}

/// For one operation: where the file lies, and the disk below.
struct Places {
    runs: Arc<Vec<Run>>,
    below: Edge,
}

impl Places {
    /// The pieces of a range: its offset, its length, and where it lies below, if it does.
    fn pieces(&self, offset: u64, len: u64) -> impl Iterator<Item = (u64, u64, Option<u64>)> {
        let (mut at, end) = (offset, offset.saturating_add(len));
        let mut next = self.runs.partition_point(|run| run.end() <= offset);
        std::iter::from_fn(move || {
            let left = end.checked_sub(at).filter(|left| *left > 0)?;
            let (len, place) = match self.runs.get(next) {
                Some(run) if run.start <= at => {
                    next += 1;
                    (left.min(run.end() - at), Some(run.place + (at - run.start)))
                }
                Some(run) => (left.min(run.start - at), None),
                None => (left, None),
            };
            at += len;
            Some((at - len, len, place))
        })
    }

    async fn run(self, operation: Operation) -> Result<Outcome> {
        match operation {
            Operation::Flush => Ok(Outcome::Done),
            Operation::Prefetch { offset, len } => {
                for (_, len, place) in self.pieces(offset, len) {
                    if let Some(offset) = place {
                        below::ask(&self.below, Operation::Prefetch { offset, len }).await?;
                    }
                }
                Ok(Outcome::Done)
            }
            Operation::Read { offset, buffer } => {
                self.read(offset, buffer).await.map(Outcome::Read)
            }
            Operation::Resolve { offset, len, max } => {
                self.resolve(offset, len, max).await.map(Outcome::Extents)
            }
            Operation::Status { .. }
            | Operation::Take { .. }
            | Operation::Trim { .. }
            | Operation::Write { .. }
            | Operation::Zero { .. } => Err(Error::unsupported(operation.kind().name())),
        }
    }

    async fn read(&self, offset: u64, mut buffer: Buffer) -> Result<Buffer> {
        let (mut filled, mut budget) = (0, StepBudget::default());
        for (_, len, place) in self.pieces(offset, buffer.len() as u64) {
            budget.spend(self.below.pool()).await;
            let len = to_usize(len);
            let room = buffer.get_mut(filled..filled + len).unwrap_or_default();
            match place {
                Some(place) => {
                    let piece = below::read(&self.below, place, Buffer::zeroed(len)).await?;
                    room.copy_from_slice(&piece);
                }
                None => room.fill(0),
            }
            filled += len;
        }
        Ok(buffer)
    }

    async fn resolve(&self, offset: u64, len: u64, max: usize) -> Result<Vec<Extent>> {
        let (mut found, mut budget) = (Vec::<Extent>::new(), StepBudget::default());
        for (at, len, place) in self.pieces(offset, len) {
            budget.spend(self.below.pool()).await;
            let Some(place) = place else {
                merge_extent(&mut found, Extent::new(at, len, ExtentKind::Hole));
                continue;
            };
            if !below::resolve_as(&self.below, at, (place, len), max, &mut found).await? {
                break;
            }
        }
        Ok(found)
    }
}

impl Filter for FileIn {
    fn describe(&self, over: &mut Over) {
        let info = &mut over.info;
        info.size = self.size;
        info.blocks.minimum = 1;
        info.advertised = None;
        info.contexts.clear();
        info.abilities = Abilities::READ;
    }

    fn run(&self, over: &Over, operation: Operation, done: Done) {
        let me = Places { runs: self.runs.clone(), below: over.below.clone() };
        below::complete(done, async move { me.run(operation).await });
    }
}
