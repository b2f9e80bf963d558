//! A raw copy into a file that is an image, or that by its name should be one: programs would take
//! it for what it is not.
//!
//! Where the source was named as an image, and the target's format was not named, such a copy is
//! refused: it is as likely that an image was meant as that a raw disk was. Where the source is
//! bytes it is what was asked for, and only warned of; not even that if those bytes are an image,
//! which is then copied as it is. A raw copy to any other name goes on as ever.

use std::os::unix::fs::FileTypeExt;

use device::{Edge, text};
use disk::{Named, OpenOptions, Stack};
use runtime::Context;

use crate::failure::Failure;
use crate::formats;

/// What the user said about the target's format.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum TargetPromise {
    /// It was named, or the verb says itself what becomes of the target.
    Kept,
    /// Nothing; the source is bytes.
    OfBytes,
    /// Nothing; the source's format was named, and it is an image.
    OfImage,
}

impl TargetPromise {
    /// Refuses a name that promises an image.
    pub(crate) fn check_name(self, target: &Named) -> Result<(), Failure> {
        match target.path().and_then(formats::promised) {
            Some(word) if self == Self::OfImage => Err(Failure::usage(format!(
                "{target}: would become a raw disk; add -O {word} for an image that is {word}, or -O raw for a raw \
                 disk"
            ))),
            _ => Ok(()),
        }
    }

    /// Refuses a file that is an image now; a warning where that may be meant. Nothing is changed.
    /// `source` is `None` for a stream.
    pub(super) fn check(
        self,
        target: &Named,
        source: Option<&Edge>,
        context: &Context,
    ) -> device::Result<Option<String>> {
        let (Some(path), true) = (target.path(), self != Self::Kept) else { return Ok(None) };
        let held = holds(target, path, context);
        if let (Some((format, true)), Self::OfImage) = (held, self) {
            let option = formats::readable(format).unwrap_or("FORMAT");
            return Err(device::Error::invalid(format!(
                "{target}: is a {format} image, and would become a raw disk; nothing was changed: add -O {option} \
                 for a new image, or -O raw for a raw disk"
            )));
        }
        let shown = text::shown(path);
        let warning = match (held, formats::promised(path)) {
            (Some((format, _)), _) => {
                format!(
                    "{shown}: was a {format} image, and becomes a raw disk (-O raw confirms this)"
                )
            }
            (None, Some(word)) => {
                format!("{shown}: becomes a raw disk; for an image that is {word}, add -O {word}")
            }
            (None, None) => return Ok(None),
        };
        // What a stream holds is not known yet, and what cannot be read is reported when it is
        // used.
        let Some(source) = source else { return Ok(None) };
        let is_image = self == Self::OfBytes && !matches!(formats::known(source), Ok(None));
        Ok(Some(warning).filter(|_| !is_image))
    }
}

/// The format of the image that the target is now, and whether it is a regular file.
fn holds(target: &Named, path: &str, context: &Context) -> Option<(&'static str, bool)> {
    let about = std::fs::metadata(text::path(path)).ok()?.file_type();
    // Only these can be looked at without taking anything out of them.
    if !about.is_file() && !about.is_block_device() {
        return None;
    }
    let options = OpenOptions { lock: false, ..OpenOptions::read_only() };
    let opened = disk::open(target, &Stack::default(), &options, context).ok()?;
    formats::known(&opened.edge).ok()?.map(|format| (format, about.is_file()))
}
