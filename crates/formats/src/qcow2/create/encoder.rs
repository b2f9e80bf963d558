//! Compressing a cluster: raw deflate, or one Zstandard frame.
//!
//! Deflate stays within QEMU's window of 4 KiB, so that any decoder reads it. The fast way does not (its library
//! has a window of 32 KiB): QEMU, and all who unpack a cluster at once, read that too, but not who unpacks it as a
//! stream and keeps no more than 4 KiB. It is for who asks for it by name.
//!
//! What compresses is kept by each thread, since to make it anew for every cluster costs as much as a small
//! cluster. What does not become shorter is not compressed, and no error of a library is anything worse.

use std::cell::RefCell;

use device::{Params, values};
use flate2::{Compress, Compression as Effort, FlushCompress, Status};
use libdeflater::{CompressionLvl, Compressor};

use crate::qcow2::header::Compression;

/// QEMU reads and writes deflate with a window of 2^12 bytes.
const WINDOW_BITS: u8 = 12;

/// How hard to try.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Level {
    /// Deflate, 1 to 9.
    Zlib(u32),
    /// Deflate with a window of 32 KiB.
    Fast,
    /// Zstandard, 1 to 22, or less: the less, the faster.
    Zstd(i32),
}

impl Level {
    /// `compression_level` of the options.
    pub(super) fn read(params: &Params, kind: Compression) -> device::Result<Self> {
        let (key, most) = match kind {
            Compression::Zlib => ("compression_level", 9),
            Compression::Zstd => ("compression_level", 22),
        };
        let text = params.get(key);
        if text == Some("fast") {
            return Ok(match kind {
                Compression::Zlib => Self::Fast,
                Compression::Zstd => Self::Zstd(-1),
            });
        }
        let number = text.map(|text| {
            let number = text.parse().ok().filter(|n| (1..=most).contains(n));
            number.ok_or_else(|| values::not_a(key, text, &format!("`fast` or 1 to {most}")))
        });
        Ok(match (kind, number.transpose()?) {
            (Compression::Zlib, level) => Self::Zlib(level.unwrap_or(4)),
            (Compression::Zstd, level) => Self::Zstd(level.map_or(2, u32::cast_signed)),
        })
    }
}

/// What a thread keeps.
struct Encoder {
    level: Level,
    codec: Codec,
    out: Vec<u8>,
}

/// What compresses has failed.
struct Unusable;

enum Codec {
    Zlib(Box<Compress>),
    Fast(Compressor),
    Zstd(zstd::bulk::Compressor<'static>),
}

thread_local! {
    static ENCODER: RefCell<Option<Encoder>> = const { RefCell::new(None) };
}

/// Gives `then` the bytes of a cluster, compressed to fewer than they are; `None` if they cannot be.
pub(super) fn packed<R>(level: Level, cluster: &[u8], then: impl FnOnce(Option<&[u8]>) -> R) -> R {
    ENCODER.with_borrow_mut(|kept| {
        if kept.as_ref().is_none_or(|encoder| encoder.level != level) {
            *kept = Encoder::new(level);
        }
        let Some(mut encoder) = kept.take() else { return then(None) };
        let Ok(packed) = encoder.pack(cluster) else { return then(None) };
        let outcome = then(packed);
        *kept = Some(encoder);
        outcome
    })
}

impl Encoder {
    fn new(level: Level) -> Option<Self> {
        let codec = match level {
            Level::Zlib(level) => {
                let effort = Effort::new(level);
                Codec::Zlib(Box::new(Compress::new_with_window_bits(effort, false, WINDOW_BITS)))
            }
            Level::Fast => Codec::Fast(Compressor::new(CompressionLvl::new(1).ok()?)),
            Level::Zstd(level) => Codec::Zstd(zstd::bulk::Compressor::new(level).ok()?),
        };
        Some(Self { level, codec, out: Vec::new() })
    }

