//! Zstandard (RFC 8878): frames, which give their size if they were compressed from a file. The
//! seekable format has a table of many short frames at its end; for others, their headers and those
//! of their blocks are walked.

use device::{Edge, Error, Result};
use zstd::stream::raw::{DParameter, Decoder, InBuffer, Operation, OutBuffer};

use crate::kit::fields::{corrupt, le32, load};

use super::Kind;
use super::cursor::{Step, Unpack};
use super::index::{Index, SECTIONS_MAX, Section};

pub(super) const MAGIC: [u8; 4] = 0xfd2f_b528_u32.to_le_bytes();
/// The frame type of the seekable format's table, and the magic number at its end.
const SKIPPED: std::ops::RangeInclusive<u32> = 0x184d_2a50..=0x184d_2a5f;
const TABLE: u32 = 0x184d_2a5e;
const TABLE_END: u32 = 0x8f92_eab1;
/// The longest window, 128 MiB: the default of `zstd --long`.
const WINDOW_LOG_MAX: u32 = 27;
/// The most block headers to walk.
const BLOCKS_MAX: usize = 1 << 20;

pub(super) const KIND: Kind = Kind { start, index };

struct Zstd {
    decoder: Decoder<'static>,
    ended: bool,
    begun: bool,
}

fn start() -> Result<Box<dyn Unpack>> {
    let failed = |e| Error::os("make a zstd decoder", e);
    let mut decoder = Decoder::new().map_err(failed)?;
    decoder.set_parameter(DParameter::WindowLogMax(WINDOW_LOG_MAX)).map_err(failed)?;
    Ok(Box::new(Zstd { decoder, ended: false, begun: false }))
}

impl Unpack for Zstd {
    fn step(&mut self, input: &[u8], output: &mut [u8]) -> Result<Step> {
        // At the end of a frame, a decoder asked for more begins the next one.
        if input.is_empty() && (self.ended || !self.begun) {
            return Ok(Step { used: 0, made: 0, ended: self.ended });
        }
        self.begun = true;
        let (mut from, mut to) = (InBuffer::around(input), OutBuffer::around(output));
        let hint = self.decoder.run(&mut from, &mut to);
        let hint = hint.map_err(|e| corrupt("the zstd stream is broken").with_source(e))?;
        self.ended = hint == 0;
        Ok(Step { used: from.pos(), made: to.pos(), ended: self.ended })
    }
}

fn index(container: &Edge, max: u64) -> Result<Option<Index>> {
    match seek_table(container, max)? {
        Some(index) => Ok(Some(index)),
        None => frames(container, max),
    }
}

/// The table of the seekable format, if there is one.
fn seek_table(container: &Edge, max: u64) -> Result<Option<Index>> {
    let size = container.info().size;
    let Some(at) = size.checked_sub(9) else { return Ok(None) };
    let footer = load(container, "end", at, 9)?;
    if le32(&footer, 5) != TABLE_END {
        return Ok(None);
    }
    let (count, bits) = (u64::from(le32(&footer, 0)), footer.get(4).copied().unwrap_or(0));
    let width = if bits & 0x80 == 0 { 8 } else { 12 };
    let len = 8 + count * width + 9;
    let Some(start) = size.checked_sub(len).filter(|_| count <= SECTIONS_MAX as u64) else {
        return Err(corrupt("the seek table of the zstd stream is longer than the stream"));
    };
    let table = load(container, "seek table", start, usize::try_from(len).unwrap_or(0))?;
    if le32(&table, 0) != TABLE || u64::from(le32(&table, 4)) != len - 8 || bits & 0x7c != 0 {
        return Err(corrupt("the seek table of the zstd stream is broken"));
    }
    let (mut index, mut input) = (Index::default(), 0);
    let entries =
        table.get(8..).unwrap_or_default().chunks_exact(usize::try_from(width).unwrap_or(8));
    for entry in entries.take(usize::try_from(count).unwrap_or(0)) {
        let (packed, len) = (u64::from(le32(entry, 0)), u64::from(le32(entry, 4)));
        let section = Section::new(index.size, input, input + packed);
        input += packed;
        if input > start {
            return Err(corrupt("the seek table of the zstd stream is longer than the stream"));
        }
        index.push(section, len, max)?;
    }
    Ok(Some(index))
}

/// The frames, if all give their size.
fn frames(container: &Edge, max: u64) -> Result<Option<Index>> {
    let size = container.info().size;
    let mut index = Index::default();
    let (mut at, mut hops) = (0, 0);
    while at < size {
        let head = peek(container, at, 18)?;
        let magic = le32(&head, 0);
        if SKIPPED.contains(&magic) && head.len() >= 8 {
            at = at.saturating_add(8 + u64::from(le32(&head, 4)));
            continue;
        }
        if magic.to_le_bytes() != MAGIC {
            return Err(corrupt("the zstd stream is followed by something else").at(at));
        }
        let flags = head.get(4).copied().unwrap_or(0);
        let (single, check) = (flags & 0x20 != 0, flags & 4 != 0);
        let dictionary = match flags & 3 {
            3 => 4,
            few => usize::from(few),
        };
        let width = match flags >> 6 {
            0 if single => 1,
            0 => return Ok(None),
            1 => 2,
            2 => 4,
            _ => 8,
        };
        let field = 5 + usize::from(!single) + dictionary;
        let number =
            head.get(field..field + width).ok_or_else(|| corrupt("the zstd stream ends early"))?;
        let number = number.iter().rev().fold(0_u64, |n, byte| n << 8 | u64::from(*byte));
        let len = if width == 2 { number + 256 } else { number };
        let mut next = at + (field + width) as u64;
        loop {
            hops += 1;
            let block = peek(container, next, 3)?;
            let &[low, middle, high] = &*block else {
                return Err(corrupt("the zstd stream ends early").at(next));
            };
            // A file with so many blocks counts as one without sizes.
            if hops > BLOCKS_MAX {
                return Ok(None);
            }
            let block = u32::from_le_bytes([low, middle, high, 0]);
            let (last, kind, n) = (block & 1 != 0, block >> 1 & 3, u64::from(block >> 3));
            next = next.saturating_add(3 + if kind == 1 { 1 } else { n });
            if last {
                break;
            }
        }
        next = next.saturating_add(if check { 4 } else { 0 });
        index.push(Section::new(index.size, at, next.min(size)), len, max)?;
        at = next;
    }
    Ok(Some(index))
}

/// Up to `len` bytes.
fn peek(container: &Edge, at: u64, len: u64) -> Result<device::Buffer> {
    let there = container.info().size.saturating_sub(at).min(len);
    load(container, "frame", at, usize::try_from(there).unwrap_or(0))
}
