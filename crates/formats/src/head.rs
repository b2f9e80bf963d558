//! The first and last bytes of a container, which identify a format.

use device::{Edge, Result};

/// Bytes to read at the beginning and at the end.
const LOOKED_AT: u64 = 64 << 10;
const LAST: u64 = 1024;

/// The beginning and the end of a container.
#[derive(Debug)]
pub struct Head {
    first: Vec<u8>,
    last: Vec<u8>,
}

impl Head {
    /// Reads them.
    pub fn of(container: &Edge) -> Result<Self> {
        let size = container.info().size;
        let read = |offset: u64, len: u64| {
            let mut bytes = vec![0; usize::try_from(len).unwrap_or(0)];
            container.read(&mut bytes, offset).map(|()| bytes)
        };
        let last = LAST.min(size);
        Ok(Self { first: read(0, LOOKED_AT.min(size))?, last: read(size - last, last)? })
    }

    /// Reads only the beginning, for a container that is read in order.
    pub fn beginning(container: &Edge) -> Result<Self> {
        let len = LOOKED_AT.min(container.info().size);
        let mut first = vec![0; usize::try_from(len).unwrap_or(0)];
        container.read(&mut first, 0)?;
        Ok(Self { first, last: Vec::new() })
    }

    /// The first bytes: 64 KiB, or all there are.
    #[must_use]
    pub fn first(&self) -> &[u8] {
        &self.first
    }

    /// The last bytes: 1 KiB, or all there are; none if only the beginning was read.
    #[must_use]
    pub fn last(&self) -> &[u8] {
        &self.last
    }

    /// Whether the container has `bytes` at `offset`.
    #[must_use]
    pub fn has(&self, offset: usize, bytes: &[u8]) -> bool {
        self.first.get(offset..).is_some_and(|rest| rest.starts_with(bytes))
    }
}
