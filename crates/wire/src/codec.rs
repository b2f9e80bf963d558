//! Reading and writing big-endian fields. Reading never panics: what is missing is `None`.

/// A cursor over received bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(crate) const fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*head)
    }

    pub(crate) fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_be_bytes)
    }

    pub(crate) fn bytes(&mut self, len: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(head)
    }

    /// A string preceded by its length in 32 bits.
    pub(crate) fn counted(&mut self) -> Option<&'a [u8]> {
        let len = usize::try_from(self.u32()?).ok()?;
        self.bytes(len)
    }

    pub(crate) const fn rest(self) -> &'a [u8] {
        self.0
    }

    pub(crate) const fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

pub(crate) fn put_u16(out: &mut Vec<u8>, value: u16) {
    out.extend_from_slice(&value.to_be_bytes());
}

pub(crate) fn put_u32(out: &mut Vec<u8>, value: u32) {
    out.extend_from_slice(&value.to_be_bytes());
}

pub(crate) fn put_u64(out: &mut Vec<u8>, value: u64) {
    out.extend_from_slice(&value.to_be_bytes());
}

/// A string preceded by its length in 32 bits. Callers keep strings within
/// [`crate::constants::MAX_STRING`]; a longer one is cut, so that the length is always true.
pub(crate) fn put_counted(out: &mut Vec<u8>, text: &str) {
    let text = clipped(text, crate::constants::MAX_STRING);
    put_u32(out, len32(text.len()));
    out.extend_from_slice(text.as_bytes());
}

/// The longest prefix of at most `limit` bytes that ends between characters.
pub(crate) fn clipped(text: &str, limit: usize) -> &str {
    if text.len() <= limit {
        return text;
    }
    let mut end = limit;
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.get(..end).unwrap_or_default()
}

/// A length that is known to be small, as 32 bits.
pub(crate) fn len32(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}

/// A length in memory, as 64 bits.
pub(crate) const fn len64(len: usize) -> u64 {
    len as u64
}

/// A received string: UTF-8 without NUL.
pub(crate) fn text(bytes: &[u8]) -> Option<&str> {
    let text = std::str::from_utf8(bytes).ok()?;
    (!text.contains('\0')).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reading_past_the_end_is_none_and_moves_nothing() {
        let mut reader = Reader::new(&[0, 1, 2]);
        assert_eq!(reader.u32(), None);
        assert_eq!(reader.u16(), Some(1));
        assert_eq!(reader.bytes(2), None);
        assert_eq!(reader.rest(), &[2]);
    }

    #[test]
    fn clipping_never_cuts_a_character() {
        assert_eq!(clipped("aé", 2), "a");
        assert_eq!(clipped("aé", 3), "aé");
    }
}
