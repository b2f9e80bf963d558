//! A part of a disk as a disk: for filters and formats that show one.
//!
//! Adds the part's start to every offset on the way down, and subtracts it from maps and places on
//! the way back. Nothing outside the part is ever reached.

use std::sync::Arc;

use crate::{
    Device, Done, Edge, Error, Filter, Filtered, Operation, Outcome, Over, Passes, Result,
};

/// A part of the disk below.
struct Part {
    start: u64,
    /// Bytes.
    len: u64,
}

/// The `len` bytes from `start`.
///
/// # Errors
/// They do not all lie in the disk below.
pub fn part(below: Edge, start: u64, len: u64) -> Result<Arc<dyn Device>> {
    let size = below.info().size;
    if start > size || len > size - start {
        let action = format!("range {start}+{len} is beyond the end of the disk ({size} bytes)");
        return Err(Error::unfit(action));
    }
    Ok(Filtered::device(Part { start, len }, below))
}

impl Filter for Part {
    fn describe(&self, over: &mut Over) {
        let info = &mut over.info;
        info.size = self.len;
        let block = info.blocks.minimum.max(1);
        if !self.start.is_multiple_of(u64::from(block)) {
            // Blocks here are not blocks there. The edge below takes any range.
            info.blocks.minimum = 1;
            info.advertised = None;
        }
        info.granules = info.granules.from(self.start);
        if info.room > 0 && !self.start.is_multiple_of(info.room) {
            // The bounds of the device's groups cannot be shifted.
            info.room = u64::MAX;
        }
        over.passes = Passes::All { shift: self.start };
    }

    fn run(&self, over: &Over, operation: Operation, done: Done) {
        let start = self.start;
        let then: Done = match operation {
            Operation::Resolve { .. } => {
                Box::new(move |result| done(result.map(|o| back(o, start))))
            }
            _ => done,
        };
        over.below.submit(operation.moved(start), then);
    }
}

/// A map of the disk below as one of the part.
fn back(mut outcome: Outcome, start: u64) -> Outcome {
    if let Outcome::Extents(list) = &mut outcome {
        list.iter_mut().for_each(|extent| extent.start = extent.start.saturating_sub(start));
    }
    outcome
}
