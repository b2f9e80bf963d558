//! The end: writes the tables, and when all is written, the header.

use device::{Buffer, Edge, Result};

use super::clusters::Table;
use super::layout::{Layout, Shape};
use super::writer::put;
use super::{NewImage, Placement};
use crate::kit;
use crate::qcow2::entry::{COMPRESSED, COPIED, ZERO};

/// Bytes of tables in one write.
const STEP: usize = 1 << 20;

/// A sequential writer of tables.
pub(super) struct SequentialWriter<'a> {
    edge: &'a Edge,
    shape: Shape,
    at: u64,
    bytes: Vec<u8>,
}

impl<'a> SequentialWriter<'a> {
    /// One that begins at a cluster of `edge`.
    pub(super) fn new(edge: &'a Edge, shape: Shape, cluster: u64) -> Self {
        Self { edge, shape, at: cluster << shape.geometry.cluster_bits, bytes: Vec::new() }
    }

    pub(super) async fn add(&mut self, bytes: &[u8]) -> Result<()> {
        self.bytes.extend_from_slice(bytes);
        if self.bytes.len() >= STEP { self.end().await } else { Ok(()) }
    }

    pub(super) async fn end(&mut self) -> Result<()> {
        if !self.bytes.is_empty() {
            put(self.edge, self.at, Buffer::copy_of(&self.bytes).into()).await?;
            self.at += self.bytes.len() as u64;
            self.bytes.clear();
        }
        Ok(())
    }

    /// Pads what was added to the end of its last cluster.
    pub(super) async fn pad(&mut self) -> Result<()> {
        let len = self.at + self.bytes.len() as u64;
        let rest = len.next_multiple_of(self.shape.geometry.cluster()) - len;
        self.add(&vec![0; usize::try_from(rest).unwrap_or(0)]).await
    }

    /// Adds the L1 table; `is_there` says which L2 tables there are, from `layout.l2` on.
    pub(super) async fn add_l1(
        &mut self,
        layout: Layout,
        is_there: impl Fn(u64) -> bool,
    ) -> Result<()> {
        let mut next = layout.l2;
        for table in 0..self.shape.l1_entries() {
            let there = is_there(table);
            let entry = if there { COPIED | next << self.shape.geometry.cluster_bits } else { 0 };
            next += u64::from(there);
            self.add(&entry.to_be_bytes()).await?;
        }
        self.pad().await
    }

    /// Adds the table of refcount blocks.
    pub(super) async fn add_refcount_table(&mut self, layout: Layout) -> Result<()> {
        for block in layout.blocks..layout.blocks + layout.refcounts.blocks {
            self.add(&(block << self.shape.geometry.cluster_bits).to_be_bytes()).await?;
        }
        self.pad().await
    }
}

impl NewImage {
    /// Writes the gathered data, all tables, and the header. Returns the end of the image.
    pub(super) async fn write_tables(&self) -> Result<u64> {
        self.write_gathered().await?;
        self.fill().await?;
        let layout = self.lay_out()?;
        self.write_l2(layout).await?;
        self.write_l1(layout).await?;
        self.write_refcounts(layout).await?;
        let may_forget = self.files().any(|file| file.device().session().is_some());
        if self.durable || may_forget {
            self.flush_files().await?;
        }
        self.write_header(layout).await?;
        // A loss after this one is not of these tables.
        if may_forget {
            self.flush_files().await?;
        }
        Ok(layout.end << self.shape.geometry.cluster_bits)
    }

    /// Sets the length of the files, and finishes them. May block.
    pub(super) fn finish_files(&self, end: u64) -> Result<()> {
        if let Some(data) = &self.data {
            data.device().resize(self.shape.size)?;
            data.device().finish()?;
        }
        self.container.device().resize(end)?;
        self.container.device().finish()
    }

    async fn flush_files(&self) -> Result<()> {
        for edge in self.files() {
            if edge.info().abilities.flush {
                kit::flush(edge).await?;
            }
        }
        Ok(())
    }

