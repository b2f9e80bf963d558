//! Files that lie beside an image, because it names them: a backing image, a data file, an extent.
//!
//! The name is untrusted. Only a regular file or a block device is opened, never anything that acts
//! when it is opened; and where a directory is given, nothing outside of it is reached, neither by
//! `..` nor by a link, even if the directory changes meanwhile.

use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use device::{Device, Error, ErrorKind, Fault, Params, Result, text};
use runtime::Context;
use rustix::io::Errno;

use super::{descriptor, found, open};
use crate::{Created, Creation, OpenOptions};

/// Opens the file `name`, which an image says is beside it: beneath `within`, if that is given.
/// Also returns the parameters that lead to it.
pub(crate) fn open(
    image: &Params,
    name: &str,
    within: Option<&Path>,
    options: &OpenOptions,
    context: &Context,
) -> Result<(Params, Arc<dyn Device>)> {
    let path = path_beside(image, name)?;
    let params = params_of(&path)?;
    let file = descriptor::file_options(&params, options)?;
    let look_up = || {
        let fd = match within {
            Some(directory) => open_beneath(directory, &path)?,
            None => found::anywhere(&path).map_err(|e| Error::os("open", e))?,
        };
        descriptor::refuse_kind(descriptor::kind_of(&fd)?).map(|()| fd)
    };
    let found = look_up().map_err(|e| e.on(path.display()))?;
    let opened = open::open_found(&found, &path, file, options)?;
    Ok((params, descriptor::opened(opened, context)))
}

/// What leads to the file `name` beside an image.
pub(crate) fn named(image: &Params, name: &str) -> Result<Params> {
    params_of(&path_beside(image, name)?)
}

/// The whole path of the file `name` in the working directory, if it is only there; nothing is
/// opened.
///
/// # Errors
/// There is another beside the image.
pub(crate) fn from_here(image: &Params, name: &str) -> Result<Option<String>> {
    let (beside, here) = (path_beside(image, name)?, text::path(name));
    let Ok(found) = std::fs::metadata(&here) else { return Ok(None) };
    if let Ok(other) = std::fs::metadata(&beside) {
        if (found.dev(), found.ino()) == (other.dev(), other.ino()) {
            return Ok(None);
        }
        let action = format!(
            "is the name of two files: QEMU opens the one in the working directory, others {}; nothing says which is \
             meant: go to the directory of the image, or remove the one that is not",
            beside.display()
        );
        return Err(Error::unfit(action).on(text::shown(name)));
    }
    let whole = std::path::absolute(&here).map_err(|e| Error::os("look up", e))?;
    Ok(Some(text::carry(whole.as_os_str())))
}

/// Makes the file `name` beside an image that is being made. The name is ours or the user's; it is
/// resolved as it will be when the image is read.
pub(crate) fn create(
    image: &Params,
    name: &str,
    creation: &Creation,
    context: &Context,
) -> Result<Created> {
    let path = path_beside(image, name)?;
    open::create_named(&params_of(&path)?, creation, context)
}

fn params_of(path: &Path) -> Result<Params> {
    let mut params = Params::default();
    params.set("file", &text::carry(path.as_os_str()))?;
    Ok(params)
}

/// A name without a directory of its own is one in the directory of the image.
fn path_beside(image: &Params, name: &str) -> Result<PathBuf> {
    let name = text::path(name);
    if name.as_os_str().is_empty() {
        return Err(Error::new(ErrorKind::Corrupt, Fault::File, "names a file without a name"));
    }
    let image = descriptor::path_of(image)?;
    Ok(image.parent().unwrap_or(Path::new("")).join(name))
}

/// Looks up `path` beneath `directory`, without following any link.
fn open_beneath(directory: &Path, path: &Path) -> Result<OwnedFd> {
    let outside = || {
        let action =
            format!("is outside {}; only files beneath it are opened", directory.display());
        Error::new(ErrorKind::Denied, Fault::File, action)
    };
    let fd = found::directory(directory)
        .map_err(|e| Error::os("open the directory", e).on(directory.display()))?;
    // Only the directories on the way to the image were named by the user; the kernel looks up the
    // rest.
    let absolute = |path: &Path| std::path::absolute(path).map_err(|e| Error::os("look up", e));
    let (whole, root) = (absolute(path)?, absolute(directory)?);
    let beneath = match whole.strip_prefix(&root) {
        Ok(beneath) => beneath.to_owned(),
        Err(_) => beneath_by_the_system(&whole, directory).ok_or_else(outside)?,
    };
    found::beneath(&fd, &beneath).map_err(|e| match e {
        Errno::XDEV => outside(),
        Errno::LOOP => Error::new(
            ErrorKind::Denied,
            Fault::File,
            "has a symbolic link in its path, which is not followed for an image",
        ),
        e => Error::os("open", e),
    })
}

/// The same where the user named the directory or the image by way of links.
fn beneath_by_the_system(path: &Path, directory: &Path) -> Option<PathBuf> {
    let (parent, name) = (path.parent()?, path.file_name()?);
    let parent = parent.canonicalize().ok()?.join(name);
    Some(parent.strip_prefix(directory.canonicalize().ok()?).ok()?.to_owned())
}

/// The name of the image's own file, without directories.
pub(crate) fn own_name(image: &Params) -> Option<String> {
    let path = descriptor::path_of(image).ok()?;
    // Standard output has no name.
    let name = path.file_name().filter(|_| path.as_os_str() != "-")?;
    Some(text::carry(name))
}
