//! Opening a device as the target of a copy: what the copy wants, and what it gets.
//!
//! An existing target is never removed. One that is created here is, unless it is kept.

use std::io;
use std::sync::Arc;

use device::{Device, Edge};
use runtime::Context;

use crate::OpenOptions;

/// What a copy wants of its target.
#[derive(Clone, Debug)]
pub struct Creation {
    /// Bytes that it has to have room for.
    pub size: u64,
    /// Whether it is a container, whose length is known only at the end ([`Device::resize`]): a
    /// file then takes whatever is written, and gets its length when it is finished.
    pub grows: bool,
    /// Whether a container that grows is written once, upwards, and without gaps. Then it can be a
    /// pipe; otherwise it goes into a pipe by way of a temporary file.
    pub upwards: bool,
    /// Whether all of it will be filled. Otherwise only a part of it may be visible (through a
    /// filter), and an existing file keeps its length.
    pub whole: bool,
    /// Whether a new file gets its name only when it is complete ([`Made::appear`]), so that a
    /// partial file is never found, not even after this process was killed. Where the file system
    /// cannot do that, the file has its name at once.
    pub appears: bool,
    /// Whether what is written is sent to the disk early, because it will be made durable.
    pub write_back: bool,
    /// How to open an existing target.
    pub options: OpenOptions,
}

impl Creation {
    /// A new disk, all of which will be filled; a file has its name at once.
    #[must_use]
    pub fn of(size: u64, options: OpenOptions) -> Self {
        let (grows, upwards, whole, appears, write_back) = (false, false, true, false, false);
        Self { size, grows, upwards, whole, appears, write_back, options }
    }
}

/// A target, open.
#[derive(Debug)]
pub struct Created {
    /// The disk that is filled.
    pub edge: Edge,
    /// What it is known to hold.
    pub holds: Holds,
    /// What was created for it, if anything. The caller keeps or removes it.
    pub made: Option<Box<dyn Made>>,
}

/// What a target is known to hold.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Holds {
    /// Zeroes throughout.
    Zeroes,
    /// Its old contents, even if the user claims otherwise; it is to end as if it had been emptied.
    Old,
    /// Anything, unless the user knows better.
    Unknown,
}

/// Something that was created and has a name: a file, say. Dropping this does not remove it.
pub trait Made: std::fmt::Debug + Send + Sync {
    /// Gives it its name, if it has none yet: it is complete, and durable if it is to be.
    ///
    /// # Errors
    /// Something has that name by now, or the system's error.
    fn appear(&self) -> io::Result<()> {
        Ok(())
    }

    /// Keeps it from now on.
    fn keep(&self);

    /// Removes it, unless it is to be kept, or something else has its name by now. Returns whether
    /// it did; of what has no name yet, too, of which then nothing is left.
    fn remove(&self) -> bool;

    /// Makes its name durable.
    fn sync_name(&self) -> io::Result<()>;
}

/// Several things that were created together: an image, and the files beside it.
impl Made for Vec<Box<dyn Made>> {
    /// The image itself, which is the first, appears last.
    fn appear(&self) -> io::Result<()> {
        self.iter().rev().try_for_each(|made| made.appear())
    }

    fn keep(&self) {
        self.iter().for_each(|made| made.keep());
    }

    fn remove(&self) -> bool {
        self.iter().filter(|made| made.remove()).count() > 0
    }

    fn sync_name(&self) -> io::Result<()> {
        self.iter().try_for_each(|made| made.sync_name())
    }
}

impl Created {
    /// A target that is opened as it is, and may hold anything.
    pub(crate) fn as_it_is(device: Arc<dyn Device>, context: &Context) -> Self {
        Self::new(device, Holds::Unknown, context)
    }

    /// A target for which nothing was created.
    pub(crate) fn new(device: Arc<dyn Device>, holds: Holds, context: &Context) -> Self {
        Self { edge: Edge::new(device, context.pool.clone()), holds, made: None }
    }
}
