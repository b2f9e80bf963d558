//! What verbs change of an image that nobody uses meanwhile: a writer without a disk.

use std::collections::HashSet;
use std::sync::Arc;

use device::{Buffer, Edge, Error, Result, below};
use runtime::{Context, RwLock, spawn, wait_for};

use super::super::entry::{COPIED, l2_offset};
use super::super::header::{Encryption, Header};
use super::super::open;
use super::super::tables::{DataStore, Written};
use super::{Sharing, Writer, check, check_closed, check_container};
use crate::Opening;
use crate::kit::blocks::{Blocks, Rank};
use crate::kit::cache::Cache;
use crate::kit::confused;
use crate::kit::container::Container;
use crate::kit::numbers::be64;

/// What changes the tables of an image in `container`, and neither reads nor writes its disk. Its
/// bitmaps stay as they are.
///
/// # Errors
/// It cannot be written as it is.
pub(super) fn writer(container: &Edge, header: &Header, context: &Context) -> Result<Arc<Writer>> {
    sharing_writer(container, header, context, Sharing::Refused)
}

fn sharing_writer(
    container: &Edge,
    header: &Header,
    context: &Context,
    sharing: Sharing,
) -> Result<Arc<Writer>> {
    // What is encrypted is not looked at.
    check(&Header { encryption: Encryption::None, ..header.clone() }, None)?;
    check_closed(header)?;
    check_container(container)?;
    let taken = Arc::new(RwLock::new(header.regions(container.info().size)?));
    let (growing, edge) = Container::open(container.clone());
    let shelf = Cache::of(context).shelf();
    let blocks = Arc::new(Blocks::new(edge.clone(), header.geometry().slice(), shelf));
    let data = DataStore { container: growing.clone(), edge: edge.clone() };
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

/// Gives each entry of the L1 table an L2 table of its own, durably: where several lead to one, all
/// but the first get copies of it. A check has found nothing wrong, so whatever the table refers to
/// is counted once for each of them. Whenever this is stopped, the disk reads as before, and no
/// refcount is too low.
///
/// # Errors
/// It cannot be written as it is, there is no room, or copying failed.
pub(in super::super) fn part_tables(
    container: &Edge,
    header: &Header,
    context: &Context,
) -> Result<()> {
    let writer = sharing_writer(container, header, context, Sharing::Ended)?;
    let geometry = header.geometry();
    let len = usize::try_from(geometry.cluster()).map_err(|_| confused())?;
    let mut l1 = vec![0; usize::try_from(header.l1_entries).unwrap_or(0) * 8];
    container.read(&mut l1, header.l1_offset)?;
    let (mut seen, mut shared) = (HashSet::new(), Vec::new());
    for (index, entry) in (0u64..).zip(l1.chunks_exact(8)) {
        if let Some(table) = l2_offset(be64(entry, 0).unwrap_or(0), geometry)?
            && !seen.insert(table)
        {
            shared.push((header.l1_offset + index * 8, table));
        }
    }
    let container = container.clone();
    done(async move {
        for (place, table) in shared {
            let bytes = below::read(&container, table, Buffer::zeroed(len)).await?;
            let row = writer.add_row(&bytes).await?;
            let offset = row.start << geometry.cluster_bits;
            if let Err(e) = writer.flush().await {
                return Err(writer.without([row], e).await);
            }
            writer
                .attempt(|_| {
                    writer.block(place)?;
                    let entry = (offset | COPIED).to_be_bytes();
                    Ok(writer.blocks.change(place, Rank::Last, &entry)?)
                })
                .await?;
            writer.flush().await?;
            let unit = table >> geometry.cluster_bits;
            let old = unit..unit + 1;
            writer.release(vec![old], false).await;
        }
        writer.close().await
    })
}

/// Waits for what changes the tables.
pub(super) fn done<T: Send + 'static>(
    change: impl Future<Output = Result<T>> + Send + 'static,
) -> Result<T> {
    let done = wait_for(|promise| spawn(async move { promise.keep(change.await) }));
    done.unwrap_or_else(|| Err(Error::unanswered()))
}
