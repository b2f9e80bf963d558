//! Another backing image for an overlay, in which the overlay reads as before.
//!
//! What the overlay does not hold itself, and what differs between the two chains, is written into
//! it and is durable before its header names the new backing image. Whenever this is stopped, the
//! overlay reads as it did.

use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::sync::mpsc::channel;

use device::{
    Buffer, BufferPool, Edge, Error, Extent, Operation, Outcome, Place, Result, ZeroFlags, is_zero,
};
use devices::{Named, OpenOptions};
use formats::{BackingName, Files as _, ImageOpener, Opening, Reference, Role};
use runtime::{Context, to_usize};

use crate::gate::ImageGate;
use crate::upkeep::{check_snapshots, keep_closed};
use crate::{ConcatPart, Image, concat, keep};

/// Extents asked for at a time.
const MANY: usize = 1024;
/// The most bytes that are compared at a time, unless a cluster is larger.
const AT_ONCE: u64 = 2 << 20;
const UNMAP: ZeroFlags =
    ZeroFlags { may_unmap: true, fast_only: false, written: false, fua: false };

/// What an overlay is to lie over.
#[derive(Clone, Copy, Debug)]
pub struct NewBacking<'a> {
    /// As its header is to have it.
    pub backing: BackingName<'a>,
    /// Only the header is changed: the user says that both hold the same, or that this does not
    /// matter. Nothing else is opened.
    pub is_trusted: bool,
    /// What is written into the overlay is compressed where that makes it shorter.
    pub compress: bool,
}

/// Puts the overlay that was named over another backing image. `tell` gets how many bytes of how
/// many are done.
///
/// # Errors
/// It cannot be opened for writing; the new name cannot be written; one of the chains cannot be
/// read. The overlay reads as it did.
pub fn rebase(
    disk: &Named,
    image: &Image,
    new: NewBacking<'_>,
    options: &OpenOptions,
    context: &Context,
    tell: &mut dyn FnMut(u64, u64),
) -> Result<()> {
    let open = if new.is_trusted { keep } else { keep_closed };
    let kept = open(disk, image, options, context)?;
    let format = kept.format;
    let what = "images of this format are not put over another backing image";
    kept.change(what, format.upkeep.rebase, |rebase, container, opening| {
        (rebase.check)(&container, new.backing)?;
        if !new.is_trusted {
            let described = (format.describe)(&container, context)?;
            check_snapshots(&described)?;
            let below = match new.backing {
                Some((name, format)) => {
                    let options = OpenOptions { write: false, ..options.clone() };
                    let gate = ImageGate::of(disk, image, &options, context).of_user();
                    let reference = Reference { name, role: Role::Backing, format: Some(format) };
                    Some(gate.open(&reference)?)
                }
                None => None,
            };
            let cluster = described.cluster_size.unwrap_or(1);
            let write = if new.compress { rebase.pack } else { rebase.write };
            keep_disk(&container, write, opening, below, cluster, tell)?;
        }
        (rebase.rename)(&container, new.backing)
    })
}

/// Writes into the overlay, durably, what it would read otherwise over that disk.
fn keep_disk(
    container: &Edge,
    write: ImageOpener,
    opening: &Opening<'_>,
    below: Option<Edge>,
    cluster: u64,
    tell: &mut dyn FnMut(u64, u64),
) -> Result<()> {
    let old = Edge::new(write(container.clone(), opening)?, opening.context.pool.clone());
    let new = as_long(below, old.info().size, opening.context)?;
    keep_bytes(&old, &new, cluster.max(1), tell)?;
    old.flush()?;
    old.device().finish()
}

/// The disk with so many bytes: cut off, or with zeroes behind it.
fn as_long(disk: Option<Edge>, size: u64, context: &Context) -> Result<Edge> {
    let there = disk.as_ref().map_or(0, |disk| disk.info().size.min(size));
    let rest = ConcatPart::zeroes(size - there);
    concat(vec![ConcatPart { disk, start: 0, len: there }, rest], context)
}

/// Writes into an overlay what it reads from below and would no longer.
fn keep_bytes(old: &Edge, new: &Edge, cluster: u64, tell: &mut dyn FnMut(u64, u64)) -> Result<()> {
    let (size, mut at, mut beneath) = (old.info().size, 0, None::<Range<u64>>);
    let (mut extents, buffers) = (Vec::new(), BufferPool::new(to_usize(4 * AT_ONCE)));
    while at < size {
        tell(at, size);
        old.resolve(at, size - at, MANY, &mut extents)?;
        for extent in extents.drain(..) {
            at = extent.end();
            if extent.depth == 0 && extent.present {
                continue;
            }
            for range in suspects(&extent, new)? {
                // Whole clusters, as far as the overlay has nothing of them itself.
                let start = range.start / cluster * cluster;
                let end = range.end.next_multiple_of(cluster).min(size);
                match &mut beneath {
                    Some(known) if start <= known.end => known.end = known.end.max(end),
                    known => {
                        let known = known.replace(start..end);
                        known.map_or(Ok(()), |known| {
                            keep_range((old, new), &buffers, known, cluster)
                        })?;
                    }
                }
            }
        }
    }
    beneath.map_or(Ok(()), |range| keep_range((old, new), &buffers, range, cluster))?;
    tell(size, size);
    Ok(())
}

