//! What verbs change of an image that nobody uses meanwhile: a writer without a disk.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;

use device::{Buffer, Edge, Error, Result, below};
use runtime::{Context, RwLock, spawn, wait_for};

use super::super::check::stored;
use super::super::entry::{COPIED, Entry, Geometry, OFFSET, l2_offset};
use super::super::header::{Encryption, Header};
use super::super::open;
use super::super::refcounts::References;
use super::super::region::Region;
use super::super::tables::{DataStore, Written};
use super::link::words;
use super::{Sharing, Writer, check, check_closed, check_container};
use crate::Opening;
use crate::kit::blocks::{Blocks, Rank};
use crate::kit::cache::Cache;
use crate::kit::confused;
use crate::kit::container::Container;
use crate::kit::numbers::be64;
use crate::luks::inside;

/// What changes the tables of an image in `container`, and neither reads nor writes its disk. Its
/// bitmaps stay as they are.
///
/// # Errors
/// It cannot be written as it is.
pub(super) fn writer(container: &Edge, header: &Header, context: &Context) -> Result<Arc<Writer>> {
    sharing_writer(container, header, context, Sharing::Refused, Ok)
}

/// `decrypted` is given the file with the clusters of data.
fn sharing_writer(
    container: &Edge,
    header: &Header,
    context: &Context,
    sharing: Sharing,
    decrypted: impl FnOnce(Edge) -> Result<Edge>,
) -> Result<Arc<Writer>> {
    // Whether it is encrypted does not matter.
    check(&Header { encryption: Encryption::None, ..header.clone() }, None)?;
    check_closed(header)?;
    check_container(container)?;
    let taken = Arc::new(RwLock::new(header.regions(container.info().size)?));
    let (growing, edge) = Container::open(container.clone());
    let shelf = Cache::of(context).shelf();
    let blocks = Arc::new(Blocks::new(edge.clone(), header.geometry().slice(), shelf));
    let data = DataStore { container: growing.clone(), edge: decrypted(edge.clone())? };
    let written = Written { container: growing, edge, blocks, data, tracked: Vec::new() };
    Writer::open(container, header, written, taken, sharing).map(Arc::new)
}

/// Gives up all that an image holds, durably: its disk is what is below it. Whenever this is
/// stopped, some tables are gone and the others are as they were. A data file is not opened.
///
/// # Errors
/// It cannot be written as it is; or giving up failed.
pub(in super::super) fn empty(container: Edge, opening: &Opening<'_>) -> Result<()> {
    let (header, container) = open::to_change(&container, opening)?;
    let writer = writer(&container, &header, opening.context)?;
    let mut l1 = vec![0; usize::try_from(header.l1_entries).unwrap_or(0) * 8];
    container.read(&mut l1, header.l1_offset)?;
    done(async move {
        for (index, entry) in l1.chunks_exact(8).enumerate() {
            writer.drop_table(index, be64(entry, 0).unwrap_or(0)).await?;
        }
        writer.flush().await?;
        writer.close().await
    })
}

