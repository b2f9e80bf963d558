//! The target of a job, open: created, or written where it lies.

use copy::Flush;
use device::{Edge, ErrorKind, Params, format_size};
use disk::{Contents, Created, Creation, Holds, Image, Named, OpenOptions, Stack, Storage};
use runtime::Context;

use super::made::MadeTarget;
use super::resuming::Resuming;
use super::source::Input;
use super::{Advice, CopyJob, JobError, NewDisk, range};

/// The target, open. What was created for it is removed when this is dropped, unless it is kept.
pub(super) struct Target {
    /// The disk that is filled.
    pub(super) edge: Edge,
    /// What it is known to hold.
    pub(super) holds: Holds,
    /// The target itself, below the filters that do not hide that it is new.
    pub(super) bottom: Edge,
    /// Bytes of the disk below the overlay, if only the source's own layer is copied.
    pub(super) below: Option<u64>,
    pub(super) making: MadeTarget,
}

runtime::debug_as!(Target);

impl Target {
    pub(super) fn name(&self) -> &str {
        &self.edge.info().name
    }
}

/// Opens the target for a source, with its filters over it; makes a file that is missing.
pub(super) fn open(
    job: &CopyJob,
    (source, files): (&Input, &[Storage]),
    resuming: Option<&Resuming>,
    context: &Context,
) -> Result<Target, JobError> {
    let image = job.target_stack.image();
    let below = if job.is_overlay { backing_size(&job.target, image, context)? } else { None };
    let source_disk = source.disk();
    let Created { edge, holds, made } = match (resuming, image.format()) {
        (Some(resuming), Some(_)) if !job.is_there() => {
            create_for_journal(job, resuming, (source_disk, files), context)?
        }
        _ if job.changes.is_some() => {
            let size = source_disk.map_or(0, |source| source.info().size);
            let size = range::end(job.at.unwrap_or(0), size)?;
            in_place(job, &job.target_stack, (size, files), &options_of_target(job), context)?
        }
        _ => create(job, (source_disk, files), context)?,
    };
    let making = MadeTarget::of(made);
    let mut created = Created { edge, holds, made: None };
    if let (Some(at), Some(source)) = (job.at, source.disk()) {
        created.edge = range::part(&created, (at, source.info().size), context)?;
    }
    let bottom = created.edge.clone();
    if let Some(filters) = &job.over_target {
        created.edge = filters.over(created.edge, context)?;
    }
    Ok(Target { edge: created.edge, holds, bottom, below, making })
}

/// Bytes of the backing image that a new image at `target` names, if it does. It is opened, but
/// nothing that it names.
///
/// # Errors
/// It cannot be opened as an image of the format that is named.
pub fn backing_size(
    target: &Named,
    image: &Image,
    context: &Context,
) -> Result<Option<u64>, JobError> {
    let Some(backing) = image.options.get("backing_file").filter(|name| !name.is_empty()) else {
        return Ok(None);
    };
    let format = image.options.get("backing_fmt").ok_or_else(|| {
        JobError::usage(format!("backing image {backing} without its format; name it"))
    })?;
    let options = OpenOptions::read_only();
    let (below, _) = disk::open_backing(target, backing, &options, context)?;
    let found = disk::describe(&below, &Image::of(format)?, &options, context)?;
    Ok(Some(found.refuse_unknown()?.description.virtual_size))
}

/// An image into which a copy can go on: it is there from the beginning, and is written where it
/// lies, so that it is an image whenever the copy is stopped.
fn create_for_journal(
    job: &CopyJob,
    resuming: &Resuming,
    (source, files): (Option<&Edge>, &[Storage]),
    context: &Context,
) -> Result<Created, JobError> {
    let size = source.map_or(0, |source| source.info().size);
    let options = options_of_target(job);
    let image = job.target_stack.image();
    let (holds, made) = match resuming.goes_on() {
        true => (Holds::Unknown, None),
        false => {
            let new = NewDisk {
                target: &job.target,
                image,
                size,
                fills: None,
                spared: files,
                options: &options,
            };
            new.create_unkept(context)?
        }
    };
    // It is opened with what it takes to read it, not with what it takes to make it.
    let params = params_of(image)?;
    let opened = Image { options: Params::default(), params, ..image.clone() };
    let stack = job.target_stack.clone().over_image(opened);
    let created = in_place(job, &stack, (size, files), &options, context);
    if let (Err(_), Some(made)) = (&created, &made) {
        made.remove();
    }
    Ok(Created { holds, made, ..created? })
}

