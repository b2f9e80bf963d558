//! Stretches and units: the pieces into which the planner cuts the source, and which workers take.

use device::Place;

/// A range of the source of one kind. Never empty.
#[derive(Clone, Debug)]
pub(crate) struct Stretch {
    pub(crate) start: u64,
    pub(crate) len: u64,
    /// Reads as zeroes, by the map.
    pub(crate) zero: bool,
    /// The place of the data, if it is in a file.
    pub(crate) place: Option<Place>,
}

impl Stretch {
    pub(crate) fn end(&self) -> u64 {
        self.start + self.len
    }

    /// Whether `next` is data that continues this, in the source and in its file.
    pub(crate) fn goes_on(&self, next: &Self) -> bool {
        let lies_behind = match (&self.place, &next.place) {
            (Some(mine), Some(its)) => mine.goes_on(self.len, its),
            _ => false,
        };
        !self.zero && !next.zero && self.end() == next.start && lies_behind
    }

    /// Cuts off and returns the first `len` bytes. `len` is less than all.
    pub(crate) fn split(&mut self, len: u64) -> Self {
        let first = Self { len, ..self.clone() };
        self.place = self.place.as_ref().map(|p| p.advanced(len));
        self.start += len;
        self.len -= len;
        first
    }
}

/// What a worker takes at a time: adjoining stretches.
#[derive(Debug)]
pub(crate) struct Unit {
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) stretches: Vec<Stretch>,
    /// Its last stretch is not cut because it is to be shared; if it cannot be, it comes back in
    /// pieces.
    pub(crate) may_return: bool,
}