    /// Writes zeroes into preallocated clusters that were not written.
    async fn fill(&self) -> Result<()> {
        let fills = self.options.preallocation == super::Qcow2Preallocation::Full;
        let Placement::Fixed { base, .. } = self.placement else { return Ok(()) };
        if !fills {
            return Ok(());
        }
        let cluster = self.shape.geometry.cluster();
        let end = if self.data.is_some() { self.shape.size } else { self.shape.disk() * cluster };
        let mut stream = SequentialWriter::new(
            self.home(),
            self.shape,
            base >> self.shape.geometry.cluster_bits,
        );
        let zeroes = vec![0; usize::try_from(cluster).unwrap_or(0)];
        for c in 0..self.shape.disk() {
            if self.state().clusters.get(c) & COPIED != 0 {
                stream.end().await?;
                stream.at = base + (c + 1) * cluster;
                continue;
            }
            let len = usize::try_from((end - c * cluster).min(cluster)).unwrap_or(0);
            stream.add(zeroes.get(..len).unwrap_or(&[])).await?;
        }
        stream.end().await
    }

    fn has_all(&self) -> bool {
        matches!(self.placement, Placement::Fixed { all: true, .. })
    }

    fn lay_out(&self) -> Result<Layout> {
        if self.has_all() && self.data.is_none() {
            return self.shape.in_front();
        }
        let state = &mut *self.state();
        state.packer.end(&mut state.room);
        let tables = if self.has_all() {
            self.shape.l1_entries()
        } else {
            state.clusters.tables().len() as u64
        };
        self.shape.behind(state.room.end(), tables)
    }

    /// L2 tables, in order.
    async fn write_l2(&self, layout: Layout) -> Result<()> {
        let mut stream = self.stream(layout.l2);
        let tables: Vec<u64> = if self.has_all() {
            (0..self.shape.l1_entries()).collect()
        } else {
            self.state().clusters.tables().keys().copied().collect()
        };
        for table in tables {
            let bytes = self.encode_l2(table);
            stream.add(&bytes).await?;
        }
        stream.end().await
    }

    fn encode_l2(&self, table: u64) -> Vec<u8> {
        let geometry = self.shape.geometry;
        let mut bytes = Vec::with_capacity(usize::try_from(geometry.cluster()).unwrap_or(0));
        let state = self.state();
        let known = state.clusters.tables().get(&table);
        let first = table * geometry.l2_entries();
        for (cluster, at) in (first..).zip(0..geometry.l2_entries()) {
            let entry = match known {
                None => 0,
                Some(Table::Zero) => ZERO,
                Some(Table::Entries(entries)) => {
                    usize::try_from(at).ok().and_then(|at| entries.get(at)).copied().unwrap_or(0)
                }
            };
            let (entry, parts) = self.final_entry(cluster, entry);
            bytes.extend(entry.to_be_bytes());
            if geometry.extended {
                bytes.extend(parts.to_be_bytes());
            }
        }
        bytes
    }

    /// An entry as stored in the image, with its second half.
    fn final_entry(&self, cluster: u64, entry: u64) -> (u64, u64) {
        const ALL: u64 = u32::MAX as u64;
        let inside = cluster < self.shape.disk();
        let home = match self.placement {
            Placement::Fixed { base, all: true, .. } if inside => {
                Some(COPIED | (base + (cluster << self.shape.geometry.cluster_bits)))
            }
            _ => None,
        };
        let extended = self.shape.geometry.extended;
        match (entry, home) {
            (ZERO, None) if extended => (0, ALL << 32),
            (ZERO, Some(home)) if extended => (home, ALL << 32),
            (ZERO, None) => (ZERO, 0),
            (ZERO, Some(home)) => (home | ZERO, 0),
            (0, None) => (0, 0),
            // It has a place, but is read from the backing image.
            (0, Some(home)) if self.backing.is_some() => (home, 0),
            (0, Some(home)) => (home, ALL),
            (entry, _) if entry & COMPRESSED != 0 => (entry, 0),
            (entry, _) => (entry, ALL),
        }
    }

    async fn write_l1(&self, layout: Layout) -> Result<()> {
        let mut stream = self.stream(layout.l1);
        let is_known = |table| self.state().clusters.tables().contains_key(&table);
        stream.add_l1(layout, |table| self.has_all() || is_known(table)).await?;
        stream.end().await
    }

