//! `null`: reads as zeroes, forgets what is written. `zero`: the same with no bytes at all. `ones`:
//! the same with another byte.
//!
//! Where it reads as zeroes, all of it is one hole, so a copy of it moves nothing. It never stores
//! and never fails.

use device::{Abilities, Blocking, Extent, ExtentKind, Info, Params, Result, ZeroFlags, values};

use crate::{Creation, OpenOptions};

pub(crate) struct Null {
    info: Info,
    /// What every byte reads as.
    byte: u8,
}

/// Opens the one that `word` names.
pub(crate) fn open(word: &str, params: &Params, options: &OpenOptions) -> Result<Null> {
    sized(word, params, 0, options)
}

/// Opens `null` as a target: without a size it is as large as it has to be.
pub(crate) fn create(params: &Params, creation: &Creation) -> Result<Null> {
    sized("null", params, creation.size, &creation.options)
}

/// Opens `ones`.
pub(crate) fn open_ones(params: &Params, options: &OpenOptions) -> Result<Null> {
    let byte = values::number(params, "byte")?.unwrap_or(0xff);
    let byte = u8::try_from(byte)
        .map_err(|_| values::not_a("byte", &byte.to_string(), "a byte: 0 to 255"))?;
    Ok(Null { byte, ..open("ones", params, options)? })
}

fn sized(word: &str, params: &Params, default: u64, options: &OpenOptions) -> Result<Null> {
    let size = values::size(params, "size")?.unwrap_or(default);
    let info = Info {
        abilities: Abilities { extents: true, discards: true, ..Abilities::all(options.write) },
        ..Info::new(format!("{word}:{size}"), size)
    };
    Ok(Null { info, byte: 0 })
}

impl Blocking for Null {
    fn info(&self) -> &Info {
        &self.info
    }

    fn read_at(&self, buf: &mut [u8], _offset: u64) -> Result<()> {
        buf.fill(self.byte);
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
        let kind = if self.byte == 0 { ExtentKind::Hole } else { ExtentKind::Data };
        out.push(Extent::new(offset, len, kind));
        Ok(())
    }
}
