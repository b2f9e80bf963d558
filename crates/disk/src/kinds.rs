//! The table of all kinds: what help, the manual and shell completion show of each.

use device::Param;

/// A kind of device or filter, as it is shown.
#[derive(Clone, Copy, Debug)]
pub struct ShownKind {
    /// What it is.
    pub role: StackRole,
    /// The word that names it.
    pub word: &'static str,
    /// One line on what it is or does.
    pub summary: &'static str,
    /// The parameter whose key may be left out.
    pub magic: Option<&'static str>,
    /// All parameters.
    pub params: &'static [Param],
    /// Whether it takes parameters with names of the user's choice.
    pub any_param: bool,
    /// A name or a command that works as it is, or nearly.
    pub example: &'static str,
}

/// What a kind is a kind of.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum StackRole {
    /// Something that is a disk by itself.
    Device,
    /// Something over a disk.
    Filter,
}

impl StackRole {
    /// The word for it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Device => "device",
            Self::Filter => "filter",
        }
    }
}

impl From<&'static devices::DeviceKind> for ShownKind {
    fn from(kind: &'static devices::DeviceKind) -> Self {
        let devices::DeviceKind { word, summary, magic, params, any_param, example, .. } = *kind;
        Self { role: StackRole::Device, word, summary, magic, params, any_param, example }
    }
}

impl From<&'static filters::FilterKind> for ShownKind {
    fn from(kind: &'static filters::FilterKind) -> Self {
        let filters::FilterKind { word, summary, params, example, .. } = *kind;
        let (magic, any_param) = (None, false);
        Self { role: StackRole::Filter, word, summary, magic, params, any_param, example }
    }
}

/// The kinds of one role, in the order in which to show them.
pub fn kinds_of(role: StackRole) -> impl Iterator<Item = ShownKind> {
    kinds().filter(move |kind| kind.role == role)
}

/// All kinds: the devices, then the filters, each in the order in which to show them.
pub fn kinds() -> impl Iterator<Item = ShownKind> {
    let devices = devices::kinds().iter().map(ShownKind::from);
    devices.chain(filters::kinds().iter().map(ShownKind::from))
}
