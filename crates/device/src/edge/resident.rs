//! Where bytes of a disk lie in memory, for those who can have the kernel copy them from there.

use super::Edge;
use crate::{Extent, ExtentKind, Place};

/// Extents of a range, at most.
const EXTENTS: usize = 64;

impl Edge {
    /// Where the bytes of a range lie, in order, each place with the number of its bytes; `None`
    /// unless all of them are data in memory, which can be taken from there without waiting, and
    /// nobody observes who reads them. Not to be asked for what `read_now` has refused: see
    /// [`Device::now`](crate::Device::now). The places are leases: see [`Place`].
    #[must_use]
    pub fn resident(&self, offset: u64, len: u64) -> Option<Vec<(Place, u64)>> {
        self.check("read", offset, len).ok()?;
        if self.info().abilities.observed {
            return None;
        }
        if let Some(all) = &self.info().flat {
            let place = all.advanced(offset);
            return place.is_resident(len).then(|| vec![(place, len)]);
        }
        let mut extents = Vec::new();
        let is_known = self.resolve_now(offset, len, EXTENTS, &mut extents).ok()?;
        let known: u64 = extents.iter().map(|extent| extent.len).sum();
        let place = |extent: Extent| {
            let is_data = extent.kind == ExtentKind::Data;
            let place = extent.place.filter(|place| is_data && place.is_resident(extent.len))?;
            Some((place, extent.len))
        };
        if is_known && known == len { extents.into_iter().map(place).collect() } else { None }
    }
}