    /// `Err`: it is not to be used again.
    fn pack(&mut self, cluster: &[u8]) -> Result<Option<&[u8]>, Unusable> {
        // Room for everything: zlib-rs (0.6) is not rightly reset after a stream that was cut off.
        self.out.resize(cluster.len() + cluster.len() / 16 + 1024, 0);
        let len = match &mut self.codec {
            Codec::Zlib(codec) => {
                codec.reset();
                let status = codec.compress(cluster, &mut self.out, FlushCompress::Finish);
                if status.ok() != Some(Status::StreamEnd) {
                    return Err(Unusable);
                }
                usize::try_from(codec.total_out()).map_err(|_| Unusable)?
            }
            Codec::Fast(codec) => {
                codec.deflate_compress(cluster, &mut self.out).map_err(|_| Unusable)?
            }
            Codec::Zstd(codec) => {
                codec.compress_to_buffer(cluster, &mut self.out[..]).map_err(|_| Unusable)?
            }
        };
        Ok(self.out.get(..len).filter(|packed| packed.len() < cluster.len()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes with matches at all distances.
    fn text(len: usize) -> Vec<u8> {
        let mut state = 1u32;
        let mut bytes = Vec::new();
        while bytes.len() < len {
            state = state.wrapping_mul(1_103_515_245).wrapping_add(12345);
            let back = 1 + (state >> 8) as usize % 30_000;
            match bytes.len().checked_sub(back) {
                Some(from) if state & 1 == 0 => {
                    let piece = bytes[from..].iter().copied().take(40).collect::<Vec<_>>();
                    bytes.extend(piece);
                }
                _ => bytes.extend((state >> 4).to_le_bytes()),
            }
        }
        bytes.truncate(len);
        bytes
    }

    /// What a decoder makes of it that keeps no more than the window, and is given room piece by piece, so
    /// that it cannot look back into what it wrote before.
    fn unpacked(stream: &[u8]) -> Vec<u8> {
        let mut decoder = flate2::Decompress::new_with_window_bits(false, 12);
        let (mut out, mut piece) = (Vec::<u8>::new(), vec![0; 100]);
        loop {
            let from = usize::try_from(decoder.total_in()).unwrap();
            let had = decoder.total_out();
            let flush = flate2::FlushDecompress::None;
            let status = decoder.decompress(&stream[from..], &mut piece, flush).unwrap();
            let new = usize::try_from(decoder.total_out() - had).unwrap();
            out.extend(&piece[..new]);
            if status == flate2::Status::StreamEnd {
                assert_eq!(decoder.total_in(), stream.len() as u64);
                return out;
            }
            assert!(new > 0, "it ends too soon");
        }
    }

    #[test]
    fn deflate_of_every_level_stays_within_the_window_of_qemu() {
        let mut inputs = vec![text(64 << 10), text(300_000), vec![0; 65536], vec![1; 1]];
        inputs.push((0..70_000u32).map(|i| (i / 7 % 11).to_le_bytes()[0]).collect());
        // Each byte a little rarer than the one before: the longest codes.
        inputs.push((0..24u8).flat_map(|i| vec![i; 1 << (23 - i).min(14)]).collect());
        inputs.extend((1..40).map(text));
        for level in 1..=9 {
            for (i, bytes) in inputs.iter().enumerate() {
                let Some(out) = packed(Level::Zlib(level), bytes, |p| p.map(<[u8]>::to_vec)) else {
                    continue;
                };
                assert!(unpacked(&out) == *bytes, "level {level}, input {i}");
            }
        }
    }

    #[test]
    fn every_level_is_read_by_our_own_reader() {
        let bytes = text(64 << 10);
        for level in [Level::Fast, Level::Zlib(1), Level::Zlib(9), Level::Zstd(-1), Level::Zstd(19)]
        {
            let kind = match level {
                Level::Zstd(_) => Compression::Zstd,
                Level::Fast | Level::Zlib(_) => Compression::Zlib,
            };
            let mut out = packed(level, &bytes, |p| p.unwrap().to_vec());
            // What stands behind it in its last sector is another's.
            out.extend([0xA5; 300]);
            let mut cluster = vec![0; bytes.len()];
            crate::qcow2::unpack::unpack(kind, &out, &mut cluster).unwrap();
            assert!(cluster == bytes, "{level:?}");
        }
    }

    #[test]
    fn what_does_not_shrink_is_not_compressed_and_the_next_one_is() {
        let mut state = 7u64;
        let noise: Vec<u8> = std::iter::repeat_with(|| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.to_le_bytes()
        })
        .take(512)
        .flatten()
        .collect();
        for level in [Level::Fast, Level::Zlib(6), Level::Zlib(9), Level::Zstd(-1), Level::Zstd(19)]
        {
            assert!(packed(level, &noise, |p| p.is_none()), "{level:?}");
            assert!(packed(level, &[7; 4096], |p| p.unwrap().len()) < 100);
            assert!(packed(level, &[], |p| p.is_none()));
        }
    }
}
