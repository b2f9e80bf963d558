//! Folds the digests of blocks into that of the disk, as blocks come, in any order and from any
//! thread.
//!
//! Each thread hashes the blocks that it brings; under the lock only their digests are folded, in
//! order. A block that comes in parts waits until it is complete. What is ahead of the first block
//! that is missing is kept: a digest for each block with data, a range for zeroes.

use std::collections::BTreeMap;
use std::ops::Range;

use copy::Witness;
use device::{Error, ErrorKind, Fault, Result, is_zero};
use runtime::{Mutex, RangeSet};

use super::hash::Hash;
use super::kind::{ContentDigest, DigestAlgorithm, DigestKind};
use super::stretches::{DigestedRange, Stretches};

/// Zero blocks that are folded at once.
const MANY: u16 = 1024;

/// Computes the digest of a disk from its bytes. All of them have to be shown to it
/// ([`Witness`]); what is shown once more is not looked at again.
pub struct Digester {
    kind: DigestKind,
    zeroes: Zeroes,
    state: Mutex<State>,
}

runtime::debug_as!(Digester, |digester| "Digester({})", digester.kind);

/// The digest of a block of zeroes, once and many times.
pub(super) struct Zeroes {
    one: ContentDigest,
    many: Box<[u8]>,
}

struct State {
    /// Blocks that are folded.
    at: u64,
    /// Over their digests.
    root: Hash,
    /// Digests of blocks that are ahead.
    ready: BTreeMap<u64, ContentDigest>,
    /// Numbers of blocks that are zero, and ahead.
    zero: RangeSet,
    /// Blocks of which a part has come.
    partial: BTreeMap<u64, Partial>,
    stretches: Option<Stretches>,
    /// The digests of all blocks that are folded, if they are kept.
    blocks: Option<Vec<u8>>,
    /// That of the last block, which is short, if it is known without its bytes.
    tail: Option<ContentDigest>,
}

/// A block that is not complete.
#[derive(Default)]
struct Partial {
    /// Which bytes of it have come.
    known: RangeSet,
    /// Without them all that came is zero.
    bytes: Option<Box<[u8]>>,
}

impl Digester {
    /// One that has seen nothing.
    #[must_use]
    pub fn new(kind: DigestKind) -> Self {
        let state = State {
            at: 0,
            root: Hash::new(kind.algorithm),
            ready: BTreeMap::new(),
            zero: RangeSet::default(),
            partial: BTreeMap::new(),
            stretches: None,
            blocks: None,
            tail: None,
        };
        Self { kind, zeroes: Zeroes::new(kind), state: Mutex::new(state) }
    }

    /// Of which kind it is.
    #[must_use]
    pub fn kind(&self) -> DigestKind {
        self.kind
    }

    /// The same that also computes a digest for each stretch of `length` bytes, and calls `each`
    /// with them, in order. That has to be quick: threads wait for it.
    #[must_use]
    pub fn with_stretches(
        self,
        length: u64,
        each: impl FnMut(DigestedRange) + Send + 'static,
    ) -> Self {
        self.state.lock().stretches = Some(Stretches::new(self.kind, length, Box::new(each)));
        self
    }

    /// The same that keeps the digests of all blocks: of a short disk.
    #[must_use]
    pub(crate) fn keeping_blocks(self) -> Self {
        self.state.lock().blocks = Some(Vec::new());
        self
    }

    /// The digests of all blocks, one after the other, once it is finished.
    pub(crate) fn take_blocks(&self) -> Vec<u8> {
        self.state.lock().blocks.take().unwrap_or_default()
    }

    /// What was kept of a range that begins with a block of a disk of `size` bytes, instead of the
    /// bytes. What is no digest, or behind the end, is left out: it was not seen.
    pub(crate) fn known(&self, start: u64, digests: &[u8], size: u64) {
        let block = self.kind.block;
        let digests = digests.chunks_exact(self.kind.algorithm.length()).map(ContentDigest::of);
        let all = (start / block..).zip(digests);
        let whole: Vec<_> = all.clone().filter(|(number, _)| *number < size / block).collect();
        self.add(&whole);
        let tail = all.into_iter().find(|(number, _)| *number == size / block);
        if let Some((_, digest)) = tail.filter(|_| !size.is_multiple_of(block)) {
            self.state.lock().tail = Some(digest);
        }
    }

    /// The digest of a disk of `size` bytes, all of which has been shown. Called once.
    ///
    /// # Errors
    /// Some of it has not been shown.
    pub fn finish(&self, size: u64) -> Result<ContentDigest> {
        let block = self.kind.block;
        let mut state = self.state.lock();
        state.advance(&self.zeroes);
        let tail = match size % block {
            0 => None,
            rest => Some(self.tail(&mut state, size / block, rest).ok_or_else(unseen)?),
        };
        if state.at != size / block {
            return Err(unseen());
        }
        if let Some((digest, _)) = &tail {
            state.fold(digest);
        }
        if let Some(stretches) = &mut state.stretches {
            stretches.end(size, tail, &self.zeroes);
        }
        state.root.update(&size.to_le_bytes());
        let root = std::mem::replace(&mut state.root, Hash::new(self.kind.algorithm));
        Ok(root.finish())
    }

