//! The description of an image: what can be told without using it.

use device::Error;
use serde_json::{Map, Value};

use crate::kit::fields::foreign;

/// The description of an image.
#[derive(Clone, Debug, Default)]
pub struct Description {
    /// Bytes of the disk in it.
    pub virtual_size: u64,
    /// Bytes of a cluster, grain or block, if it has them.
    pub cluster_size: Option<u64>,
    /// The files that it names, as written: backing image first.
    pub backing: Option<NamedFile>,
    /// Data files and extents that it names.
    pub data_files: Vec<NamedFile>,
    /// Whether its contents are encrypted.
    pub encrypted: bool,
    /// Whether its kind of image always has compressed clusters.
    pub compressed: bool,
    /// Whether it was not closed properly.
    pub dirty: bool,
    /// Whether it is marked as corrupt.
    pub corrupt: bool,
    /// Names of required features that are unknown here.
    pub unknown_features: Vec<String>,
    /// Its internal snapshots.
    pub snapshots: Vec<Snapshot>,
    /// Its persistent dirty bitmaps, intact or not; `None` if images of its kind have none.
    pub bitmaps: Option<Vec<StoredBitmap>>,
    /// The details of this format only: `format-specific`.`data` of qemu-img's JSON.
    pub specific: Map<String, Value>,
}

/// The error for an image with these required features, of which none is known.
#[must_use]
pub fn unknown_features(unknown: &[String]) -> Error {
    let plural = if unknown.len() == 1 { "a feature" } else { "features" };
    foreign(format!(
        "the image has {plural} that are needed to read it and unknown here: {}",
        unknown.join(", ")
    ))
}

/// A file that an image names.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct NamedFile {
    /// The name as written in the image.
    pub name: String,
    /// The format that the image gives for it.
    pub format: Option<String>,
}

/// An internal snapshot.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Snapshot {
    /// Its number, as text.
    pub id: String,
    /// Its name.
    pub name: String,
    /// Bytes of the disk in it.
    pub virtual_size: u64,
    /// Bytes of the saved machine state.
    pub vm_state_size: u64,
    /// The time of the snapshot: seconds since 1970, and nanoseconds.
    pub date: (u64, u32),
    /// The run time of the machine, in nanoseconds.
    pub vm_clock: u64,
    /// The number of instructions that the machine had run, if they were counted.
    pub icount: Option<u64>,
}

/// A persistent dirty bitmap.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct StoredBitmap {
    /// Its name.
    pub name: String,
    /// Bytes per bit: a power of two.
    pub granularity: u64,
}
