//! Where the clusters of a QED image lie.

use device::{Edge, Result};

use super::header::Header;
use crate::kit::fields::{corrupt, lies_inside};
use crate::kit::{Atlas, Lies, Run, Runs, Table};

/// A cluster that reads as zeroes.
pub(super) const ZERO: u64 = 1;

pub(super) struct Map {
    pub(super) header: Header,
    pub(super) first: Table,
    pub(super) container: Edge,
}

impl Map {
    fn sound(&self, what: &str, offset: u64, len: u64) -> Result<()> {
        if offset < self.header.len || !offset.is_multiple_of(self.header.cluster) {
            return Err(corrupt(format!("its {what} overlaps its header")).at(offset));
        }
        lies_inside(&self.container, what, offset, len)
    }
}

impl Runs for Map {
    async fn run(&self, at: u64, len: u64, may_wait: bool) -> Result<Option<Run>> {
        let (cluster, within) = (at / self.header.cluster, at % self.header.cluster);
        let (entries, asked) = (self.header.table / 8, len);
        let len = len.min(self.header.cluster - within);
        let first = self.first.entry(cluster / entries, may_wait).await?;
        let Some(first) = first else { return Ok(None) };
        if first == 0 {
            let left = entries - cluster % entries;
            let len = asked.min(left * self.header.cluster - within);
            return Ok(Some(Run { len, lies: Lies::Beneath }));
        }
        self.sound("table", first, self.header.table)?;
        let range = (first, self.header.table);
        let Some(entry) = self.first.elsewhere(range, cluster % entries, may_wait).await? else {
            return Ok(None);
        };
        let lies = match entry {
            0 => Lies::Beneath,
            ZERO => Lies::Hole,
            start => {
                self.sound("cluster", start, within + len)?;
                Lies::At(start + within)
            }
        };
        Ok(Some(Run { len, lies }))
    }
}

impl Atlas for Map {
    fn file(&self, _: u64) -> Option<(u16, &Edge)> {
        Some((0, &self.container))
    }
}
