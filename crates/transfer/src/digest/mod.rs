//! One digest of a disk's *contents*: the same whatever the format, whether zeroes are holes or
//! written, however the disk was read, and by how many threads.
//!
//! It is that of `nbdcopy --blkhash`: `H(H(block 0) … H(block n) length)`, where all blocks have
//! the same size but the last, which may be shorter, and the length of the disk is eight bytes, the
//! lowest first. `H` and the size of a block are its [`DigestKind`]. A block of zeroes has a known
//! digest, so zeroes are neither read nor hashed.
//!
//! A digest is of what was read. It says nothing of a source that was written meanwhile.

mod digester;
mod hash;
mod kind;
mod read;
mod steps;
mod stretches;

pub use digester::Digester;
use hash::Hash;
pub use kind::{ContentDigest, DigestAlgorithm, DigestKind};
pub use read::{read, read_as};
pub use steps::{DigestStep, DiskSteps, StepForm, first_difference};
pub use stretches::DigestedRange;

/// The digest of some bytes, which are no disk.
pub(crate) fn digest_of(algorithm: DigestAlgorithm, bytes: &[u8]) -> ContentDigest {
    Hash::of(algorithm, bytes)
}
