//! The table of all kinds: what help, the manual and shell completion show of each.

use device::Param;

/// A kind of device or filter, as it is shown.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    /// What it is.
    pub role: Role,
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
pub enum Role {
    /// Something that is a disk by itself.
    Device,
    /// Something over a disk.
    Filter,
}

impl Role {
    /// The word for it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Device => "device",
            Self::Filter => "filter",
        }
    }
}

impl From<&'static devices::Kind> for Kind {
    fn from(kind: &'static devices::Kind) -> Self {
        let devices::Kind { word, summary, magic, params, any_param, example, .. } = *kind;
        Self { role: Role::Device, word, summary, magic, params, any_param, example }
    }
}

impl From<&'static filters::Kind> for Kind {
    fn from(kind: &'static filters::Kind) -> Self {
        let filters::Kind { word, summary, params, example, .. } = *kind;
        let (magic, any_param) = (None, false);
        Self { role: Role::Filter, word, summary, magic, params, any_param, example }
    }
}

/// The kinds of one role, in the order in which to show them.
pub fn kinds_of(role: Role) -> impl Iterator<Item = Kind> {
    kinds().filter(move |kind| kind.role == role)
}

/// All kinds: the devices, then the filters, each in the order in which to show them.
pub fn kinds() -> impl Iterator<Item = Kind> {
    let devices = devices::kinds().iter().map(Kind::from);
    devices.chain(filters::kinds().iter().map(Kind::from))
}
