//! The tables in the container, a slice at a time: slices are cached, and neighbours that will be
//! wanted are read together.

use std::sync::Arc;

use device::{Edge, Result};
use runtime::RwLock;

use super::corrupt;
use super::entry::Geometry;
use super::region::Region;
use super::tracked::Tracked;
use crate::kit::{self, blocks::Blocks, cache::Shelf, container::Container};

/// Bytes of slices in one read.
const AT_ONCE: u64 = 64 << 10;

/// Reads tables that fill clusters.
pub(super) struct Tables {
    pub(super) container: Edge,
    pub(super) geometry: Geometry,
    /// The regions of the header and the parts that it names: no table may be there.
    pub(super) taken: Arc<RwLock<Vec<(&'static str, Region)>>>,
    pub(super) slices: Shelf,
    /// If the image is written.
    pub(super) written: Option<Written>,
}

/// A file with bytes of the disk, and an edge around it, which decrypts them where they are
/// encrypted.
#[derive(Clone)]
pub(super) struct DataStore {
    pub(super) container: Container,
    pub(super) edge: Edge,
}

/// The container of an image that is written, and the tables in it as they are now.
#[derive(Clone)]
pub(super) struct Written {
    pub(super) container: Container,
    /// An edge around it.
    pub(super) edge: Edge,
    /// Slices are its blocks.
    pub(super) blocks: Arc<Blocks>,
    /// What holds the clusters of the disk, decrypted: it, or a data file.
    pub(super) data: DataStore,
    /// Enabled bitmaps.
    pub(super) tracked: Vec<Arc<Tracked>>,
}

/// Some entries of a table.
pub(super) struct TableSlice {
    bytes: Arc<[u8]>,
    /// The offset of its first byte in the table.
    start: u64,
}

impl TableSlice {
    /// The number of 64 bits at `at` in the table.
    pub(super) fn number(&self, at: u64) -> Option<u64> {
        let within = usize::try_from(at.checked_sub(self.start)?).ok()?;
        kit::numbers::be64(&self.bytes, within)
    }

    /// The byte at `at` in the table.
    pub(super) fn byte(&self, at: u64) -> Option<u8> {
        let within = usize::try_from(at.checked_sub(self.start)?).ok()?;
        self.bytes.get(within).copied()
    }

    /// Its end in the table.
    pub(super) fn end(&self) -> u64 {
        self.start + self.bytes.len() as u64
    }
}

impl Tables {
    /// The slice with the bytes at `at` of the table in the cluster at `table`; bytes up to `until`
    /// will be wanted too. `None`: that would have to wait and `may_wait` is false.
    ///
    /// # Errors
    /// It cannot be read, or a table cannot be there.
    pub(super) async fn slice(
        &self,
        table: u64,
        (at, until): (u64, u64),
        may_wait: bool,
    ) -> Result<Option<TableSlice>> {
        let len = self.geometry.slice();
        let start = at - at % len;
        if let Some(written) = &self.written {
            return self.slice_now(written, table, start, may_wait).await;
        }
        if let Some(bytes) = self.slices.get(table + start) {
            return Ok(Some(TableSlice { bytes, start }));
        }
        self.check(table)?;
        let until = until.min(self.geometry.cluster()).max(at + 1);
        let wanted = (until - start).next_multiple_of(len).min(AT_ONCE.max(len));
        let wanted = usize::try_from(wanted).unwrap_or(0);
        let Some(read) = kit::read(&self.container, table + start, wanted, may_wait).await? else {
            return Ok(None);
        };
        let step = usize::try_from(len).unwrap_or(usize::MAX);
        let mut first = None;
        for (offset, bytes) in (table + start..).step_by(step).zip(read.chunks(step)) {
            let bytes: Arc<[u8]> = bytes.into();
            self.slices.put(offset, bytes.clone());
            first.get_or_insert(bytes);
        }
        Ok(first.map(|bytes| TableSlice { bytes, start }))
    }

    async fn slice_now(
        &self,
        written: &Written,
        table: u64,
        start: u64,
        may_wait: bool,
    ) -> Result<Option<TableSlice>> {
        if let Some(bytes) = written.blocks.get(table + start) {
            return Ok(Some(TableSlice { bytes, start }));
        }
        if !may_wait {
            return Ok(None);
        }
        self.check(table)?;
        let bytes = written.blocks.load(table + start).await?;
        Ok(Some(TableSlice { bytes, start }))
    }

    /// Bytes of the container.
    pub(super) fn size(&self) -> u64 {
        let written = self.written.as_ref().map(|written| written.container.length());
        written.unwrap_or_else(|| self.container.info().size)
    }

    /// Refuses a table that is not all in the container, or overlaps another part.
    fn check(&self, table: u64) -> Result<()> {
        let region = Region { offset: table, len: self.geometry.cluster() };
        region.check("table", self.size(), region.len, region.len)?;
        self.check_free("a table", region)
    }

    /// Refuses a region that overlaps the header, or a part that it names.
    pub(super) fn check_free(&self, what: &str, region: Region) -> Result<()> {
        match self.taken.read().iter().find(|(_, taken)| taken.meets(region)) {
            None => Ok(()),
            Some((other, _)) => {
                Err(corrupt(format!("{what} overlaps the {other}")).at(region.offset))
            }
        }
    }
}
