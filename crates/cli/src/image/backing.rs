//! The backing image of a new image: named by the user, and opened only for its size.

use disk::{Image, Named, OpenOptions};
use runtime::Context;

use crate::failure::Failure;

/// Its name and its format, if there is one.
pub(crate) fn check(image: &Image) -> Result<Option<(&str, &str)>, Failure> {
    let Some(backing) = image.options.get("backing_file").filter(|name| !name.is_empty()) else {
        return Ok(None);
    };
    let format = image.options.get("backing_fmt").ok_or_else(|| {
        Failure::usage(format!("backing image {backing} without its format; name it (-F)"))
    })?;
    Ok(Some((backing, format)))
}

/// Bytes of the disk in it, if there is one. It is opened, but nothing that it names.
pub(crate) fn size(
    target: &Named,
    image: &Image,
    context: &Context,
) -> Result<Option<u64>, Failure> {
    let Some((backing, format)) = check(image)? else { return Ok(None) };
    let options = OpenOptions::read_only();
    let (below, _) = target.open_beside(backing, None, &options, context)?;
    let found = disk::describe(&below, &Image::of(format)?, &options, context)?;
    let found = found.refuse_unknown()?;
    Ok(Some(found.description.virtual_size))
}
