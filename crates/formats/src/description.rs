//! What there is to tell of an image without using it.

use serde_json::{Map, Value};

/// What an image says of itself.
#[derive(Clone, Debug, Default)]
pub struct Description {
    /// Bytes of the disk in it.
    pub virtual_size: u64,
    /// Bytes of a cluster, grain or block, if it has them.
    pub cluster_size: Option<u64>,
    /// What it names, as it stands there: backing image first.
    pub backing: Option<Stored>,
    /// Data files and extents that it names.
    pub data_files: Vec<Stored>,
    /// Whether what is in it is encrypted.
    pub encrypted: bool,
    /// Whether it is made of compressed clusters, as a kind of image.
    pub compressed: bool,
    /// Whether it was not closed as it should be.
    pub dirty: bool,
    /// Whether it says of itself that it is broken.
    pub corrupt: bool,
    /// Names of features that we do not know and must.
    pub unknown_features: Vec<String>,
    /// Its internal snapshots.
    pub snapshots: Vec<Snapshot>,
    /// Its persistent dirty bitmaps, whole or not; `None` where an image of its kind has none.
    pub bitmaps: Option<Vec<StoredBitmap>>,
    /// What only this format has to tell: `format-specific`.`data` of qemu-img's JSON.
    pub specific: Map<String, Value>,
}

/// A file that an image names.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Stored {
    /// As it stands in the image.
    pub name: String,
    /// The format that the image says it has.
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
    /// Bytes of a machine's state beside it.
    pub vm_state_size: u64,
    /// When it was made: seconds since 1970, and nanoseconds.
    pub date: (u64, u32),
    /// How long the machine had run, in nanoseconds.
    pub vm_clock: u64,
    /// Instructions that the machine had run, if it was counted.
    pub icount: Option<u64>,
}

/// A persistent dirty bitmap.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct StoredBitmap {
    /// Its name.
    pub name: String,
    /// A bit stands for so many bytes: a power of two.
    pub granularity: u64,
}
