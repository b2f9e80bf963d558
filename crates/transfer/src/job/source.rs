//! The source of a job, open: one disk, several one behind the other, a range of that, or a
//! stream.

use std::ops::Range;
use std::sync::Arc;

use copy::{Anew, Reflink};
use device::{Edge, Error, Info, Result};
use disk::{ByteStream, ConcatPart, OpenOptions, Storage, concat};
use runtime::Context;

use super::made::MadeTarget;
use super::related::Related;
use super::resuming::Resuming;
use super::{CopyJob, JobError, JobFront, JobSource, PreparedJob, range};
use crate::changes::CopyChanges;

/// All sources but the last one are padded to a multiple of this, in bytes, as by qemu-img.
const SECTOR: u64 = 512;

/// What is copied, open.
pub(super) enum Input {
    Disk(Edge),
    /// It has no size: it is read once, in order.
    Stream(ByteStream),
}

impl Input {
    /// Its size, if it has one.
    pub(super) fn size(&self) -> Option<u64> {
        self.disk().map(|disk| disk.info().size)
    }

    pub(super) fn disk(&self) -> Option<&Edge> {
        match self {
            Self::Disk(disk) => Some(disk),
            Self::Stream(_) => None,
        }
    }
}

runtime::debug_as!(Input);

/// A job whose source is open.
#[derive(Debug)]
pub struct SourcedJob {
    pub(super) job: Arc<CopyJob>,
    pub(super) context: Context,
    pub(super) related: std::result::Result<Related, JobError>,
    pub(super) resuming: Option<Resuming>,
    pub(super) placed: Option<MadeTarget>,
    pub(super) source: Input,
    /// Where the bytes are of all files that were opened for it, first those that were named.
    pub(super) files: Vec<Storage>,
    /// What the servers of the sources say of this state of them.
    pub(super) versions: Vec<Option<Arc<str>>>,
}

impl PreparedJob {
    /// Opens the source.
    ///
    /// # Errors
    /// It cannot be opened, or the front refuses it.
    pub fn open_source(
        self,
        context: &Context,
        front: &dyn JobFront,
    ) -> std::result::Result<SourcedJob, JobError> {
        let Self { job, related, resuming, placed } = self;
        let mut all = OpenSources::default();
        let source = match open_stream(&job)? {
            Some(stream) => {
                all.files = job.sources.iter().map(|source| source.disk.storage()).collect();
                Input::Stream(stream)
            }
            None => Input::Disk(open_sources(&job, context, front, &mut all)?),
        };
        let OpenSources { files, versions } = all;
        let context = context.clone();
        Ok(SourcedJob { job, context, related, resuming, placed, source, files, versions })
    }
}

/// Opens the source as a stream, if it is one and a stream is enough for both ends. Nothing of the
/// target is changed before the first byte has come, or the end.
pub(super) fn open_stream(job: &CopyJob) -> Result<Option<ByteStream>> {
    let is_plain = job.sources.iter().all(|source| source.stack.is_plain())
        && job.target_stack.is_plain()
        && job.window.is_none()
        && job.at.is_none()
        && job.salvages.is_none()
        && job.journal.is_none()
        && job.options.reflink != Reflink::Always;
    let [source] = &job.sources[..] else { return Ok(None) };
    if !is_plain {
        return Ok(None);
    }
    let mut stream = source.disk.stream()?;
    if let Some(stream) = &mut stream {
        stream.wait()?;
    }
    Ok(stream)
}

/// What is known of the sources, once they are open.
#[derive(Default)]
pub(super) struct OpenSources {
    files: Vec<Storage>,
    versions: Vec<Option<Arc<str>>>,
}

/// Opens the sources as one disk.
pub(super) fn open_sources(
    job: &CopyJob,
    context: &Context,
    front: &dyn JobFront,
    found: &mut OpenSources,
) -> std::result::Result<Edge, JobError> {
    let options = options_of_sources(job);
    let (mut all, mut reached) = (Vec::new(), Vec::new());
    for (index, source) in job.sources.iter().enumerate() {
        let opened = disk::open(&source.disk, &source.stack, &options, context)?;
        front.opened(index, &opened)?;
        warn_of_lost_end(&opened.below, opened.edge.info(), front);
        found.versions.push(opened.container.info().version.clone());
        all.push(opened.edge);
        reached.extend(opened.reached);
    }
    let named = job.sources.iter().map(|source| source.disk.storage());
    found.files = named.chain(reached).collect();
    if let (Some(window), Some(_), [one]) = (job.window, job.at, &all[..]) {
        range::check(window, &one.info().name, one.info().size)?;
    }
    let edge = as_one(&all, job.window, context)?;
    let Some(tell) = job.salvages.clone() else { return Ok(edge) };
    // What the user knows of are bytes of the source, whatever part of it is copied.
    let first = job.window.map_or(0, |(start, _)| start);
    let told = move |gap: Range<u64>, e: &Error| tell(gap.start + first..gap.end + first, e);
    Ok(disk::salvage(&edge, Arc::new(told), context))
}

fn options_of_sources(job: &CopyJob) -> OpenOptions {
    OpenOptions {
        connections: job.connections,
        map: !job.options.no_extents,
        lock: !job.shares,
        once: true,
        contexts: job.changes.as_ref().is_some_and(CopyChanges::is_bitmap),
        ..OpenOptions::read_only()
    }
}

/// How the sources are opened once more, as one disk.
pub(super) fn anew(job: &CopyJob, context: &Context) -> Anew {
    let (sources, window, context) = (job.sources.clone(), job.window, context.clone());
    let (options, salvages) = (options_of_sources(job), job.salvages.is_some());
    Anew::new(move || {
        let open = |source: &JobSource| {
            Ok(disk::open(&source.disk, &source.stack, &options, &context)?.edge)
        };
        let all = sources.iter().map(open).collect::<Result<Vec<_>>>()?;
        let edge = as_one(&all, window, &context)?;
        if !salvages {
            return Ok(edge);
        }
        // What cannot be read was told when it was read first.
        Ok(disk::salvage(&edge, Arc::new(|_, _| Ok(())), &context))
    })
}

/// The disks one behind the other, or a part of that.
fn as_one(all: &[Edge], window: Option<(u64, u64)>, context: &Context) -> Result<Edge> {
    match (window, all) {
        (None, [one]) => Ok(one.clone()),
        (window, _) => join(all, window, context),
    }
}

fn join(all: &[Edge], window: Option<(u64, u64)>, context: &Context) -> Result<Edge> {
    let mut parts = Vec::new();
    for (i, disk) in all.iter().enumerate() {
        parts.push(ConcatPart::all(disk));
        let size = disk.info().size;
        if i + 1 < all.len() {
            parts.push(ConcatPart::zeroes(size.next_multiple_of(SECTOR) - size));
        }
    }
    let whole = concat(parts, context)?;
    let Some((start, len)) = window else { return Ok(whole) };
    let start = start.min(whole.info().size);
    let len = len.min(whole.info().size - start);
    concat(vec![ConcatPart { disk: Some(whole), start, len }], context)
}

/// Warns of a filter that leaves out an incomplete last block.
fn warn_of_lost_end(below: &Edge, seen: &Info, front: &dyn JobFront) {
    let rest = below.info().size % u64::from(seen.blocks.minimum.max(1));
    if rest > 0 && seen.size == below.info().size - rest {
        front.warn(&format!(
            "{}: the last {rest} bytes are not copied: seen through its filters it ends with a whole \
             block of {} bytes",
            seen.name, seen.blocks.minimum
        ));
    }
}
