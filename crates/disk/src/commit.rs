//! What an overlay holds, put into its backing image.
//!
//! It is durable there before the overlay gives anything up. Until then the overlay holds all that
//! it shows, so whenever this is stopped, it reads as it did.

use device::{Edge, Error, Extent, Result, text};
use devices::{Allocation, Length, Named, OpenOptions, Relation, Resizing};
use formats::{NamedFile, Opening, Reference, Role};
use runtime::{Context, to_usize};

use crate::Image;
use crate::describe::{Described, of_backing};
use crate::gate::ImageGate;
use crate::upkeep::{check_snapshots, keep_closed};

/// Extents asked for at a time.
const MANY: usize = 1024;

/// Copies ranges of the first disk into the second one, to the same offsets.
pub type CopyExtents<'a> = &'a mut dyn FnMut(&Edge, &Edge, Vec<Extent>) -> Result<()>;

/// Puts what the overlay that was named holds into its backing image, by `copy`, and then empties
/// the overlay, if that is wished. With the name of a `base`, of an image further down in its
/// chain, what the images between hold is put there as well, and the overlay stays as it is.
///
/// # Errors
/// One of them cannot be opened for writing, or the format of the backing image is not named, or
/// the copy failed. The overlay reads as it did.
pub fn commit(
    disk: &Named,
    image: &Image,
    (base, empties): (Option<&str>, bool),
    options: &OpenOptions,
    context: &Context,
    copy: CopyExtents<'_>,
) -> Result<()> {
    // What it lies over is not read.
    let alone = Image { ignore_backing: true, ..image.clone() };
    let kept = keep_closed(disk, &alone, options, context)?;
    let format = kept.format;
    let what = "images of this format cannot be committed";
    kept.change(what, format.upkeep.empty, |empty, container, opening| {
        let described = (format.describe)(&container, context)?;
        check_snapshots(&described)?;
        let none = || Error::unfit("Image does not have a backing file");
        let backing = described.backing.ok_or_else(none)?;
        let gate = ImageGate::of(disk, image, options, context);
        let way = Way { gate, backing, above: disk.clone(), between: Vec::new() };
        let way = match base {
            Some(base) => way.down_to(base, context)?,
            None => way,
        };
        let Way { gate, backing, between, .. } = &way;
        let unnamed = || {
            let action = "the overlay does not name the format of its backing image, which is not \
                          guessed; `diskferry rebase -u -b BACKING -F FORMAT` names it";
            Error::unfit(action)
        };
        let word = backing.format.as_deref().ok_or_else(unnamed)?;
        let reference = Reference { name: &backing.name, role: Role::Backing, format: Some(word) };
        let open = format.write.unwrap_or(format.open);
        let files = ImageGate::of(disk, image, options, context).ending(gate.depth());
        let opened = open(container.clone(), &Opening { files: &files, ..*opening })?;
        let overlay = Edge::new(opened, context.pool.clone());
        let size = overlay.info().size;
        let (named, mut base_disk) = gate.open_base(&reference, size)?;
        if word == "raw" && base_disk.info().size < size {
            drop(base_disk);
            let wish =
                Resizing { length: Length::Exactly(size), shrink: false, mode: Allocation::Sparse };
            named.resize(&wish, options)?;
            base_disk = gate.open_base(&reference, size)?.1;
        }
        let shortest = between.iter().map(|image| image.description.virtual_size).min();
        let held = held(&overlay, between.len(), shortest.unwrap_or(size))?;
        copy(&overlay, &base_disk, held)?;
        base_disk.flush()?;
        base_disk.device().finish()?;
        overlay.device().finish()?;
        drop(overlay);
        if empties && base.is_none() { empty(container, opening) } else { Ok(()) }
    })
}

/// The way from an overlay down to the image into which it is put.
struct Way {
    /// Of the image above that one.
    gate: ImageGate,
    above: Named,
    /// As the image above names it.
    backing: NamedFile,
    /// The images between, open, so that nobody changes them.
    between: Vec<Described>,
}

impl Way {
    /// Goes on to the image of this name, which is looked for beside each image above it.
    fn down_to(mut self, base: &str, context: &Context) -> Result<Self> {
        let overlay = self.above.to_string();
        loop {
            let storage = |name: &str| self.above.named_beside(name).map(|it| it.storage());
            if let Ok((here, wanted)) =
                storage(&self.backing.name).and_then(|here| Ok((here, storage(base)?)))
                && here.relation(&wanted) == Relation::Same
            {
                return Ok(self);
            }
            let below = of_backing(&mut self.gate, &self.backing, context, |e| e)?;
            let Some(backing) = below.description.backing.clone() else {
                let base = text::shown(base);
                let action = format!("Did not find '{base}' in the backing chain of '{overlay}'");
                return Err(Error::unfit(action));
            };
            self.above = below.disk.clone();
            self.backing = backing;
            self.between.push(below);
        }
    }
}

/// What an overlay holds, and so many images below it, the shortest of which has so many bytes.
fn held(overlay: &Edge, between: usize, shortest: u64) -> Result<Vec<Extent>> {
    let (size, mut at, mut held) = (overlay.info().size, 0, Vec::new());
    let mut extents = Vec::new();
    while at < size {
        overlay.resolve(at, size - at, MANY, &mut extents)?;
        at = extents.last().map_or(size, Extent::end);
        for extent in extents.drain(..) {
            let start = match extent.present {
                true if to_usize(u64::from(extent.depth)) <= between => extent.start,
                true => extent.end(),
                // Where an image between has ended, the one below does not show.
                false => extent.start.max(shortest),
            };
            if start < extent.end() {
                let len = extent.end() - start;
                held.push(Extent { place: None, start, len, ..extent });
            }
        }
    }
    Ok(held)
}
