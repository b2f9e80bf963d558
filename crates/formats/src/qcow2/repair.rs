//! Repairs an image's refcounts, and what follows from them.
//!
//! The tables of the disk are what is believed, as QEMU does; only the flags in them change. The
//! order is such that an image whose repair was stopped is never worse than before: first refcounts
//! are put right, each by itself where it is, or all in new blocks to which the header then refers
//! at once; when that is durable, the flags that say that nothing else refers to a cluster; then
//! the header says that the image is sound; and last, where several entries lead to one L2 table or
//! one cluster of data, each gets one of its own.
//!
//! What a table that cannot be found refers to is not known, so then nothing is freed.

use std::collections::{BTreeSet, HashSet};
use std::ops::Range;

use device::{Edge, Error, ErrorKind, Fault, Result};

use super::check::{Check, examine, stored};
use super::entry::{COMPRESSED, COPIED, Entry, OFFSET};
use super::header::{Header, INCOMPATIBLE_AT, REFCOUNT_TABLE_AT, REFCOUNT_TABLE_MAX, incompatible};
use super::refcounts::{References, set_refcount};
use super::write;
use crate::kit::container::Container;
use crate::kit::numbers::be64;
use crate::{Findings, Opening, Repair, Repaired};

/// Bits of the header for images that are not sound.
const UNSOUND: u64 = incompatible::DIRTY | incompatible::CORRUPT;

/// Repairs the image in a container that may be written.
pub(super) fn repair(container: Edge, opening: &Opening<'_>, what: Repair) -> Result<Repaired> {
    Ok(repaired(&container, what, opening)?.0)
}

/// The same, and the container as it is then, which may be longer.
///
/// # Errors
/// It cannot be read or written, or its refcounts cannot be put right. It is not worse than before.
pub(super) fn repaired(
    below: &Edge,
    what: Repair,
    opening: &Opening<'_>,
) -> Result<(Repaired, Edge)> {
    let (container, edge) = Container::open(below.clone());
    let header = read(below)?;
    let mut first = examine(below, &header)?;
    let before = first.findings.clone();
    let is_unsound = header.has(UNSOUND);
    let is_right = (before.corruption_count, before.leaks) == (0, 0) && !is_unsound;
    if is_right && !(first.is_shared && what == Repair::All) {
        let now = before.clone();
        return Ok((Repaired { before, now, ..Repaired::default() }, below.clone()));
    }
    mend_refcounts(&mut first, &header, &container, &edge, what)?;
    let flags_before = first.flags;
    drop(first);
    // They are right, or as right as they get.
    let middle = container.as_it_is();
    let header = read(&middle)?;
    let mut second = examine(&middle, &header)?;
    let other = |findings: &Findings, flags: u64| findings.corruption_count.saturating_sub(flags);
    let left = other(&second.findings, second.flags);
    let mut repaired = Repaired {
        leaks_fixed: before.leaks.saturating_sub(second.findings.leaks),
        corruptions_fixed: other(&before, flags_before).saturating_sub(left),
        before,
        now: Findings::default(),
    };
    let is_safe = what == Repair::All || (left, second.findings.leaks) == (0, 0);
    if second.flags > 0 && is_safe {
        repaired.corruptions_fixed += mend_flags(&mut second, &header, &middle, &edge)?;
        edge.flush()?;
    }
    drop(second);
    let last = examine(&middle, &header)?;
    let is_shared = last.is_shared;
    repaired.now = last.findings;
    if repaired.now.corruption_count > 0 {
        return Ok((repaired, middle));
    }
    if header.version >= 3 && is_unsound {
        let features = header.incompatible & !UNSOUND;
        edge.write(&features.to_be_bytes(), INCOMPATIBLE_AT, false)?;
        edge.flush()?;
    }
    // What the entries of a table refer to in a data file is not counted, so it stays shared.
    if !is_shared || what != Repair::All || header.has(incompatible::DATA_FILE) {
        return Ok((repaired, middle));
    }
    write::part(&middle, &read(&middle)?, opening)?;
    let middle = container.as_it_is();
    let header = read(&middle)?;
    // What was behind the end, and counted all the same, is seen only now that the file is longer.
    mend_refcounts(&mut examine(&middle, &header)?, &header, &container, &edge, what)?;
    // Those that only one entry leads to now.
    mend_flags(&mut examine(&middle, &header)?, &header, &middle, &edge)?;
    edge.flush()?;
    repaired.now = examine(&middle, &header)?.findings;
    Ok((repaired, middle))
}

