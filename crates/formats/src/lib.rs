//! Image formats: a disk stored in a container, which is any disk below.
//!
//! Each format is one file or folder here and one line in [`table`]; no other code names it. A
//! format never opens a file: it gets its container, and asks the gate ([`Files`]) for the files
//! that an image *names* (a backing image, a data file, further extents); the gate may refuse. A
//! format checks everything an image says before using it: every length, count and offset is
//! bounded by a cap and by the container's size before anything is allocated or read.

#![deny(clippy::expect_used, clippy::indexing_slicing, clippy::panic)]

mod description;
mod dmg;
mod files;
mod format;
mod head;
mod kit;
mod luks;
mod oci;
mod packed;
mod parallels;
mod qcow;
mod qcow2;
mod qed;
mod raw;
#[cfg(test)]
mod scripted;
pub mod table;
mod tar;
mod vdi;
mod vhdx;
mod vmdk;
mod vpc;

pub use description::{Description, NamedFile, Snapshot, StoredBitmap, unknown_features};
pub use files::{Closed, Files, Reference, Role, refusal, refusal_of_guessed};
pub use format::{
    BackingName, BitmapChange, BitmapKeeper, Creator, DiskMap, Findings, Format, ImageAmender,
    ImageOpener, ImageResizer, Making, Measure, NewRoom, NewSize, Opening, PackingKind, Rebase,
    Repair, Repaired, Repairer, SnapshotChange, SnapshotKeeper, Upkeep,
};
pub use head::Head;
pub use luks::PARAMS as LUKS_PARAMS;
pub use table::{format, formats, recognise};
pub use tar::{TarSearch, find_in_tar, member as tar_member};
pub use vhdx::crc32c;
