//! What a kind of device can tell of a disk, or of all that are at one place, without using it.

/// What is looked at.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Scope {
    /// The disk that is named.
    Disk,
    /// All disks that are where it is, as far as that is told.
    All,
}

/// What was found.
#[derive(Clone, Debug, Default)]
pub struct Inspection {
    /// Of the place.
    pub place: Facts,
    /// Of each disk.
    pub disks: Vec<Facts>,
}

/// What is known of one thing, by key, in the order in which to show it.
pub type Facts = Vec<(&'static str, Fact)>;

/// Something that is known.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Fact {
    /// Yes or no.
    Flag(bool),
    /// A number.
    Number(u64),
    /// How large the disk is, in bytes.
    Size(u64),
    /// Words; they may come from a peer.
    Text(String),
    /// Several of them.
    Texts(Vec<String>),
}
