//! Checks an image's metadata: compares the references of its tables with its refcounts.
//!
//! Changes nothing; [`repair`](super::repair) does. Each table is read once, however many refer to
//! it, so the work is bounded by the size of the container.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry as Slot;

use device::{Edge, Error, ErrorKind, Fault, Result};
use runtime::Context;

use super::bitmap;
use super::entry::{COMPRESSED, COPIED, Entry, Geometry, OFFSET, ZERO};
use super::header::{Header, L1_MAX};
use super::refcounts::{Refcounts, References};
use super::region::Region;
use super::snapshot;
use super::stream::ContainerReader;
use crate::Findings;
use crate::kit::numbers::be64;

/// The most bytes of all L1 tables together.
const ALL_L1_MAX: u64 = 1 << 30;
/// The reserved bits of an L1 entry, and of an L2 entry.
const L1_RESERVED: u64 = 0x7f00_0000_0000_01ff;
const L2_RESERVED: u64 = 0x3f00_0000_0000_01fe;

/// Checks the image in `container`.
pub(super) fn check(container: &Edge, _: &Context) -> Result<Findings> {
    let header = Header::read(container)?;
    header.check_features()?;
    Ok(examine(container, &header)?.findings)
}

/// Refuses an image where a cluster has more references than are counted, or a table is broken.
/// Flags that say who has a cluster alone may be wrong: whoever was stopped while they were changed
/// left them so, and did no harm. Returns the highest refcount.
///
/// # Errors
/// With what is wrong first.
pub(super) fn check_sound(container: &Edge) -> Result<u64> {
    let header = Header::read(container)?;
    header.check_features()?;
    let check = examine(container, &header)?;
    if check.findings.corruption_count == check.flags {
        return Ok(check.highest);
    }
    let mut lines = check.findings.corruptions.into_iter();
    let what = lines.next().unwrap_or_else(|| "a check finds errors".to_owned());
    Err(super::corrupt(format!("{what}; `diskferry check` shows all")))
}

/// Compares the references in the image with its refcounts.
pub(super) fn examine<'a>(container: &'a Edge, header: &Header) -> Result<Check<'a>> {
    let geometry = header.geometry();
    let mut check = Check {
        container,
        geometry,
        findings: Findings {
            total_clusters: header.size.div_ceil(geometry.cluster()),
            ..Findings::default()
        },
        references: References::new(container.info().size, geometry.cluster_bits),
        refcounts: Refcounts::read(container, header)?,
        tables: BTreeMap::new(),
        highest: 0,
        structure: Vec::new(),
        flags: 0,
        is_blind: false,
        is_lost: false,
        has_bad_blocks: false,
        active: References::new(container.info().size, geometry.cluster_bits),
        is_shared: false,
    };
    check.count_regions(header)?;
    check.count_l1(Region { offset: header.l1_offset, len: l1_len(header.l1_entries) }, true)?;
    check.count_snapshots(header)?;
    check.count_bitmaps(header)?;
    check.count_l2()?;
    check.count_refcount_blocks()?;
    check.compare()?;
    Ok(check)
}

fn l1_len(entries: u32) -> u64 {
    u64::from(entries) * 8
}

/// The references to an L2 table.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Referred {
    times: u32,
    /// Whether the active L1 table refers to it.
    pub(super) is_active: bool,
}

/// What is found in an image.
pub(super) struct Check<'a> {
    container: &'a Edge,
    geometry: Geometry,
    pub(super) findings: Findings,
    pub(super) references: References,
    pub(super) refcounts: Refcounts<'a>,
    /// L2 tables by their offsets.
    pub(super) tables: BTreeMap<u64, Referred>,
    /// The refcount table and its blocks.
    pub(super) structure: Vec<Region>,
    /// Of the corruptions, the entries whose flag is wrong.
    pub(super) flags: u64,
    /// The highest refcount.
    highest: u64,
    /// A table cannot be followed: what it refers to is not known.
    pub(super) is_blind: bool,
    /// Something in use has no refcount, or one in a bad block.
    pub(super) is_lost: bool,
    /// A refcount block is not in the file, or is also something else.
    pub(super) has_bad_blocks: bool,
    /// Of the active tables, to what others refer to as well.
    active: References,
    /// Several entries of the active tables lead to one L2 table, or to one cluster of data.
    pub(super) is_shared: bool,
}

