//! Where the bytes of the disk lie: in extents, each a file or zeroes.

use device::{Edge, Result};

use super::codec;
use super::grains::Written;
use super::header::broken;
use super::sparse::Sparse;
use crate::kit::{Asks, Atlas, Lies, Packed, Run, Runs, confused};

/// The extents, in the order of the disk.
pub(super) struct Map {
    pub(super) parts: Vec<Part>,
    pub(super) written: Option<Written>,
}

/// A part of the disk.
pub(super) struct Part {
    /// In bytes of the disk.
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) kind: Kind,
}

/// The kind of a part.
pub(super) enum Kind {
    /// Zeroes.
    Zero,
    /// Plain bytes: the file of the image, and the offset in it.
    Flat(Edge, u16, u64),
    /// Grains: the file of the image.
    Sparse(Box<Sparse>, u16),
}

impl Kind {
    pub(super) fn file(&self) -> Option<(u16, &Edge)> {
        match self {
            Self::Zero => None,
            Self::Flat(file, number, _) => Some((*number, file)),
            Self::Sparse(sparse, number) => Some((*number, &sparse.file)),
        }
    }
}

impl Map {
    pub(super) fn part(&self, at: u64) -> Option<&Part> {
        self.parts.get(self.parts.partition_point(|part| part.end <= at))
    }
}

impl Runs for Map {
    async fn run(&self, at: u64, len: u64, may_wait: bool) -> Result<Option<Run>> {
        let part = self.part(at).ok_or_else(|| broken("a hole between extents").at(at))?;
        let (within, len) = (at - part.start, len.min(part.end - at));
        let lies = match &part.kind {
            Kind::Zero => Lies::Hole,
            Kind::Flat(.., offset) => Lies::At(offset + within),
            Kind::Sparse(sparse, _) => {
                let run = sparse.run(within, len, may_wait).await?;
                let Some(mut run) = run else { return Ok(None) };
                if let Lies::Packed(Packed { start, .. }) = &mut run.lies {
                    *start = start.saturating_add(part.start);
                }
                return Ok(Some(run));
            }
        };
        Ok(Some(Run { len, lies }))
    }
}

impl Atlas for Map {
    /// A step is a page of a table.
    fn steps_now(&self) -> usize {
        64
    }

    fn file(&self, at: u64) -> Option<(u16, &Edge)> {
        self.part(at)?.kind.file()
    }

    fn files(&self) -> Vec<&Edge> {
        self.parts.iter().filter_map(|part| Some(part.kind.file()?.1)).collect()
    }

    fn asks(&self, at: u64) -> Asks {
        let is_flat = self.part(at).is_some_and(|part| matches!(part.kind, Kind::Flat(..)));
        if is_flat { Asks::AsItIs } else { Asks::Never }
    }

    fn unpack(&self, start: u64, packed: &[u8], unpacked: &mut [u8]) -> Result<()> {
        let part = self.part(start).ok_or_else(confused)?;
        let Kind::Sparse(sparse, _) = &part.kind else { return Err(confused()) };
        let (layout, start) = (&sparse.layout, start - part.start);
        let payload = codec::payload(packed, layout.markers, start / 512)?;
        let found = codec::unpack(payload, unpacked)?;
        // It must cover its whole range of the disk.
        let needed = layout.capacity.saturating_sub(start).min(layout.grain);
        if (found as u64) < needed {
            return Err(broken(format!("a grain holds {found} bytes instead of {needed}")));
        }
        Ok(())
    }
}
