//! Ranges of disks one behind the other, as one disk that can be read.
//!
//! It has the extents of its parts, with their places, so that bytes are moved as from the disks
//! themselves. It is never written.

use std::sync::Arc;

use device::{
    Abilities, BlockSizes, Buffer, Device, Done, Edge, Error, ErrorKind, Extent, ExtentKind, Fault,
    Info, Now, Operation, Outcome, PathsBelow, Result, Session, below,
};
use runtime::{Context, to_usize};

/// A range of a disk, or zeroes.
#[derive(Clone, Debug)]
pub struct ConcatPart {
    /// The disk; `None`: zeroes.
    pub disk: Option<Edge>,
    /// First byte in the disk.
    pub start: u64,
    /// Bytes; inside the disk.
    pub len: u64,
}

impl ConcatPart {
    /// All of a disk.
    #[must_use]
    pub fn all(disk: &Edge) -> Self {
        Self { disk: Some(disk.clone()), start: 0, len: disk.info().size }
    }

    /// That many zeroes.
    #[must_use]
    pub fn zeroes(len: u64) -> Self {
        Self { disk: None, start: 0, len }
    }
}

/// One disk of several parts.
///
/// # Errors
/// A part does not lie inside its disk, or all of them are too long for a disk.
pub fn concat(parts: Vec<ConcatPart>, context: &Context) -> Result<Edge> {
    let mut spans = Vec::with_capacity(parts.len());
    let mut size: u64 = 0;
    for part in parts.into_iter().filter(|part| part.len > 0) {
        let there = part.disk.as_ref().map_or(u64::MAX, |disk| disk.info().size);
        if part.len > there.saturating_sub(part.start) {
            return Err(Error::invalid("a part of a disk does not lie inside it"));
        }
        let next = size.checked_add(part.len).filter(|end| i64::try_from(*end).is_ok());
        let next = next.ok_or_else(|| Error::invalid("all disks together are too large"))?;
        spans.push(Span { at: size, part });
        size = next;
    }
    let disks = || spans.iter().filter_map(|span| span.part.disk.as_ref());
    let mut names: Vec<_> = disks().map(|disk| disk.info().name.clone()).collect();
    names.dedup();
    let info = Info {
        blocks: BlockSizes {
            preferred: disks().map(|d| d.info().blocks.preferred).max().unwrap_or(4096),
            ..BlockSizes::ANY
        },
        abilities: Abilities {
            extents: disks().any(|disk| disk.info().abilities.extents),
            prefetch: disks().any(|disk| disk.info().abilities.prefetch),
            rotational: disks().any(|disk| disk.info().abilities.rotational),
            ..Abilities::READ
        },
        ..Info::new(names.join(" + "), size)
    };
    let paths = PathsBelow::of(disks(), false);
    let device = Concat { info, paths, spans: spans.into() };
    Ok(Edge::new(Arc::new(device), context.pool.clone()))
}

#[derive(Debug)]
struct Span {
    /// Where it begins in the whole.
    at: u64,
    part: ConcatPart,
}

struct Concat {
    info: Info,
    paths: Option<PathsBelow>,
    spans: Arc<[Span]>,
}

/// The part of a range that lies in one part of the disk.
struct Piece<'a> {
    disk: Option<&'a Edge>,
    /// First byte in that disk.
    start: u64,
    len: u64,
}

/// The beginning of `offset..offset + len` that lies in one part.
fn piece(spans: &[Span], offset: u64, len: u64) -> Option<Piece<'_>> {
    let next = spans.partition_point(|span| span.at <= offset);
    let span = spans.get(next.checked_sub(1)?)?;
    let into = offset - span.at;
    let len = len.min(span.part.len.checked_sub(into)?);
    let start = span.part.start + into;
    (len > 0).then_some(Piece { disk: span.part.disk.as_ref(), start, len })
}

/// Extents of a part, as those of the whole.
fn lift(extents: &mut [Extent], by: u64, to: u64) {
    for extent in extents {
        extent.start = extent.start - by + to;
    }
}

async fn read(spans: &[Span], offset: u64, mut buffer: Buffer) -> Result<Outcome> {
    let (mut at, mut rest) = (offset, &mut buffer[..]);
    while !rest.is_empty() {
        let found = piece(spans, at, rest.len() as u64).ok_or_else(Error::unanswered)?;
        let len = to_usize(found.len).min(rest.len());
        let (now, later) = rest.split_at_mut(len);
        match found.disk {
            None => now.fill(0),
            Some(disk) if disk.read_now(now, found.start)? => {}
            Some(disk) => {
                let read = below::read(disk, found.start, Buffer::zeroed(len)).await?;
                now.copy_from_slice(&read);
            }
        }
        at += found.len;
        rest = later;
    }
    Ok(Outcome::Read(buffer))
}