    /// The digest of the last block, which is short, and whether it is zero.
    fn tail(&self, state: &mut State, number: u64, rest: u64) -> Option<(ContentDigest, bool)> {
        let algorithm = self.kind.algorithm;
        if let Some(known) = state.tail {
            let zero = Hash::of(algorithm, &vec![0; usize::try_from(rest).ok()?]);
            return Some((known, known == zero));
        }
        let tail = state.take_tail(number, rest)?;
        Some((tail.digest(algorithm), tail.is_zero()))
    }

    /// A part of a block, from a byte of it on: `bytes`, or so many zeroes. Returns the block's
    /// digest if that completes it.
    fn part(
        &self,
        number: u64,
        from: u64,
        len: u64,
        bytes: Option<&[u8]>,
    ) -> Option<ContentDigest> {
        let mut state = self.state.lock();
        let is_known = number < state.at
            || state.ready.contains_key(&number)
            || state.zero.covering(number).is_some();
        if is_known {
            return None;
        }
        let partial = state.partial.entry(number).or_default();
        partial.known.add(from..from + len);
        if let Some(bytes) = bytes {
            let block = usize::try_from(self.kind.block).unwrap_or(0);
            let all = partial.bytes.get_or_insert_with(|| vec![0; block].into());
            let from = usize::try_from(from).unwrap_or(usize::MAX);
            let to = all.get_mut(from..).unwrap_or_default();
            to.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
        }
        if partial.known.len() < self.kind.block {
            return None;
        }
        let whole = state.partial.remove(&number)?;
        drop(state);
        Some(whole.bytes.map_or(self.zeroes.one, |bytes| self.of_block(&bytes)))
    }

    /// The digest of a whole block.
    fn of_block(&self, bytes: &[u8]) -> ContentDigest {
        if is_zero(bytes) { self.zeroes.one } else { Hash::of(self.kind.algorithm, bytes) }
    }

    fn add(&self, blocks: &[(u64, ContentDigest)]) {
        if blocks.is_empty() {
            return;
        }
        let mut state = self.state.lock();
        let at = state.at;
        for (number, digest) in blocks.iter().filter(|(number, _)| *number >= at) {
            // What was read first is what counts.
            state.ready.entry(*number).or_insert(*digest);
        }
        state.advance(&self.zeroes);
    }
}

impl Witness for Digester {
    fn data(&self, offset: u64, bytes: &[u8]) {
        let mut blocks = Vec::new();
        let (mut at, mut rest) = (offset, bytes);
        while !rest.is_empty() {
            let (number, from) = (at / self.kind.block, at % self.kind.block);
            let room = usize::try_from(self.kind.block - from).unwrap_or(usize::MAX);
            let (now, later) = rest.split_at(room.min(rest.len()));
            let len = now.len() as u64;
            let whole = match len == self.kind.block {
                true => Some(self.of_block(now)),
                false => self.part(number, from, len, Some(now)),
            };
            blocks.extend(whole.map(|digest| (number, digest)));
            at += len;
            rest = later;
        }
        self.add(&blocks);
    }

    fn zeroes(&self, range: Range<u64>) {
        let block = self.kind.block;
        let whole = range.start.div_ceil(block)..range.end / block;
        let ends = match whole.start < whole.end {
            true => [range.start..whole.start * block, whole.end * block..range.end],
            // It may lie in two blocks all the same.
            false => {
                let middle = (range.start.div_ceil(block) * block).min(range.end);
                [range.start..middle, middle..range.end]
            }
        };
        let part = |end: &Range<u64>| {
            let (number, len) = (end.start / block, end.end - end.start);
            let digest = self.part(number, end.start % block, len, None)?;
            Some((number, digest))
        };
        let blocks: Vec<_> = ends.iter().filter(|end| !end.is_empty()).filter_map(part).collect();
        self.add(&blocks);
        let mut state = self.state.lock();
        let start = whole.start.max(state.at);
        if start < whole.end {
            state.zero.add(start..whole.end);
            state.advance(&self.zeroes);
        }
    }
}

impl State {
    /// Folds the next block.
    fn fold(&mut self, digest: &ContentDigest) {
        self.root.update(digest.bytes());
        if let Some(blocks) = &mut self.blocks {
            blocks.extend(digest.bytes());
        }
    }

