//! The body of a request: none, or bytes in memory, which can be sent any number of times.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use hyper::body::{Body, Bytes, Frame, SizeHint};

/// What hyper gets at once, in bytes: it copies that.
const PIECE: usize = 256 << 10;

/// What has not been sent yet.
#[derive(Debug, Default)]
pub(super) struct Payload(Bytes);

impl Payload {
    /// All of these bytes.
    pub(super) fn of(bytes: Bytes) -> Self {
        Self(bytes)
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Bytes that are still to be sent.
    pub(super) fn len(&self) -> u64 {
        self.0.len() as u64
    }
}

impl Body for Payload {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let bytes = &mut self.get_mut().0;
        let n = bytes.len().min(PIECE);
        Poll::Ready((n > 0).then(|| Ok(Frame::data(bytes.split_to(n)))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_go_in_pieces_and_all_of_them() {
        for len in [0, 1, PIECE, 2 * PIECE + 7] {
            let bytes = super::super::site::content(len);
            let mut payload = Payload::of(bytes.clone().into());
            let mut all = Vec::new();
            let mut context = Context::from_waker(std::task::Waker::noop());
            while let Poll::Ready(Some(Ok(frame))) = Pin::new(&mut payload).poll_frame(&mut context)
            {
                all.extend_from_slice(&frame.into_data().unwrap());
            }
            assert!(all == bytes && payload.is_end_stream());
        }
    }
}