/// The parts of an extent that may differ in the new chain, by both maps.
fn suspects(extent: &Extent, new: &Edge) -> Result<Vec<Range<u64>>> {
    let (mut at, mut found, mut theirs) = (extent.start, Vec::new(), Vec::new());
    while at < extent.end() {
        new.resolve(at, extent.end() - at, MANY, &mut theirs)?;
        for other in theirs.drain(..) {
            let both_zero = extent.kind.reads_zero() && other.kind.reads_zero();
            let mine = extent.place.as_ref().map(|place| place.advanced(at - extent.start));
            if !both_zero && !mine.zip(other.place.clone()).is_some_and(|(a, b)| is_same(&a, &b)) {
                found.push(at..other.end());
            }
            at = other.end();
        }
    }
    Ok(found)
}

/// Whether two places are the same bytes of the same file.
fn is_same(one: &Place, other: &Place) -> bool {
    let file = |place: &Place| {
        let file = std::fs::File::from(place.fd().try_clone_to_owned().ok()?);
        let known = file.metadata().ok().filter(std::fs::Metadata::is_file)?;
        Some((known.dev(), known.ino()))
    };
    one.offset() == other.offset() && file(one).is_some_and(|found| file(other) == Some(found))
}

/// Reads a range of both, and writes what differs into the overlay, by clusters.
fn keep_range(
    (old, new): (&Edge, &Edge),
    buffers: &BufferPool,
    range: Range<u64>,
    cluster: u64,
) -> Result<()> {
    let step = AT_ONCE.max(cluster) / cluster * cluster;
    let mut at = range.start;
    while at < range.end {
        let end = range.end.min(at - at % step + step);
        let buffer = || buffers.take(to_usize(end - at));
        let (was, will) = read_both((old, buffer()), (new, buffer()), at)?;
        for (run, is_zero) in different(&was, &will, at, cluster) {
            let bytes = was.get(to_usize(run.start - at)..to_usize(run.end - at));
            match bytes.filter(|_| !is_zero) {
                Some(bytes) => old.write(bytes, run.start, false)?,
                None => old.zero(run.start, run.end - run.start, UNMAP)?,
            }
        }
        at = end;
    }
    Ok(())
}

/// Reads both disks at the same time, from the same offset on.
fn read_both(
    (old, was): (&Edge, Buffer),
    (new, will): (&Edge, Buffer),
    offset: u64,
) -> Result<(Buffer, Buffer)> {
    let filled = |edge: &Edge, outcome| match outcome {
        Outcome::Read(buffer) => Ok(buffer),
        _ => Err(Error::unanswered().on(&edge.info().name).at(offset)),
    };
    let (promise, answer) = channel();
    let done = Box::new(move |result| drop(promise.send(result)));
    let (edge, read) = (new.clone(), Operation::Read { offset, buffer: will });
    // This thread waits for its own read, and would do the other one itself, too.
    new.pool().run(move || edge.submit(read, done));
    let was = old.run(Operation::Read { offset, buffer: was });
    let will = answer.recv().unwrap_or_else(|_| Err(Error::unanswered()));
    Ok((filled(old, was?)?, filled(new, will?)?))
}

/// The clusters from `at` on in which two disks differ, in runs, each with whether the first one is
/// zero there.
fn different(was: &[u8], will: &[u8], at: u64, cluster: u64) -> Vec<(Range<u64>, bool)> {
    let (mut runs, unit): (Vec<(Range<u64>, bool)>, _) = (Vec::new(), to_usize(cluster));
    for (n, (was, will)) in (0u64..).zip(was.chunks(unit).zip(will.chunks(unit))) {
        if was == will {
            continue;
        }
        let start = at + n * cluster;
        let piece = start..start + was.len() as u64;
        let is_zero = is_zero(was);
        match runs.last_mut() {
            Some((run, zero)) if run.end == piece.start && *zero == is_zero => run.end = piece.end,
            _ => runs.push((piece, is_zero)),
        }
    }
    runs
}

#[cfg(test)]
mod tests;
