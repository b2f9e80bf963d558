//! Opening a disk with its filters, to use it or to fill it.

use std::sync::Arc;

use device::{Device, Edge, Result};
use devices::{Creation, Holds, Made, Named, OpenOptions};
use runtime::Context;

use crate::Stack;

/// A disk, open.
#[derive(Clone, Debug)]
pub struct Opened {
    /// The disk as it is, below all filters.
    pub below: Edge,
    /// The disk as it is seen.
    pub edge: Edge,
}

/// A disk that is to be filled, open.
#[derive(Debug)]
pub struct Created {
    /// The disk as it is seen.
    pub edge: Edge,
    /// What it is known to hold.
    pub holds: Holds,
    /// What was made for it, if something was. It is for the caller to keep or to remove.
    pub made: Option<Box<dyn Made>>,
}

/// Opens the disk that was named, with filters over it. For writing only if what is written comes
/// through them: what nobody changes is not locked against those who may.
///
/// # Errors
/// The disk cannot be opened, or a filter refuses it.
pub fn open(
    disk: &Named,
    filters: &Stack,
    options: &OpenOptions,
    context: &Context,
) -> Result<Opened> {
    let write = options.write && !filters.reads_only();
    let device = disk.open(&OpenOptions { write, ..options.clone() }, context)?;
    let below = edge(device, context);
    let edge = filters.over(below.clone(), context)?;
    Ok(Opened { below, edge })
}

/// Opens the disk that was named as the target of a copy, with filters over it; makes it, if it is
/// something that can be made and is not there. Nothing that is there is changed. Under filters
/// it keeps its length, and is not known to be zero: they may show only a part of it.
///
/// # Errors
/// As [`open`], or there is less room than is needed. What was made is removed again.
pub fn create(
    disk: &Named,
    filters: &Stack,
    creation: &Creation,
    context: &Context,
) -> Result<Created> {
    let write = creation.options.write && !filters.reads_only();
    let options = OpenOptions { write, ..creation.options.clone() };
    let whole = creation.whole && filters.is_empty();
    let created = disk.create(&Creation { whole, options, ..creation.clone() }, context)?;
    let devices::Created { device, holds, made } = created;
    let edge = filters.over(edge(device, context), context);
    if let (Err(_), Some(made)) = (&edge, &made) {
        made.remove();
    }
    let holds = if filters.is_empty() { holds } else { Holds::Unknown };
    Ok(Created { edge: edge?, holds, made })
}

fn edge(device: Arc<dyn Device>, context: &Context) -> Edge {
    Edge::new(device, context.pool.clone())
}