impl Check<'_> {
    /// Bytes of a cluster.
    pub(super) fn cluster(&self) -> u64 {
        self.geometry.cluster()
    }

    fn wrong(&mut self, line: String) {
        self.findings.wrong(line);
    }

    /// Counts references to all clusters that a region touches.
    fn refer(&mut self, what: &str, region: Region, times: u32) -> Result<()> {
        if self.references.add(region, times)? {
            return Ok(());
        }
        let Region { offset, len } = region;
        self.wrong(format!("{what} at {offset} ({len} bytes) lies beyond the end of the file"));
        Ok(())
    }

    fn count_regions(&mut self, header: &Header) -> Result<()> {
        for (what, region) in header.regions(self.container.info().size)? {
            // Its length is known only after reading it.
            if what != "snapshot table" {
                self.refer(what, region, 1)?;
            }
            if what == "refcount table" {
                self.structure.push(region);
            }
        }
        let luks = header.encryption_header;
        luks.map_or(Ok(()), |region| self.refer("the header of the encryption", region, 1))
    }

    fn count_l1(&mut self, table: Region, is_active: bool) -> Result<()> {
        self.count_l1_times(table, 1, is_active)
    }

    fn count_l1_times(&mut self, table: Region, times: u32, is_active: bool) -> Result<()> {
        let mut entries = ContainerReader::new(self.container, "L1 table", table.offset, table.len);
        for _ in 0..table.len / 8 {
            let at = entries.position();
            let entry = be64(entries.take(8)?, 0).unwrap_or(0);
            if entry & L1_RESERVED != 0 {
                self.wrong(format!("the L1 entry at {at} has reserved bits set: {entry:#x}"));
            }
            let l2 = entry & OFFSET;
            if l2 == 0 {
                continue;
            }
            if !l2.is_multiple_of(self.geometry.cluster()) {
                self.wrong(format!("the L2 table at {l2} does not begin at a cluster"));
                self.is_blind = true;
                continue;
            }
            if is_active {
                self.check_copied("L2 table", l2, entry)?;
            }
            let len = self.geometry.cluster();
            self.refer("an L2 table", Region { offset: l2, len }, times)?;
            if self.references.holds(Region { offset: l2, len }) {
                let table = self.tables.entry(l2).or_default();
                table.times = table.times.saturating_add(times);
                self.is_shared |= is_active && table.is_active;
                table.is_active |= is_active;
            } else {
                self.is_blind = true;
            }
        }
        Ok(())
    }

    fn count_snapshots(&mut self, header: &Header) -> Result<()> {
        let (snapshots, len) = snapshot::read(self.container, header)?;
        if snapshots.is_empty() {
            return Ok(());
        }
        self.refer("the snapshot table", Region { offset: header.snapshots_offset, len }, 1)?;
        let mut l1: BTreeMap<(u64, u64), u32> = BTreeMap::new();
        for snapshot in snapshots {
            let times = l1.entry((snapshot.l1_offset, l1_len(snapshot.l1_entries))).or_default();
            *times = times.saturating_add(1);
        }
        let mut all = 0;
        for ((offset, len), times) in l1 {
            let (region, cluster) = (Region { offset, len }, self.geometry.cluster());
            let size = self.container.info().size;
            if let Err(e) = region.check("L1 table of a snapshot", size, cluster, L1_MAX) {
                self.wrong(e.to_string());
                self.is_blind = true;
                continue;
            }
            all += len;
            if all > ALL_L1_MAX {
                return Err(too_much("the L1 tables of the snapshots are too long"));
            }
            self.refer("the L1 table of a snapshot", region, times)?;
            self.count_l1_times(region, times, false)?;
        }
        Ok(())
    }

    fn count_bitmaps(&mut self, header: &Header) -> Result<()> {
        let cluster = self.geometry.cluster();
        for bitmap in bitmap::read(self.container, header)? {
            let len = u64::from(bitmap.table_entries) * 8;
            let table = Region { offset: bitmap.table_offset, len };
            self.refer("the table of a bitmap", table, 1)?;
            let mut entries =
                ContainerReader::new(self.container, "table of a bitmap", table.offset, len);
            for _ in 0..bitmap.table_entries {
                let offset = be64(entries.take(8)?, 0).unwrap_or(0) & OFFSET;
                if offset != 0 {
                    self.refer("bits of a bitmap", Region { offset, len: cluster }, 1)?;
                }
            }
        }
        Ok(())
    }

    /// Walks all L2 tables, each once.
    fn count_l2(&mut self) -> Result<()> {
        let len = usize::try_from(self.geometry.cluster()).unwrap_or(0);
        let mut table = vec![0; len];
        for (offset, referred) in self.tables.clone() {
            let there = self.container.info().size.saturating_sub(offset);
            let there = usize::try_from(there).unwrap_or(len).min(len);
            let (read, rest) = table.split_at_mut(there);
            self.container.read(read, offset)?;
            rest.fill(0);
            self.count_entries(&table, offset, referred)?;
        }
        Ok(())
    }

    fn count_entries(&mut self, table: &[u8], at: u64, referred: Referred) -> Result<()> {
        let step = usize::try_from(self.geometry.entry_len()).unwrap_or(8);
        let mut next = None;
        for (i, entry) in table.chunks_exact(step).enumerate() {
            let (number, parts) = (be64(entry, 0).unwrap_or(0), be64(entry, 8).unwrap_or(0));
            if number == 0 && parts == 0 {
                continue;
            }
            let place = at + (i * step) as u64;
            let reserved = if self.geometry.extended { L2_RESERVED | ZERO } else { L2_RESERVED };
            if number & COMPRESSED == 0 && number & reserved != 0 {
                self.wrong(format!("the L2 entry at {place} has reserved bits set: {number:#x}"));
            }
            match Entry::decode(number, parts, self.geometry) {
                Err(e) => {
                    self.wrong(format!("the L2 entry at {place}: {e}"));
                    self.keep_what_may_be_meant(number, referred)?;
                }
                Ok(Entry::Packed { offset, len }) => {
                    self.count_packed(Region { offset, len }, number, referred)?;
                }
                Ok(entry) => {
                    if let Some(offset) = stored(entry) {
                        self.count_data(offset, number, referred)?;
                        if referred.is_active {
                            self.findings.allocated_clusters += 1;
                            let follows = next.is_none_or(|next| next == offset);
                            self.findings.fragmented_clusters += u64::from(!follows);
                            next = Some(offset + self.geometry.cluster());
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// Counts what an entry that means nothing may lead to, so that it is not called a leak.
    fn keep_what_may_be_meant(&mut self, number: u64, referred: Referred) -> Result<()> {
        let (offset, len) = (number & OFFSET, self.geometry.cluster());
        if number & COMPRESSED != 0 || offset == 0 || self.geometry.data_file {
            return Ok(());
        }
        self.references.add(Region { offset, len }, referred.times).map(drop)
    }

    fn count_packed(&mut self, region: Region, entry: u64, referred: Referred) -> Result<()> {
        if entry & COPIED != 0 {
            let offset = region.offset;
            self.wrong(format!("the compressed cluster at {offset} is marked as unshared, which a compressed cluster never is"));
        }
        if referred.is_active {
            self.findings.allocated_clusters += 1;
            self.findings.compressed_clusters += 1;
            // They only have space allocated.
            self.findings.fragmented_clusters += 1;
        }
        self.refer("a compressed cluster", region, referred.times)
    }

    fn count_data(&mut self, offset: u64, entry: u64, referred: Referred) -> Result<()> {
        if self.geometry.data_file {
            return Ok(());
        }
        if referred.is_active {
            self.check_copied("cluster", offset, entry)?;
            self.count_active(offset, entry)?;
        }
        let region = Region { offset, len: self.geometry.cluster() };
        self.refer("a cluster of data", region, referred.times)
    }

    /// Notes whether several active entries lead to a cluster, as far as their flags are right.
    fn count_active(&mut self, offset: u64, entry: u64) -> Result<()> {
        if entry & COPIED == 0 {
            self.is_shared |= self.active.of(offset >> self.geometry.cluster_bits) > 0;
            self.active.add(Region { offset, len: 1 }, 1)?;
        }
        Ok(())
    }

    /// Whether an entry's flag for "no other reference" is right.
    fn check_copied(&mut self, what: &str, offset: u64, entry: u64) -> Result<()> {
        let refcount = self.refcounts.of(offset >> self.geometry.cluster_bits)?;
        if (refcount == 1) != (entry & COPIED != 0) {
            let said =
                if entry & COPIED == 0 { "other entries refer" } else { "no other entry refers" };
            self.flags += 1;
            self.wrong(format!(
                "the entry of the {what} at {offset} says that {said} to it, and its refcount is {refcount}"
            ));
        }
        Ok(())
    }

    fn count_refcount_blocks(&mut self) -> Result<()> {
        let cluster = self.geometry.cluster();
        let blocks = self.refcounts.blocks().to_vec();
        let mut seen = BTreeMap::new();
        for (i, offset) in blocks.into_iter().enumerate() {
            if offset == 0 {
                continue;
            }
            let region = Region { offset, len: cluster };
            // A bit that means nothing makes it a place that is none, too.
            let is_good = offset.is_multiple_of(cluster) && self.references.holds(region);
            if !is_good {
                self.wrong(format!("refcount block {i} at {offset} is not a cluster of the file"));
                self.refcounts.forget(i);
                self.has_bad_blocks = true;
                continue;
            }
            self.refer("a refcount block", region, 1)?;
            self.structure.push(region);
            match seen.entry(offset) {
                Slot::Vacant(slot) => drop(slot.insert(i)),
                Slot::Occupied(slot) => {
                    let other = *slot.get();
                    self.wrong(format!("refcount blocks {other} and {i} are one, at {offset}"));
                    self.refcounts.forget(i);
                }
            }
            self.has_bad_blocks |= self.references.of(offset >> self.geometry.cluster_bits) != 1;
        }
        Ok(())
    }

    fn compare(&mut self) -> Result<()> {
        let cluster_bits = self.geometry.cluster_bits;
        let mut end = 0;
        let (mut leaks, mut wrong) = (0, Vec::new());
        let (mut count, mut highest, mut is_lost) = (0, 0, self.has_bad_blocks);
        self.refcounts.compare(&self.references, |cluster, refcount, references| {
            end = cluster + 1;
            highest = highest.max(refcount);
            if refcount > references {
                leaks += 1;
            } else if refcount < references {
                count += 1;
                is_lost |= refcount == 0;
                if wrong.len() < Findings::LINES {
                    let at = cluster << cluster_bits;
                    wrong.push(format!(
                        "the cluster at {at} has a refcount of {refcount}, and {references} refer to it"
                    ));
                }
            }
        })?;
        self.highest = highest;
        let lines = &mut self.findings.corruptions;
        wrong.truncate(Findings::LINES.saturating_sub(lines.len()));
        lines.append(&mut wrong);
        self.is_lost = is_lost;
        self.findings.corruption_count += count;
        self.findings.leaks = leaks;
        self.findings.image_end = end << cluster_bits;
        Ok(())
    }
}

/// The cluster that an entry refers to, if it is not compressed.
pub(super) fn stored(entry: Entry) -> Option<u64> {
    match entry {
        Entry::Absent | Entry::Zero | Entry::Packed { .. } => None,
        Entry::Plain(offset) | Entry::ZeroAt(offset) => Some(offset),
        Entry::Parts(parts) => parts.offset,
    }
}

pub(super) fn too_much(what: &str) -> Error {
    Error::new(ErrorKind::Limit, Fault::File, format!("check: {what}"))
}