    /// Folds all blocks that come next.
    fn advance(&mut self, zeroes: &Zeroes) {
        loop {
            if let Some(digest) = self.ready.remove(&self.at) {
                self.fold(&digest);
                match &mut self.stretches {
                    Some(stretches) if digest == zeroes.one => stretches.zeroes(1, zeroes),
                    Some(stretches) => stretches.data(&digest, zeroes),
                    None => {}
                }
                self.at += 1;
            } else if let Some(run) = self.zero.covering(self.at) {
                let n = run.end - self.at;
                zeroes.add(&mut self.root, n);
                if let Some(blocks) = &mut self.blocks {
                    (0..n).for_each(|_| blocks.extend(zeroes.one.bytes()));
                }
                if let Some(stretches) = &mut self.stretches {
                    stretches.zeroes(n, zeroes);
                }
                self.at = run.end;
                self.zero.remove(0..run.end);
                // What came twice.
                self.ready = self.ready.split_off(&self.at);
            } else {
                return;
            }
        }
    }

    /// The last block, of which `rest` bytes are in the disk: all of them are known.
    fn take_tail(&mut self, number: u64, rest: u64) -> Option<Tail> {
        let partial = self.partial.remove(&number)?;
        let known = partial.known.covering(0).filter(|known| *known == (0..rest));
        let len = usize::try_from(rest).ok()?;
        let bytes = partial.bytes.unwrap_or_else(|| vec![0; len].into());
        known.and(bytes.get(..len).map(|bytes| Tail(bytes.into())))
    }
}

/// The last block of a disk, which is shorter than the others.
struct Tail(Box<[u8]>);

impl Tail {
    fn digest(&self, algorithm: DigestAlgorithm) -> ContentDigest {
        Hash::of(algorithm, &self.0)
    }

    fn is_zero(&self) -> bool {
        is_zero(&self.0)
    }
}

impl Zeroes {
    fn new(kind: DigestKind) -> Self {
        let mut hash = Hash::new(kind.algorithm);
        let piece = [0; 512];
        (0..kind.block / 512).for_each(|_| hash.update(&piece));
        let one = hash.finish();
        Self { one, many: one.bytes().repeat(usize::from(MANY)).into() }
    }

    /// Folds the digest of a block of zeroes `n` times.
    pub(super) fn add(&self, hash: &mut Hash, n: u64) {
        let mut left = n;
        while left > 0 {
            let now = left.min(MANY.into());
            let bytes = usize::try_from(now).unwrap_or(0) * self.one.bytes().len();
            hash.update(self.many.get(..bytes).unwrap_or_default());
            left -= now;
        }
    }
}

