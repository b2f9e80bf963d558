//! Where the blocks of a Parallels disk lie.

use device::{Edge, Result};

use super::header::Header;
use crate::kit::fields::{corrupt, lies_inside};
use crate::kit::{Atlas, Lies, Run, Runs, Table};

pub(super) struct Map {
    pub(super) header: Header,
    pub(super) table: Table,
    pub(super) container: Edge,
}

impl Runs for Map {
    async fn run(&self, at: u64, len: u64, may_wait: bool) -> Result<Option<Run>> {
        let (block, within) = (at / self.header.block, at % self.header.block);
        let len = len.min(self.header.block - within);
        let Some(entry) = self.table.entry(block, may_wait).await? else { return Ok(None) };
        if entry == 0 {
            return Ok(Some(Run { len, lies: Lies::Beneath }));
        }
        let start = entry.saturating_mul(self.header.unit);
        let (table, n) = self.table.range();
        if start < table + n {
            return Err(corrupt(format!("its block {block} overlaps its headers")).at(start));
        }
        lies_inside(&self.container, "block", start.saturating_add(within), len)?;
        Ok(Some(Run { len, lies: Lies::At(start + within) }))
    }
}

impl Atlas for Map {
    fn file(&self, _: u64) -> Option<(u16, &Edge)> {
        Some((0, &self.container))
    }
}
