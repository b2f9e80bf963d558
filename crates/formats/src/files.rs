//! The gate: what opens, for a format, the files that an image names.
//!
//! A name inside an image is a stranger's word. A format hands it on as it stands; whether anything is
//! opened, where it is looked for, and how deep a chain may be, is decided here and nowhere else.

use std::fmt::Debug;

use device::{Edge, Error, Result};

/// What an image names.
#[derive(Clone, Copy, Debug)]
pub struct Reference<'a> {
    /// The name as it stands in the image.
    pub name: &'a str,
    /// What it is to the image.
    pub role: Role,
    /// The format that the image says it has; without it, raw for what holds plain bytes, and refused or guessed for
    /// a backing image.
    pub format: Option<&'a str>,
}

/// What one file is to another.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Role {
    /// What is not in the image is read from there: a disk, in a format of its own.
    Backing,
    /// A part of the image that holds bytes as they are: a data file, a flat extent.
    Data,
    /// A part of the image in the image's own format: a sparse extent. It is given as raw bytes.
    Part,
}

/// Opens what images name, or refuses.
pub trait Files: Debug + Send + Sync {
    /// Opens it for reading.
    ///
    /// # Errors
    /// It is not allowed, is not there, or is not what the image says.
    fn open(&self, reference: &Reference<'_>) -> Result<Edge>;

    /// Makes a file beside the image that is being made, for bytes of it: one that grows, as a container does,
    /// and reads as zeroes where nothing was written.
    ///
    /// # Errors
    /// It is there already, or cannot be made.
    fn create(&self, name: &str) -> Result<Edge>;

    /// What others call the image that is being made or opened: `disk.vmdk`. For names that are made from it.
    fn name(&self) -> Option<String>;
}

/// Opens nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Closed;

impl Files for Closed {
    fn open(&self, reference: &Reference<'_>) -> Result<Edge> {
        Err(refusal(reference))
    }

    fn create(&self, name: &str) -> Result<Edge> {
        Err(Error::unsupported("make further files").on(name))
    }

    fn name(&self) -> Option<String> {
        None
    }
}

/// What to say where nothing is opened that an image names.
#[must_use]
pub fn refusal(reference: &Reference<'_>) -> Error {
    let what = match reference.role {
        Role::Backing => "backing image",
        Role::Data => "data file",
        Role::Part => "extent",
    };
    Error::unfit(format!(
        "the image names another file, its {what} `{}`, which is not opened unless it is allowed \
         (--allow-external)",
        device::text::shown(reference.name)
    ))
}