fn unseen() -> Error {
    let action = "digest: some of the disk was not seen; this is a defect";
    Error::new(ErrorKind::Io, Fault::Us, action)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;

    /// What `nbdcopy --blkhash=KIND` of libnbd 1.24.4 prints, for disks that [`disk`] makes.
    const OF_NBDCOPY: &[(&str, &str, &str)] = &[
        ("sha256", "", "af5570f5a1810b7af78caf4bc70a660f0df51e42baf91d4de5b2328de0e83dfc"),
        ("sha256", "data*1", "3aa275143d0713bc404144a02208ea1ea840d565fa0c19af486cc65b0a10a267"),
        (
            "sha256",
            "data*65536",
            "f281c183487402c710ed420713f106d60d9413c7adb84ff22b06cd868b137efe",
        ),
        (
            "sha256",
            "zero*131072",
            "64f1c1484fd437375911d9deaea816032b7dbb251a7f6ff3b7708c0e47aa560e",
        ),
        (
            "sha256",
            "zero*100000",
            "8e4758109c91c342fdaa6cdc613a434de6bc2bcf613ad648ca57e1e99f6633ed",
        ),
        (
            "sha256",
            "data*300000",
            "d80fb202291a5ca635fcbee592c04588aa96d6a39235f8184886f3fc977c6e92",
        ),
        (
            "sha256",
            "data*65536+zero*135536",
            "70cf3afe06ae8c66612e1bcc7dd575c6030937e3ca01a4fc957e810a8745cf8e",
        ),
        (
            "sha256",
            "zero*95536+data*100+zero*101072+data*10",
            "b415eb9689c8acd1b930e709839b29c546bd04c8c861c878956d9fb886cc4bc6",
        ),
        (
            "sha512",
            "data*1000+zero*200000",
            "1e99df488e06e95284322cd77281a68607e2aacfd949f9c582a5a60f04044bfade5be4705c40ea864000b15ffd1cc51e0ab6cf8b2a727a014b28a287c23f9981",
        ),
        ("sha1/4K", "zero*8192+data*5000", "2bf942dc8050d83a58b5fa590504efd3df6052bd"),
        ("md5/512", "data*700+zero*2000+data*3", "dc416e417642cbe49fe0fab99b65776a"),
        (
            "sha256/1M",
            "data*70000+zero*2000000",
            "654d8171ec4125b9982ff4cbc7e7de76e2856f2f79db8ccaeb982b7f9651317e",
        ),
    ];

    /// `DATA*N+ZERO*M…`: N bytes of a pattern, M zeroes.
    fn disk(words: &str) -> Vec<u8> {
        let mut bytes = Vec::new();
        for word in words.split('+').filter(|word| !word.is_empty()) {
            let (what, n) = word.split_once('*').unwrap();
            let n: usize = n.parse().unwrap();
            match what {
                "zero" => bytes.resize(bytes.len() + n, 0),
                _ => bytes.extend((0..n).map(|i| u8::try_from(i * 7 % 251).unwrap())),
            }
        }
        bytes
    }

    /// The definition, word by word.
    fn plainly(kind: DigestKind, disk: &[u8]) -> ContentDigest {
        let mut hash = Hash::new(kind.algorithm);
        for block in disk.chunks(usize::try_from(kind.block).unwrap()) {
            hash.update(Hash::of(kind.algorithm, block).bytes());
        }
        hash.update(&(disk.len() as u64).to_le_bytes());
        hash.finish()
    }

    #[test]
    fn the_digests_are_those_of_nbdcopy() {
        for (kind, words, digest) in OF_NBDCOPY {
            let (kind, disk) = (DigestKind::parse(kind).unwrap(), disk(words));
            let digester = Digester::new(kind);
            digester.data(0, &disk);
            let found = digester.finish(disk.len() as u64).unwrap();
            assert_eq!(found.to_string(), *digest, "{kind} {words}");
            assert_eq!(plainly(kind, &disk), found);
        }
    }

    #[test]
    fn what_was_not_shown_is_missed() {
        for (shown, size) in [(0..0, 1), (0..512, 1024), (512..1024, 1024), (0..1000, 1001)] {
            let digester = Digester::new(DigestKind::parse("md5/512").unwrap());
            digester.zeroes(shown.clone());
            assert!(digester.finish(size).is_err(), "{shown:?} of {size}");
        }
    }

    #[derive(Clone, Debug)]
    struct Piece {
        len: usize,
        /// Data, zeroes that are read, or a hole.
        what: u8,
    }

    fn pieces() -> impl Strategy<Value = Vec<Piece>> {
        let len = prop_oneof![1_usize..700, 1_usize..9000];
        let piece = (len, 0_u8..4).prop_map(|(len, what)| Piece { len, what });
        proptest::collection::vec(piece, 0..40)
    }

    proptest! {
        #[test]
        fn neither_parts_nor_order_nor_holes_matter(
            pieces in pieces(),
            order in proptest::collection::vec(any::<u64>(), 40),
            twice in 0_usize..40,
            stretch in 1_u64..20,
        ) {
            let mut disk = Vec::new();
            let mut parts = Vec::new();
            for piece in &pieces {
                let start = disk.len();
                let byte = if piece.what < 2 { 1 + u8::try_from(start % 251).unwrap() } else { 0 };
                disk.resize(start + piece.len, byte);
                parts.push((start..disk.len(), piece.what == 3));
            }
            let ordered: Vec<_> = parts.clone();
            parts.extend(ordered.get(twice).cloned());
            let mut keyed: Vec<_> = parts.into_iter().zip(order.iter().cycle()).collect();
            keyed.sort_by_key(|(_, key)| **key);
            let kind = DigestKind { block: 512, ..DigestKind::parse("blake3").unwrap() };
            let stretch = stretch * 512;
            let found = Arc::new(Mutex::new(Vec::new()));
            let each = found.clone();
            let digester = Digester::new(kind).with_stretches(stretch, move |range| each.lock().push(range));
            for ((range, hole), _) in keyed {
                let (start, end) = (range.start as u64, range.end as u64);
                match hole {
                    true => digester.zeroes(start..end),
                    false => digester.data(start, &disk[range]),
                }
            }
            let size = disk.len() as u64;
            prop_assert_eq!(digester.finish(size).unwrap(), plainly(kind, &disk));
            let mut at = 0;
            let mut last_zero = false;
            for DigestedRange { range, digest } in found.lock().iter() {
                prop_assert_eq!(range.start, at);
                at = range.end;
                let bytes = &disk[usize::try_from(range.start).unwrap()..usize::try_from(at).unwrap()];
                match digest {
                    Some(digest) => {
                        prop_assert!(range.end - range.start == stretch || at == size);
                        prop_assert!(!is_zero(bytes));
                        prop_assert_eq!(*digest, plainly(kind, bytes));
                    }
                    None => prop_assert!(is_zero(bytes) && !last_zero),
                }
                last_zero = digest.is_none();
            }
            prop_assert_eq!(at, size);
        }
    }
}
