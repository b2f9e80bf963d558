//! What sees all that is copied, while it is copied: so a digest costs no second read.

use std::ops::Range;
use std::sync::Arc;

/// Sees the source of a copy, once it was read. Every byte of what is to be copied is shown at
/// least once, in parts of any length and order, by several threads at a time; what is copied once
/// more, since the target may have forgotten it, is shown once more.
pub trait Witness: Send + Sync {
    /// These bytes are in the source at this offset. The thread that copies them waits.
    fn data(&self, offset: u64, bytes: &[u8]);

    /// The range reads as zeroes, by the source's map or a list. Nobody has read it.
    fn zeroes(&self, range: Range<u64>);
}

/// The witness of a copy. Cheap to clone.
#[derive(Clone)]
pub struct Watched(pub Arc<dyn Witness>);

runtime::debug_as!(Watched);
