//! `map`: maps ranges of the disk to other places on the disk below.
//!
//! Splits each operation at the bounds of ranges, and runs the pieces one after the other. The
//! first range that contains a byte decides its place; a byte in none keeps its offset. Opening the
//! filter fails if a range leads beyond the end of the disk below, so the whole disk shown can be
//! used.

use std::sync::Arc;

use device::{
    Buffer, Done, Edge, Error, Extent, Filter, Filtered, Operation, Outcome, Over, Params, Result,
    Slice, param, parse_size, repeated, values,
};
use runtime::{StepBudget, to_usize};

use crate::FilterKind;
use crate::kit::below;

/// The most ranges.
const MOST: usize = 4096;

pub(crate) const KIND: FilterKind = FilterKind {
    word: "map",
    summary: "remaps ranges of the disk",
    params: &[
        repeated(
            "map",
            "START-END:DEST",
            "these bytes, both included, are those from DEST on below",
        ),
        param("map-size", "SIZE", "how large the disk is (default: as the one below)"),
    ],
    example: "serve --filter=map memory 1M map=0-511:512 map=512-1023:0 --run 'nbdinfo --size \"$uri\"'",
    open: |params, below, _| {
        let (map, size) = (Map::read(params)?, values::size(params, "map-size")?);
        let size = size.unwrap_or(below.info().size);
        map.check(size, below.info().size)?;
        Ok(Filtered::device(Mapped { map: Arc::new(map), size }, below))
    },
    ..FilterKind::PLAIN
};

/// A mapped piece: `start` to `end` (exclusive) here, from `to` on below. Pieces are sorted and do
/// not overlap.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Piece {
    start: u64,
    end: u64,
    to: u64,
}

#[derive(Debug)]
struct Map(Vec<Piece>);

impl Map {
    fn read(params: &Params) -> Result<Self> {
        let mut pieces = Vec::new();
        for text in params.all("map") {
            if pieces.len() >= MOST {
                return Err(values::wrong("map", format!("there are more than {MOST} ranges")));
            }
            let piece = parse(text)
                .ok_or_else(|| values::not_a("map", text, "START-END:DEST, as in 0-511:512"))?;
            pieces.push(piece);
        }
        Ok(Self::laid(&pieces))
    }

    /// Cuts from each piece what an earlier one covers.
    fn laid(pieces: &[Piece]) -> Self {
        let mut laid: Vec<Piece> = Vec::new();
        for piece in pieces {
            let mut at = piece.start;
            let mut free = Vec::new();
            for taken in &laid {
                if taken.end > at && taken.start < piece.end {
                    free.push((at, taken.start));
                    at = taken.end;
                }
            }
            free.push((at, piece.end));
            let cut = free.into_iter().filter(|(start, end)| start < end);
            let cut: Vec<_> = cut
                .map(|(start, end)| Piece { start, end, to: piece.to + (start - piece.start) })
                .collect();
            laid.extend(cut);
            laid.sort_by_key(|piece| piece.start);
        }
        Self(laid)
    }

    /// Refuses pieces beyond the end of the disk below.
    fn check(&self, size: u64, below: u64) -> Result<()> {
        let mut at = 0;
        while at < size {
            let (to, len) = self.at(at, size - at);
            if to > below || len > below - to {
                let action = format!(
                    "the byte {} would be at {}, beyond the end of the disk below ({below} bytes)",
                    at + below.saturating_sub(to).min(len),
                    to.max(below)
                );
                return Err(Error::unfit(action));
            }
            at += len;
        }
        Ok(())
    }

    /// The place of `offset` below, and how many of `len` bytes are contiguous there.
    fn at(&self, offset: u64, len: u64) -> (u64, u64) {
        let next = self.0.partition_point(|piece| piece.end <= offset);
        match self.0.get(next) {
            Some(p) if p.start <= offset => (p.to + (offset - p.start), len.min(p.end - offset)),
            Some(p) => (offset, len.min(p.start - offset)),
            None => (offset, len),
        }
    }
}

