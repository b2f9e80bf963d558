//! The digests of a disk's stretches, beside that of the whole: each is the digest of the stretch
//! as if it were a disk. Stretches of zeroes are told of as one range, however long.

use std::ops::Range;

use super::digester::Zeroes;
use super::hash::Hash;
use super::kind::{ContentDigest, DigestKind};

/// A stretch, or several adjoining ones that are zero.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct DigestedRange {
    /// In bytes.
    pub range: Range<u64>,
    /// Its digest; `None`: it reads as zeroes.
    pub digest: Option<ContentDigest>,
}

/// What is called with each of them, in order.
pub(super) type Each = Box<dyn FnMut(DigestedRange) + Send>;

/// Folds the digests of blocks, which come in order.
pub(super) struct Stretches {
    kind: DigestKind,
    /// Blocks in a stretch.
    blocks: u64,
    each: Each,
    /// Blocks that came.
    at: u64,
    /// Of the stretch that is not complete, once it had data.
    hash: Option<Hash>,
    /// Where a run of zero stretches began, in blocks.
    zero_from: u64,
}

impl Stretches {
    /// `length` is that of a stretch in bytes, and is rounded up to whole blocks.
    pub(super) fn new(kind: DigestKind, length: u64, each: Each) -> Self {
        let blocks = length.div_ceil(kind.block).max(1);
        Self { kind, blocks, each, at: 0, hash: None, zero_from: 0 }
    }

    /// The next block has data.
    pub(super) fn data(&mut self, digest: &ContentDigest, zeroes: &Zeroes) {
        self.fold(digest, zeroes);
        self.at += 1;
        if self.at.is_multiple_of(self.blocks) {
            self.close(self.at * self.kind.block);
        }
    }

    fn fold(&mut self, digest: &ContentDigest, zeroes: &Zeroes) {
        let (algorithm, before) = (self.kind.algorithm, self.at % self.blocks);
        let hash = self.hash.get_or_insert_with(|| {
            let mut hash = Hash::new(algorithm);
            zeroes.add(&mut hash, before);
            hash
        });
        hash.update(digest.bytes());
    }

    /// The next `n` blocks are zero.
    pub(super) fn zeroes(&mut self, n: u64, zeroes: &Zeroes) {
        let mut left = n;
        if let Some(hash) = &mut self.hash {
            let now = left.min(self.blocks - self.at % self.blocks);
            zeroes.add(hash, now);
            self.at += now;
            left -= now;
            if self.at.is_multiple_of(self.blocks) {
                self.close(self.at * self.kind.block);
            }
        }
        self.at += left;
    }

    /// That was all. The last block, if it is a short one, has not been told of: `tail` is its
    /// digest, and whether it is zero.
    pub(super) fn end(&mut self, size: u64, tail: Option<(ContentDigest, bool)>, zeroes: &Zeroes) {
        if let Some((digest, is_zero)) = tail
            && (!is_zero || self.hash.is_some())
        {
            self.fold(&digest, zeroes);
        }
        self.close(size);
        self.tell_zeroes(size);
    }

    /// The stretch ends here, in bytes.
    fn close(&mut self, end: u64) {
        let Some(mut hash) = self.hash.take() else { return };
        let length = self.blocks * self.kind.block;
        let start = (end - 1) / length * length;
        hash.update(&(end - start).to_le_bytes());
        self.tell_zeroes(start);
        (self.each)(DigestedRange { range: start..end, digest: Some(hash.finish()) });
        self.zero_from = end.div_ceil(self.kind.block);
    }

    fn tell_zeroes(&mut self, end: u64) {
        let start = self.zero_from * self.kind.block;
        if start < end {
            (self.each)(DigestedRange { range: start..end, digest: None });
            self.zero_from = end.div_ceil(self.kind.block);
        }
    }
}
