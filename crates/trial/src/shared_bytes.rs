//! Bytes of which clones share all pages that neither has changed: a test that cuts the power at
//! every write of an image of some MiB has a copy of it for each.

use std::sync::{Arc, LazyLock};

const PAGE: usize = 16 << 10;
type Page = Arc<[u8; PAGE]>;
/// What all pages of zeroes are.
static ZEROES: LazyLock<Page> = LazyLock::new(|| Arc::new([0; PAGE]));

/// The bytes. Behind their end the last page is zero.
#[derive(Clone)]
pub(crate) struct SharedBytes {
    pages: Vec<Page>,
    len: usize,
}

impl SharedBytes {
    pub(crate) fn of(bytes: &[u8]) -> Self {
        let mut pages = Self { pages: Vec::new(), len: 0 };
        pages.write(0, bytes);
        pages
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len];
        self.read(0, &mut bytes);
        bytes
    }

    /// Makes it so long with zeroes, if it is shorter.
    pub(crate) fn grow(&mut self, len: usize) {
        self.len = self.len.max(len);
        self.pages.resize_with(self.len.div_ceil(PAGE), || ZEROES.clone());
    }

    /// `buffer` lies within.
    pub(crate) fn read(&self, start: usize, buffer: &mut [u8]) {
        assert!(buffer.len() <= self.len.saturating_sub(start));
        for (page, within, here) in pieces(start, buffer.len()) {
            buffer[here].copy_from_slice(&self.pages[page][within]);
        }
    }

    /// Writes, and makes it longer where that is needed.
    pub(crate) fn write(&mut self, start: usize, data: &[u8]) {
        self.grow(start + data.len());
        for (page, within, here) in pieces(start, data.len()) {
            let (page, data) = (&mut self.pages[page], &data[here]);
            if page[within.clone()] != *data {
                Arc::make_mut(page)[within].copy_from_slice(data);
            }
        }
    }

    /// Zeroes what of a range is within.
    pub(crate) fn clear(&mut self, start: usize, len: usize) {
        let end = self.len.min(start.saturating_add(len));
        for (page, within, _) in pieces(start, end.saturating_sub(start)) {
            let page = &mut self.pages[page];
            if within.len() == PAGE {
                *page = ZEROES.clone();
            } else {
                Arc::make_mut(page)[within].fill(0);
            }
        }
    }

    /// Takes a range, which lies within the others.
    pub(crate) fn take(&mut self, others: &Self, start: usize, len: usize) {
        self.grow(start + len);
        for (page, within, _) in pieces(start, len) {
            let (page, other) = (&mut self.pages[page], &others.pages[page]);
            if !Arc::ptr_eq(page, other) && page[within.clone()] != other[within.clone()] {
                Arc::make_mut(page)[within.clone()].copy_from_slice(&other[within]);
            }
        }
    }
}

/// The parts of a range by pages: the number of the page, where in it, and where in the range.
fn pieces(
    start: usize,
    len: usize,
) -> impl Iterator<Item = (usize, std::ops::Range<usize>, std::ops::Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let (page, within) = ((start + done) / PAGE, (start + done) % PAGE);
        let piece = (PAGE - within).min(len - done);
        let here = done..done + piece;
        done += piece;
        (piece > 0).then_some((page, within..within + piece, here))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TestDice;

    #[test]
    fn what_is_written_is_there_in_it_alone_and_in_no_clone() {
        let (mut dice, mut model) = (TestDice(1), vec![7; 3 * PAGE + 100]);
        let narrow = |n: u64| usize::try_from(n).unwrap();
        let mut pages = SharedBytes::of(&model);
        let mut others: Vec<(SharedBytes, Vec<u8>)> = Vec::new();
        for n in 0..400 {
            let (start, len) = (narrow(dice.below(5)) * PAGE, narrow(dice.below(2 * PAGE as u64)));
            let start = start + narrow(dice.below(3)) * 100;
            let end = start + len;
            match dice.below(5) {
                0 => {
                    pages.clear(start, len);
                    let end = end.min(model.len());
                    model[start.min(end)..end].fill(0);
                }
                1 => others.push((pages.clone(), model.clone())),
                2 if !others.is_empty() => {
                    let (other, bytes) = &others[narrow(dice.below(others.len() as u64))];
                    let end = end.min(bytes.len());
                    let start = start.min(end);
                    pages.take(other, start, end - start);
                    model.resize(model.len().max(end), 0);
                    model[start..end].copy_from_slice(&bytes[start..end]);
                }
                _ => {
                    let data = vec![narrow(dice.below(250)).to_le_bytes()[0]; len];
                    pages.write(start, &data);
                    model.resize(model.len().max(end), 0);
                    model[start..end].copy_from_slice(&data);
                }
            }
            assert!(pages.len() == model.len() && pages.to_vec() == model, "step {n}");
        }
        assert!(others.len() > 20 && others.iter().all(|(pages, bytes)| pages.to_vec() == *bytes));
    }
}
