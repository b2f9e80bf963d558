//! A directory and its tables that lie in front of the grains, as QEMU and VMware's tools make
//! them: with room for every grain, so that one can be added in place.

use device::{Buffer, Edge, Result};

use super::{GRAIN, SPAN};
use crate::kit;
use crate::vmdk::descriptor::SECTOR;
use crate::vmdk::header::{GRAIN_TABLE_ENTRIES, HEADER};

/// Sectors of a table.
pub(super) const TABLE: u64 = GRAIN_TABLE_ENTRIES * 4 / SECTOR;

/// Where they lie, in sectors.
#[derive(Clone, Copy, Debug)]
pub(super) struct Front {
    pub(super) directory: u64,
    pub(super) tables: u64,
    /// The first sector after them.
    end: u64,
}

impl Front {
    /// Those of a disk of `size` bytes, from a sector on.
    pub(super) fn of(size: u64, directory: u64) -> Self {
        let count = size.div_ceil(SPAN).max(1);
        let tables = directory + (count * 4).div_ceil(SECTOR);
        Self { directory, tables, end: tables + count * TABLE }
    }

    /// The same again, after these.
    pub(super) fn twin(self, size: u64) -> Self {
        Self::of(size, self.end)
    }

    /// Where grains begin after them.
    pub(super) fn grains(self) -> u64 {
        self.end.next_multiple_of(GRAIN / SECTOR)
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
        let mut bytes: Vec<u8> = tables.flat_map(|i| sector(i).to_le_bytes()).collect();
        bytes.resize(bytes.len().next_multiple_of(HEADER), 0);
        kit::write(container, self.directory * SECTOR, Buffer::copy_of(&bytes).into(), false).await
    }

    fn table(self, index: u64) -> u64 {
        self.tables + index * TABLE
    }
}
