//! `random`: random bytes computed from a seed and the offset; accepts only writes that match.
//!
//! The same seed gives the same disk, so one server is source and oracle of a copy. Without a seed
//! one is taken from the clock and shown in the description.

use device::{Abilities, Blocking, Info, Params, Result, ZeroFlags};

use crate::words::{Generator, seed_from_clock};
use crate::{OpenOptions, oracle};
use device::values;

pub(crate) struct Random {
    info: Info,
    words: Generator,
}

/// Opens `random`.
pub(crate) fn open(params: &Params, options: &OpenOptions) -> Result<Random> {
    let size = values::size(params, "size")?.unwrap_or(0);
    let seed = values::number(params, "seed")?.unwrap_or_else(seed_from_clock);
    let info = info(
        format!("random:{size}?seed={seed}"),
        format!("random bytes, seed={seed}; accepts only writes that match"),
        size,
        options,
    );
    Ok(Random { info, words: Generator::new(seed) })
}

/// The facts of a disk that accepts only writes that match.
pub(crate) fn info(name: String, description: String, size: u64, options: &OpenOptions) -> Info {
    // A zero is compared, not made: zeroing in advance is useless, and a copier that tried would
    // get a mismatch.
    let abilities = Abilities { fast_zero: false, ..Abilities::all(options.write) };
    Info { description, abilities, ..Info::new(name, size) }
}

impl Random {
    fn expected(&self) -> impl Fn(&mut [u8], u64) + use<> {
        let words = self.words;
        move |buf, offset| words.fill(buf, offset)
    }
}

impl Blocking for Random {
    fn info(&self) -> &Info {
        &self.info
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.words.fill(buf, offset);
        Ok(())
    }

    fn write_at(&self, data: &[u8], offset: u64, _fua: bool) -> Result<()> {
        oracle::verify(&self.info.name, data, offset, self.expected())
    }

    /// Ends at the first byte that is not zero, so its cost does not grow with `len`.
    fn zero(&self, offset: u64, len: u64, _flags: ZeroFlags) -> Result<()> {
        oracle::verify_zero(&self.info.name, offset, len, self.expected())
    }

    fn trim(&self, offset: u64, len: u64, _fua: bool) -> Result<()> {
        oracle::verify_zero(&self.info.name, offset, len, self.expected())
    }

    fn flush(&self) -> Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use device::ErrorKind;

    use super::*;

    #[test]
    fn a_write_that_matches_is_accepted_and_one_changed_byte_is_not() {
        let params = Params::parse(["size=1E", "seed=3"]).unwrap();
        let disk = open(&params, &OpenOptions::read_write()).unwrap();
        let mut data = vec![0; 10_000];
        disk.read_at(&mut data, 999_999_999_999).unwrap();
        disk.write_at(&data, 999_999_999_999, true).unwrap();
        for at in [0, 1, 4095, 4096, 9_999] {
            data[at] ^= 0x10;
            let error = disk.write_at(&data, 999_999_999_999, false).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Mismatch);
            assert_eq!(error.offset(), Some(999_999_999_999 + at as u64));
            data[at] ^= 0x10;
        }
        assert_eq!(
            disk.zero(0, 1 << 60, ZeroFlags::default()).unwrap_err().kind(),
            ErrorKind::Mismatch
        );
    }

    #[test]
    fn the_seed_decides_the_content() {
        let read = |seed: &str| {
            let params = Params::parse(["size=1M", seed]).unwrap();
            let mut data = vec![0; 64];
            open(&params, &OpenOptions::default()).unwrap().read_at(&mut data, 77).unwrap();
            data
        };
        assert_eq!(read("seed=1"), read("seed=1"));
        assert_ne!(read("seed=1"), read("seed=2"));
    }
}
