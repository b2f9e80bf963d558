//! What stands around the copy engine, for every program that copies: digests of what disks hold,
//! and manifests, which say what each stretch of a disk held.
//!
//! It prints nothing. What it promises of a digest is in [`digest`].

pub mod digest;
mod manifest;

pub use digest::{ContentDigest, DigestKind, DigestedRange, Digester};
pub use manifest::{Manifest, ManifestWriter, stretch_for};