fn read(container: &Edge) -> Result<Header> {
    let header = Header::read(container)?;
    header.check_features()?;
    Ok(header)
}

fn mend_refcounts(
    check: &mut Check<'_>,
    header: &Header,
    container: &Container,
    edge: &Edge,
    what: Repair,
) -> Result<()> {
    let most = 1u128 << (1 << header.refcount_order);
    if u128::from(check.references.most()) >= most {
        let action = "repair: a cluster has more references than its refcount can hold";
        return Err(Error::new(ErrorKind::Corrupt, Fault::File, action));
    }
    if check.is_lost && what == Repair::Leaks {
        let action = "repair: the refcounts must be rebuilt; `-r all` does it";
        return Err(Error::new(ErrorKind::Io, Fault::File, action));
    }
    write::clear_features(edge, header)?;
    if !has_blocks(check) {
        if check.is_blind {
            let action = "repair: the refcounts must be rebuilt, and the references of a table \
                          outside the file are unknown";
            return Err(Error::new(ErrorKind::Corrupt, Fault::File, action));
        }
        return rebuild(check, header, container, edge);
    }
    let is_blind = check.is_blind;
    let is_wanted = |refcount, references| match what {
        _ if refcount > references => !is_blind,
        Repair::All => true,
        Repair::Leaks => false,
    };
    check.refcounts.mend(edge, &check.references, is_wanted)?;
    edge.flush()
}

/// Whether all that is in use has a refcount that can be changed where it is.
fn has_blocks(check: &Check<'_>) -> bool {
    if check.has_bad_blocks {
        return false;
    }
    let each = check.refcounts.in_block();
    let mut used = check.references.within(0, check.references.clusters());
    let blocks = check.refcounts.blocks();
    let block = |cluster: u64| blocks.get(usize::try_from(cluster / each).unwrap_or(usize::MAX));
    used.all(|(cluster, _)| block(cluster).is_some_and(|block| *block != 0))
}

/// Makes a new refcount table with new blocks, in room that nothing uses, nor did.
fn rebuild(
    check: &mut Check<'_>,
    header: &Header,
    container: &Container,
    edge: &Edge,
) -> Result<()> {
    let (cluster, bits) = (header.geometry().cluster(), header.cluster_bits);
    let each = check.refcounts.in_block();
    let mut old = HashSet::new();
    for region in std::mem::take(&mut check.structure) {
        old.extend(region.offset >> bits..(region.offset + region.len).div_ceil(cluster));
        check.references.remove(region)?;
    }
    let references = &check.references;
    let used: BTreeSet<u64> =
        references.within(0, references.clusters()).map(|(unit, _)| unit / each).collect();
    let mut wanted = used.len() as u64 + 2;
    let (place, blocks, clusters) = loop {
        let is_free = |unit: u64| references.of(unit) == 0 && !old.contains(&unit);
        let place = find(container, references, wanted, cluster, is_free)?;
        let mut blocks = used.clone();
        blocks.extend(place.start / each..=(place.end - 1) / each);
        let entries = blocks.last().map_or(0, |last| last + 1);
        let clusters = (entries * 8).div_ceil(cluster);
        if clusters * cluster > REFCOUNT_TABLE_MAX {
            return Err(super::check::too_much("the refcount table would be too long"));
        }
        let needed = clusters + blocks.len() as u64;
        if needed <= wanted {
            break (place.start..place.start + needed, blocks, clusters);
        }
        wanted = needed;
    };
    let mut table = vec![0; usize::try_from(clusters * cluster).unwrap_or(0)];
    for (index, unit) in blocks.into_iter().zip(place.start + clusters..) {
        let (from, to) = (index * each, (index + 1) * each);
        let mut block = vec![0; usize::try_from(cluster).unwrap_or(0)];
        for (unit, count) in references.within(from, to) {
            set_refcount(&mut block, unit - from, header.refcount_order, count.into());
        }
        // What was cut off is lost, and nothing else gets its place when the file grows.
        for unit in references.behind(from..to) {
            set_refcount(&mut block, unit - from, header.refcount_order, 1);
        }
        for unit in place.start.max(from)..place.end.min(to) {
            set_refcount(&mut block, unit - from, header.refcount_order, 1);
        }
        edge.write(&block, unit << bits, false)?;
        let at = usize::try_from(index * 8).unwrap_or(usize::MAX);
        let entry = table.get_mut(at..).and_then(|rest| rest.first_chunk_mut::<8>());
        entry.into_iter().for_each(|entry| *entry = (unit << bits).to_be_bytes());
    }
    edge.write(&table, place.start << bits, false)?;
    edge.flush()?;
    let count = u32::try_from(clusters).unwrap_or(0);
    let place = [&(place.start << bits).to_be_bytes()[..], &count.to_be_bytes()].concat();
    edge.write(&place, REFCOUNT_TABLE_AT, false)?;
    edge.flush()
}

