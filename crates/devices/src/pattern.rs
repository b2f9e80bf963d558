//! `pattern`: every 8 bytes hold their own offset, big-endian. Read-only.
//!
//! The bytes tell their offset, which finds misplaced and torn reads.

use device::{Abilities, Blocking, Error, ErrorKind, Fault, Info, Params, Result};

use crate::OpenOptions;
use crate::words::fill;
use device::values;

pub(crate) struct Pattern {
    info: Info,
}

/// Opens `pattern`.
pub(crate) fn open(params: &Params, options: &OpenOptions) -> Result<Pattern> {
    let size = values::size(params, "size")?.unwrap_or(0);
    if options.write && !options.or_read_only {
        let action = "open for writing: a pattern is read-only";
        return Err(Error::new(ErrorKind::ReadOnly, Fault::User, action));
    }
    let info = Info {
        description: "every 8 bytes hold their offset, big-endian".into(),
        abilities: Abilities { flush: true, ..Abilities::READ },
        ..Info::new(format!("pattern:{size}"), size)
    };
    Ok(Pattern { info })
}

impl Blocking for Pattern {
    fn info(&self) -> &Info {
        &self.info
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        fill(buf, offset, |word| (word * 8).to_be_bytes());
        Ok(())
    }

    fn write_at(&self, _data: &[u8], offset: u64, _fua: bool) -> Result<()> {
        let action = "write: a pattern is read-only";
        Err(Error::new(ErrorKind::ReadOnly, Fault::User, action).on(&self.info.name).at(offset))
    }

    fn flush(&self) -> Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_word_holds_its_offset_however_it_is_read() {
        let params = Params::parse(["size=9223372036854775807"]).unwrap();
        let disk = open(&params, &OpenOptions::default()).unwrap();
        let mut all = vec![0; 4096];
        disk.read_at(&mut all, 1 << 40).unwrap();
        assert_eq!(all[8..16], ((1u64 << 40) + 8).to_be_bytes());
        for (start, len) in [(0usize, 3), (3, 5), (1, 8), (7, 30), (13, 1000), (8, 0)] {
            let mut some = vec![0; len];
            disk.read_at(&mut some, (1 << 40) + start as u64).unwrap();
            assert_eq!(some, all[start..start + len]);
        }
        let mut last = [0; 7];
        disk.read_at(&mut last, (1 << 63) - 8).unwrap();
        assert_eq!(last[..], ((1u64 << 63) - 8).to_be_bytes()[..7]);
    }
}
