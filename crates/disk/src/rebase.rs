//! Another backing image for an overlay, in which the overlay reads as before.
//!
//! What the overlay does not hold itself, and what differs between the two chains, is written into
//! it and is durable before its header names the new backing image. Whenever this is stopped, the
//! overlay reads as it did.

use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};

use device::{
    BufferPool, Edge, Error, Extent, Operation, Place, Result, Slice, ZeroFlags, is_zero,
};
use devices::{Named, OpenOptions};
use formats::{BackingName, Files as _, ImageOpener, Opening, Reference, Role};
use runtime::{Context, Mutex, having_time, to_usize};

use crate::gate::ImageGate;
use crate::upkeep::{check_snapshots, keep_closed};
use crate::{ConcatPart, Image, concat, keep};

/// Extents asked for at a time.
const MANY: usize = 1024;
/// The most bytes that are compared at a time, unless a cluster is larger: those of both disks stay
/// in the cache of a processor until they have been compared.
const AT_ONCE: u64 = 256 << 10;
/// Of these a thread gets so many at a time.
const MANY_AT_ONCE: u64 = 16;
/// The most threads that read, compare and write.
const THREADS_MAX: usize = 8;
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
    let what = "images of this format cannot be rebased";
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

/// Writes into an overlay what it reads from below and would no longer: this thread walks the maps,
/// and several read both disks at the same time.
fn keep_bytes(old: &Edge, new: &Edge, cluster: u64, tell: &mut dyn FnMut(u64, u64)) -> Result<()> {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = processors.clamp(1, THREADS_MAX);
    let step = AT_ONCE.max(cluster) / cluster * cluster;
    let keep = 2 * threads * to_usize(step);
    let both = Both { old, new, cluster, step, buffers: BufferPool::new(keep) };
    let (give, ranges) = sync_channel(2 * threads);
    let (ranges, has_failed) = (Arc::new(Mutex::new(ranges)), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|_| {
                let (ranges, both, has_failed) = (ranges.clone(), &both, &has_failed);
                scope.spawn(move || having_time(|| both.keep_all(&ranges, has_failed)))
            })
            .collect();
        // When none of them is left, nobody takes a range.
        drop(ranges);
        let walked = both.walk(&mut |range, size| {
            tell(range.start, size);
            !has_failed.load(Ordering::Relaxed) && give.send(range).is_ok()
        });
        drop(give);
        let kept = workers.into_iter().map(|worker| {
            worker.join().unwrap_or_else(|_| Err(Error::unanswered().on(&old.info().name)))
        });
        kept.fold(walked, Result::and)
    })?;
    tell(old.info().size, old.info().size);
    Ok(())
}

/// An overlay as it is, and what it is to lie over.
struct Both<'a> {
    old: &'a Edge,
    new: &'a Edge,
    /// Bytes that the overlay has of its own or not.
    cluster: u64,
    /// The most bytes that are compared at a time: whole clusters.
    step: u64,
    buffers: BufferPool,
}

impl Both<'_> {
    /// Gives ranges that may differ, of whole clusters as far as the disk goes, and the size of the
    /// disk with each, until `take` wants no more.
    fn walk(&self, take: &mut dyn FnMut(Range<u64>, u64) -> bool) -> Result<()> {
        let (size, mut at, mut beneath) = (self.old.info().size, 0, None::<Range<u64>>);
        let mut extents = Vec::new();
        while at < size {
            self.old.resolve(at, size - at, MANY, &mut extents)?;
            for extent in extents.drain(..) {
                at = extent.end();
                if extent.depth == 0 && extent.present {
                    continue;
                }
                for range in suspects(&extent, self.new)? {
                    // Whole clusters, as far as the overlay has nothing of them itself.
                    let start = range.start / self.cluster * self.cluster;
                    let end = range.end.next_multiple_of(self.cluster).min(size);
                    match &mut beneath {
                        Some(known) if start <= known.end => known.end = known.end.max(end),
                        known => {
                            let known = known.replace(start..end);
                            if !known.is_none_or(|known| self.give(known, take)) {
                                return Ok(());
                            }
                        }
                    }
                }
            }
        }
        beneath.map(|range| self.give(range, take));
        Ok(())
    }

    /// Gives a range in pieces of many steps; false: no more is wanted.
    fn give(&self, range: Range<u64>, take: &mut dyn FnMut(Range<u64>, u64) -> bool) -> bool {
        let size = self.old.info().size;
        pieces(range, self.step * MANY_AT_ONCE).all(|piece| take(piece, size))
    }

    /// Takes ranges until there are no more, or something failed.
    fn keep_all(
        &self,
        ranges: &Mutex<Receiver<Range<u64>>>,
        has_failed: &AtomicBool,
    ) -> Result<()> {
        while !has_failed.load(Ordering::Relaxed) {
            let Ok(range) = ranges.lock().recv() else { break };
            pieces(range, self.step)
                .try_for_each(|piece| self.keep(piece))
                .inspect_err(|_| has_failed.store(true, Ordering::Relaxed))?;
        }
        Ok(())
    }

    /// Reads a range of both, and writes what differs into the overlay, by clusters.
    fn keep(&self, range: Range<u64>) -> Result<()> {
        let (at, len) = (range.start, to_usize(range.end - range.start));
        let read = |edge: &Edge| edge.read_buffer(self.buffers.take_whole(len), at);
        let (was, will) = (read(self.old)?, read(self.new)?);
        let runs = different(&was, &will, at, self.cluster);
        let mut was = Slice::from(was);
        for (run, is_zero) in runs {
            let (offset, len) = (run.start, run.end - run.start);
            if is_zero {
                self.old.zero(offset, len, UNMAP)?;
                continue;
            }
            // What was read is written, without another copy.
            let data = was.share(to_usize(offset - at), to_usize(len));
            let data = data.ok_or_else(|| Error::unanswered().on(&self.old.info().name))?;
            self.old.run(Operation::Write { offset, data, fua: false })?;
        }
        Ok(())
    }
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

/// The parts of a range that end at multiples of `step`.
fn pieces(range: Range<u64>, step: u64) -> impl Iterator<Item = Range<u64>> {
    let mut at = range.start;
    std::iter::from_fn(move || {
        let piece = at..range.end.min(at - at % step + step);
        at = piece.end;
        (!piece.is_empty()).then_some(piece)
    })
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
