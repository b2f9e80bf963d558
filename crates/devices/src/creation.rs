//! Being the target of a copy: what is asked of a kind of device, and what it answers.
//!
//! What was there before is never removed. What is made here is, unless it is kept.

use std::io;
use std::sync::Arc;

use device::Device;

use crate::OpenOptions;

/// What a copy wants of its target.
#[derive(Clone, Debug)]
pub struct Creation {
    /// Bytes that it has to have room for.
    pub size: u64,
    /// Whether it is a container, whose length is known only in the end ([`Device::resize`]): what
    /// can grow takes whatever is written, and has that length when it is finished.
    pub grows: bool,
    /// Whether a container that grows is written once and upwards, all of it. Then a pipe will do; what is made in
    /// any other way goes into one by way of a temporary file.
    pub upwards: bool,
    /// Whether all of it will be filled. Otherwise only a part of it may be seen (through a
    /// filter), and what is there keeps its length.
    pub whole: bool,
    /// Whether a file that is made has no name before it is complete ([`Made::appear`]), so that
    /// a part of it is never found, not even after this process was killed. Where the file system cannot do
    /// that, the file has its name at once.
    pub appears: bool,
    /// Whether what is written is sent to the disk early, because it will be made durable.
    pub write_back: bool,
    /// How to open what is there.
    pub options: OpenOptions,
}

/// A target, open.
pub struct Created {
    /// It.
    pub device: Arc<dyn Device>,
    /// What is known of what it holds.
    pub holds: Holds,
    /// What was made for it, if something was.
    pub made: Option<Box<dyn Made>>,
}

/// What a target is known to hold.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Holds {
    /// Zeroes throughout.
    Zeroes,
    /// What it held before, whatever anybody believes of it; it is to be as if it had been emptied.
    Old,
    /// Anything, unless the user knows.
    Unknown,
}

/// Something that was made and has a name: a file, say. It is not removed by being dropped.
pub trait Made: std::fmt::Debug + Send + Sync {
    /// Gives it its name, if it has none yet: it is complete, and durable if it is to be.
    ///
    /// # Errors
    /// Something has that name by now, or what the system says.
    fn appear(&self) -> io::Result<()> {
        Ok(())
    }

    /// Keeps it from now on.
    fn keep(&self);

    /// Removes it, unless it is to be kept, or another has its name by now; whether it did.
    fn remove(&self) -> bool;

    /// Makes its name durable.
    ///
    /// # Errors
    /// What the system says.
    fn sync_name(&self) -> io::Result<()>;
}

impl std::fmt::Debug for Created {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Created({}, {:?}, {:?})", self.device.info().name, self.holds, self.made)
    }
}

impl Created {
    /// What is opened as it is, and may hold anything.
    pub(crate) fn as_it_is(device: Arc<dyn Device>) -> Self {
        Self { device, holds: Holds::Unknown, made: None }
    }
}
