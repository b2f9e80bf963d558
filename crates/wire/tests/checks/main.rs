//! The numbered conformance checks, as far as they can be made without a socket.
//!
//! `server_check_NN_…` and `client_check_NN_…` carry the numbers of the project's checklist. Bytes
//! are written and read here by hand, independently of the crate's own codec, so that a mistake in
//! one is not hidden by the same mistake in the other.

mod bytes;
mod client_handshake;
mod client_replies;
mod client_requests;
mod client_server;
mod model;
mod server_handshake;
mod server_requests;
mod server_status;
mod server_tls;