    async fn write_refcounts(&self, layout: Layout) -> Result<()> {
        let counts = self.count(layout)?;
        let mut stream = self.stream(layout.blocks);
        let per_block = usize::try_from(self.shape.counts()).unwrap_or(usize::MAX);
        for block in counts.chunks(per_block) {
            stream.add(&encode_counts(block, self.shape)).await?;
        }
        stream.end().await?;
        let mut stream = self.stream(layout.table);
        stream.add_refcount_table(layout).await?;
        stream.end().await
    }

    /// The refcount of each cluster of the image.
    fn count(&self, layout: Layout) -> Result<Vec<u16>> {
        let mut counts = self.state().clusters.counts(layout.end)?;
        let at = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
        if self.has_all() && self.data.is_none() {
            counts.fill(1);
        }
        // The tables follow each other, without gaps.
        let tables = layout.l1.min(layout.l2)..layout.table + layout.refcounts.table;
        let key = self.options.encryption.as_ref().map_or(0, |new| new.len);
        let key = 1..1 + key.div_ceil(self.shape.geometry.cluster());
        for range in [0..1, key, tables] {
            if let Some(range) = counts.get_mut(at(range.start)..at(range.end)) {
                range.fill(1);
            }
        }
        Ok(counts)
    }

    async fn write_header(&self, layout: Layout) -> Result<()> {
        let mut stream = self.stream(0);
        stream.add(&self.heading(layout).encode()).await?;
        stream.pad().await?;
        stream.end().await
    }

    fn stream(&self, cluster: u64) -> SequentialWriter<'_> {
        SequentialWriter::new(&self.container, self.shape, cluster)
    }
}

/// A block of refcounts: big-endian, and of less than a byte, the first one lowest.
pub(super) fn encode_counts(counts: &[u16], shape: Shape) -> Vec<u8> {
    let len = usize::try_from(shape.geometry.cluster()).unwrap_or(0);
    let mut bytes = Vec::with_capacity(len);
    match 1u32 << shape.refcount_order {
        width @ 1..8 => {
            let per_byte = usize::try_from(8 / width).unwrap_or(1);
            bytes.extend(counts.chunks(per_byte).map(|counts| {
                let shifts = (0u32..).step_by(usize::try_from(width).unwrap_or(1));
                counts
                    .iter()
                    .zip(shifts)
                    .fold(0, |byte, (count, shift)| byte | count.to_le_bytes()[0] << shift)
            }));
        }
        8 => bytes.extend(counts.iter().map(|count| count.to_le_bytes()[0])),
        16 => bytes.extend(counts.iter().flat_map(|count| count.to_be_bytes())),
        32 => bytes.extend(counts.iter().flat_map(|count| u32::from(*count).to_be_bytes())),
        _ => bytes.extend(counts.iter().flat_map(|count| u64::from(*count).to_be_bytes())),
    }
    bytes.resize(len, 0);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::qcow2::entry::Geometry;

    #[test]
    fn refcounts_of_all_widths_stand_where_the_format_has_them() {
        let geometry =
            Geometry { cluster_bits: 9, extended: false, zeroes: true, data_file: false };
        let encode = |order, counts: &[u16]| {
            let bytes = encode_counts(counts, Shape { geometry, refcount_order: order, size: 0 });
            assert_eq!(bytes.len(), 512);
            bytes[..8].to_vec()
        };
        assert_eq!(encode(0, &[1, 0, 1, 1, 0, 0, 0, 0, 1])[..2], [0b1101, 1]);
        assert_eq!(encode(1, &[3, 0, 1, 2, 1])[..2], [0b1001_0011, 1]);
        assert_eq!(encode(2, &[15, 1, 2])[..2], [0x1f, 2]);
        assert_eq!(encode(3, &[255, 1])[..2], [255, 1]);
        assert_eq!(encode(4, &[1, 0x1234])[..4], [0, 1, 0x12, 0x34]);
        assert_eq!(encode(5, &[1, 2]), [0, 0, 0, 1, 0, 0, 0, 2]);
        assert_eq!(encode(6, &[7]), [0, 0, 0, 0, 0, 0, 0, 7]);
    }
}
