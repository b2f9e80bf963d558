//! Changing an image where it lies, by verbs: the one way to its container, its format and its
//! gate.

use device::{Edge, Error, Result};
use devices::{Named, OpenOptions};
use formats::{Description, Format, Opening, Repair};
use runtime::Context;

use crate::Image;
use crate::gate::ImageGate;

/// An image that is open to be changed. Its container excludes other writers while it exists.
#[derive(Debug)]
pub struct KeptImage<'a> {
    /// What holds it.
    pub container: Edge,
    /// Its format; raw bytes have one too.
    pub format: &'static Format,
    image: &'a Image,
    gate: ImageGate,
    context: &'a Context,
}

/// Opens the image that was named, to change it. Nothing is changed yet. A format is guessed where
/// the user named none: what is changed by guess is only what the format itself knows, and an image
/// of a guessed format may name no files.
///
/// # Errors
/// It cannot be opened for writing, somebody else has it open, or it is not such an image.
pub fn keep<'a>(
    disk: &Named,
    image: &'a Image,
    options: &OpenOptions,
    context: &'a Context,
) -> Result<KeptImage<'a>> {
    let options = OpenOptions { write: true, ..options.clone() };
    let container = Edge::new(disk.open(&options, context)?, context.pool.clone());
    let format = match image.format_of(&container)? {
        Some(format) => format,
        None => formats::format("raw")?,
    };
    let gate = ImageGate::of(disk, image, &options, context);
    Ok(KeptImage { container, format, image, gate, context })
}

/// The same for an image that is opened more than once: what was not closed is repaired first,
/// which may make its container longer.
///
/// # Errors
/// As [`keep`]; or it could not be repaired.
pub(crate) fn keep_closed<'a>(
    disk: &Named,
    image: &'a Image,
    options: &OpenOptions,
    context: &'a Context,
) -> Result<KeptImage<'a>> {
    let kept = keep(disk, image, options, context)?;
    let repair = kept.format.upkeep.repair;
    if repair.is_none() || !(kept.format.describe)(&kept.container, context)?.dirty {
        return Ok(kept);
    }
    kept.change("images of this format are not repaired", repair, |repair, container, opening| {
        repair(container, opening, Repair::All)
    })?;
    drop(kept);
    keep(disk, image, options, context)
}

/// Refuses to change what an overlay lies over where its snapshots lie over it, too.
///
/// # Errors
/// With what helps.
pub(crate) fn check_snapshots(overlay: &Description) -> Result<()> {
    if overlay.snapshots.is_empty() {
        return Ok(());
    }
    let action = "the overlay has snapshots, which use the same backing image and would change; \
                  `diskferry snapshot -d` deletes one";
    Err(Error::unfit(action))
}

impl KeptImage<'_> {
    /// Does what its format can do, with what that needs: `change` is a field of
    /// [`Format::upkeep`], and `what` says of formats without it what they cannot do.
    ///
    /// # Errors
    /// Its format cannot do it; or as `change`.
    pub fn change<F, T>(
        &self,
        what: &str,
        change: Option<F>,
        run: impl FnOnce(F, Edge, &Opening<'_>) -> Result<T>,
    ) -> Result<T> {
        let name = &self.container.info().name;
        let Some(change) = change else {
            let action = format!("{}: {what}", self.format.word);
            return Err(Error::unsupported(action).on(name));
        };
        let (params, context) = (&self.image.params, self.context);
        let opening = Opening { params, files: &self.gate, context };
        run(change, self.container.clone(), &opening).map_err(|e| e.on(name))
    }
}