/// Both ends are below 2^63, so no sum of two overflows.
fn parse(text: &str) -> Option<Piece> {
    let (range, to) = text.split_once(':')?;
    let (start, last) = range.split_once('-')?;
    let (start, last) = (parse_size(start).ok()?, parse_size(last).ok()?);
    let piece = Piece { start, end: last.checked_add(1)?, to: parse_size(to).ok()? };
    (start <= last && i64::try_from(piece.to.checked_add(last - start)?).is_ok()).then_some(piece)
}

struct Mapped {
    map: Arc<Map>,
    /// Bytes of the disk.
    size: u64,
}

/// For one operation: the map, and the disk that it leads to.
struct Places {
    map: Arc<Map>,
    below: Edge,
}

impl Places {
    /// The pieces of a range: offset here, offset below, length.
    fn pieces(&self, offset: u64, len: u64) -> impl Iterator<Item = (u64, u64, u64)> + use<> {
        let (map, mut at, end) = (self.map.clone(), offset, offset.saturating_add(len));
        std::iter::from_fn(move || {
            let left = end.checked_sub(at).filter(|left| *left > 0)?;
            let (to, len) = map.at(at, left);
            at += len;
            Some((at - len, to, len))
        })
    }

    async fn run(self, operation: Operation) -> Result<Outcome> {
        match operation {
            Operation::Flush => return below::ask(&self.below, Operation::Flush).await,
            Operation::Read { offset, buffer } => {
                return self.read(offset, buffer).await.map(Outcome::Read);
            }
            Operation::Resolve { offset, len, max } => {
                return self.resolve(offset, len, max).await.map(Outcome::Extents);
            }
            Operation::Status { .. } => {
                return Err(Error::unsupported("status: ranges are remapped"));
            }
            // The writes that replace it go to their mapped places.
            Operation::Take { .. } => return Ok(Outcome::Taken(0)),
            Operation::Write { offset, data, fua } => self.write(offset, data, fua).await?,
            Operation::Zero { offset, flags, .. } if flags.fast_only => {
                return Err(Error::not_fast().on(&self.below.info().name).at(offset));
            }
            Operation::Prefetch { offset, len } => {
                self.each(offset, len, |offset, len| Operation::Prefetch { offset, len }).await?;
            }
            Operation::Trim { offset, len, fua } => {
                self.each(offset, len, |offset, len| Operation::Trim { offset, len, fua }).await?;
            }
            Operation::Zero { offset, len, flags } => {
                self.each(offset, len, |offset, len| Operation::Zero { offset, len, flags })
                    .await?;
            }
        }
        Ok(Outcome::Done)
    }

    /// Runs what `make` makes of each piece, its offset below and its length.
    async fn each(
        &self,
        offset: u64,
        len: u64,
        make: impl Fn(u64, u64) -> Operation,
    ) -> Result<()> {
        let mut budget = StepBudget::default();
        for (_, to, len) in self.pieces(offset, len) {
            budget.spend(self.below.pool()).await;
            below::ask(&self.below, make(to, len)).await?;
        }
        Ok(())
    }

    async fn read(&self, offset: u64, mut buffer: Buffer) -> Result<Buffer> {
        let (mut at, mut budget) = (0, StepBudget::default());
        for (_, to, len) in self.pieces(offset, buffer.len() as u64) {
            budget.spend(self.below.pool()).await;
            let len = to_usize(len);
            let piece = below::read(&self.below, to, Buffer::zeroed(len)).await?;
            if let Some(room) = buffer.get_mut(at..at + piece.len()) {
                room.copy_from_slice(&piece);
            }
            at += piece.len();
        }
        Ok(buffer)
    }

