//! What signs a request: the one contract between requests over HTTP and schemes that prove,
//! request by request, who asks.
//!
//! A signer gets each request when everything else is in it, for every try anew, since a signature
//! is good for a while only. It is asked for requests to the origin that was named alone: no
//! signature goes anywhere else, wherever a redirect leads.

use std::fmt::Debug;

use device::Result;
use hyper::{Request, StatusCode};

use super::payload::Payload;
use super::url::Url;

/// See the module.
pub(super) trait Signer: Debug + Send + Sync {
    /// Adds what proves who asks to a request for `url`.
    ///
    /// # Errors
    /// There is nothing to sign with.
    fn sign(&self, request: &mut Request<Payload>, url: &Url) -> Result<()>;

    /// A signature was refused: makes it fetch again what it signs with. Returns whether that may
    /// help.
    fn renew(&self) -> bool;

    /// What a refusal means, where its headers or the beginning of its body tell more than its
    /// status.
    fn explain(
        &self,
        status: StatusCode,
        headers: &hyper::HeaderMap,
        body: &[u8],
    ) -> Option<String>;
}
