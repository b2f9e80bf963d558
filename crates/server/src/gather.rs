//! Small replies of one turn of a connection, gathered so that one call sends them all.

use std::sync::Arc;

use device::Buffer;

use crate::link::{Link, Out};

/// So many replies are sent together, at most, while requests are taken: the client reads them, and
/// asks for more, while the next ones are answered.
const PORTION: usize = 8;

/// Small replies of one turn, gathered in a buffer that is used again and again.
#[derive(Debug)]
pub(crate) struct Gather {
    buffer: Buffer,
    used: usize,
    /// How many replies these are.
    replies: usize,
    header: Vec<u8>,
}

impl Gather {
    pub(crate) fn new(capacity: usize) -> Self {
        let buffer = Buffer::zeroed(capacity);
        Self { buffer, used: 0, replies: 0, header: Vec::with_capacity(256) }
    }

    /// Sends what is gathered.
    pub(crate) fn flush(&mut self, link: &Arc<Link>) {
        if self.used > 0 {
            self.put_pieces(link, []);
        }
    }

    /// Sends what is gathered, if it is a portion. Not under TLS, where it would be records of its
    /// own.
    pub(crate) fn flush_portion(&mut self, link: &Arc<Link>) {
        if self.replies >= PORTION && !link.stream().is_secure() {
            self.flush(link);
        }
    }

    /// Room for `len` more bytes, made by sending if need be.
    pub(crate) fn room(&mut self, link: &Arc<Link>, len: usize) -> Option<&mut [u8]> {
        if len > self.buffer.len() - self.used {
            self.flush(link);
        }
        self.buffer.get_mut(self.used..self.used + len)
    }

    /// Appends what `write` encodes.
    pub(crate) fn put(&mut self, link: &Arc<Link>, write: impl FnOnce(&mut Vec<u8>)) {
        self.header.clear();
        write(&mut self.header);
        let header = std::mem::take(&mut self.header);
        match self.room(link, header.len()) {
            Some(room) => {
                room.copy_from_slice(&header);
                self.used += header.len();
                self.replies += 1;
            }
            // Longer than the whole buffer, which is empty now.
            None => link.send_with(&header, []),
        }
        self.header = header;
    }

    /// How many bytes are gathered.
    pub(crate) fn len(&self) -> usize {
        self.used
    }

    /// Forgets what is gathered.
    pub(crate) fn clear(&mut self) {
        (self.used, self.replies) = (0, 0);
    }

    /// Appends `len` bytes that `fill` provides, behind a header of `header_len` bytes that `write`
    /// encodes once they are there. Nothing is appended if they cannot be had without waiting.
    ///
    /// # Errors
    /// Those of `fill`; nothing is appended.
    pub(crate) fn put_filled<E>(
        &mut self,
        link: &Arc<Link>,
        (header_len, write): (usize, impl FnOnce(&mut Vec<u8>)),
        len: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<bool, E>,
    ) -> Result<bool, E> {
        let mut header = std::mem::take(&mut self.header);
        let filled = self.room(link, header_len + len).map_or(Ok(false), |room| {
            let (before, bytes) = room.split_at_mut(header_len);
            let filled = fill(bytes)?;
            if filled {
                header.clear();
                write(&mut header);
                before.copy_from_slice(&header);
            }
            Ok(filled)
        });
        self.header = header;
        if let Ok(true) = filled {
            self.used += header_len + len;
            self.replies += 1;
        }
        filled
    }

    /// Sends what is gathered and then `pieces`, together where the socket allows, and with
    /// no other request's reply between.
    pub(crate) fn put_pieces(&mut self, link: &Arc<Link>, pieces: impl IntoIterator<Item = Out>) {
        link.send_with(self.buffer.get(..self.used).unwrap_or_default(), pieces);
        self.clear();
    }
}
