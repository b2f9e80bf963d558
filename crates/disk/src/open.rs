//! Opening a disk with its filters, to use it or to fill it.

use device::{Edge, Error, ErrorKind, Result};
use devices::{Created, Creation, Holds, Made, Named, OpenOptions, Storage};
use formats::{Files as _, Format, PackingKind};
use runtime::Context;

use crate::contents::Contents;
use crate::gate::{ImageGate, check_apart};
use crate::naming::refuse_entry;
use crate::{Content, External, Image, Stack, reach};

/// A disk, open.
#[derive(Clone, Debug)]
pub struct Opened {
    /// What was named: the disk, or the container of an image; unpacked, if it was packed.
    pub container: Edge,
    /// The disk as it is, below all filters.
    pub below: Edge,
    /// The disk as seen through all filters.
    pub edge: Edge,
    /// The format of the image; `None`: the bytes are the disk.
    pub format: Option<&'static Format>,
    /// What was named, and its format, where that only holds the image or the disk.
    pub packed: Option<(Edge, &'static Format)>,
    /// Where the bytes are of all other files that were opened because images name them.
    pub reached: Vec<Storage>,
}

/// Opens the disk that was named, with the format of its image and filters over it. It is opened
/// for writing only if writes pass the filters: a disk that cannot be changed is not locked against
/// other writers. An image that cannot be written as it is, is opened for reading where the options
/// allow that, and the log says why.
///
/// # Errors
/// The disk cannot be opened, is not such an image, or a filter refuses it; or a format would have
/// to be guessed for writing.
pub fn open(
    disk: &Named,
    filters: &Stack,
    options: &OpenOptions,
    context: &Context,
) -> Result<Opened> {
    let write = options.write && !filters.reads_only();
    let image = filters.image();
    if write && matches!(image.content, Content::Guess) {
        let action = "the format is not guessed for writing; name it";
        return Err(Error::invalid(action).on(disk.to_string()));
    }
    // A disk that is not changed is not locked.
    let write = write && image.format().is_none_or(|format| format.write.is_some());
    let by_name = options.by_name && !filters.keeps_disk();
    let options = OpenOptions { write, by_name, ..options.clone() };
    match open_as(disk, filters, &options, context) {
        Err(e) if write && e.kind() == ErrorKind::ReadOnly && options.or_read_only => {
            let opened = open_as(disk, filters, &OpenOptions { write: false, ..options }, context)?;
            context.log.say(format_args!("{e}; it is read-only here"));
            Ok(opened)
        }
        opened => opened,
    }
}

fn open_as(
    disk: &Named,
    filters: &Stack,
    options: &OpenOptions,
    context: &Context,
) -> Result<Opened> {
    let image = filters.image();
    let container = Edge::new(disk.open(options, context)?, context.pool.clone());
    let container = filters.below_image(container, context)?;
    let format = image.format_of(&container)?;
    let gate = ImageGate::of(disk, image, options, context);
    let below = match format {
        Some(format) => image.open(format, container.clone(), &gate, context)?,
        None => container.clone(),
    };
    let packing = format.filter(|format| format.packing.is_some());
    let packed = packing.map(|packing| (container.clone(), packing));
    let (mut container, mut below, mut format) = (container, below, format);
    while let Some(outer) = format
        && let Some(inside) = image.inside(outer, &below)?
    {
        // What lies in a container's image names nothing beside that.
        let is_layout = matches!(outer.packing, Some(PackingKind::Directory(_)));
        let closed = || Image { external: External::Nothing, ..image.clone() };
        let closed = is_layout.then(|| ImageGate::of(disk, &closed(), options, context));
        let gate = closed.as_ref().unwrap_or(&gate);
        let disk = image.open_inside(inside, below.clone(), gate, context)?;
        (container, below, format) = (below, disk, Some(inside));
    }
    let edge = filters.over(below.clone(), context)?;
    Ok(Opened { container, below, edge, format, packed, reached: gate.reached() })
}

/// Opens the disk that was named as the target of a copy, with filters over it; creates it, if it
/// does not exist and can be created. Nothing that exists is changed, except that a file that
/// becomes the container of an image is emptied. Under filters it keeps its length, and is not
/// known to be zero: they may show only a part of it.
///
/// # Errors
/// As [`open`]; or the target is too small, or the format cannot be created. What was created is
/// removed again.
pub fn create(
    disk: &Named,
    filters: &Stack,
    creation: &Creation,
    context: &Context,
) -> Result<Created> {
    create_for(&Contents::Anything, &[], disk, filters, creation, context)
}

/// The same, with known contents: an image in a pipe has to know them in advance. Nothing that is
/// `spared` is written over, whatever the locks say, and neither is its backing image.
///
/// # Errors
/// As [`create`]; or the contents cannot be read; or it would write over what it must not.
pub fn create_for(
    contents: &Contents<'_>,
    spared: &[Storage],
    disk: &Named,
    filters: &Stack,
    creation: &Creation,
    context: &Context,
) -> Result<Created> {
    let image = filters.image();
    refuse_entry(disk)?;
    check_apart(&disk.storage(), spared).map_err(|e| e.on(disk.to_string()))?;
    let Some(format) = image.format() else {
        return create_raw(disk, filters, creation, context);
    };
    if !filters.is_below_empty() {
        let action = "create an image in a part of a disk; -n writes to an existing one";
        return Err(Error::unsupported(action).on(disk.to_string()));
    }
    let Some(creator) = format.create else {
        return Err(Error::unsupported("make such an image").on(format.word));
    };
    let mut container = Creation { grows: true, whole: true, ..creation.clone() };
    let gate = ImageGate::of(disk, image, &creation.options, context).making(&container, spared);
    let making = formats::Making {
        size: creation.size,
        options: &image.options,
        compress: image.compress,
        zeroed: false,
        durable: creation.write_back,
        files: &gate,
        context,
    };
    // Options that cannot be met are refused before an existing file is emptied.
    (creator.measure)(&making, &mut std::iter::empty()).map_err(|e| e.on(disk.to_string()))?;
    container.upwards = (creator.piped)(&making).map_err(|e| e.on(disk.to_string()))?;
    // So is the backing image, which may be that file. It stays open, so that it cannot change.
    for name in reach::files(format, &image.options) {
        gate.check_file(name).map_err(|e| e.on(disk.to_string()))?;
    }
    let over = (creator.over)(&making).map(|reference| gate.open(&reference)).transpose();
    let over = over.map_err(|e| e.on(disk.to_string()))?;
    let Created { edge: container, made, holds } = disk.create(&container, context)?;
    let durable = making.durable && container.info().abilities.flush;
    let making = formats::Making { zeroed: holds == Holds::Zeroes, durable, ..making };
    let name = container.info().name.clone();
    let edge = (creator.open)(container, &making, &mut contents.map(creation.size))
        .map_err(|e| e.on(&name))
        .and_then(|image| filters.over(Edge::new(image, context.pool.clone()), context));
    let made: Vec<_> = made.into_iter().chain(gate.made()).collect();
    if edge.is_err() {
        made.remove();
    }
    let is_zero = filters.is_empty() && over.is_none() && creator.reads_zero;
    let holds = if is_zero { Holds::Zeroes } else { Holds::Unknown };
    let made = (!made.is_empty()).then(|| Box::new(made) as Box<dyn Made>);
    Ok(Created { edge: edge?, holds, made })
}

fn create_raw(
    disk: &Named,
    filters: &Stack,
    creation: &Creation,
    context: &Context,
) -> Result<Created> {
    let write = creation.options.write && !filters.reads_only();
    let options = OpenOptions { write, ..creation.options.clone() };
    let whole = creation.whole && filters.is_empty();
    let created = disk.create(&Creation { whole, options, ..creation.clone() }, context)?;
    let Created { edge, holds, made } = created;
    let edge = filters.over(edge, context);
    if let (Err(_), Some(made)) = (&edge, &made) {
        made.remove();
    }
    let holds = if filters.is_empty() { holds } else { Holds::Unknown };
    Ok(Created { edge: edge?, holds, made })
}
