//! Opening the two ends.
//!
//! Nothing is made or changed before the sources are open and known to differ from the target, as
//! far as their names tell. A file that this process made is removed when the copy fails, unless it
//! is to be kept; one that was there before never is. An existing raw file is not emptied: it is
//! written over, and gets its length at the end. Under a filter it keeps its length: a filter may
//! show only a part of it.

use std::sync::Arc;

use copy::{Anew, Flush, Reflink};
use device::{Edge, Info, format_size};
use disk::{
    ByteStream, ConcatPart, Contents, Created, Creation, Holds, Image, OpenOptions, Relation,
    Stack, Storage, concat,
};
use runtime::Context;

use super::{CopyRequest, Target, range};
use crate::failure::{Failure, say};
use crate::force::refuse_used;
use crate::image::Source;
use crate::progress::Display;

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

/// Opens the source. Also returns where the bytes are of all files that it opened for that, first
/// those that were named.
pub(super) fn open_source(
    work: &CopyRequest,
    context: &Context,
    display: &Display,
) -> Result<(Input, Vec<Storage>), Failure> {
    if let Some(stream) = open_stream(work)? {
        let files = work.sources.iter().map(|source| source.disk.storage()).collect();
        return Ok((Input::Stream(stream), files));
    }
    let (disk, files) = open_sources(work, context, display)?;
    Ok((Input::Disk(disk), files))
}

/// Opens the source as a stream, if it is one and a stream is enough for both ends. Nothing of the
/// target is changed before the first byte has come, or the end.
fn open_stream(work: &CopyRequest) -> Result<Option<ByteStream>, Failure> {
    let is_plain = work.sources.iter().all(|source| source.stack.is_plain())
        && work.target_stack.is_plain()
        && work.window.is_none()
        && work.at.is_none()
        && !work.salvages
        && work.journal.is_none()
        && work.options.reflink != Reflink::Always;
    let [source] = &work.sources[..] else { return Ok(None) };
    if !is_plain {
        return Ok(None);
    }
    let mut stream = source.disk.stream()?;
    if let Some(stream) = &mut stream {
        stream.wait()?;
    }
    Ok(stream)
}

/// Opens the sources as one disk. Also returns where the bytes are of all files that it opened for
/// them, first those that were named.
fn open_sources(
    work: &CopyRequest,
    context: &Context,
    display: &Display,
) -> Result<(Edge, Vec<Storage>), Failure> {
    let options = options_of_sources(work);
    let (mut all, mut reached) = (Vec::new(), Vec::new());
    for source in &*work.sources {
        let opened = source.open(&options, context)?;
        if let Some(note) = opened.note.as_ref().filter(|_| work.warns) {
            display.note(note);
        }
        warn_of_lost_end(&opened.below, opened.edge.info(), display);
        all.push(opened.edge);
        reached.extend(opened.reached);
    }
    let named = work.sources.iter().map(|source| source.disk.storage());
    let files = named.chain(reached).collect();
    if let (Some(window), Some(_), [one]) = (work.window, work.at, &all[..]) {
        range::check(window, &one.info().name, one.info().size)?;
    }
    let edge = as_one(&all, work.window, context)?;
    if !work.salvages {
        return Ok((edge, files));
    }
    let warns = work.warns;
    let tell = move |at: u64, e: &device::Error| {
        if warns {
            say(&format!("warning: error while reading offset {at}: {e}"));
        }
    };
    Ok((disk::salvage(&edge, Arc::new(tell), context), files))
}

fn options_of_sources(work: &CopyRequest) -> OpenOptions {
    OpenOptions {
        connections: work.connections,
        map: !work.options.no_extents,
        lock: !work.shares,
        once: true,
        ..OpenOptions::read_only()
    }
}

/// How the sources are opened once more, as one disk.
pub(super) fn anew(work: &CopyRequest, context: &Context) -> Anew {
    let (sources, window, context) = (work.sources.clone(), work.window, context.clone());
    let (options, salvages) = (options_of_sources(work), work.salvages);
    Anew::new(move || {
        let open =
            |source: &Source| Ok(disk::open(&source.disk, &source.stack, &options, &context)?.edge);
        let all = sources.iter().map(open).collect::<device::Result<Vec<_>>>()?;
        let edge = as_one(&all, window, &context)?;
        if !salvages {
            return Ok(edge);
        }
        // What cannot be read was said when it was read first.
        Ok(disk::salvage(&edge, Arc::new(|_, _: &device::Error| {}), &context))
    })
}

