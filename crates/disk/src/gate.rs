//! The gate to what an image names: which files may be opened because a stranger's image says so.

use std::path::PathBuf;

use device::{Edge, Result};
use devices::{Named, OpenOptions};
use formats::{Closed, Files, Reference};
use runtime::Context;

use crate::Image;

/// Which files an image may name.
#[derive(Clone, Debug, Default)]
pub enum External {
    /// None.
    #[default]
    Nothing,
    /// Those beneath this directory.
    Beneath(PathBuf),
    /// Any that its chain leads to, as qemu-img does: the images are trusted.
    Chain,
}

/// What stands between an image and the files that it names.
#[derive(Clone, Debug)]
pub(crate) struct Gate {
    pub(crate) name: Option<String>,
}

impl Gate {
    /// Beside the image that was named.
    pub(crate) fn of(disk: &Named, _: &Image, _: &OpenOptions, _: &Context) -> Self {
        Self { name: disk.path().map(str::to_owned) }
    }
}

impl Files for Gate {
    fn open(&self, reference: &Reference<'_>) -> Result<Edge> {
        Closed.open(reference)
    }

    fn create(&self, name: &str) -> Result<Edge> {
        Closed.create(name)
    }

    fn name(&self) -> Option<String> {
        self.name.clone()
    }
}
