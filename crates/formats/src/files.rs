//! The gate: opens, for a format, the files that an image names.
//!
//! A name inside an image is untrusted. A format passes it on as it is; only the gate decides
//! whether to open anything, where to look, and how deep a chain may be.

use std::fmt::Debug;

use device::{Edge, Error, Result};

/// A file that an image names.
#[derive(Clone, Copy, Debug)]
pub struct Reference<'a> {
    /// The name as written in the image.
    pub name: &'a str,
    /// Its relation to the image.
    pub role: Role,
    /// The format that the image gives for it. Without one, a file of plain bytes is raw, and a
    /// backing image is refused or guessed.
    pub format: Option<&'a str>,
}

/// The relation of one file to another.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Role {
    /// A backing image: a disk in its own format, from which reads come if the image has no data
    /// there.
    Backing,
    /// A part of the image with plain bytes: a flat extent.
    Data,
    /// A file of its own for the plain bytes of the disk. QEMU looks for it in the working
    /// directory.
    DataFile,
    /// A part of the image in the image's own format: a sparse extent. It is opened as raw bytes.
    Part,
}

/// Opens what images name, or refuses.
pub trait Files: Debug + Send + Sync {
    /// Opens it for reading.
    ///
    /// # Errors
    /// It is not allowed, does not exist, or is not what the image says.
    fn open(&self, reference: &Reference<'_>) -> Result<Edge>;

    /// Opens it for writing, too: a file for the bytes of an image that is written where it lies.
    ///
    /// # Errors
    /// As above; or it cannot be written.
    fn open_to_write(&self, reference: &Reference<'_>) -> Result<Edge> {
        Err(refusal(reference))
    }

    /// Creates a file beside the image being made, for bytes of it. The file grows like a
    /// container, and unwritten ranges read as zeroes.
    ///
    /// # Errors
    /// It exists already, or cannot be created.
    fn create(&self, name: &str) -> Result<Edge>;

    /// The file name of the image being made or opened, to derive other names from: `disk.vmdk`.
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

/// The error if no files that an image names are opened.
#[must_use]
pub fn refusal(reference: &Reference<'_>) -> Error {
    Error::unfit(format!(
        "{}, which is not opened unless it is allowed: \
         add `--allow-external chain` if you trust the image, or `--allow-external DIR` for files beneath DIR only",
        named(reference)
    ))
}

/// The same where only an image whose format was named may name files beside it, and this one's was
/// guessed.
#[must_use]
pub fn refusal_of_guessed(reference: &Reference<'_>) -> Error {
    Error::unfit(format!(
        "{}, which is not opened when the format of the image was guessed: name it with -f FORMAT",
        named(reference)
    ))
}

fn named(reference: &Reference<'_>) -> String {
    let what = match reference.role {
        Role::Backing => "backing image",
        Role::DataFile => "data file",
        Role::Data | Role::Part => "extent",
    };
    format!("the image names another file, its {what} `{}`", device::text::shown(reference.name))
}
