//! bzip2: streams, one after the other, each of blocks. Parallel compressors make each block a
//! stream, from which decoding can start; in a single stream, going back means starting over.

use bzip2::{Decompress, Status};
use device::Result;

use crate::kit::fields::corrupt;

use super::Kind;
use super::cursor::{Step, Unpack};

/// The magic number of a block.
pub(super) const BLOCK: [u8; 6] = [0x31, 0x41, 0x59, 0x26, 0x53, 0x59];

pub(super) const KIND: Kind =
    Kind { start: || Ok(Box::new(Bz2 { decoder: new(), ended: false })), index: |_, _| Ok(None) };

struct Bz2 {
    decoder: Decompress,
    /// A stream has ended, and no other has begun.
    ended: bool,
}

fn new() -> Decompress {
    Decompress::new(false)
}

impl Unpack for Bz2 {
    fn step(&mut self, input: &[u8], output: &mut [u8]) -> Result<Step> {
        if input.is_empty() && self.ended {
            return Ok(Step { used: 0, made: 0, ended: true });
        }
        if self.ended {
            (self.decoder, self.ended) = (new(), false);
        }
        let before = (self.decoder.total_in(), self.decoder.total_out());
        let status = self.decoder.decompress(input, output);
        let count = |now: u64, before: u64| usize::try_from(now - before).unwrap_or(usize::MAX);
        let used = count(self.decoder.total_in(), before.0);
        let made = count(self.decoder.total_out(), before.1);
        match status {
            Ok(Status::StreamEnd) => self.ended = true,
            Ok(_) => {}
            Err(e) => return Err(corrupt("the bzip2 stream is broken").with_source(e)),
        }
        Ok(Step { used, made, ended: self.ended })
    }
}