/// What it takes to open an image, of what it takes to make it: its key.
pub(super) fn params_of(image: &Image) -> device::Result<Params> {
    let mut params = image.params.clone();
    let known = image.format().map(|format| format.params).unwrap_or_default();
    for (key, value) in image.options.iter() {
        let own = key.strip_prefix("encrypt.").unwrap_or(key);
        if known.iter().any(|param| param.key == own) {
            params.set(own, value)?;
        }
    }
    Ok(params)
}

fn options_of_target(job: &CopyJob) -> OpenOptions {
    OpenOptions {
        connections: job.connections,
        force: job.force,
        lock: !job.shares_target,
        once: true,
        new: job.is_new,
        ..OpenOptions::read_write()
    }
}

fn create(
    job: &CopyJob,
    (source, files): (Option<&Edge>, &[Storage]),
    context: &Context,
) -> Result<Created, JobError> {
    // What has no size yet may become as long as a disk can be.
    let size = source.map_or(i64::MAX.cast_unsigned(), |source| source.info().size);
    let size = range::end(job.at.unwrap_or(0), size)?;
    let options = options_of_target(job);
    let again;
    let mut stack = &job.target_stack;
    if job.exists {
        let empty = match stack.image().format() {
            Some(_) => made_again(job, size, context)?,
            None => None,
        };
        let Some(empty) = empty else {
            return in_place(job, stack, (size, files), &options, context);
        };
        again = empty;
        stack = &again;
    }
    let creation = Creation {
        size,
        grows: source.is_none(),
        upwards: source.is_none(),
        appears: !job.keep_partial,
        whole: job.at.is_none(),
        write_back: job.options.flush != Flush::Never,
        options,
    };
    let contents = match source {
        Some(disk) if !job.options.allocated => {
            Contents::Disk { disk, is_read: job.options.no_extents }
        }
        _ => Contents::Anything,
    };
    let target = disk::create_for(&contents, files, &job.target, stack, &creation, context)?;
    check_room(&target, stack, size).map(|()| target)
}

/// Refuses, and removes, a target that shows less than `size` bytes through its filters.
fn check_room(target: &Created, stack: &Stack, size: u64) -> Result<(), JobError> {
    let seen = target.edge.info();
    if stack.is_empty() || seen.size >= size {
        return Ok(());
    }
    if let Some(made) = &target.made {
        made.remove();
    }
    let words: Vec<_> = stack.kinds().map(|kind| kind.word).collect();
    let text = format!(
        "{}: target is too small: seen through {} it has {} bytes ({}), the source has {size} bytes \
         ({}); it was not written",
        seen.name,
        words.join(","),
        seen.size,
        format_size(seen.size),
        format_size(size)
    );
    Err(JobError::refused(ErrorKind::NoSpace, text))
}

/// The existing target, to be written where it lies.
fn in_place(
    job: &CopyJob,
    stack: &Stack,
    (size, files): (u64, &[Storage]),
    options: &OpenOptions,
    context: &Context,
) -> Result<Created, JobError> {
    let target = &job.target;
    let apart = disk::check_apart(&target.storage(), files);
    apart.map_err(|e| e.on(target.to_string()))?;
    let is_image = stack.image().format().is_some();
    let edge = match disk::open(target, stack, options, context) {
        Err(e) if is_image && job.exists => {
            return Err(JobError::from(e).advise(Advice::Create));
        }
        opened => opened?.edge,
    };
    if !edge.info().abilities.write {
        let text = format!("{target}: can only be read; nothing was changed");
        return Err(JobError::refused(ErrorKind::ReadOnly, text));
    }
    if is_image && edge.info().size < size {
        let found = edge.info().size;
        let text = format!(
            "{target}: is too small: the disk in it has {found} bytes, the source has {size}"
        );
        return Err(JobError::refused(ErrorKind::NoSpace, text).advise(Advice::Create));
    }
    Ok(Created { edge, holds: Holds::Unknown, made: None })
}

/// The existing image, to be made again as it is, where it cannot be written: it must be empty.
/// `None`: it is written where it lies, and is an image whenever the copy is stopped.
fn made_again(job: &CopyJob, size: u64, context: &Context) -> Result<Option<Stack>, JobError> {
    let (image, target) = (job.target_stack.image(), &job.target);
    let is_written = image.format().is_some_and(|format| format.write.is_some());
    if is_written && !image.compress && !job.is_overlay {
        return Ok(None);
    }
    let found = disk::remake(target, image, &OpenOptions::read_only(), context)
        .map_err(|e| JobError::from(e).advise(Advice::Create))?;
    if found.size != size {
        let found = found.size;
        let text = format!("{target}: the disk in it has {found} bytes, the source has {size}");
        return Err(JobError::refused(ErrorKind::Unsupported, text).advise(Advice::Create));
    }
    let image = Image { options: found.options, ..image.clone() };
    Ok(Some(job.target_stack.clone().over_image(image)))
}