impl Concat {
    fn resolve(&self, (offset, len): (u64, u64), max: usize, done: Done) {
        let Some(found) = piece(&self.spans, offset, len) else {
            return done(Err(Error::unanswered()));
        };
        let (by, len) = (found.start, found.len);
        let Some(disk) = found.disk else {
            return done(Ok(Outcome::Extents(vec![Extent::new(offset, len, ExtentKind::Hole)])));
        };
        let then: Done = Box::new(move |mut outcome| {
            if let Ok(Outcome::Extents(extents)) = &mut outcome {
                lift(extents, by, offset);
            }
            done(outcome);
        });
        disk.submit(Operation::Resolve { offset: by, len, max }, then);
    }
}

impl Device for Concat {
    fn info(&self) -> &Info {
        &self.info
    }

    fn session(&self) -> Option<&dyn Session> {
        self.paths.as_ref().map(|paths| paths as &dyn Session)
    }

    fn submit(&self, operation: Operation, done: Done) {
        match operation {
            Operation::Read { offset, buffer } => {
                let len = buffer.len() as u64;
                match piece(&self.spans, offset, len) {
                    Some(Piece { disk: Some(disk), start, len: whole }) if whole == len => {
                        disk.submit(Operation::Read { offset: start, buffer }, done);
                    }
                    _ => {
                        let spans = self.spans.clone();
                        below::complete(done, async move { read(&spans, offset, buffer).await });
                    }
                }
            }
            Operation::Resolve { offset, len, max } => self.resolve((offset, len), max, done),
            Operation::Prefetch { offset, len } => match piece(&self.spans, offset, len) {
                Some(Piece { disk: Some(disk), start, len }) => {
                    disk.submit(Operation::Prefetch { offset: start, len }, done);
                }
                _ => done(Ok(Outcome::Done)),
            },
            Operation::Flush => done(Ok(Outcome::Done)),
            Operation::Status { .. } => done(Err(Error::unsupported("status"))),
            Operation::Take { .. }
            | Operation::Trim { .. }
            | Operation::Write { .. }
            | Operation::Zero { .. } => {
                let action = "change it: it is read-only";
                done(Err(Error::new(ErrorKind::ReadOnly, Fault::User, action)));
            }
        }
    }

    fn now(&self, now: Now<'_>) -> Result<bool> {
        match now {
            Now::Read { offset, buffer } => match piece(&self.spans, offset, buffer.len() as u64) {
                Some(Piece { disk: Some(disk), start, len }) if len == buffer.len() as u64 => {
                    disk.read_now(buffer, start)
                }
                _ => Ok(false),
            },
            Now::Resolve { offset, len, max, out } => match piece(&self.spans, offset, len) {
                Some(Piece { disk: Some(disk), start, len }) => {
                    let before = out.len();
                    let known = disk.resolve_now(start, len, max, out)?;
                    lift(out.get_mut(before..).unwrap_or_default(), start, offset);
                    Ok(known)
                }
                _ => Ok(false),
            },
            Now::Write { .. } => Ok(false),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use device::Simple;
    use device::model::Model;

    use super::*;

    fn disk(context: &Context, size: usize, first: u8) -> Edge {
        let model = Arc::new(Model::new(size));
        let edge = Simple::shared_edge(model, &context.pool);
        let bytes: Vec<u8> =
            (0..=255u8).cycle().map(|i| first.wrapping_add(i) | 1).take(size).collect();
        edge.write(&bytes, 0, false).unwrap();
        edge
    }

    #[test]
    fn parts_are_read_one_behind_the_other_across_their_ends() {
        let context = Context::default();
        let (a, b) = (disk(&context, 1000, 3), disk(&context, 3000, 77));
        let middle = ConcatPart { disk: Some(b.clone()), start: 100, len: 2000 };
        let parts = vec![ConcatPart::all(&a), ConcatPart::zeroes(24), middle];
        let whole = concat(parts, &context).unwrap();
        let mut wanted = vec![0; 1000];
        a.read(&mut wanted, 0).unwrap();
        wanted.extend([0; 24]);
        let mut rest = vec![0; 2000];
        b.read(&mut rest, 100).unwrap();
        wanted.extend(rest);
        assert_eq!(whole.info().size, 3024);
        for (start, len) in [(0, 3024), (999, 1), (990, 40), (1000, 24), (1010, 500), (3023, 1)] {
            let mut found = vec![9; len];
            whole.read(&mut found, start as u64).unwrap();
            assert_eq!(found, wanted[start..start + len]);
        }
        let (mut at, mut extents) = (0, Vec::new());
        while at < 3024 {
            whole.resolve(at, 3024 - at, 8, &mut extents).unwrap();
            at = extents.last().unwrap().end();
        }
        assert!(extents.windows(2).all(|pair| pair[0].end() == pair[1].start));
        assert!(whole.write(b"x", 0, false).is_err());
    }

    #[test]
    fn a_part_that_is_not_there_is_refused() {
        let context = Context::default();
        let a = disk(&context, 1000, 3);
        let part = |start, len| ConcatPart { disk: Some(a.clone()), start, len };
        assert!(concat(vec![part(0, 1001)], &context).is_err());
        assert!(concat(vec![part(u64::MAX, 1)], &context).is_err());
        assert!(concat(vec![ConcatPart::zeroes(u64::MAX), part(0, 1)], &context).is_err());
        assert_eq!(concat(Vec::new(), &context).unwrap().info().size, 0);
    }
}
