//! The headers and the log of an image that is written.
//!
//! What its structures become is durable in the log first, and then written in place, without a
//! barrier behind it: the next flush makes that durable, and only after it another entry is
//! written. So an entry never refers to one before it, and each is written into that half of the
//! log that does not hold the last one. Data that structures refer to are durable before the entry.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use device::{Buffer, Edge, Error, ErrorKind, Fault, Result, ZeroFlags};
use runtime::{Gate, Mutex};

use super::header::{Guid, HEADERS_END, Header, Region};
use super::log::{Changes, EntryHead, LOG_MAX, SECTOR, encode, sectors_in};
use crate::kit::blocks::Moment;
use crate::kit::fields::{corrupt, lies_inside, new_uuid};
use crate::kit::{WrittenFile, flush, write};

/// The headers and the log.
pub(super) struct Journal {
    file: Arc<WrittenFile>,
    /// Of the log, while this is open.
    id: Guid,
    /// One task at a time changes anything here.
    gate: Arc<Gate>,
    /// Whether the header says that the disk has changed.
    has_begun: AtomicBool,
    state: Mutex<State>,
}

struct State {
    header: Header,
    /// Entries that are durable.
    sequence: u64,
    /// Another header may be valid: it was to be written, and that failed.
    is_unsure: bool,
    /// What the last entry changed in place, until that is durable.
    applied: Option<Moment>,
}

/// Refuses an image whose log cannot be written.
///
/// # Errors
/// With what is in the way.
pub(super) fn check(file: &Edge, log: Region) -> Result<()> {
    let why = if log.len < 4 * SECTOR {
        "it has no log"
    } else if log.len > LOG_MAX {
        "its log is longer than 16 MiB"
    } else if lies_inside(file, "log", log.offset, log.len).is_err() {
        "its log lies outside the file"
    } else {
        return Ok(());
    };
    let action = format!("cannot be written: {why}");
    Err(Error::new(ErrorKind::ReadOnly, Fault::File, action))
}

/// Makes the changes in the log in place, durably, and says that there is none any more. Whenever
/// that ends early, it can be done again.
///
/// # Errors
/// It could not be done.
pub(super) fn restore(file: &WrittenFile, header: Header, changes: &Changes) -> Result<()> {
    let (container, edge) = (&file.container, &file.edge);
    let ends = changes.data.last_key_value().map_or(0, |(at, _)| at + SECTOR);
    if changes.len.max(ends) > container.limit() {
        return Err(corrupt("its log makes it longer than the device that it is on"));
    }
    // They are never logged; the identifier of the file is in front of them.
    let parts = [Region { offset: 0, len: HEADERS_END }, header.log];
    let is_over = |at, len| parts.iter().any(|part| part.overlaps(at, len));
    let mut zeroes = changes.zeroes.iter();
    if changes.data.keys().any(|at| is_over(*at, SECTOR))
        || zeroes.any(|range| is_over(range.start, range.end - range.start))
    {
        return Err(corrupt("the VHDX image is broken: its log changes its headers, or itself"));
    }
    let there = container.length();
    for range in changes.zeroes.iter() {
        // What is behind the end is zero.
        let end = range.end.min(there);
        if range.start < end {
            edge.zero(range.start, end - range.start, ZeroFlags::default())?;
        }
    }
    for (at, bytes) in &changes.data {
        edge.write(bytes, *at, false)?;
    }
    lengthen(file, changes.len)?;
    edge.flush()?;
    let (at, bytes) = header.next()?.changed(false).logged(None).encode();
    edge.write(&bytes, at, false)?;
    edge.flush()
}

/// Makes the file at least so long.
fn lengthen(file: &WrittenFile, len: u64) -> Result<()> {
    let start = file.container.length().max(len.saturating_sub(SECTOR));
    let zeroes = vec![0; usize::try_from(len.saturating_sub(start)).unwrap_or(0)];
    if zeroes.is_empty() { Ok(()) } else { file.edge.write(&zeroes, start, false) }
}

