//! A disk that comes as a stream: its bytes can be read once, in order, and their number is known
//! at the end. A copy needs no room for it; everything else gets it through a temporary file.

use std::time::Duration;

use device::Result;

type Read = dyn FnMut(&mut [u8], Duration) -> Result<Option<usize>> + Send;

/// Bytes to read when it only matters whether there are any.
const FIRST: usize = 64 << 10;

/// One that is open.
pub struct ByteStream {
    name: String,
    read: Box<Read>,
    /// Bytes that were read in advance.
    ahead: Option<Vec<u8>>,
}

runtime::debug_as!(ByteStream, |stream| "ByteStream({})", stream.name);

impl ByteStream {
    /// `read` is as [`ByteStream::read`].
    pub(crate) fn new(
        name: String,
        read: impl FnMut(&mut [u8], Duration) -> Result<Option<usize>> + Send + 'static,
    ) -> Self {
        Self { name, read: Box::new(read), ahead: None }
    }

    /// Its name, for people.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Waits for the first byte, or the end: the target need not be changed before.
    pub fn wait(&mut self) -> Result<()> {
        let mut first = vec![0; FIRST];
        while self.ahead.is_none() {
            if let Some(n) = (self.read)(&mut first, Duration::from_secs(1))? {
                first.truncate(n);
                self.ahead = Some(std::mem::take(&mut first));
            }
        }
        Ok(())
    }

    /// Fills the beginning of `buffer` and returns how many bytes; 0 at the end, and `None` if
    /// nothing came for this long.
    ///
    /// # Errors
    /// It cannot be read. A failure of the producer is not noticed.
    pub fn read(&mut self, buffer: &mut [u8], wait: Duration) -> Result<Option<usize>> {
        let Some(ahead) = &mut self.ahead else { return (self.read)(buffer, wait) };
        let n = ahead.len().min(buffer.len());
        let (Some(from), Some(to)) = (ahead.get(..n), buffer.get_mut(..n)) else { return Ok(None) };
        to.copy_from_slice(from);
        ahead.drain(..n);
        // Its end stays the end.
        if ahead.is_empty() && n > 0 {
            self.ahead = None;
        }
        Ok(Some(n))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_read_ahead_comes_first_and_an_end_stays_one() {
        let mut pieces = vec![b"".to_vec(), b"defg".to_vec(), b"abc".to_vec()];
        let read = move |buffer: &mut [u8], _| {
            let piece = pieces.pop().unwrap();
            buffer[..piece.len()].copy_from_slice(&piece);
            Ok(Some(piece.len()))
        };
        let mut stream = ByteStream::new("it".into(), read);
        stream.wait().unwrap();
        let mut all = Vec::new();
        let mut buffer = [0; 5];
        for n in [2, 1, 4, 0] {
            let wanted = if all.len() < 2 { 2 } else { 5 };
            let read = stream.read(&mut buffer[..wanted], Duration::ZERO).unwrap();
            assert_eq!(read, Some(n));
            all.extend_from_slice(&buffer[..n]);
        }
        assert_eq!(all, b"abcdefg");
        let mut empty = ByteStream::new("it".into(), |_: &mut [u8], _| Ok(Some(0)));
        empty.wait().unwrap();
        assert_eq!(empty.read(&mut buffer, Duration::ZERO).unwrap(), Some(0));
        assert_eq!(empty.read(&mut buffer, Duration::ZERO).unwrap(), Some(0));
    }
}
