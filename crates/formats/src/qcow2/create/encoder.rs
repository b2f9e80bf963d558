//! Compressing a cluster: raw deflate, or one Zstandard frame.
//!
//! Deflate stays within QEMU's window of 4 KiB, so that any decoder reads it, but for the fast
//! level, whose library has one of 32 KiB: QEMU and other decoders of whole clusters read that too,
//! but not a streaming decoder that keeps only 4 KiB. So it has to be asked for by name.
//!
//! Each thread keeps its compressor, since setting it up for every cluster costs as much as a small
//! cluster. A cluster that does not become shorter stays uncompressed; so does one for which the
//! library fails.

use std::cell::RefCell;

use device::{Params, values};
use flate2::{Compress, Compression as Effort, FlushCompress, Status};
use libdeflater::{CompressionLvl, Compressor};
use zstd::bulk::Compressor as Zstd;
use zstd::zstd_safe::CParameter;

use crate::qcow2::header::Compression;

/// QEMU reads and writes deflate with a window of 2^12 bytes.
pub(super) const WINDOW_BITS: u8 = 12;

/// The compression level.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(in crate::qcow2) enum CompressionLevel {
    /// Deflate: fast, at nearly the size of QEMU's.
    Usual,
    /// Deflate, 1 to 9.
    Zlib(u32),
    /// Deflate, as fast as possible.
    Fast,
    /// Zstandard: fast, at nearly the size of QEMU's.
    ZstdUsual,
    /// Zstandard, up to 22, and below 1: the lower, the faster.
    Zstd(i32),
}

impl CompressionLevel {
    /// Without an option.
    pub(in crate::qcow2) fn usual(kind: Compression) -> Self {
        match kind {
            Compression::Zlib => Self::Usual,
            Compression::Zstd => Self::ZstdUsual,
        }
    }

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
            (kind, None) => Self::usual(kind),
            (Compression::Zlib, Some(level)) => Self::Zlib(level),
            (Compression::Zstd, Some(level)) => Self::Zstd(level.cast_signed()),
        })
    }
}

/// The compressors that a thread keeps.
struct Encoder {
    level: CompressionLevel,
    codec: Codec,
    out: Vec<u8>,
}

/// The compressor has failed.
pub(super) struct Unusable;

enum Codec {
    Zlib(Box<Compress>),
    Libdeflate(Compressor),
    Zstd(Zstd<'static>),
}

thread_local! {
    static ENCODER: RefCell<Option<Encoder>> = const { RefCell::new(None) };
}

/// Passes a cluster's compressed bytes to `then`; `None` if they would not be shorter.
pub(in crate::qcow2) fn packed<R>(
    level: CompressionLevel,
    cluster: &[u8],
    then: impl FnOnce(Option<&[u8]>) -> R,
) -> R {
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
    fn new(level: CompressionLevel) -> Option<Self> {
        let codec = match level {
            CompressionLevel::Usual => zlib(4),
            CompressionLevel::Fast => {
                Codec::Libdeflate(Compressor::new(CompressionLvl::new(1).ok()?))
            }
            CompressionLevel::Zlib(level) => zlib(level),
            CompressionLevel::Zstd(level) => Codec::Zstd(Zstd::new(level).ok()?),
            CompressionLevel::ZstdUsual => Codec::Zstd(usual_zstd().ok()?),
        };
        Some(Self { level, codec, out: Vec::new() })
    }

    /// `Err`: the compressor must not be used again.
    fn pack(&mut self, cluster: &[u8]) -> Result<Option<&[u8]>, Unusable> {
        // Room for everything: zlib-rs (0.6) does not reset properly after a stream that was cut
        // off.
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
            Codec::Libdeflate(codec) => {
                codec.deflate_compress(cluster, &mut self.out).map_err(|_| Unusable)?
            }
            Codec::Zstd(codec) => {
                codec.compress_to_buffer(cluster, &mut self.out[..]).map_err(|_| Unusable)?
            }
        };
        Ok(self.out.get(..len).filter(|packed| packed.len() < cluster.len()))
    }
}

/// Level 2 looks for matches of 5 bytes, in a table of 128 KiB where a cluster has 64 KiB. Those of
/// 6 in a table of half the size take a sixth less time, and one percent more room. (Level 1 has a
/// table of half of that, is no faster, and longer.)
fn usual_zstd() -> std::io::Result<Zstd<'static>> {
    let mut codec = Zstd::new(2)?;
    for parameter in [CParameter::MinMatch(6), CParameter::HashLog(14)] {
        codec.set_parameter(parameter)?;
    }
    Ok(codec)
}