impl Journal {
    /// For an image with this header, whose log is empty.
    pub(super) fn new(file: Arc<WrittenFile>, header: Header) -> Self {
        let state = State { header, sequence: 0, is_unsure: false, applied: None };
        Self {
            file,
            id: new_uuid(),
            gate: Arc::default(),
            has_begun: AtomicBool::new(false),
            state: Mutex::new(state),
        }
    }

    /// Whether the header says that the disk has changed, so that it may be.
    pub(super) fn has_begun(&self) -> bool {
        self.has_begun.load(Ordering::Acquire)
    }

    /// Says so.
    ///
    /// # Errors
    /// The disk must not be changed.
    pub(super) async fn begin(&self) -> Result<()> {
        if self.has_begun() {
            return Ok(());
        }
        let _alone = self.gate.alone().await;
        if !self.has_begun() {
            self.put(|header| header.changed(true)).await?;
            self.has_begun.store(true, Ordering::Release);
        }
        Ok(())
    }

    /// Sectors that one entry has room for.
    fn sectors(&self) -> usize {
        sectors_in(self.half())
    }

    fn half(&self) -> u64 {
        self.state.lock().header.log.len / (2 * SECTOR) * SECTOR
    }

    /// Makes durable what was written, and then a snapshot of the structures.
    ///
    /// # Errors
    /// What failed is not saved, and stays changed.
    pub(super) async fn save(&self, moment: Moment) -> Result<()> {
        let _alone = self.gate.alone().await;
        let mut len = self.settle().await?;
        for (n, part) in moment.parts(self.sectors()).into_iter().enumerate() {
            if n > 0 {
                len = self.settle().await?;
            }
            self.log(&part, len).await?;
            self.file.blocks.write_back(&part).await?;
            self.state.lock().applied = Some(part);
        }
        Ok(())
    }

    /// Says that there is no log: all of it is in place.
    ///
    /// # Errors
    /// There may be one.
    pub(super) async fn close(&self) -> Result<()> {
        let _alone = self.gate.alone().await;
        if !self.is_open() {
            return Ok(());
        }
        self.settle().await?;
        self.put(|header| header.logged(None)).await
    }

    /// Whether the header says that there is a log.
    pub(super) fn is_open(&self) -> bool {
        let state = self.state.lock();
        state.header.log_id.is_some() || state.is_unsure
    }

    /// Makes durable what was written, and returns how long the file is for certain. If it fails,
    /// what the last entry changed may not be there.
    async fn settle(&self) -> Result<u64> {
        let (applied, len) = (self.state.lock().applied.take(), self.file.container.length());
        let settled = flush(&self.file.edge).await;
        if let (Err(_), Some(applied)) = (&settled, applied) {
            self.file.blocks.take_back(applied);
        }
        settled.map(|()| len)
    }

    /// Writes an entry, durably. All that was written before is durable.
    async fn log(&self, part: &Moment, flushed: u64) -> Result<()> {
        let (header, sequence, is_known) = {
            let state = self.state.lock();
            let is_known = state.header.log_id.is_some() && !state.is_unsure;
            (state.header, state.sequence + 1, is_known)
        };
        let at = if sequence.is_multiple_of(2) { 0 } else { self.half() };
        let (id, len) = (self.id, self.file.container.length());
        let head = EntryHead { at, sequence, id, flushed, len };
        let entry = Buffer::copy_of(&encode(head, &part.blocks()));
        write(&self.file.edge, header.log.offset + at, entry.into(), false).await?;
        flush(&self.file.edge).await?;
        self.state.lock().sequence = sequence;
        if !is_known {
            // From now on there is an entry to be replayed.
            self.put(|header| header.logged(Some(self.id))).await?;
        }
        Ok(())
    }

    /// Replaces the header, durably.
    async fn put(&self, change: impl FnOnce(Header) -> Header) -> Result<()> {
        let next = {
            let mut state = self.state.lock();
            state.is_unsure = true;
            change(state.header.next()?)
        };
        let (at, bytes) = next.encode();
        write(&self.file.edge, at, Buffer::copy_of(&bytes).into(), false).await?;
        flush(&self.file.edge).await?;
        let mut state = self.state.lock();
        (state.header, state.is_unsure) = (next, false);
        Ok(())
    }
}
