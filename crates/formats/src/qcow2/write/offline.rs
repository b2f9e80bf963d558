//! What verbs change of an image that nobody uses meanwhile: a writer without a disk.

use std::sync::Arc;

use device::{Edge, Error, Result};
use runtime::{Context, RwLock, spawn, wait_for};

use super::super::header::{Encryption, Header};
use super::super::tables::{DataStore, Written};
use super::{Writer, check, check_closed, check_container};
use crate::kit::blocks::Blocks;
use crate::kit::cache::Cache;
use crate::kit::container::Container;

/// What changes the tables of an image in `container`, and neither reads nor writes its disk. Its
/// bitmaps stay as they are.
///
/// # Errors
/// It cannot be written as it is.
pub(super) fn writer(container: &Edge, header: &Header, context: &Context) -> Result<Arc<Writer>> {
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
    Writer::open(container, header, written, taken).map(Arc::new)
}

/// Waits for what changes the tables.
pub(super) fn done<T: Send + 'static>(
    change: impl Future<Output = Result<T>> + Send + 'static,
) -> Result<T> {
    let done = wait_for(|promise| spawn(async move { promise.keep(change.await) }));
    done.unwrap_or_else(|| Err(Error::unanswered()))
}