fn zlib(level: u32) -> Codec {
    let effort = Effort::new(level);
    Codec::Zlib(Box::new(Compress::new_with_window_bits(effort, false, WINDOW_BITS)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LEVELS: [CompressionLevel; 7] = [
        CompressionLevel::Usual,
        CompressionLevel::Fast,
        CompressionLevel::Zlib(1),
        CompressionLevel::Zlib(9),
        CompressionLevel::ZstdUsual,
        CompressionLevel::Zstd(-1),
        CompressionLevel::Zstd(19),
    ];

    /// Data that cannot be compressed.
    fn noise(mut state: u64, len: usize) -> Vec<u8> {
        let words = std::iter::repeat_with(|| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.to_le_bytes()
        });
        words.take(len.div_ceil(8)).flatten().take(len).collect()
    }

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

    /// The output of a decoder that keeps only the window, and gets its room piece by piece, so
    /// that it cannot look back into earlier output.
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
        let mut levels: Vec<CompressionLevel> = (1..=9).map(CompressionLevel::Zlib).collect();
        // The fast one is another library's, which does not.
        levels.push(CompressionLevel::Usual);
        for level in levels {
            for (i, bytes) in inputs.iter().enumerate() {
                let Some(out) = packed(level, bytes, |p| p.map(<[u8]>::to_vec)) else {
                    continue;
                };
                assert!(unpacked(&out) == *bytes, "{level:?}, input {i}");
            }
        }
    }

    #[test]
    fn clusters_of_all_sizes_without_a_level_stay_within_the_window_too() {
        let long = text(1 << 21);
        for bits in [9, 10, 12, 14, 17, 21] {
            let bytes = &long[..1 << bits];
            let Some(out) = packed(CompressionLevel::Usual, bytes, |p| p.map(<[u8]>::to_vec))
            else {
                assert!(bits < 17, "2^{bits} is not compressed");
                continue;
            };
            assert!(unpacked(&out) == bytes, "2^{bits}");
        }
    }

    /// A part of a cluster.
    #[derive(Clone, Copy, Debug)]
    enum Part {
        Zeroes,
        Run(u8),
        Noise(u64),
        Text(usize),
    }

    /// A cluster of these parts, each a share of it.
    fn cluster(len: usize, parts: &[(Part, usize)]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (part, share) in parts {
            let len = len * share / 100;
            match part {
                Part::Zeroes => bytes.resize(bytes.len() + len, 0),
                Part::Run(byte) => bytes.resize(bytes.len() + len, *byte),
                Part::Noise(seed) => bytes.extend(noise(*seed, len)),
                Part::Text(from) => bytes.extend(&text(from + len)[*from..]),
            }
        }
        bytes.resize(len, 0);
        bytes
    }

    fn parts() -> impl Strategy<Value = Vec<(Part, usize)>> {
        let part = prop_oneof![
            Just(Part::Zeroes),
            any::<u8>().prop_map(Part::Run),
            (1..u64::MAX).prop_map(Part::Noise),
            (0..500usize).prop_map(Part::Text),
        ];
        proptest::collection::vec((part, 0..100usize), 1..6)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(150))]

        #[test]
        fn whatever_is_in_a_cluster_of_any_size_comes_out_again(
            bits in prop_oneof![15 => 9..=14u32, 4 => 15..=17u32, 1 => 18..=21u32],
            parts in parts(),
        ) {
            let bytes = cluster(1 << bits, &parts);
            for level in [CompressionLevel::Usual, CompressionLevel::Fast] {
                let Some(out) = packed(level, &bytes, |p| p.map(<[u8]>::to_vec)) else { continue };
                prop_assert!(out.len() < bytes.len());
                let mut cluster = vec![0; bytes.len()];
                crate::qcow2::unpack::unpack(Compression::Zlib, &out, &mut cluster).unwrap();
                prop_assert!(cluster == bytes, "{level:?}");
                if level == CompressionLevel::Usual {
                    prop_assert!(unpacked(&out) == bytes, "{level:?}, within the window");
                }
            }
        }
    }

    #[test]
    fn every_level_is_read_by_our_own_reader() {
        let bytes = text(64 << 10);
        for level in LEVELS {
            let kind = match level {
                CompressionLevel::Zstd(_) | CompressionLevel::ZstdUsual => Compression::Zstd,
                CompressionLevel::Usual | CompressionLevel::Fast | CompressionLevel::Zlib(_) => {
                    Compression::Zlib
                }
            };
            let mut out = packed(level, &bytes, |p| p.unwrap().to_vec());
            // The bytes after it in its last sector belong to another cluster.
            out.extend([0xA5; 300]);
            let mut cluster = vec![0; bytes.len()];
            crate::qcow2::unpack::unpack(kind, &out, &mut cluster).unwrap();
            assert!(cluster == bytes, "{level:?}");
        }
    }

    #[test]
    fn what_does_not_shrink_is_not_compressed_and_the_next_one_is() {
        let noise = noise(7, 4096);
        for level in LEVELS {
            assert!(packed(level, &noise, |p| p.is_none()), "{level:?}");
            assert!(packed(level, &[7; 4096], |p| p.unwrap().len()) < 100);
            assert!(packed(level, &[], |p| p.is_none()));
        }
    }
}