/// The disks one behind the other, or a part of that.
fn as_one(all: &[Edge], window: Option<(u64, u64)>, context: &Context) -> device::Result<Edge> {
    match (window, all) {
        (None, [one]) => Ok(one.clone()),
        (window, _) => join(all, window, context),
    }
}

fn join(all: &[Edge], window: Option<(u64, u64)>, context: &Context) -> device::Result<Edge> {
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
fn warn_of_lost_end(below: &Edge, seen: &Info, display: &Display) {
    let rest = below.info().size % u64::from(seen.blocks.minimum.max(1));
    if rest > 0 && seen.size == below.info().size - rest {
        display.warn(&format!(
            "{}: the last {rest} bytes are not copied: seen through --source-filter it ends with a \
             whole block of {} bytes",
            seen.name, seen.blocks.minimum
        ));
    }
}

/// What both ends are, for people.
pub(super) fn words(source: &Input, target: &Target) -> String {
    let from = match source {
        Input::Stream(stream) => format!("{} (a stream of unknown length)", stream.name()),
        Input::Disk(disk) => end_in_words(disk),
    };
    let how = match (&target.created.made, target.created.holds) {
        (Some(_), _) => "made now",
        (None, Holds::Zeroes) => "empty",
        (None, Holds::Old | Holds::Unknown) => "written over",
    };
    format!("from {from} to {}, {how}", end_in_words(&target.created.edge))
}

fn end_in_words(disk: &Edge) -> String {
    let Info { name, size, abilities, lanes, .. } = disk.info();
    let size = match *size == i64::MAX.cast_unsigned() {
        true => "as long as need be".to_owned(),
        false => format_size(*size),
    };
    let map = if abilities.extents { "with a map" } else { "without a map" };
    let lanes = lanes.map(|lanes| format!(", {lanes} connections")).unwrap_or_default();
    format!("{name} ({size}, {map}{lanes})")
}

/// Opens the target for a source, with its filters over it; makes a file that is
/// missing. `related` is what its name tells of it and the sources.
pub(super) fn open_target(
    work: &CopyRequest,
    (source, files): (&Input, &[Storage]),
    related: Result<Related, Failure>,
    context: &Context,
    display: &Display,
) -> Result<Target, Failure> {
    let apart = related?.apart(work, files);
    if !work.is_new
        && let Some(warning) = work.promise.check(&work.target, source.disk(), context)?
    {
        display.warn(&warning);
    }
    let image = work.target_stack.image();
    let below = if work.is_overlay {
        crate::image::backing_size(&work.target, image, context)?
    } else {
        None
    };
    let mut target = create(work, (source.disk(), files), context)?;
    if let (Some(at), Some(source)) = (work.at, source.disk()) {
        let part = range::part(&target, (at, source.info().size), context);
        if let (Err(_), Some(made)) = (&part, &target.made) {
            made.remove();
        }
        target.edge = part?;
    }
    let bottom = target.edge.clone();
    if let Some(filters) = &work.over_target {
        target.edge = filters.over(target.edge.clone(), context)?;
    }
    Ok(Target { created: target, bottom, apart, below })
}

fn create(
    work: &CopyRequest,
    (source, files): (Option<&Edge>, &[Storage]),
    context: &Context,
) -> Result<Created, Failure> {
    // What has no size yet may become as long as a disk can be.
    let size = source.map_or(i64::MAX.cast_unsigned(), |source| source.info().size);
    let size = range::end(work.at.unwrap_or(0), size)?;
    let connections = work.connections;
    let force = work.force;
    let options = OpenOptions {
        connections,
        force,
        once: true,
        new: work.is_new,
        ..OpenOptions::read_write()
    };
    let again;
    let mut stack = &work.target_stack;
    if work.exists {
        let empty = match stack.image().format() {
            Some(_) => made_again(work, size, context)?,
            None => None,
        };
        let Some(empty) = empty else { return in_place(work, (size, files), &options, context) };
        again = empty;
        stack = &again;
    }
    let creation = Creation {
        size,
        grows: source.is_none(),
        upwards: source.is_none(),
        appears: !work.keep_partial,
        whole: work.at.is_none(),
        write_back: work.options.flush != Flush::Never,
        options,
    };
    let contents = match source {
        Some(disk) if !work.options.allocated => {
            Contents::Disk { disk, is_read: work.options.no_extents }
        }
        _ => Contents::Anything,
    };
    let target = disk::create_for(&contents, files, &work.target, stack, &creation, context)?;
    check_room(&target, stack, size).map(|()| target)
}

/// Refuses, and removes, a target that shows less than `size` bytes through its filters.
fn check_room(target: &Created, stack: &Stack, size: u64) -> Result<(), Failure> {
    let seen = target.edge.info();
    if stack.is_empty() || seen.size >= size {
        return Ok(());
    }
    if let Some(made) = &target.made {
        made.remove();
    }
    let words: Vec<_> = stack.kinds().map(|kind| kind.word).collect();
    Err(Failure::new(format!(
        "{}: target is too small: seen through --target-filter={} it has {} bytes ({}), the source \
         has {size} bytes ({}); it was not written",
        seen.name,
        words.join(","),
        seen.size,
        format_size(seen.size),
        format_size(size)
    )))
}

/// What helps where an existing image is not written.
const LEAVE_OUT: &str = "create the target: leave out -n";

/// The existing target, to be written where it lies.
fn in_place(
    work: &CopyRequest,
    (size, files): (u64, &[Storage]),
    options: &OpenOptions,
    context: &Context,
) -> Result<Created, Failure> {
    let (stack, target) = (&work.target_stack, &work.target);
    let apart = disk::check_apart(&target.storage(), files);
    apart.map_err(|e| e.on(target.to_string()))?;
    let is_image = stack.image().format().is_some();
    let edge = match disk::open(target, stack, options, context) {
        Err(e) if is_image => {
            return Err(Failure::because(&e, format!("-n: {e}; {LEAVE_OUT}")));
        }
        opened => opened?.edge,
    };
    if is_image && edge.info().size < size {
        return Err(Failure::new(format!(
            "-n: {target}: the disk in it has {} bytes, the source has {size}; {LEAVE_OUT}",
            edge.info().size
        )));
    }
    Ok(Created { edge, holds: Holds::Unknown, made: None })
}

/// The existing image, to be made again as it is, where it cannot be written: it must be empty.
/// `None`: it is written where it lies, and is an image whenever the copy is stopped.
fn made_again(work: &CopyRequest, size: u64, context: &Context) -> Result<Option<Stack>, Failure> {
    let (image, target) = (work.target_stack.image(), &work.target);
    let is_written = image.format().is_some_and(|format| format.write.is_some());
    if is_written && !image.compress && !work.is_overlay {
        return Ok(None);
    }
    let found = disk::remake(target, image, &OpenOptions::read_only(), context)
        .map_err(|e| Failure::because(&e, format!("-n: {e}; {LEAVE_OUT}")))?;
    if found.size != size {
        return Err(Failure::new(format!(
            "-n: {target}: the disk in it has {} bytes, the source has {size}; {LEAVE_OUT}",
            found.size
        )));
    }
    let image = Image { options: found.options, ..image.clone() };
    Ok(Some(Stack::default().over_image(image)))
}

/// What the names tell about the ends.
pub(super) struct Related {
    relation: Relation,
    target: Storage,
    /// The sources that were named, which `relation` is about.
    sources: usize,
}

impl Related {
    /// Whether the ends share nothing, with what is known once the sources are open: where all
    /// files are that they name (the sources themselves come first).
    fn apart(self, work: &CopyRequest, files: &[Storage]) -> bool {
        // A new image shares no offsets with its source: it has bytes of its own.
        let is_image = work.target_stack.image().format().is_some();
        let named = files.get(self.sources..).unwrap_or_default();
        match self.relation.and(disk::relate_all(named, &self.target)) {
            Relation::Apart => true,
            Relation::Unknown => is_image,
            Relation::Same | Relation::Overlapping => false,
        }
    }
}

/// What the names tell about the ends. It asks the system about disks below them, so it has to run
/// before a sandbox.
pub(super) fn relate(work: &CopyRequest) -> Result<Related, Failure> {
    let (target, sources) = (work.target.storage(), work.sources.len());
    let mut relations = work.sources.iter().map(|source| disk::relate(&source.disk, &work.target));
    let relation = relations.try_fold(Relation::Apart, |all, one| one.map(|one| all.and(one)))?;
    refuse_used(&work.target, work.force)?;
    let is_shifted = work.at.is_some_and(|at| work.window.is_some_and(|(start, _)| start != at));
    if relation == Relation::Same && is_shifted {
        let target = &work.target;
        return Err(Failure::new(format!(
            "{target}: is the source itself, and cannot be copied to another offset in it; nothing was changed"
        )));
    }
    if work.is_new && !work.target.may_be_made() && work.target.storage() != Storage::Own {
        let target = &work.target;
        return Err(Failure::usage(format!(
            "--no-clobber: {target} is not a file that could be created"
        )));
    }
    Ok(Related { relation, target, sources })
}
