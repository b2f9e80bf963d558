//! What stands around the copy engine, for every program that copies: the [`job`] of a copy;
//! digests of what disks hold; manifests, which say what each stretch of a disk held; journals, by
//! which a copy goes on; mapfiles of what could not be read; and plans, by which many copies are
//! done by many processes ([`fleet`]).
//!
//! It prints nothing. What it promises of a digest is in [`digest`].

pub mod changes;
pub mod digest;
pub mod fleet;
mod identity;
pub mod job;
mod journal;
mod manifest;
pub mod mapfile;
mod proof;
mod steps;
mod witness;

pub use digest::{ContentDigest, DigestKind, DigestedRange, Digester};
pub use identity::DiskIdentity;
pub use journal::{CopyJournal, Progressed};
pub use manifest::{Manifest, ManifestWriter, stretch_for};
pub use proof::ContentProof;
pub use steps::ManifestSteps;
