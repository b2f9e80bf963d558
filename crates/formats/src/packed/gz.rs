//! gzip (RFC 1952): members, each a header, deflated bytes, their sum and their number. The
//! decoder's state can be copied, so a stream of one member can be read from points in its middle.

use device::Result;
use miniz_oxide::inflate::stream::{InflateState, inflate};
use miniz_oxide::{DataFormat, MZError, MZFlush, MZStatus};

use crate::kit::fields::{corrupt, le32};

use super::Kind;
use super::cursor::{Step, Unpack};

pub(super) const KIND: Kind = Kind { start: || Ok(Box::new(Gz::new())), index: |_, _| Ok(None) };

/// The longest header: names and comments.
const HEADER_MAX: usize = 128 << 10;
const FIXED: usize = 10;
const TRAILER: usize = 8;

#[derive(Clone)]
struct Gz {
    part: Part,
    inflate: Box<InflateState>,
    sum: crc32fast::Hasher,
    /// Bytes of this member, modulo 2^32.
    len: u32,
}

/// The position in a member.
#[derive(Clone)]
enum Part {
    /// The bytes of the header so far; none before a member, where the stream may end if it is not
    /// the first.
    Header(Vec<u8>, bool),
    Body,
    Trailer(Vec<u8>),
    /// Padding after the last member, which may be zeroes.
    Padding,
}

impl Gz {
    fn new() -> Self {
        let inflate = InflateState::new_boxed(DataFormat::Raw);
        Self {
            part: Part::Header(Vec::new(), true),
            inflate,
            sum: crc32fast::Hasher::new(),
            len: 0,
        }
    }

    fn body(&mut self, input: &[u8], output: &mut [u8]) -> Result<Step> {
        let done = inflate(&mut self.inflate, input, output, MZFlush::None);
        let (used, made) = (done.bytes_consumed, done.bytes_written);
        let new = output.get(..made).unwrap_or_default();
        self.sum.update(new);
        self.len = self.len.wrapping_add(u32::try_from(made).unwrap_or(0));
        match done.status {
            Ok(MZStatus::StreamEnd) => self.part = Part::Trailer(Vec::new()),
            // It needs more bytes, or more room.
            Ok(_) | Err(MZError::Buf) => {}
            Err(_) => return Err(corrupt("the gzip stream is broken")),
        }
        Ok(Step { used, made, ended: false })
    }
}

/// The length of a header; `None`: more bytes are needed.
fn header_len(seen: &[u8]) -> Result<Option<usize>> {
    let wrong = |known: &[u8]| seen.iter().zip(known).any(|(a, b)| a != b);
    if wrong(&[0x1f, 0x8b, 8]) {
        return Err(corrupt("the gzip stream is followed by something else"));
    }
    let Some(flags) = seen.get(3) else { return Ok(None) };
    if flags & 0xe0 != 0 {
        return Err(corrupt("the gzip stream has a header of an unknown kind"));
    }
    let mut at = FIXED;
    if flags & 4 != 0 {
        let Some([low, high]) = seen.get(at..at + 2) else { return Ok(None) };
        at += 2 + usize::from(u16::from_le_bytes([*low, *high]));
    }
    // A name, and a comment.
    for flag in [8, 16] {
        if flags & flag != 0 {
            let rest = seen.get(at..).unwrap_or_default();
            let Some(end) = rest.iter().position(|b| *b == 0) else { return Ok(None) };
            at += end + 1;
        }
    }
    at += if flags & 2 != 0 { 2 } else { 0 };
    Ok((seen.len() >= at).then_some(at))
}

impl Unpack for Gz {
    fn step(&mut self, input: &[u8], output: &mut [u8]) -> Result<Step> {
        let mut used = 0;
        loop {
            let rest = input.get(used..).unwrap_or_default();
            match &mut self.part {
                Part::Body => {
                    let step = self.body(rest, output)?;
                    return Ok(Step { used: used + step.used, ..step });
                }
                Part::Header(seen, first) => {
                    let ended = seen.is_empty() && !*first;
                    let Some(byte) = rest.first() else { return Ok(Step { used, made: 0, ended }) };
                    used += 1;
                    if ended && *byte == 0 {
                        self.part = Part::Padding;
                        continue;
                    }
                    seen.push(*byte);
                    if seen.len() > HEADER_MAX {
                        return Err(corrupt("the header of the gzip stream is too long"));
                    }
                    if header_len(seen)? == Some(seen.len()) {
                        self.part = Part::Body;
                    }
                }
                Part::Trailer(seen) => {
                    let missing = TRAILER - seen.len();
                    let n = missing.min(rest.len());
                    seen.extend(rest.iter().take(n));
                    used += n;
                    if seen.len() < TRAILER {
                        return Ok(Step { used, made: 0, ended: false });
                    }
                    let (sum, len) = (le32(seen, 0), le32(seen, 4));
                    let member = std::mem::replace(self, Self::new());
                    if member.len != len || member.sum.finalize() != sum {
                        return Err(corrupt("the gzip stream is broken: its checksum is wrong"));
                    }
                    self.part = Part::Header(Vec::new(), false);
                    return Ok(Step { used, made: 0, ended: true });
                }
                Part::Padding => {
                    if rest.iter().any(|b| *b != 0) {
                        return Err(corrupt("the gzip stream is followed by something else"));
                    }
                    return Ok(Step { used: input.len(), made: 0, ended: true });
                }
            }
        }
    }

    fn copy(&self) -> Option<Box<dyn Unpack>> {
        Some(Box::new(self.clone()))
    }
}
