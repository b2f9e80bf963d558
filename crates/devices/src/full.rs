//! `full`: a disk without room. Reads as zeroes; every write, and every zeroing, fails at once for
//! lack of space.

use device::{
    Abilities, Blocking, Error, ErrorKind, Extent, ExtentKind, Fault, Info, Params, Result,
    ZeroFlags,
};

use crate::OpenOptions;
use device::values;

pub(crate) struct Full {
    info: Info,
}

/// Opens `full`.
pub(crate) fn open(params: &Params, options: &OpenOptions) -> Result<Full> {
    let size = values::size(params, "size")?.unwrap_or(0);
    let info = Info {
        description: "a full disk: writes fail with ENOSPC".into(),
        abilities: Abilities { trim: false, extents: true, ..Abilities::all(options.write) },
        ..Info::new(format!("full:{size}"), size)
    };
    Ok(Full { info })
}

impl Full {
    fn no_room(&self, what: &str, len: u64, offset: u64) -> Error {
        let action = format!("{what} {len} bytes: no space is left");
        Error::new(ErrorKind::NoSpace, Fault::File, action).on(&self.info.name).at(offset)
    }
}

impl Blocking for Full {
    fn info(&self) -> &Info {
        &self.info
    }

    fn read_at(&self, buf: &mut [u8], _offset: u64) -> Result<()> {
        buf.fill(0);
        Ok(())
    }

    fn write_at(&self, data: &[u8], offset: u64, _fua: bool) -> Result<()> {
        Err(self.no_room("write", data.len() as u64, offset))
    }

    fn zero(&self, offset: u64, len: u64, _flags: ZeroFlags) -> Result<()> {
        Err(self.no_room("zero", len, offset))
    }

    fn flush(&self) -> Result<()> {
        Ok(())
    }

    fn resolve(&self, offset: u64, len: u64, _max: usize, out: &mut Vec<Extent>) -> Result<()> {
        out.push(Extent::new(offset, len, ExtentKind::Hole));
        Ok(())
    }
}
