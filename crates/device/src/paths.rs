//! The paths to the outside of a device that stands on others: theirs are its own.

use crate::{Edge, Result, Session};

/// The paths of the disks below. What breaks below is broken above.
#[derive(Debug)]
pub struct PathsBelow {
    below: Vec<Edge>,
    keeps_bytes: bool,
}

impl PathsBelow {
    /// Those of the disks `below`; `None` if none of them has a path that may break. `keeps_bytes`:
    /// the device keeps bytes of what is below, as in [`Session::keeps_bytes`].
    pub fn of<'a>(below: impl IntoIterator<Item = &'a Edge>, keeps_bytes: bool) -> Option<Self> {
        let below: Vec<_> = below.into_iter().cloned().collect();
        let has_path = below.iter().any(|below| below.device().session().is_some());
        has_path.then_some(Self { below, keeps_bytes })
    }
}

impl Session for PathsBelow {
    fn reopen(&self) -> Result<()> {
        self.below.iter().try_for_each(|below| below.device().reopen())
    }

    fn reconnects(&self) -> bool {
        self.below.iter().any(|below| below.device().reconnects())
    }

    fn may_return(&self) -> bool {
        self.below.iter().any(|below| below.device().may_return())
    }

    fn keeps_bytes(&self) -> bool {
        self.keeps_bytes || self.below.iter().any(|below| below.device().keeps_bytes())
    }

    /// Writes below may be lost whenever one of the disks has lost writes.
    fn epoch(&self) -> u64 {
        self.below.iter().map(|below| below.device().epoch()).sum()
    }
}
