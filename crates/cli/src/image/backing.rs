//! The backing image of a new image, as the user names it.

use disk::Image;

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