/// Gives each entry of the active tables what it leads to for itself, durably: an L2 table, and a
/// cluster of data. Where several lead to one, all but the first get copies of it; otherwise, once
/// one of them got something else, the last would not know that it is alone. Compressed clusters
/// stay, as nobody asks that of them. Those that LUKS encrypts read as something else elsewhere:
/// they are encrypted anew for their new place, or stay where no key is named. The old AES goes by
/// where a sector is on the disk, so its clusters are copied as they are. A check has found nothing
/// wrong, so everything is counted once for each of them.
/// Whenever this is stopped, the disk reads as before, and no refcount is too low.
///
/// # Errors
/// It cannot be written as it is, there is no room, the key that is named does not open it, or
/// copying failed.
pub(in super::super) fn part(
    container: &Edge,
    header: &Header,
    opening: &Opening<'_>,
) -> Result<()> {
    let is_luks = header.encryption == Encryption::Luks;
    let copies = !is_luks || inside::is_key_named(opening.params);
    let decrypted = |edge: Edge| match is_luks && copies {
        true => open::decrypted(edge, container, header, opening),
        false => Ok(edge),
    };
    let (context, sharing) = (opening.context, Sharing::Ended);
    let writer = sharing_writer(container, header, context, sharing, decrypted)?;
    let (geometry, bits) = (header.geometry(), header.cluster_bits);
    let mut l1 = vec![0; usize::try_from(header.l1_entries).unwrap_or(0) * 8];
    container.read(&mut l1, header.l1_offset)?;
    let (mut tables, mut seen) = (HashSet::new(), References::new(container.info().size, bits));
    let first = header.l1_offset;
    done(async move {
        for (place, entry) in (first..).step_by(8).zip(l1.chunks_exact(8)) {
            let Some(table) = l2_offset(be64(entry, 0).unwrap_or(0), geometry)? else { continue };
            let mut bytes = writer.table_bytes(table).await?;
            let shared = if copies { shared_in(&bytes, geometry, &mut seen)? } else { Vec::new() };
            if tables.insert(table) && shared.is_empty() {
                continue;
            }
            let mut rows = Vec::new();
            let copied = match writer.copy_data(&mut bytes, &shared, &mut rows).await {
                Ok(()) => writer.add_row(&bytes).await,
                Err(e) => Err(e),
            };
            let flushed = match copied {
                Ok(row) => {
                    rows.push(row.clone());
                    writer.flush().await.map(|()| row.start << bits)
                }
                Err(e) => Err(e),
            };
            let new = match flushed {
                Ok(new) => new,
                Err(e) => return Err(writer.without(rows, e).await),
            };
            writer.change_last(place, &(new | COPIED).to_be_bytes()).await?;
            writer.flush().await?;
            let old = shared.iter().map(|(_, offset)| *offset).chain([table]);
            let old = old.map(|offset| offset >> bits..(offset >> bits) + 1).collect();
            writer.release(old, false).await;
        }
        writer.close().await
    })
}

/// The entries of a table, by where they are in it, whose clusters were seen before, and those
/// clusters. Only what has several references is looked at, as the flags of a sound image say.
fn shared_in(table: &[u8], geometry: Geometry, seen: &mut References) -> Result<Vec<(usize, u64)>> {
    let mut shared = Vec::new();
    for n in 0..geometry.l2_entries() {
        let (entry, parts) = words(table, n, geometry).ok_or_else(confused)?;
        let Some(offset) = stored(Entry::decode(entry, parts, geometry)?) else { continue };
        if entry & COPIED != 0 {
            continue;
        }
        if seen.of(offset >> geometry.cluster_bits) > 0 {
            let at = usize::try_from(n * geometry.entry_len()).map_err(|_| confused())?;
            shared.push((at, offset));
        }
        seen.add(Region { offset, len: 1 }, 1)?;
    }
    Ok(shared)
}

impl Writer {
    /// Copies clusters of data, and lets entries of a table that is not there yet lead to the
    /// copies.
    async fn copy_data(
        &self,
        table: &mut [u8],
        entries: &[(usize, u64)],
        rows: &mut Vec<Range<u64>>,
    ) -> Result<()> {
        let (bits, edge) = (self.geometry.cluster_bits, &self.data.edge);
        let len = usize::try_from(self.geometry.cluster()).map_err(|_| confused())?;
        for (at, old) in entries {
            // What is behind the end of the file, too, which is zero: the room may have been used.
            let bytes = below::read(edge, *old, Buffer::zeroed(len)).await?;
            let unit = self.attempt(|state| self.take(state, 1)).await?;
            let new = unit.start << bits;
            rows.push(unit);
            below::write(edge, new, bytes.into(), false).await?;
            let entry = table.get_mut(*at..).and_then(|rest| rest.first_chunk_mut::<8>());
            let entry = entry.ok_or_else(confused)?;
            *entry = (u64::from_be_bytes(*entry) & !OFFSET | new | COPIED).to_be_bytes();
            self.save_much().await?;
        }
        Ok(())
    }

    /// Changes bytes of what refers to all else.
    async fn change_last(&self, at: u64, bytes: &[u8]) -> Result<()> {
        self.attempt(|_| {
            self.block(at)?;
            Ok(self.blocks.change(at, Rank::Last, bytes)?)
        })
        .await
    }
}

/// Waits for what changes the tables.
pub(super) fn done<T: Send + 'static>(
    change: impl Future<Output = Result<T>> + Send + 'static,
) -> Result<T> {
    let done = wait_for(|promise| spawn(async move { promise.keep(change.await) }));
    done.unwrap_or_else(|| Err(Error::unanswered()))
}
