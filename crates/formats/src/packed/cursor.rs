//! A position in a stream: a decoder, its pending input, and its progress.

use device::{Buffer, Edge, Result};

use crate::kit::fields::corrupt;
use crate::kit::{confused, read};

/// Bytes of the stream that are read at a time.
pub(super) const INPUT: u64 = 256 << 10;

/// The progress of a decoder step.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct Step {
    /// Bytes consumed.
    pub(super) used: usize,
    /// Bytes produced.
    pub(super) made: usize,
    /// Whether the stream may end here, so that a new decoder could go on.
    pub(super) ended: bool,
}

/// A decoder. It verifies the stream's checksums.
pub(super) trait Unpack: Send {
    /// Decompresses some of `input` into `output`; uses up one of the two unless the stream has
    /// ended.
    ///
    /// # Errors
    /// The stream is broken.
    fn step(&mut self, input: &[u8], output: &mut [u8]) -> Result<Step>;

    /// A copy of this decoder in its state, if possible.
    fn copy(&self) -> Option<Box<dyn Unpack>> {
        None
    }
}

impl std::fmt::Debug for dyn Unpack {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Unpack")
    }
}

/// A decoder in a stream, which reads from `input` on.
#[derive(Debug)]
pub(super) struct Cursor {
    decoder: Box<dyn Unpack>,
    /// The next byte of the stream that is not in `piece`, and where the stream ends.
    next: u64,
    end: u64,
    piece: Buffer,
    at: usize,
    ended: bool,
}

impl Cursor {
    /// A cursor that continues with the bytes from `input` to `end`, after those in `prefix`.
    pub(super) fn new(decoder: Box<dyn Unpack>, prefix: &[u8], input: u64, end: u64) -> Self {
        let piece = Buffer::copy_of(prefix);
        Self { decoder, next: input, end, piece, at: 0, ended: false }
    }

    /// The bytes of the stream that it needs next: offset and length; length 0 if there are no
    /// more. `None`: it still has some.
    pub(super) fn needs(&self) -> Option<(u64, usize)> {
        if self.at < self.piece.len() {
            return None;
        }
        let len = INPUT.min(self.end.saturating_sub(self.next));
        Some((self.next, usize::try_from(len).unwrap_or(0)))
    }

    /// Gives it the bytes that it needed.
    pub(super) fn feed(&mut self, piece: Buffer) {
        self.next += piece.len() as u64;
        (self.piece, self.at) = (piece, 0);
    }

    /// The next byte that the decoder will take, if all its input came from the stream.
    pub(super) fn position(&self) -> u64 {
        self.next - (self.piece.len() - self.at) as u64
    }

    pub(super) fn copy(&self) -> Option<Box<dyn Unpack>> {
        self.decoder.copy()
    }

    /// Decompresses its pending input into `output`; returns the number of bytes.
    pub(super) fn step(&mut self, output: &mut [u8]) -> Result<Step> {
        let input = self.piece.get(self.at..).unwrap_or_default();
        let step = self.decoder.step(input, output)?;
        if step.used > input.len() || step.made > output.len() {
            return Err(confused());
        }
        if step.used == 0 && step.made == 0 && !input.is_empty() && !output.is_empty() {
            return Err(corrupt("the packed stream is followed by something else"));
        }
        self.at += step.used;
        self.ended = step.ended;
        Ok(step)
    }

    /// Whether the stream may end here.
    pub(super) fn may_end(&self) -> bool {
        self.ended
    }

    /// Fills `output`, which need not be the end of the stream.
    pub(super) async fn fill(&mut self, below: &Edge, output: &mut [u8]) -> Result<()> {
        let mut made = 0;
        while made < output.len() {
            // A decoder may hold back output when it has used up its input.
            let room = output.get_mut(made..).unwrap_or_default();
            if let Some((offset, len)) = self.needs() {
                let step = self.step(room)?;
                made += step.made;
                if step.made > 0 {
                    continue;
                }
                if len == 0 {
                    return Err(corrupt("the packed stream ends early").at(offset));
                }
                let piece = read(below, offset, len, true).await?.ok_or_else(confused)?;
                runtime::where_there_is_time(below.pool()).await;
                self.feed(piece);
                continue;
            }
            made += self.step(room)?.made;
        }
        Ok(())
    }

    /// Consumes the rest, which must produce no more bytes and be a valid end of the stream.
    pub(super) async fn drain(&mut self, below: &Edge) -> Result<()> {
        let mut spare = [0; 64];
        loop {
            let input = self.needs();
            let step = self.step(&mut spare)?;
            if step.made > 0 {
                return Err(corrupt("the packed stream is longer than it, or size=, says"));
            }
            match input {
                None => {}
                Some((_, 0)) if self.may_end() => return Ok(()),
                Some((offset, 0)) => return Err(corrupt("the packed stream ends early").at(offset)),
                Some((offset, len)) => {
                    let piece = read(below, offset, len, true).await?.ok_or_else(confused)?;
                    runtime::where_there_is_time(below.pool()).await;
                    self.feed(piece);
                }
            }
        }
    }
}
