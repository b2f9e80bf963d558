//! The name of a disk, and its format.

use std::path::PathBuf;

use disk::{Content, External, Image, Named, Stack};
use pyo3::prelude::*;

use super::raise;

/// A disk's name, as on the command line.
#[derive(Debug, FromPyObject)]
pub(crate) struct Naming {
    /// A path, a URI, or `DEVICE:ARG?key=value`.
    name: String,
    /// The format of its image; if missing, it is guessed for reading.
    format: Option<String>,
    /// `NAME?key=value` each, the first nearest to the user.
    filters: Vec<String>,
    /// A directory, or "chain": which files images may name.
    external: Option<String>,
    /// The format's parameters for opening.
    params: Vec<(String, String)>,
    /// The format's options for a new image.
    options: Vec<(String, String)>,
    /// Whether to compress a new image.
    compress: bool,
}

/// What a disk is named for: what may be guessed depends on it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Handling {
    Read,
    /// Written, as it is or new: nothing is guessed.
    Write,
}

impl Naming {
    /// What it names.
    pub(crate) fn resolve(&self, py: Python<'_>, how: Handling) -> PyResult<(Named, Stack)> {
        self.read(how).map_err(|e| raise(py, &e))
    }

    fn read(&self, how: Handling) -> device::Result<(Named, Stack)> {
        // Which format is meant depends on whether it is at a path.
        let is_path = matches!(device::Name::parse(&self.name)?, device::Name::Path(_));
        let mut image = match &self.format {
            Some(format) => Image::of(format)?,
            // A disk without a path cannot be an image whose format the user forgot to name.
            None if how == Handling::Write && !is_path => Image::default(),
            None => Image::guessed(),
        };
        image.external = match self.external.as_deref() {
            None => External::Nothing,
            Some("chain") => External::Chain,
            Some(directory) => External::Beneath(PathBuf::from(directory)),
        };
        image.guess_backing = how == Handling::Read && self.format.is_none();
        image.compress = self.compress;
        let (named, mut image) = disk::named(&self.name, image)?;
        for (key, value) in &self.params {
            image.params.set(key, value)?;
        }
        for (key, value) in &self.options {
            image.options.set(key, value)?;
        }
        if !matches!(image.content, Content::Guess) {
            image.check()?;
        }
        let filters = Stack::parse(self.filters.iter().map(String::as_str))?;
        Ok((named, filters.over_image(image)))
    }
}
