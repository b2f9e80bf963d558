//! Opening a device as the target of a copy: what the copy wants, and what it gets.
//!
//! An existing target is never removed. One that is created here is, unless it is kept.

use std::io;
use std::sync::Arc;

use device::Device;

use crate::OpenOptions;

/// What a copy wants of its target.
#[derive(Clone, Debug)]
pub struct Creation {
    /// Bytes that it has to have room for.
    pub size: u64,
    /// Whether it is a container, whose length is known only at the end ([`Device::resize`]): a
    /// file then takes whatever is written, and gets its length when it is finished.
    pub grows: bool,
    /// Whether a container that grows is written once, upwards, and without gaps. Then it can be a pipe; otherwise
    /// it goes into a pipe by way of a temporary file.
    pub upwards: bool,
    /// Whether all of it will be filled. Otherwise only a part of it may be visible (through a
    /// filter), and an existing file keeps its length.
    pub whole: bool,
    /// Whether a new file gets its name only when it is complete ([`Made::appear`]), so that a partial file
    /// is never found, not even after this process was killed. Where the file system cannot do that, the
    /// file has its name at once.
    pub appears: bool,
    /// Whether what is written is sent to the disk early, because it will be made durable.
    pub write_back: bool,
    /// How to open an existing target.
    pub options: OpenOptions,
}

/// A target, open.
pub struct CreatedDevice {
    /// It.
    pub device: Arc<dyn Device>,
    /// What is known of what it holds.
    pub holds: Holds,
    /// What was created for it, if anything.
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
    ///
    /// # Errors
    /// What the system says.
    fn sync_name(&self) -> io::Result<()>;
}

impl std::fmt::Debug for CreatedDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "CreatedDevice({}, {:?}, {:?})", self.device.info().name, self.holds, self.made)
    }
}

impl CreatedDevice {
    /// A target that is opened as it is, and may hold anything.
    pub(crate) fn as_it_is(device: Arc<dyn Device>) -> Self {
        Self { device, holds: Holds::Unknown, made: None }
    }
}
