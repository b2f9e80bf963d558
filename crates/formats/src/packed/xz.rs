//! xz: streams, one after the other, each of blocks with an index behind them. A block is
//! decompressed by itself, after the header of its stream, which names the checksum.

use device::{Edge, Error, ErrorKind, Fault, Result};
use liblzma::stream::{Action, Status, Stream};

use crate::kit::fields::{corrupt, le32, load};

use super::Kind;
use super::cursor::{Step, Unpack};
use super::index::{Index, SECTIONS_MAX, Section};

pub(super) const MAGIC: [u8; 6] = [0xfd, b'7', b'z', b'X', b'Z', 0];
const FOOTER_MAGIC: [u8; 2] = *b"YZ";
const HEADER: u64 = 12;
/// The memory limit of one decoder: twice the need of `xz -9`.
pub(super) const MEMORY: u64 = 160 << 20;
/// The longest index.
const INDEX_MAX: u64 = 16 << 20;
/// Streams in a file.
const STREAMS_MAX: usize = 4096;

pub(super) const KIND: Kind =
    Kind { start: || unpack("xz", Stream::new_stream_decoder(MEMORY, 0), true), index };

struct Lzma {
    word: &'static str,
    decoder: Stream,
    /// Whether the compressed bytes may end here.
    ended: bool,
}

/// A decoder of the library, for streams of this name. `ended`: whether the bytes of a section may
/// end before the stream does, as those of a block of xz, whose checksum is among them.
pub(super) fn unpack(
    word: &'static str,
    decoder: std::result::Result<Stream, liblzma::stream::Error>,
    ended: bool,
) -> Result<Box<dyn Unpack>> {
    let decoder = decoder.map_err(|e| {
        let action = format!("make a decoder of {word}");
        Error::new(ErrorKind::NoMemory, Fault::Us, action).with_source(e)
    })?;
    Ok(Box::new(Lzma { word, decoder, ended }))
}

impl Unpack for Lzma {
    fn step(&mut self, input: &[u8], output: &mut [u8]) -> Result<Step> {
        let before = (self.decoder.total_in(), self.decoder.total_out());
        let status = self.decoder.process(input, output, Action::Run);
        let count = |now: u64, before: u64| usize::try_from(now - before).unwrap_or(usize::MAX);
        let used = count(self.decoder.total_in(), before.0);
        let made = count(self.decoder.total_out(), before.1);
        match status {
            Ok(status) => {
                self.ended |= status == Status::StreamEnd;
                Ok(Step { used, made, ended: self.ended })
            }
            Err(liblzma::stream::Error::MemLimit) => {
                let action = format!(
                    "the {} stream needs more memory than {MEMORY} bytes to be unpacked",
                    self.word
                );
                Err(Error::new(ErrorKind::Limit, Fault::File, action))
            }
            Err(e) => Err(corrupt(format!("the {} stream is broken", self.word)).with_source(e)),
        }
    }
}

/// The blocks, by the indexes of all streams, from the last one on.
fn index(container: &Edge, max: u64) -> Result<Option<Index>> {
    let mut end = container.info().size;
    let mut streams = Vec::new();
    let mut count = 0;
    while end > 0 {
        end = without_padding(container, end)?;
        let stream = stream_before(container, end)?;
        end = stream.start;
        count += stream.blocks.len();
        streams.push(stream);
        if streams.len() > STREAMS_MAX || count > SECTIONS_MAX {
            return Err(corrupt("the xz file has more streams or blocks than we keep"));
        }
    }
    let mut index = Index::default();
    for (number, stream) in (0..).zip(streams.into_iter().rev()) {
        let mut input = stream.start + HEADER;
        for (packed, len) in &stream.blocks {
            let next = input + packed.next_multiple_of(4);
            let section = Section::new(index.size, input, next);
            index.push(Section { stream: number, ..section }, *len, max)?;
            input = next;
        }
        index.prefixes.push(stream.header);
    }
    Ok(Some(index))
}

struct Found {
    start: u64,
    header: Vec<u8>,
    /// For each block, its bytes without padding, and its uncompressed bytes.
    blocks: Vec<(u64, u64)>,
}

/// Zeroes between streams, four at a time.
fn without_padding(container: &Edge, mut end: u64) -> Result<u64> {
    for _ in 0..(1 << 16) {
        let Some(at) = end.checked_sub(4) else { break };
        if le32(&load(container, "end", at, 4)?, 0) != 0 {
            return Ok(end);
        }
        end = at;
    }
    Err(corrupt("the xz file has nothing but zeroes at its end"))
}

/// The stream that ends at `end`.
fn stream_before(container: &Edge, end: u64) -> Result<Found> {
    let broken = |why: &str| corrupt(format!("the xz stream is broken: {why}")).at(end);
    let at = end.checked_sub(HEADER).ok_or_else(|| broken("it is too short"))?;
    let footer = load(container, "footer", at, 12)?;
    let sum = crc32fast::hash(footer.get(4..10).unwrap_or_default());
    if footer.get(10..) != Some(&FOOTER_MAGIC) || le32(&footer, 0) != sum {
        return Err(broken("it has no footer"));
    }
    let len = (u64::from(le32(&footer, 4)) + 1) * 4;
    let start = at.checked_sub(len).filter(|_| len <= INDEX_MAX);
    let start = start.ok_or_else(|| broken("its index is longer than itself, or than we read"))?;
    let bytes = load(container, "index", start, usize::try_from(len).unwrap_or(0))?;
    let (content, sum) = bytes.split_at(bytes.len().saturating_sub(4));
    if crc32fast::hash(content) != le32(sum, 0) {
        return Err(broken("the checksum of its index is wrong"));
    }
    let blocks = records(content).ok_or_else(|| broken("its index is not whole"))?;
    let packed = blocks
        .iter()
        .try_fold(HEADER, |sum, (packed, _)| sum.checked_add(packed.checked_next_multiple_of(4)?));
    let first = packed.and_then(|packed| start.checked_sub(packed));
    let first = first.ok_or_else(|| broken("its index describes more than there is"))?;
    let header = load(container, "header", first, 12)?.to_vec();
    if !header.starts_with(&MAGIC) || header.get(6..8) != footer.get(8..10) {
        return Err(broken("it does not begin where its index says"));
    }
    Ok(Found { start: first, header, blocks })
}

/// The records of an index, without its checksum.
fn records(bytes: &[u8]) -> Option<Vec<(u64, u64)>> {
    let (indicator, mut rest) = bytes.split_first()?;
    if *indicator != 0 {
        return None;
    }
    let count = usize::try_from(number(&mut rest)?).ok()?;
    // Each has two bytes at least.
    if count > rest.len() / 2 {
        return None;
    }
    let mut records = Vec::with_capacity(count);
    for _ in 0..count {
        let (packed, len) = (number(&mut rest)?, number(&mut rest)?);
        if packed == 0 || packed > 1 << 62 {
            return None;
        }
        records.push((packed, len));
    }
    (rest.len() < 4 && rest.iter().all(|b| *b == 0)).then_some(records)
}

/// A number of seven bits a byte, the lowest first.
fn number(rest: &mut &[u8]) -> Option<u64> {
    let mut found = 0;
    for i in 0..9 {
        let (byte, after) = rest.split_first()?;
        *rest = after;
        found |= u64::from(byte & 0x7f) << (7 * i);
        if byte & 0x80 == 0 {
            return Some(found);
        }
    }
    None
}
