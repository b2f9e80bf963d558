//! `swab`: swaps the bytes of each word, on the way to the disk and back.
//!
//! Zeroes are zeroes in any order, so zeroes and trims of whole words pass as they are, and so does
//! the map, but for words that are not all of one kind. Bytes never do, so nothing is read or
//! written past the filter. What does not fill a word at the end of the disk is not shown.

use device::{
    BlockSizes, Done, Edge, Error, Extent, ExtentKind, Filter, Filtered, Operation, Outcome, Over,
    Params, Passes, Result, merge_extent, param, values,
};

use crate::FilterKind;
use crate::kit::{below, changed};

pub(crate) const KIND: FilterKind = FilterKind {
    word: "swab",
    summary: "swaps the bytes of words of 16, 32 or 64 bits",
    keeps_disk: false,
    params: &[param(
        "swab-bits",
        "8|16|32|64",
        "bits of a word (default 16; 8: nothing is swapped)",
    )],
    example: "serve --filter=swab pattern 1K swab-bits=64 --run 'nbdcopy \"$uri\" - | od -A d -t x8'",
    open: |params, below, _| Ok(Filtered::device(Swab(word(params)?), below)),
    ..FilterKind::PLAIN
};

/// Bytes of a word.
fn word(params: &Params) -> Result<u32> {
    let bits = values::choice(params, "swab-bits", &["8", "16", "32", "64"])?.unwrap_or(1);
    Ok(1 << bits)
}

/// Bytes of a word: 1, 2, 4 or 8.
struct Swab(u32);

/// Reverses the bytes of each word. The edge above asks for whole words.
fn swap(bytes: &mut [u8], word: u32) {
    bytes.chunks_exact_mut(word as usize).for_each(<[u8]>::reverse);
}

/// The map of a range of whole words. Words have the same offsets below; the disk ends with one.
async fn resolve(below: Edge, word: u32, (offset, len): (u64, u64), max: usize) -> Result<Outcome> {
    let (word, end) = (u64::from(word), offset.saturating_add(len));
    let start = offset - offset % word;
    let whole = end.checked_next_multiple_of(word).unwrap_or(end) - start;
    let found = below::resolve(&below, start, whole, max).await?;
    let words = in_words(found, word).into_iter();
    let mut list: Vec<Extent> = words.filter_map(|extent| extent.part(offset, end)).collect();
    list.truncate(max);
    Ok(Outcome::Extents(list))
}

/// The same map where bytes of a word change places: a word that begins with one extent and ends
/// with another is data. The bytes are stored in another order than they are shown in, so of none
/// it is said where.
fn in_words(found: Vec<Extent>, word: u64) -> Vec<Extent> {
    let mut list: Vec<Extent> = Vec::new();
    let mut at = found.first().map_or(0, |extent| extent.start);
    for extent in found {
        let end = extent.end();
        let (first, last) = (extent.start.next_multiple_of(word), end - end % word);
        if first > at && end >= first {
            merge_extent(&mut list, Extent::new(at, first - at, ExtentKind::Data));
            at = first;
        }
        if last > at {
            let whole = Extent { start: at, len: last - at, home: None, place: None, ..extent };
            merge_extent(&mut list, whole);
            at = last;
        }
    }
    if list.is_empty() {
        // They end within the first word.
        list.push(Extent::new(at, word, ExtentKind::Data));
    }
    list
}

impl Filter for Swab {
    fn describe(&self, over: &mut Over) {
        let (info, word) = (&mut over.info, self.0);
        info.size -= info.size % u64::from(word);
        // If zeroes have to be written, the edge below does it: they need no swapping.
        info.abilities.zero = info.abilities.write;
        let BlockSizes { minimum, maximum, preferred } = info.blocks;
        let minimum = minimum.max(word);
        let maximum = (maximum - maximum % word).max(minimum);
        info.blocks = BlockSizes { minimum, maximum, preferred: preferred.max(minimum) };
        if word > 1 {
            // What changed below may be shown in another place.
            info.contexts.clear();
        } else {
            over.passes = Passes::ALL;
        }
    }

