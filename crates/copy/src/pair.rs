//! The two ends of a copy, and the sizes that they come to.

use std::sync::Arc;

use device::{Edge, Error, ErrorKind, Fault, Info, Result, format_size};

use crate::options::Sizes;
use crate::path::Path;
use crate::{Flush, Options};

/// The two ends.
pub(crate) struct Pair {
    pub(crate) source: Arc<Path>,
    pub(crate) target: Arc<Path>,
    /// The size of the source.
    pub(crate) size: u64,
    pub(crate) sizes: Sizes,
    /// Whether they may be one storage.
    pub(crate) apart: bool,
    /// Whether the target is made durable in the end.
    pub(crate) flush: bool,
}

impl Pair {
    /// # Errors
    /// One cannot be copied to the other, or not in this way.
    pub(crate) fn new(source: &Edge, target: &Edge, options: &Options) -> Result<Self> {
        options.check()?;
        check(source.info(), target.info(), options.flush == Flush::Must)?;
        let flush = options.flush != Flush::Never && target.info().abilities.flush;
        let for_target = if flush { renewals(target, options) } else { 0 };
        Ok(Self {
            source: Path::new(source, renewals(source, options)),
            target: Path::new(target, for_target),
            size: source.info().size,
            sizes: Sizes::of(source, target, options),
            apart: options.apart,
            flush,
        })
    }
}

/// How often in a row a path is reopened. Where the device does that by itself, a lane may still
/// have to be replaced once, and a sweep must know that the copy goes on.
fn renewals(edge: &Edge, options: &Options) -> usize {
    options.renewals.max(usize::from(edge.device().reconnects()))
}

fn check(from: &Info, to: &Info, flush: bool) -> Result<()> {
    if !to.abilities.write {
        let action = "copy to it: it is read-only";
        return Err(Error::new(ErrorKind::ReadOnly, Fault::User, action).on(&to.name));
    }
    if flush && !to.abilities.flush {
        let action = "flush: it cannot make writes durable";
        return Err(Error::unsupported(action).on(&to.name));
    }
    if to.size < from.size {
        let size = |info: &Info| format!("{} bytes ({})", info.size, format_size(info.size));
        let action =
            format!("target is too small: {}, source {} has {}", size(to), from.name, size(from));
        return Err(Error::new(ErrorKind::NoSpace, Fault::User, action).on(&to.name));
    }
    Ok(())
}
