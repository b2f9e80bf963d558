//! The numbered conformance checks, as far as they can be made without a socket.
//!
//! `server_check_NN_…` and `client_check_NN_…` carry the numbers of the project's checklist. What
//! the program shows over sockets too is stated once, in `blackbox::conformance`. Bytes are written
//! and read by hand, independently of the crate's own codec, so that a mistake in one is not hidden
//! by the same mistake in the other.

mod bytes;
mod client_handshake;
mod client_replies;
mod client_requests;
mod client_server;
mod model;
mod server;

use blackbox::listed::{OF_BYTES, missing};

/// The checks that need sockets, clocks, disks or TLS, which are tested elsewhere.
#[test]
fn every_check_that_needs_no_socket_has_a_test() {
    let (clocks_and_sockets, tls) = ([10, 36, 75, 76], [45]);
    let (disks, connections) = ([66, 67], [90]);
    let mut elsewhere = [&clocks_and_sockets[..], &tls, &disks, &connections].concat();
    elsewhere.sort_unstable();
    assert_eq!(missing("server", 1..=91, &OF_BYTES), elsewhere);
    assert_eq!(missing("client", 1..=40, &OF_BYTES), [39]);
}
