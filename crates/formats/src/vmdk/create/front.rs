//! The directory and the tables of a streamOptimized image that lie in front of its grains, as QEMU
//! and VMware's tools make them: with room for every grain, so that one can be added in place.

use device::{Buffer, Edge, Result};

use super::text::{DESCRIPTOR, DESCRIPTOR_AT};
use super::{GRAIN, SPAN};
use crate::kit;
use crate::vmdk::descriptor::SECTOR;
use crate::vmdk::header::GRAIN_TABLE_ENTRIES;

/// Sectors of a table.
pub(super) const TABLE: u64 = GRAIN_TABLE_ENTRIES * 4 / SECTOR;

/// Where they lie, in sectors.
#[derive(Clone, Copy, Debug)]
pub(super) struct Front {
    pub(super) directory: u64,
    tables: u64,
    pub(super) grains: u64,
}

impl Front {
    pub(super) fn of(size: u64) -> Self {
        let count = size.div_ceil(SPAN).max(1);
        let directory = DESCRIPTOR_AT + DESCRIPTOR;
        let tables = directory + (count * 4).div_ceil(SECTOR);
        Self {
            directory,
            tables,
            grains: (tables + count * TABLE).next_multiple_of(GRAIN / SECTOR),
        }
    }

    /// Writes tables to their places.
    pub(super) async fn write_tables(
        self,
        container: &Edge,
        tables: Vec<(u64, Vec<u8>)>,
    ) -> Result<()> {
        for (index, bytes) in tables {
            let at = self.table(index) * SECTOR;
            kit::write(container, at, Buffer::copy_of(&bytes).into(), false).await?;
        }
        Ok(())
    }

    /// Writes the directory of a disk of `size` bytes: every table has its place, whether or not it
    /// has a grain.
    pub(super) async fn write_directory(self, container: &Edge, size: u64) -> Result<()> {
        let tables = 0..size.div_ceil(SPAN).max(1);
        let sector = |i| u32::try_from(self.table(i)).unwrap_or(u32::MAX);
        let bytes: Vec<u8> = tables.flat_map(|i| sector(i).to_le_bytes()).collect();
        kit::write(container, self.directory * SECTOR, Buffer::copy_of(&bytes).into(), false).await
    }

    fn table(self, index: u64) -> u64 {
        self.tables + index * TABLE
    }
}