/// So many free clusters in a row: at the end of what grows, or else the first. Where the file was
/// cut off, what was there is lost: nothing else may be found in its place, nor zeroes.
fn find(
    container: &Container,
    references: &References,
    wanted: u64,
    cluster: u64,
    is_free: impl Fn(u64) -> bool,
) -> Result<Range<u64>> {
    let (limit, end) = (container.limit() / cluster, references.clusters());
    if limit > end && wanted <= limit - end {
        if references.behind(end..end + wanted).next().is_some() {
            let action = "repair: the file was truncated, and new refcounts would be placed where \
                          its data was; \
                          `diskferry convert --salvage` copies what can be read";
            return Err(Error::new(ErrorKind::Corrupt, Fault::File, action));
        }
        return Ok(end..end + wanted);
    }
    let mut start = 1;
    for unit in 1..limit.min(end) {
        if !is_free(unit) {
            start = unit + 1;
        } else if unit + 1 - start == wanted {
            return Ok(start..unit + 1);
        }
    }
    let action = "repair: find space for new refcounts in the container of the image";
    Err(Error::new(ErrorKind::NoSpace, Fault::File, action))
}

/// Puts the flags right that say that nothing else refers to a cluster. Returns how many were
/// wrong.
fn mend_flags(check: &mut Check<'_>, header: &Header, from: &Edge, to: &Edge) -> Result<u64> {
    let (geometry, size) = (header.geometry(), from.info().size);
    let mut fixed = 0;
    let step = usize::try_from(geometry.entry_len()).unwrap_or(8);
    let active: Vec<u64> =
        check.tables.iter().filter(|(_, table)| table.is_active).map(|(at, _)| *at).collect();
    for at in active.into_iter().filter(|_| !geometry.data_file) {
        let len = geometry.cluster().min(size.saturating_sub(at));
        let mut table = vec![0; usize::try_from(len).unwrap_or(0)];
        from.read(&mut table, at)?;
        let wrong = mend_entries(check, &mut table, step, |entry, parts| {
            let decoded = Entry::decode(entry, parts, geometry).ok();
            decoded.filter(|_| entry & COMPRESSED == 0).and_then(stored)
        })?;
        if wrong > 0 {
            to.write(&table, at, false)?;
        }
        fixed += wrong;
    }
    let mut l1 = vec![0; usize::try_from(u64::from(header.l1_entries) * 8).unwrap_or(0)];
    from.read(&mut l1, header.l1_offset)?;
    let wrong = mend_entries(check, &mut l1, 8, |entry, _| {
        let offset = entry & OFFSET;
        Some(offset).filter(|at| *at != 0 && at.is_multiple_of(geometry.cluster()))
    })?;
    if wrong > 0 {
        to.write(&l1, header.l1_offset, false)?;
    }
    Ok(fixed + wrong)
}

/// The same in one table, of entries that lead where `leads` says.
fn mend_entries(
    check: &mut Check<'_>,
    table: &mut [u8],
    step: usize,
    leads: impl Fn(u64, u64) -> Option<u64>,
) -> Result<u64> {
    let mut fixed = 0;
    for entry in table.chunks_exact_mut(step) {
        let number = be64(entry, 0).unwrap_or(0);
        let parts = if step > 8 { be64(entry, 8).unwrap_or(0) } else { 0 };
        let Some(offset) = leads(number, parts) else { continue };
        let is_own = check.refcounts.of(offset / check.cluster())? == 1;
        if is_own == (number & COPIED != 0) {
            continue;
        }
        if let Some(head) = entry.first_chunk_mut::<8>() {
            *head = (number ^ COPIED).to_be_bytes();
            fixed += 1;
        }
    }
    Ok(fixed)
}