    async fn write(&self, offset: u64, mut data: Slice, fua: bool) -> Result<()> {
        let (mut at, mut budget) = (0, StepBudget::default());
        for (_, to, len) in self.pieces(offset, data.len() as u64) {
            budget.spend(self.below.pool()).await;
            let len = to_usize(len);
            let Some(piece) = data.share(at, len) else { break };
            below::write(&self.below, to, piece, fua).await?;
            at += len;
        }
        Ok(())
    }

    async fn resolve(&self, offset: u64, len: u64, max: usize) -> Result<Vec<Extent>> {
        let mut found: Vec<Extent> = Vec::new();
        let mut budget = StepBudget::default();
        for (at, to, len) in self.pieces(offset, len) {
            budget.spend(self.below.pool()).await;
            if !below::resolve_as(&self.below, at, (to, len), max, &mut found).await? {
                break;
            }
        }
        Ok(found)
    }
}

impl Filter for Mapped {
    fn describe(&self, over: &mut Over) {
        let info = &mut over.info;
        info.size = self.size;
        // Ranges may begin and end anywhere, even inside blocks.
        info.blocks.minimum = 1;
        info.advertised = None;
        info.contexts.clear();
        info.room = if info.room > 0 { u64::MAX } else { 0 };
        // Two bytes may share one place, and a fast zero that has begun must be finished.
        info.abilities.fast_zero = false;
        info.abilities.take = false;
    }

    fn run(&self, over: &Over, operation: Operation, done: Done) {
        let me = Places { map: self.map.clone(), below: over.below.clone() };
        below::complete(done, async move { me.run(operation).await });
    }
}

#[cfg(test)]
mod tests {
    use device::model::Model;

    use super::*;
    use crate::kit::tested::{put, simple};
    use device::ZeroFlags;

    fn mapped(size: usize, words: &[&str]) -> Result<(Edge, Arc<Model>)> {
        let model = Arc::new(Model::new(size));
        Ok((put("map", simple(model.clone()), words)?, model))
    }

    #[test]
    fn what_is_mapped_lies_elsewhere_and_the_rest_where_it_is() {
        let (disk, model) = mapped(4096, &["map=0-511:512", "map=512-1023:0"]).unwrap();
        let bytes: Vec<u8> = (0..4096u32).map(|n| u8::try_from(n / 256).unwrap()).collect();
        disk.write(&bytes, 0, true).unwrap();
        let below = model.bytes();
        assert!(below[..512] == bytes[512..1024] && below[512..1024] == bytes[..512]);
        assert!(below[1024..] == bytes[1024..]);
        let mut back = vec![0; 1000];
        disk.read(&mut back, 100).unwrap();
        assert!(back == bytes[100..1100]);
        disk.zero(500, 24, ZeroFlags::default()).unwrap();
        let zeroes: Vec<_> = (0..4096).filter(|at| model.bytes()[*at] != below[*at]).collect();
        assert!(
            zeroes.iter().all(|at| (0..12).contains(at) || (1012..1024).contains(at)),
            "{zeroes:?}"
        );
    }

    #[test]
    fn the_first_range_that_has_a_byte_counts() {
        let words = ["map=10-19:100", "map=0-29:200", "map=15-40:300"];
        let params = Params::parse(words).unwrap();
        let piece = |start, end, to| Piece { start, end, to };
        assert_eq!(
            Map::read(&params).unwrap().0,
            [piece(0, 10, 200), piece(10, 20, 100), piece(20, 30, 220), piece(30, 41, 315)]
        );
    }

    #[test]
    fn a_disk_may_be_larger_than_the_one_below() {
        let (disk, _) = mapped(4096, &["map-size=8K", "map=4K-8191:0"]).unwrap();
        disk.write(&[5; 10], 4096, false).unwrap();
        let mut same = [0; 10];
        disk.read(&mut same, 0).unwrap();
        assert_eq!((same, disk.info().size), ([5; 10], 8192));
    }
}
