//! `compare --picture`: where two disks differ, all of it, and not only the first byte.
//!
//! What is zero in both maps is not read. A disk that ends sooner counts as zeroes from there on.

use device::{Edge, Error, Extent, ExtentKind};

use super::{DIFFER, NO_MAP, NOT_READ};
use crate::failure::{ExitResult, Failure};
use crate::image::size_for_people;
use crate::map::Picture;
use crate::output;
use crate::progress::has_blocks;

/// Bytes that are read of both at a time, and in which a difference is told.
const STEP: u64 = 4 << 20;
const BLOCK: usize = 512;

/// Compares all of both, and draws where they differ, as a document for a page or as characters.
pub(super) fn draw((first, second): (&Edge, &Edge), svg: bool) -> ExitResult {
    let size = first.info().size.max(second.info().size);
    let mut picture = Picture::new((0, size), ("differs", "is the same"));
    let (mut differs, mut stretches, mut end) = (0, 0u64, None);
    each_difference((End::of(first), End::of(second)), size, |at, len| {
        picture.mark(at, len);
        differs += len;
        stretches += u64::from(end != Some(at));
        end = Some(at + len);
    })?;
    let code = if differs > 0 { DIFFER } else { 0 };
    output::verdict(code, |out| {
        if svg {
            let names = format!("{} and {}", first.info().name, second.info().name);
            return picture.svg(&names, out);
        }
        picture.print(has_blocks(), out)?;
        match stretches {
            0 => writeln!(out, "Images are identical."),
            1 => writeln!(out, "One stretch differs, of {}.", size_for_people(differs)),
            n => writeln!(out, "{n} stretches differ, of {} in all.", size_for_people(differs)),
        }
    })
}

/// One of the disks, with the end of what its map said last.
struct End<'a> {
    disk: &'a Edge,
    size: u64,
    known: Option<Extent>,
}

impl<'a> End<'a> {
    fn of(disk: &'a Edge) -> Self {
        Self { disk, size: disk.info().size, known: None }
    }

    /// Until where it reads as zeroes from `at` on, by its map; `at`: it may not.
    fn zero_until(&mut self, at: u64, end: u64) -> Result<u64, Failure> {
        if at >= self.size {
            return Ok(end);
        }
        if !self.disk.info().abilities.extents {
            return Ok(at);
        }
        if self.known.as_ref().is_none_or(|known| at < known.start || known.end() <= at) {
            let mut found = Vec::new();
            let asked = self.disk.resolve(at, self.size - at, 1, &mut found);
            asked.map_err(|e| self.failure(&e.at(at), NO_MAP))?;
            let unknown = || Extent::new(at, self.size - at, ExtentKind::Data);
            self.known = Some(found.into_iter().next().unwrap_or_else(unknown));
        }
        let zero = self.known.as_ref().filter(|known| known.kind.reads_zero());
        Ok(zero.map_or(at, Extent::end))
    }

    /// Fills `buffer` from `at` on.
    fn read(&self, buffer: &mut [u8], at: u64) -> Result<(), Failure> {
        let there = runtime::to_usize(self.size.saturating_sub(at)).min(buffer.len());
        let (bytes, rest) = buffer.split_at_mut(there);
        rest.fill(0);
        if bytes.is_empty() {
            return Ok(());
        }
        self.disk.read(bytes, at).map_err(|e| self.failure(&e.at(at), NOT_READ))
    }

    fn failure(&self, e: &Error, code: u8) -> Failure {
        Failure::new(format!("{}: {e}", self.disk.info().name)).with_code(code)
    }
}

/// Calls `each` with the first byte and the bytes of all blocks that differ, in order.
fn each_difference(
    (mut first, mut second): (End<'_>, End<'_>),
    size: u64,
    mut each: impl FnMut(u64, u64),
) -> Result<(), Failure> {
    let (mut one, mut other) = (Vec::new(), Vec::new());
    let mut at = 0;
    while at < size {
        let zero = first.zero_until(at, size)?.min(second.zero_until(at, size)?);
        if zero > at {
            at = zero;
            continue;
        }
        let len = runtime::to_usize(STEP.min(size - at));
        one.resize(len, 0);
        other.resize(len, 0);
        std::thread::scope(|scope| {
            let reading = scope.spawn(|| second.read(&mut other, at));
            let read = first.read(&mut one, at);
            let beside = reading.join().unwrap_or_else(|_| Err(Failure::new("a read panicked")));
            read.and(beside)
        })?;
        if one != other {
            for (start, (mine, its)) in
                (at..).step_by(BLOCK).zip(one.chunks(BLOCK).zip(other.chunks(BLOCK)))
            {
                if mine != its {
                    each(start, mine.len() as u64);
                }
            }
        }
        at += len as u64;
    }
    Ok(())
}
