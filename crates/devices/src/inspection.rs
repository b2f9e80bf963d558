//! What a kind of device can tell of a disk, or of all disks of one server, without using it.

/// What to inspect.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Scope {
    /// The disk that is named.
    Disk,
    /// All disks of its server, as far as that lists them.
    All,
}

/// What was found.
#[derive(Clone, Debug, Default)]
pub struct Inspection {
    /// Facts of the server.
    pub place: Facts,
    /// Facts of each disk.
    pub disks: Vec<Facts>,
}

/// What is known of one thing, by key, in the order in which to show it.
pub type Facts = Vec<(&'static str, Fact)>;

/// The value of a fact.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Fact {
    /// True or false.
    Flag(bool),
    /// A number.
    Number(u64),
    /// How large the disk is, in bytes.
    Size(u64),
    /// A text; it may come from a peer.
    Text(String),
    /// Several of them.
    Texts(Vec<String>),
}
