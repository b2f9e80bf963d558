//! The body of a request: none; bytes in memory, which can be sent any number of times; or bytes
//! that come while they are sent, once.

use std::pin::Pin;
use std::sync::mpsc::Receiver;
use std::task::{Context, Poll};

use hyper::body::{Body, Bytes, Frame, SizeHint};

/// What hyper gets at once, in bytes: it copies that.
const PIECE: usize = 256 << 10;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Payload {
    /// What is here, and has not been sent.
    bytes: Bytes,
    /// What comes after that while it is sent, if there is more.
    coming: Option<Coming>,
}

/// Bytes that are made while they are sent: they cannot be sent again.
#[derive(Debug)]
struct Coming {
    pieces: Receiver<Bytes>,
    left: u64,
}

impl Payload {
    /// All of these bytes.
    pub(super) fn of(bytes: Bytes) -> Self {
        Self { bytes, coming: None }
    }

    /// `len` bytes in pieces, each of which is waited for. If they end early, so does the request.
    pub(super) fn coming(pieces: Receiver<Bytes>, len: u64) -> Self {
        Self { bytes: Bytes::new(), coming: Some(Coming { pieces, left: len }) }
    }

    /// The bytes that are here.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Bytes that are still to be sent.
    pub(super) fn len(&self) -> u64 {
        self.bytes.len() as u64 + self.coming.as_ref().map_or(0, |coming| coming.left)
    }
}

/// Its pieces ended early.
#[derive(Debug)]
pub(super) struct EndedEarly;

impl std::fmt::Display for EndedEarly {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the data to send ended early")
    }
}

impl std::error::Error for EndedEarly {}

impl Body for Payload {
    type Data = Bytes;
    type Error = EndedEarly;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, EndedEarly>>> {
        let this = self.get_mut();
        if let Some(coming) = this.coming.as_mut().filter(|_| this.bytes.is_empty()) {
            if coming.left == 0 {
                return Poll::Ready(None);
            }
            // The thread has nothing else to do: it sends these bytes, and then waits.
            match coming.pieces.recv() {
                Ok(piece) if !piece.is_empty() && piece.len() as u64 <= coming.left => {
                    coming.left -= piece.len() as u64;
                    this.bytes = piece;
                }
                _ => return Poll::Ready(Some(Err(EndedEarly))),
            }
        }
        let n = this.bytes.len().min(PIECE);
        Poll::Ready((n > 0).then(|| Ok(Frame::data(this.bytes.split_to(n)))))
    }

    fn is_end_stream(&self) -> bool {
        self.len() == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(mut payload: Payload) -> Result<Vec<u8>, EndedEarly> {
        let mut all = Vec::new();
        let mut context = Context::from_waker(std::task::Waker::noop());
        while let Poll::Ready(Some(frame)) = Pin::new(&mut payload).poll_frame(&mut context) {
            all.extend_from_slice(&frame?.into_data().unwrap());
        }
        assert!(payload.is_end_stream());
        Ok(all)
    }

    #[test]
    fn bytes_go_in_pieces_and_those_that_end_early_or_are_too_many_are_no_body() {
        assert_eq!(sent(Payload::default()).unwrap(), b"");
        let long = super::super::site::content(2 * PIECE + 7);
        assert!(sent(Payload::of(long.clone().into())).unwrap() == long);
        let coming = |pieces: &[&'static [u8]], len| {
            let (give, pieces_of) = std::sync::mpsc::channel();
            pieces.iter().for_each(|piece| give.send(Bytes::from_static(piece)).unwrap());
            Payload::coming(pieces_of, len)
        };
        assert_eq!(sent(coming(&[b"abc", b"d"], 4)).unwrap(), b"abcd");
        assert!(sent(coming(&[b"abc", b"d"], 5)).is_err());
        assert!(sent(coming(&[b"abc", b"de"], 4)).is_err());
    }
}
