//! Reading a disk for its digest: a copy to nowhere, which reads by the map and as many requests at
//! a time as help.

use std::sync::Arc;

use copy::{Cancel, CopyPlan, Options, Progress, Watched, Witness as _};
use device::{Edge, Result};
use disk::{Named, OpenOptions, Stack};
use runtime::Context;

use super::{ContentDigest, Digester};

/// The digest of all of a disk. Of the options those on zeroes and durability mean nothing.
///
/// # Errors
/// It cannot be read.
pub fn read(
    source: &Edge,
    digester: &Arc<Digester>,
    options: &Options,
    (progress, cancel): (&Progress, &Cancel),
    context: &Context,
) -> Result<ContentDigest> {
    read_as(source, source.info().size, digester, options, (progress, cancel), context)
}

/// The same of a disk of at least `size` bytes: behind the end of a shorter one are zeroes.
///
/// # Errors
/// It cannot be read.
pub fn read_as(
    source: &Edge,
    size: u64,
    digester: &Arc<Digester>,
    options: &Options,
    (progress, cancel): (&Progress, &Cancel),
    context: &Context,
) -> Result<ContentDigest> {
    let end = source.info().size;
    let nowhere = Named::parse(&format!("null:?size={end}"))?;
    let target = disk::open(&nowhere, &Stack::default(), &OpenOptions::read_write(), context)?.edge;
    let options = Options {
        witness: Some(Watched(digester.clone())),
        target_is_zero: true,
        check_zero: false,
        apart: true,
        ..options.clone()
    };
    let copied = copy::run(source, &target, &CopyPlan::Map, &options, progress, cancel);
    copied.map_err(|failed| failed.error)?;
    if end < size {
        digester.zeroes(end..size);
    }
    digester.finish(end.max(size))
}
