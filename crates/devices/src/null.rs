//! `null`: reads as zeroes, forgets what is written. `zero`: the same with no bytes at all.
//!
//! All of it is one hole, so a copy of it moves nothing. It never stores and never fails.

use device::{Abilities, Blocking, Extent, ExtentKind, Info, Params, Result, ZeroFlags};

use crate::{Creation, OpenOptions};
use device::values;

pub(crate) struct Null {
    info: Info,
}

/// Opens `null`.
pub(crate) fn open(params: &Params, options: &OpenOptions) -> Result<Null> {
    let size = values::size(params, "size")?.unwrap_or(0);
    Ok(Null { info: forgetful("null", size, options) })
}

/// Opens `null` as a target: without a size it is as large as it has to be.
pub(crate) fn create(params: &Params, creation: &Creation) -> Result<Null> {
    let size = values::size(params, "size")?.unwrap_or(creation.size);
    Ok(Null { info: forgetful("null", size, &creation.options) })
}

/// Opens `zero`.
pub(crate) fn open_zero(params: &Params, options: &OpenOptions) -> Result<Null> {
    let size = values::size(params, "size")?.unwrap_or(0);
    Ok(Null { info: forgetful("zero", size, options) })
}

/// The facts of a device that takes everything and keeps nothing.
pub(crate) fn forgetful(word: &str, size: u64, options: &OpenOptions) -> Info {
    let write = options.write;
    Info {
        abilities: Abilities {
            write,
            flush: true,
            fua: write,
            trim: write,
            zero: write,
            fast_zero: write,
            multi_conn: true,
            extents: true,
            discards: true,
            ..Abilities::READ
        },
        ..Info::new(format!("{word}:{size}"), size)
    }
}

impl Blocking for Null {
    fn info(&self) -> &Info {
        &self.info
    }

    fn read_at(&self, buf: &mut [u8], _offset: u64) -> Result<()> {
        buf.fill(0);
        Ok(())
    }

    fn write_at(&self, _data: &[u8], _offset: u64, _fua: bool) -> Result<()> {
        Ok(())
    }

    fn zero(&self, _offset: u64, _len: u64, _flags: ZeroFlags) -> Result<()> {
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        Ok(())
    }

    fn resolve(&self, offset: u64, len: u64, _max: usize, out: &mut Vec<Extent>) -> Result<()> {
        out.push(Extent::new(offset, len, ExtentKind::Hole));
        Ok(())
    }
}
