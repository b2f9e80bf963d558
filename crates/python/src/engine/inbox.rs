//! Bytes that were received and not yet parsed: the ends of headers, and small payloads.

/// How many bytes are received ahead of need. A longer payload goes into its buffer directly.
const ROOM: usize = 64 << 10;

#[derive(Debug, Default)]
pub(super) struct Inbox {
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
}

impl Inbox {
    pub(super) fn filled(&self) -> &[u8] {
        self.bytes.get(self.start..self.end).unwrap_or_default()
    }

    pub(super) const fn len(&self) -> usize {
        self.end - self.start
    }

    /// Room behind the bytes that are there. Its memory is allocated when it is first needed.
    pub(super) fn room(&mut self) -> &mut [u8] {
        if self.bytes.is_empty() {
            self.bytes = vec![0; ROOM].into();
        }
        if self.start > 0 {
            self.bytes.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        self.bytes.get_mut(self.end..).unwrap_or_default()
    }

    /// This many bytes were put there.
    pub(super) fn came(&mut self, count: usize) {
        self.end = self.bytes.len().min(self.end + count);
    }

    /// The first bytes were parsed.
    pub(super) fn take(&mut self, count: usize) {
        self.start = self.end.min(self.start + count);
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}