    fn run(&self, over: &Over, operation: Operation, done: Done) {
        let (below, word) = (over.below.clone(), self.0);
        if word == 1 {
            return below.submit(operation, done);
        }
        match operation {
            Operation::Read { offset, buffer } => below::complete(done, async move {
                let change = |bytes: &mut [u8]| swap(bytes, word);
                changed::read(below, offset, buffer, change).await
            }),
            Operation::Write { offset, data, fua } => below::complete(done, async move {
                let change = |bytes: &mut [u8]| swap(bytes, word);
                changed::write(below, offset, data, fua, change).await
            }),
            // The writes that replace it are swapped.
            Operation::Take { .. } => done(Ok(Outcome::Taken(0))),
            Operation::Resolve { offset, len, max } => {
                below::complete(
                    done,
                    async move { resolve(below, word, (offset, len), max).await },
                );
            }
            Operation::Status { .. } => {
                done(Err(Error::unsupported("status: bytes are swapped")));
            }
            other @ (Operation::Flush
            | Operation::Prefetch { .. }
            | Operation::Trim { .. }
            | Operation::Zero { .. }) => below.submit(other, done),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use device::model::Model;
    use device::{Blocking as _, Extent, ZeroFlags};

    use super::*;
    use crate::kit::tested::{put, simple};

    fn swabbed(size: usize, words: &[&str]) -> (Edge, Arc<Model>) {
        let model = Arc::new(Model::new(size));
        (put("swab", simple(model.clone()), words).unwrap(), model)
    }

    #[test]
    fn parts_of_words_and_long_requests_end_where_they_belong() {
        let (disk, model) = swabbed(1 << 20, &["swab-bits=32"]);
        disk.write(b"x", 5, false).unwrap();
        assert_eq!(model.bytes()[4..8], [0, 0, b'x', 0]);
        let long: Vec<u8> = (0..700_001u32).map(|i| u8::try_from(i % 251).unwrap()).collect();
        disk.write(&long, 3, true).unwrap();
        let mut back = vec![0; long.len()];
        disk.read(&mut back, 3).unwrap();
        assert!(back == long);
        let (bytes, mut all) = (model.bytes(), vec![0; 1 << 20]);
        disk.read(&mut all, 0).unwrap();
        assert!(bytes.chunks(4).zip(all.chunks(4)).all(|(a, b)| a.iter().eq(b.iter().rev())));
    }

    #[test]
    fn what_is_a_hole_below_is_one_here_and_says_of_no_byte_where_it_is_stored() {
        let (disk, _) = swabbed(8192, &[]);
        disk.write(&[1; 4096], 0, false).unwrap();
        disk.zero(1024, 1024, ZeroFlags { may_unmap: true, ..ZeroFlags::default() }).unwrap();
        let mut map: Vec<Extent> = Vec::new();
        disk.resolve(0, 8192, 9, &mut map).unwrap();
        let zeroes: Vec<_> = map.iter().map(|e| (e.start, e.len, e.kind.reads_zero())).collect();
        let all = [(0, 1024, false), (1024, 1024, true), (2048, 2048, false), (4096, 4096, true)];
        assert_eq!(zeroes, all);
        assert!(map.iter().all(|e| e.home.is_none() && e.place.is_none()));
    }

    #[test]
    fn a_word_that_is_only_partly_zero_below_is_no_zero_here() {
        for (word, shift) in [("swab-bits=16", 1), ("swab-bits=64", 3), ("swab-bits=64", 4)] {
            let model = Arc::new(Model::new(3 * 4096));
            model.write_at(&[7; 4096], 4096, false).unwrap();
            let offset = format!("offset={shift}");
            let odd = put("offset", simple(model), &[&offset]).unwrap();
            let disk = put("swab", odd.device().clone(), &[word]).unwrap();
            let size = disk.info().size;
            let mut all = vec![0; usize::try_from(size).unwrap()];
            disk.read(&mut all, 0).unwrap();
            // From each byte on, as long as it goes, and one byte at a time.
            let near = (0..size).filter(|at| (at + 20) % 4096 < 40);
            for (from, len, max) in near.flat_map(|at| [(at, size - at, 2), (at, 1, 1)]) {
                let mut map: Vec<Extent> = Vec::new();
                disk.resolve(from, len, max, &mut map).unwrap();
                for e in map.iter().filter(|e| e.kind.reads_zero()) {
                    let range =
                        usize::try_from(e.start).unwrap()..usize::try_from(e.end()).unwrap();
                    assert!(all[range].iter().all(|b| *b == 0), "{word} {shift}: {e:?}");
                }
            }
            let mut map: Vec<Extent> = Vec::new();
            disk.resolve(0, size, 9, &mut map).unwrap();
            let zeroes: u64 = map.iter().filter(|e| e.kind.reads_zero()).map(|e| e.len).sum();
            assert!(zeroes > 8100, "the rest of the holes are still there: {map:?}");
        }
    }
}
