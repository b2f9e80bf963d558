//! Descriptions of an image, and of its backing images, without reading the disks in them.

use device::{Edge, Error, Result};
use devices::{Named, OpenOptions};
use formats::{Description, Format, NamedFile, Reference, Role};
use runtime::Context;

use crate::Image;
use crate::gate::ImageGate;

/// An image and its description.
#[derive(Debug)]
pub struct Described {
    /// Its name.
    pub disk: Named,
    /// What holds it.
    pub container: Edge,
    /// Its format; raw bytes have one too.
    pub format: &'static Format,
    /// Its description.
    pub description: Description,
    /// The archive that it lies in.
    pub archive: Option<Edge>,
}

impl Described {
    /// Refuses an image that needs features which are unknown here: what its description says may
    /// mean something else.
    ///
    /// # Errors
    /// With their names, as the image has them.
    pub fn refuse_unknown(self) -> Result<Self> {
        let unknown = &self.description.unknown_features;
        if unknown.is_empty() {
            return Ok(self);
        }
        Err(formats::unknown_features(unknown).on(self.container.info().name.clone()))
    }
}

/// Describes the image that was named. Opens nothing else.
///
/// # Errors
/// It cannot be opened, or is not such an image.
pub fn describe(
    disk: &Named,
    image: &Image,
    options: &OpenOptions,
    context: &Context,
) -> Result<Described> {
    let device = disk.open(options, context)?;
    let container = Edge::new(device, context.pool.clone());
    of_container(disk.clone(), container, image, context)
}

/// Describes the image in an open container.
///
/// # Errors
/// It is not such an image.
pub(crate) fn of_container(
    disk: Named,
    container: Edge,
    image: &Image,
    context: &Context,
) -> Result<Described> {
    let format = match image.format_of(&container)? {
        Some(format) => format,
        None => formats::format("raw")?,
    };
    let (archive, container, format) = match format.packing {
        Some(packing) if packing.has_files() => {
            let gate = ImageGate::of(&disk, image, &OpenOptions::read_only(), context);
            let inside = image.open_archive(format, container.clone(), &gate, context)?;
            let found =
                image.inside(format, &inside)?.map_or_else(|| formats::format("raw"), Ok)?;
            (Some(container), inside, found)
        }
        _ => (None, container, format),
    };
    let name = container.info().name.clone();
    let description = (format.describe)(&container, context).map_err(|e| e.on(name))?;
    Ok(Described { disk, container, format, description, archive })
}

/// Describes the image that was named, and then each backing image, as far as the image may name
/// them ([`Image::external`]); and why the next one was not opened, where the chain
/// goes on.
///
/// # Errors
/// As [`describe`], of the first.
pub fn describe_chain(
    disk: &Named,
    image: &Image,
    options: &OpenOptions,
    context: &Context,
) -> Result<(Vec<Described>, Option<Error>)> {
    let mut chain = vec![describe(disk, image, options, context)?];
    let mut gate = ImageGate::of(disk, image, options, context);
    while let Some(last) = chain.last()
        && let Some(backing) = last.description.backing.clone()
    {
        let named = |e: Error| e.on(last.container.info().name.clone());
        match of_backing(&mut gate, &backing, context, named) {
            Ok(below) => chain.push(below),
            Err(e) => return Ok((chain, Some(e))),
        }
    }
    Ok((chain, None))
}

/// Describes a backing image. The gate becomes the one for what that image names.
pub(crate) fn of_backing(
    gate: &mut ImageGate,
    backing: &NamedFile,
    context: &Context,
    named: impl Fn(Error) -> Error,
) -> Result<Described> {
    let format = backing.format.as_deref();
    let reference = Reference { name: &backing.name, role: Role::Backing, format };
    let (below, container) = gate.reach(&reference).map_err(named)?;
    let image = match format {
        Some(word) => Image::of(word)?,
        None => Image::guessed(),
    };
    *gate = gate.beside(below.clone())?;
    of_container(below, container, &image, context)
}
