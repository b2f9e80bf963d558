//! Reading what the kernel, or a front end, sends, and writing what it is sent: numbers in the
//! machine's own order.

/// Reads numbers one after the other; nothing beyond the end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fields<'a>(pub(crate) &'a [u8]);

impl<'a> Fields<'a> {
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*first)
    }

    pub(crate) fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_ne_bytes)
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_ne_bytes)
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_ne_bytes)
    }

    /// What has not been read.
    pub(crate) fn rest(self) -> &'a [u8] {
        self.0
    }
}

/// Puts a message together, likewise.
#[derive(Debug, Default)]
pub(crate) struct FieldBytes(pub(crate) Vec<u8>);

impl FieldBytes {
    pub(crate) fn u16(mut self, n: u16) -> Self {
        self.0.extend_from_slice(&n.to_ne_bytes());
        self
    }

    pub(crate) fn u32(mut self, n: u32) -> Self {
        self.0.extend_from_slice(&n.to_ne_bytes());
        self
    }

    pub(crate) fn u64(mut self, n: u64) -> Self {
        self.0.extend_from_slice(&n.to_ne_bytes());
        self
    }

    pub(crate) fn zeroes(mut self, n: usize) -> Self {
        self.0.resize(self.0.len() + n, 0);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_end_where_the_bytes_end() {
        let mut fields = Fields(&[1, 0, 0, 0, 2, 0, 0]);
        assert_eq!((fields.u32(), fields.u32(), fields.u64()), (Some(1), None, None));
        assert_eq!((fields.u16(), fields.rest()), (Some(2), &[0][..]));
    }
}
