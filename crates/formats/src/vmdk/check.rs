//! Checks that every grain in the tables of an image lies in its file. Like `qemu-img check`, it
//! stops at the first that does not, and counts nothing.

use device::{Edge, Error, ErrorKind, Params, Result};
use runtime::Context;

use super::open::{self, Top};
use crate::{Closed, Findings, Opening};

/// Extents asked for at a time.
const MANY: usize = 1024;

/// Checks an image of one file, without a parent: opens nothing else.
pub(super) fn check(container: &Edge, context: &Context) -> Result<Findings> {
    let top = Top::of(container)?;
    if top.layout.is_none() || top.descriptor.parent()?.is_some() {
        return Err(Error::unsupported("check an image of several files"));
    }
    let params = Params::default();
    let opening = Opening { params: &params, files: &Closed, context };
    let disk = Edge::new(open::open(container.clone(), &opening)?, context.pool.clone());
    let (mut at, mut extents, size) = (0, Vec::new(), disk.info().size);
    while at < size {
        match disk.resolve(at, size - at, MANY, &mut extents) {
            Ok(()) => at = extents.drain(..).next_back().map_or(size, |last| last.end()),
            Err(e) if e.kind() == ErrorKind::Corrupt => {
                let corruptions = vec![format!("{e}")];
                return Ok(Findings { corruptions, corruption_count: 1, ..Findings::default() });
            }
            Err(e) => return Err(e),
        }
    }
    Ok(Findings::default())
}
