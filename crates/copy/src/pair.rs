//! The two ends of a copy, and the sizes that they come to.

use device::{Edge, Error, ErrorKind, Fault, Info, Result, format_size};

use crate::options::Sizes;
use crate::{Flush, Options};

/// The two ends.
pub(crate) struct Pair {
    pub(crate) source: Edge,
    pub(crate) target: Edge,
    /// The size of the source.
    pub(crate) size: u64,
    pub(crate) sizes: Sizes,
    /// Whether they may be one storage.
    pub(crate) apart: bool,
    /// Whether the target is made durable in the end.
    pub(crate) flush: bool,
    /// Whether the target reconnects by itself, and what it may have forgotten is copied once more.
    comes_back: bool,
}

impl Pair {
    /// # Errors
    /// One cannot be copied to the other, or not in this way.
    pub(crate) fn new(source: &Edge, target: &Edge, options: &Options) -> Result<Self> {
        options.check()?;
        check_target(target.info(), options.flush)?;
        check_size(source.info(), target.info())?;
        let flush = options.flush != Flush::Never && target.info().abilities.flush;
        Ok(Self {
            source: source.clone(),
            target: target.clone(),
            size: source.info().size,
            sizes: Sizes::of(source, target, options),
            apart: options.apart,
            flush,
            comes_back: flush && target.device().reconnects(),
        })
    }

    /// Whether an error of a fast zero says that it was lost with its connection, and the copy goes
    /// on. It is the one request that a device that reconnects does not repeat: a server that is
    /// still alive may execute it late, over data that was written meanwhile.
    pub(crate) fn goes_on_after(&self, e: &Error) -> bool {
        self.comes_back && matches!(e.kind(), ErrorKind::Disconnected | ErrorKind::Shutdown)
    }

    /// Grows when the target may have forgotten what was not durable.
    pub(crate) fn target_epoch(&self) -> u64 {
        self.target.device().epoch()
    }

    /// Grows when the source may be another disk.
    pub(crate) fn source_epoch(&self) -> u64 {
        self.source.device().epoch()
    }
}

/// Refuses a target that cannot be written, or not be flushed where that is a must.
pub(crate) fn check_target(to: &Info, flush: Flush) -> Result<()> {
    if !to.abilities.write {
        let action = "copy to it: it is read-only";
        return Err(Error::new(ErrorKind::ReadOnly, Fault::User, action).on(&to.name));
    }
    if flush == Flush::Must && !to.abilities.flush {
        let action = "flush: it cannot make writes durable";
        return Err(Error::unsupported(action).on(&to.name));
    }
    Ok(())
}

fn check_size(from: &Info, to: &Info) -> Result<()> {
    if to.size < from.size {
        let size = |info: &Info| format!("{} bytes ({})", info.size, format_size(info.size));
        let action =
            format!("target is too small: {}, source {} has {}", size(to), from.name, size(from));
        return Err(Error::new(ErrorKind::NoSpace, Fault::User, action).on(&to.name));
    }
    Ok(())
}
