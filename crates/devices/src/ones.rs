//! `ones`: one byte repeated for ever; forgets what is written.

use device::{Blocking, Extent, ExtentKind, Info, Params, Result, ZeroFlags};

use crate::OpenOptions;
use crate::null::forgetful;
use device::values;

pub(crate) struct Ones {
    info: Info,
    byte: u8,
}

/// Opens `ones`.
pub(crate) fn open(params: &Params, options: &OpenOptions) -> Result<Ones> {
    let size = values::size(params, "size")?.unwrap_or(0);
    let byte = values::number(params, "byte")?.unwrap_or(0xff);
    let byte = u8::try_from(byte)
        .map_err(|_| values::not_a("byte", &byte.to_string(), "a byte: 0 to 255"))?;
    Ok(Ones { info: forgetful("ones", size, options), byte })
}

impl Blocking for Ones {
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
