//! The sections of a stream: the compressed and uncompressed offset of each.

use std::collections::{BTreeMap, BTreeSet};

use device::{Edge, Result};
use runtime::Mutex;

use crate::kit::fields::corrupt;

use super::cursor::{Cursor, Unpack};
use super::{Kind, too_large};

/// The most sections that a stream may declare.
pub(super) const SECTIONS_MAX: usize = 1 << 19;
/// The most points noted while a stream is counted, and their first distance.
const POINTS: usize = 512;
pub(super) const APART: u64 = 8 << 20;

/// A part of a stream that can be decompressed by itself.
#[derive(Debug)]
pub(super) struct Section {
    /// Its uncompressed offset. It ends where the next one begins; none is empty.
    pub(super) start: u64,
    /// Its compressed start and end; the end is that of the stream if unknown.
    pub(super) input: u64,
    pub(super) input_end: u64,
    /// The stream of the file that it is in, whose prefix its decoder gets first.
    pub(super) stream: u32,
    /// Whether the compressed data ends with the section.
    pub(super) ends: bool,
}

impl Section {
    pub(super) fn new(start: u64, input: u64, input_end: u64) -> Self {
        Self { start, input, input_end, stream: 0, ends: true }
    }
}

#[derive(Debug, Default)]
pub(super) struct Index {
    pub(super) sections: Vec<Section>,
    /// The prefix that the decoders of each stream get first; empty if there is none.
    pub(super) prefixes: Vec<Vec<u8>>,
    /// Decoders at the start of a section, by its offset; other sections start over.
    pub(super) kept: BTreeMap<u64, Mutex<Box<dyn Unpack>>>,
    /// Uncompressed bytes.
    pub(super) size: u64,
}

impl Index {
    /// One section, whose length the user gave.
    pub(super) fn given(size: u64) -> Self {
        Self { sections: vec![Section::new(0, 0, u64::MAX)], size, ..Self::default() }
    }

    /// The uncompressed end of a section.
    pub(super) fn end(&self, section: usize) -> u64 {
        self.sections.get(section + 1).map_or(self.size, |next| next.start)
    }

    /// The section that contains `offset`.
    pub(super) fn find(&self, offset: u64) -> usize {
        self.sections.partition_point(|section| section.start <= offset).saturating_sub(1)
    }

    /// The length of the longest section, uncompressed.
    pub(super) fn longest(&self) -> u64 {
        let lens = self.sections.iter().enumerate().map(|(i, s)| self.end(i) - s.start);
        lens.max().unwrap_or(0)
    }

    /// Adds a section of `len` bytes that the stream declares.
    ///
    /// # Errors
    /// There are too many, or it is too long.
    pub(super) fn push(&mut self, section: Section, len: u64, max: u64) -> Result<()> {
        if len == 0 {
            return Ok(());
        }
        if self.sections.len() >= SECTIONS_MAX {
            return Err(corrupt("the packed stream says that it has more sections than we keep"));
        }
        self.sections.push(section);
        self.size = self
            .size
            .checked_add(len)
            .filter(|size| *size <= max)
            .ok_or_else(|| too_large(self.size.saturating_add(len), max))?;
        Ok(())
    }
}

/// Decompresses all of a stream, and notes points to resume from, at first `apart` bytes apart.
/// Blocks.
///
/// # Errors
/// The stream is broken, or longer than `max` uncompressed.
pub(super) fn count(kind: &Kind, container: &Edge, max: u64, mut apart: u64) -> Result<Index> {
    let size = container.info().size;
    let mut cursor = Cursor::new((kind.start)()?, &[], 0, size);
    let mut index = Index { sections: vec![Section::new(0, 0, size)], ..Index::default() };
    let mut output = vec![0; (256 << 10).min(usize::try_from(apart).unwrap_or(1))];
    loop {
        let needs = cursor.needs();
        let step = cursor.step(&mut output)?;
        index.size += step.made as u64;
        if index.size > max {
            return Err(too_large(index.size, max));
        }
        note(&mut index, &cursor, &mut apart);
        match needs {
            Some((offset, len)) if step.made == 0 => {
                if len == 0 && cursor.may_end() {
                    break;
                }
                if len == 0 {
                    return Err(corrupt("the packed stream ends early").at(offset));
                }
                let mut piece = device::Buffer::zeroed(len);
                container.read(&mut piece, offset)?;
                cursor.feed(piece);
            }
            _ => {}
        }
    }
    // All but the last one end in the middle.
    let last = index.sections.len().saturating_sub(1);
    for section in index.sections.iter_mut().take(last) {
        section.ends = false;
    }
    if index.sections.last().is_some_and(|section| section.start == index.size) && last > 0 {
        index.sections.pop();
    }
    Ok(index)
}

/// Notes the cursor's position, if it is far enough from the last point and decoding can resume
/// there.
fn note(index: &mut Index, cursor: &Cursor, apart: &mut u64) {
    let last = index.sections.last().map_or(0, |section| section.start);
    if index.size - last < *apart {
        return;
    }
    let kept = cursor.copy();
    if kept.is_none() && !cursor.may_end() {
        return;
    }
    let (input, end) = (cursor.position(), index.sections.first().map_or(0, |s| s.input_end));
    index.sections.push(Section::new(index.size, input, end));
    index.kept.extend(kept.map(|kept| (index.size, Mutex::new(kept))));
    if index.sections.len() > POINTS {
        let mut i = 0;
        index.sections.retain(|_| {
            i += 1;
            i % 2 == 1
        });
        let starts: BTreeSet<_> = index.sections.iter().map(|section| section.start).collect();
        index.kept.retain(|start, _| starts.contains(start));
        *apart *= 2;
    }
}
