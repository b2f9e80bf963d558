//! Compresses and decompresses grains. Each thread keeps its codec.

use std::cell::RefCell;

use device::Result;
use libdeflater::{CompressionLvl, Compressor, Decompressor};

use super::header::broken;
use super::sparse::MARKER;
use crate::kit::fields::{le32, le64};

thread_local! {
    static UNPACKER: RefCell<Decompressor> = RefCell::new(Decompressor::new());
    static PACKER: RefCell<Option<(i32, Compressor)>> = const { RefCell::new(None) };
}

/// The payload of a grain in `stored`, which begins where the grain does in the file and may be
/// longer. With `markers` there is one in front: it has to be that of the sector `sector`.
///
/// # Errors
/// The marker belongs to another grain, or gives more bytes than there are.
pub(super) fn payload(stored: &[u8], markers: bool, sector: u64) -> Result<&[u8]> {
    if !markers {
        return Ok(stored);
    }
    let head = usize::try_from(MARKER).unwrap_or(12);
    let (marker, rest) =
        stored.split_at_checked(head).ok_or_else(|| broken("a marker is cut off"))?;
    if le64(marker, 0) != sector {
        let action = format!("the grain of sector {sector} has the marker of {}", le64(marker, 0));
        return Err(broken(action));
    }
    let len = usize::try_from(le32(marker, 8)).unwrap_or(usize::MAX);
    let payload = rest.get(..len).filter(|payload| !payload.is_empty());
    payload.ok_or_else(|| broken(format!("a compressed grain of {len} bytes")))
}

/// Decompresses `packed` into `into`; returns the number of bytes.
///
/// # Errors
/// It is broken, or longer than `into`.
pub(super) fn unpack(packed: &[u8], into: &mut [u8]) -> Result<usize> {
    let unpacked = UNPACKER.with_borrow_mut(|unpacker| unpacker.zlib_decompress(packed, into));
    unpacked.map_err(|e| broken("a compressed grain cannot be decompressed").with_source(e))
}

/// Appends `bytes`, compressed, to `packed`.
pub(super) fn pack(bytes: &[u8], level: i32, packed: &mut Vec<u8>) -> Result<()> {
    PACKER.with_borrow_mut(|kept| {
        let (_, packer) = match kept {
            Some(packer) if packer.0 == level => packer,
            _ => {
                let known = CompressionLvl::new(level).unwrap_or_default();
                kept.insert((level, Compressor::new(known)))
            }
        };
        let (before, most) = (packed.len(), packer.zlib_compress_bound(bytes.len()));
        packed.resize(before + most, 0);
        let room = packed.get_mut(before..).unwrap_or_default();
        let len = packer.zlib_compress(bytes, room).map_err(|e| {
            // There is always room, by the bound.
            device::Error::new(device::ErrorKind::Io, device::Fault::Us, "compress a grain")
                .with_source(e)
        })?;
        packed.truncate(before + len);
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_marker_says_is_held_against_the_bytes_that_are_there() {
        let mut stored = 128u64.to_le_bytes().to_vec();
        stored.extend(5u32.to_le_bytes());
        stored.extend(b"12345678");
        assert_eq!(payload(&stored, true, 128).unwrap(), b"12345");
        assert_eq!(payload(&stored, false, 128).unwrap().len(), 20);
        assert!(payload(&stored, true, 256).is_err());
        assert!(
            payload(&stored[..16], true, 128).is_err(),
            "the marker's own bytes are no payload"
        );
        assert!(payload(&stored[..11], true, 128).is_err());
        stored[8] = 0;
        assert!(payload(&stored, true, 128).is_err());
    }

    #[test]
    fn what_was_compressed_comes_back_and_nothing_that_is_too_long() {
        let bytes: Vec<u8> = (0..5000u32).map(|i| u8::try_from(i * i % 251).unwrap()).collect();
        let mut packed = vec![7];
        pack(&bytes, 6, &mut packed).unwrap();
        pack(&bytes, 1, &mut packed).unwrap();
        let mut back = vec![0; 6000];
        assert_eq!(unpack(&packed[1..], &mut back).unwrap(), 5000);
        assert_eq!(&back[..5000], bytes);
        assert!(unpack(&packed[1..], &mut back[..4999]).is_err());
        assert!(unpack(&packed[1..50], &mut back).is_err());
        assert!(unpack(b"", &mut back).is_err());
    }
}
