//! What stands around the copy engine, for every program that copies: digests of what disks hold;
//! manifests, which say what each stretch of a disk held; and journals, by which a copy goes on.
//!
//! It prints nothing. What it promises of a digest is in [`digest`].

pub mod digest;
mod journal;
mod manifest;

pub use digest::{ContentDigest, DigestKind, DigestedRange, Digester};
pub use journal::{CopyJournal, DiskIdentity, Progressed};
pub use manifest::{Manifest, ManifestWriter, stretch_for};
