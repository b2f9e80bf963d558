//! Decompression: one cluster at a time, into a buffer of exactly one.
//!
//! The bytes after a compressed cluster in its sectors belong to others, and are ignored. The
//! memory use does not depend on the data. Each thread keeps its codec contexts.

use std::cell::RefCell;

use device::{Error, ErrorKind, Fault, Result};
use flate2::{Decompress, FlushDecompress};
use libdeflater::{DecompressionError, Decompressor};
use zstd::bulk::Decompressor as ZstdDecompressor;
use zstd::zstd_safe::find_frame_compressed_size;

use super::header::Compression;

thread_local! {
    static INFLATE: RefCell<Decompressor> = RefCell::new(Decompressor::new());
    static ZSTD: RefCell<Option<ZstdDecompressor<'static>>> = const { RefCell::new(None) };
}

/// Fills all of `cluster`. Computes for long.
///
/// # Errors
/// The bytes are invalid, or decompress to less than a cluster.
pub(super) fn unpack(compression: Compression, packed: &[u8], cluster: &mut [u8]) -> Result<()> {
    let good = match compression {
        Compression::Zlib => inflate(packed, cluster),
        Compression::Zstd => unzstd(packed, cluster),
    };
    if good {
        return Ok(());
    }
    let action =
        format!("unpack a cluster: the compressed bytes ({}) are broken", compression.word());
    Err(Error::new(ErrorKind::Corrupt, Fault::File, action))
}

fn inflate(packed: &[u8], cluster: &mut [u8]) -> bool {
    let done = INFLATE.with_borrow_mut(|codec| codec.deflate_decompress(packed, cluster));
    match done {
        Ok(len) => len == cluster.len(),
        // There is more than a cluster; QEMU ignores the rest, too.
        Err(DecompressionError::InsufficientSpace) => inflate_first(packed, cluster),
        Err(DecompressionError::BadData) => false,
    }
}

/// The first cluster of what is longer.
fn inflate_first(packed: &[u8], cluster: &mut [u8]) -> bool {
    let mut codec = Decompress::new(false);
    let done = codec.decompress(packed, cluster, FlushDecompress::Finish);
    done.is_ok() && codec.total_out() == cluster.len() as u64
}

/// Frame by frame, until there is a cluster.
fn unzstd(mut packed: &[u8], cluster: &mut [u8]) -> bool {
    ZSTD.with_borrow_mut(|codec| {
        if codec.is_none() {
            *codec = ZstdDecompressor::new().ok();
        }
        let Some(codec) = codec else { return false };
        let mut rest = cluster;
        while !rest.is_empty() {
            let frame = find_frame_compressed_size(packed).ok().filter(|len| *len > 0);
            let Some((frame, after)) = frame.and_then(|len| packed.split_at_checked(len)) else {
                return false;
            };
            let Ok(len) = codec.decompress_to_buffer(frame, rest) else { return false };
            packed = after;
            rest = rest.split_at_mut_checked(len).map_or(&mut [], |(_, rest)| rest);
        }
        true
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLUSTER: usize = 4096;

    fn bytes() -> Vec<u8> {
        (0..CLUSTER * 2).map(|i| u8::try_from(i * i / 97 % 251).unwrap()).collect()
    }

    fn deflated(bytes: &[u8]) -> Vec<u8> {
        let mut packed = vec![0; bytes.len() * 2];
        let mut codec = libdeflater::Compressor::new(libdeflater::CompressionLvl::default());
        let len = codec.deflate_compress(bytes, &mut packed).unwrap();
        packed.truncate(len);
        packed
    }

    fn frames(pieces: &[&[u8]]) -> Vec<u8> {
        pieces.iter().flat_map(|piece| zstd::bulk::compress(piece, 3).unwrap()).collect()
    }

    fn unpacked(compression: Compression, packed: &[u8]) -> Option<Vec<u8>> {
        let mut cluster = vec![0; CLUSTER];
        unpack(compression, packed, &mut cluster).ok().map(|()| cluster)
    }

    #[test]
    fn a_cluster_is_what_was_packed_whatever_follows_it() {
        let bytes = bytes();
        let (one, two) = (&bytes[..CLUSTER], &bytes[..]);
        for tail in [&[][..], &[0xff; 300], &[0; 300], &[0x28, 0xb5, 0x2f, 0xfd]] {
            let with = |packed: Vec<u8>| [&packed[..], tail].concat();
            for packed in [deflated(one), deflated(two)] {
                assert!(unpacked(Compression::Zlib, &with(packed)).as_deref() == Some(one));
            }
            let (a, b) = one.split_at(1000);
            for packed in [frames(&[one]), frames(&[a, b]), frames(&[a, &[], b])] {
                assert!(unpacked(Compression::Zstd, &with(packed)).as_deref() == Some(one));
            }
        }
    }

    #[test]
    fn what_is_cut_off_broken_or_too_short_is_refused() {
        let bytes = bytes();
        let one = &bytes[..CLUSTER];
        for (kind, packed) in
            [(Compression::Zlib, deflated(one)), (Compression::Zstd, frames(&[one]))]
        {
            // Only the end of the last block may be missing.
            for len in [0, 1, packed.len() / 2, packed.len() - 16] {
                assert!(unpacked(kind, &packed[..len]).is_none(), "{kind:?} {len}");
            }
            assert!(unpacked(kind, &[0xff; 100]).is_none());
        }
        assert!(unpacked(Compression::Zlib, &deflated(&one[..CLUSTER - 1])).is_none());
        assert!(unpacked(Compression::Zstd, &frames(&[&one[1..]])).is_none());
        assert!(unpacked(Compression::Zstd, &frames(&[&bytes])).is_none(), "more than a cluster");
    }
}
