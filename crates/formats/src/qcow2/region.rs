//! Regions of the container that hold tables.

use device::Result;

use super::corrupt;

/// Bytes of the container.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct Region {
    pub(super) offset: u64,
    /// Bytes.
    pub(super) len: u64,
}

impl Region {
    /// Refuses a region that is longer than `most`, does not begin at a cluster, or is not all in a
    /// container of `size` bytes.
    pub(super) fn check(self, what: &str, size: u64, cluster: u64, most: u64) -> Result<()> {
        let Self { offset, len } = self;
        if len > most {
            return Err(corrupt(format!(
                "the {what} has {len} bytes, at most {most} are possible"
            )));
        }
        if !offset.is_multiple_of(cluster) {
            return Err(corrupt(format!("the {what} does not begin at a cluster")).at(offset));
        }
        if offset > size || len > size - offset {
            let action = format!("the {what} ({len} bytes) is not all in the file ({size} bytes)");
            return Err(corrupt(action).at(offset));
        }
        Ok(())
    }

    /// Whether they overlap. Neither goes beyond the end of a file.
    pub(super) fn meets(self, other: Self) -> bool {
        self.offset < other.offset.saturating_add(other.len)
            && other.offset < self.offset.saturating_add(self.len)
    }
}

/// Refuses regions that share clusters.
pub(super) fn disjoint(regions: &[(&str, Region)], cluster: u64) -> Result<()> {
    let whole = |region: Region| Region { len: region.len.next_multiple_of(cluster), ..region };
    for (i, (what, region)) in regions.iter().enumerate() {
        let others = regions.iter().take(i);
        if let Some((other, _)) = others.clone().find(|(_, o)| whole(*o).meets(whole(*region))) {
            return Err(corrupt(format!("the {what} overlaps the {other}")).at(region.offset));
        }
    }
    Ok(())
}
