//! Opening the two ends.
//!
//! Nothing is made or changed before the sources are open and known to differ from the target, as far
//! as their names tell. What this process made is removed again when the copy fails, unless it
//! shall be kept; what was there before never is. A raw file that is there is not emptied: it is written
//! over, and gets its length at the end. Under a filter it keeps its length: a filter may show only a
//! part of it.

use std::sync::Arc;

use copy::{Ends, Flush};
use device::{Edge, Info, format_size};
use disk::{
    Contents, Created, Creation, Holds, Image, Named, OpenOptions, Part, Relation, Stack, Storage,
    concat,
};
use runtime::Context;

use super::{Target, Work};
use crate::failure::{Failure, say};
use crate::force::refuse_used;
use crate::progress::Display;

/// Bytes that all sources but the last one are filled up to multiples of, as qemu-img does.
const SECTOR: u64 = 512;

/// Opens the sources as one disk; and where the bytes are of all files that it has opened for them.
pub(super) fn open_sources(
    work: &Work,
    context: &Context,
    display: &Display,
) -> Result<(Edge, Vec<Storage>), Failure> {
    let options = OpenOptions {
        connections: work.connections,
        map: !work.options.no_extents,
        lock: !work.shares,
        once: true,
        ..OpenOptions::read_only()
    };
    let (mut all, mut files) = (Vec::new(), Vec::new());
    for source in &work.sources {
        let opened = source.open(&options, context)?;
        if let Some(note) = opened.note.as_ref().filter(|_| work.warns) {
            display.note(note);
        }
        warn_of_lost_end(&opened.below, opened.edge.info(), display);
        all.push(opened.edge);
        files.push(source.disk.storage());
        files.extend(opened.reached);
    }
    let edge = match (work.window, &all[..]) {
        (None, [one]) => one.clone(),
        (window, _) => join(&all, window, context)?,
    };
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

/// One disk behind the other, and of that only a part.
fn join(all: &[Edge], window: Option<(u64, u64)>, context: &Context) -> Result<Edge, Failure> {
    let mut parts = Vec::new();
    for (i, disk) in all.iter().enumerate() {
        parts.push(Part::all(disk));
        let size = disk.info().size;
        if i + 1 < all.len() {
            parts.push(Part::zeroes(size.next_multiple_of(SECTOR) - size));
        }
    }
    let whole = concat(parts, context)?;
    let Some((start, len)) = window else { return Ok(whole) };
    let start = start.min(whole.info().size);
    let len = len.min(whole.info().size - start);
    Ok(concat(vec![Part { disk: Some(whole), start, len }], context)?)
}

/// Says that a filter leaves out bytes that are no whole block, if one does.
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

/// Opens the target for a source, with its filters over it; makes a file that is
/// missing. `ends` is what it has to do with the sources.
pub(super) fn open_target(
    work: &Work,
    (source, files): (&Edge, &[Storage]),
    ends: Result<Ends, Failure>,
    context: &Context,
) -> Result<Target, Failure> {
    let ends = ends?;
    let image = work.target_stack.image();
    let below = if work.is_overlay {
        crate::image::backing_size(&work.target, image, context)?
    } else {
        None
    };
    let mut target = create(work, (source, files), context)?;
    if let Some(filters) = &work.over_target {
        target.edge = filters.over(target.edge.clone(), context)?;
    }
    Ok(Target { created: target, ends, below })
}

fn create(
    work: &Work,
    (source, files): (&Edge, &[Storage]),
    context: &Context,
) -> Result<Created, Failure> {
    let size = source.info().size;
    let connections = work.connections;
    let force = work.force;
    let options = OpenOptions { connections, force, once: true, ..OpenOptions::read_write() };
    let again;
    let mut stack = &work.target_stack;
    if work.exists && stack.image().format().is_some() {
        again = made_again(work, size, context)?;
        stack = &again;
    } else if work.exists {
        let apart = disk::check_apart(&work.target.storage(), files);
        apart.map_err(|e| e.on(work.target.to_string()))?;
        let edge = disk::open(&work.target, stack, &options, context)?.edge;
        return Ok(Created { edge, holds: Holds::Unknown, made: None });
    }
    let creation = Creation {
        size,
        grows: false,
        upwards: false,
        appears: work.appears && !work.keep_partial,
        whole: true,
        write_back: work.options.flush != Flush::Never,
        options,
    };
    let contents = if work.options.allocated {
        Contents::Anything
    } else {
        Contents::Disk { disk: source, is_read: work.options.no_extents }
    };
    let target = disk::create_for(&contents, files, &work.target, stack, &creation, context)?;
    let seen = target.edge.info();
    if stack.is_empty() || seen.size >= size {
        return Ok(target);
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

/// The image that is there, to be made again as it is: it holds nothing. One that does is not written into, since
/// what of it is left would not be known.
fn made_again(work: &Work, size: u64, context: &Context) -> Result<Stack, Failure> {
    let (image, target) = (work.target_stack.image(), &work.target);
    let advice = "create the target: leave out -n";
    let found = disk::remake(target, image, &OpenOptions::read_only(), context)
        .map_err(|e| Failure::because(&e, format!("-n: {e}; {advice}")))?;
    if found.size != size {
        return Err(Failure::new(format!(
            "-n: {target}: the disk in it has {} bytes, the source has {size}; {advice}",
            found.size
        )));
    }
    let image = Image { options: found.options, ..image.clone() };
    Ok(Stack::default().over_image(image))
}

/// What the names tell of the ends. It asks the system of disks that are below these, so it comes before a sandbox.
pub(super) fn relate(work: &Work) -> Result<Ends, Failure> {
    let mut ends = Ends::Apart;
    for source in &work.sources {
        match (ends, relation(&source.disk, &work.target)?) {
            (Ends::Same, _) | (_, Ends::Same) => ends = Ends::Same,
            (Ends::Unknown, _) | (_, Ends::Unknown) => ends = Ends::Unknown,
            (Ends::Apart, Ends::Apart) => {}
        }
    }
    refuse_used(&work.target, work.force)?;
    // An image that is made has nothing in common with its source but bytes of its own.
    let is_image = work.target_stack.image().format().is_some();
    Ok(if is_image && ends == Ends::Unknown { Ends::Apart } else { ends })
}

/// What the names tell of two. Where both are files or block devices, a copy that would write over
/// what it reads is refused; of servers it is done, with care.
fn relation(source: &Named, target: &Named) -> Result<Ends, Failure> {
    let kept = target.storage();
    let on_disk = matches!(kept, Storage::Spans(_));
    match source.storage().relation(&kept) {
        Relation::Apart => Ok(Ends::Apart),
        Relation::Unknown => Ok(Ends::Unknown),
        Relation::Same if on_disk => Err(Failure::new(format!(
            "{target}: is the source itself ({source}); nothing was changed"
        ))),
        Relation::Overlapping if on_disk => Err(Failure::new(format!(
            "{target}: holds bytes of the source ({source}), at other offsets; nothing was changed"
        ))),
        Relation::Same | Relation::Overlapping => Ok(Ends::Same),
    }
}
